// Hash64: the one hash function of the library, FNV-1a with 64 bits, fed piece by piece. Its value
// is the same on every machine and in every build, so ranks may compare it. It finds accidental
// differences; it gives no protection against inputs that are made to collide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tutti {

/// Computes a hash of everything that is added, in its order.
class Hash64 {
 public:
  /// Adds the characters one by one, which is FNV-1a as published.
  Hash64& add(std::string_view text) {
    for (const char c : text) step(static_cast<unsigned char>(c));
    return *this;
  }

  /// Adds 64 bits in one step. The step multiplies, which carries bits upwards only; the upper ones
  /// are therefore folded into the lower ones afterwards.
  Hash64& add(std::uint64_t word) {
    step(word);
    value_ ^= value_ >> 29;
    return *this;
  }

  /// Adds `bytes` bytes of memory, eight at a time; zeros fill the last eight.
  Hash64& add(const void* data, std::size_t bytes) {
    const auto* next = static_cast<const unsigned char*>(data);
    while (bytes > 0) {
      std::uint64_t word = 0;
      const std::size_t n = bytes < sizeof(word) ? bytes : sizeof(word);
      std::memcpy(&word, next, n);
      add(word);
      next += n;
      bytes -= n;
    }
    return *this;
  }

  /// Returns the hash.
  std::uint64_t value() const { return value_; }

 private:
  void step(std::uint64_t input) { value_ = (value_ ^ input) * 0x100000001b3u; }

  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace tutti
