// Source and Sink: how a block of any dtype and stride becomes a dense array of the type that
// kernels compute in, and back. Dense operands of that very type are used where they lie;
// everything else goes through a buffer in the L1 cache, so that an operation is compiled once for
// each compute type and only for dense arrays, which vectorise.
#pragma once

#include "walk.h"

namespace tutti::kernels::cpu {

/// What elements of a dtype are computed in.
template <class T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<BFloat16> {
  using type = float;
};
template <>
struct ComputeOf<Float16> {
  using type = float;
};
template <>
struct ComputeOf<std::uint8_t> {
  using type = std::int64_t;
};
template <>
struct ComputeOf<bool> {
  using type = std::int64_t;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

/// The types that Source and Sink exist for.
using ComputeTypes = Types<float, double, std::int64_t>;

/// C(value), without a detour that would lose bits; to bool: is it not zero.
template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) return value;
  else if constexpr (std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>)
    return convert<To>(static_cast<float>(value));
  else if constexpr (std::is_same_v<To, bool>) return value != From(0);
  else if constexpr (std::is_same_v<To, BFloat16> || std::is_same_v<To, Float16>)
    return To(static_cast<float>(value));
  else return static_cast<To>(value);
}

/// A buffer for one block.
template <class C>
using Buffer = std::array<C, static_cast<std::size_t>(Block::max_count)>;

/// Operand `k` of a walk, read as C.
template <class C>
class Source {
 public:
  Source(const Tensor& x, int k);
  bool is_direct(const Block& block) const { return same_type_ && block.step[k_] == 1; }
  /// The elements of the block: in place, or converted into `buffer`.
  const C* read(const Block& block, C* buffer) const {
    if (is_direct(block)) return reinterpret_cast<const C*>(base_) + block.at[k_];
    load_(base_, block.at[k_], block.step[k_], buffer, block.count);
    return buffer;
  }

 private:
  using Load = void (*)(const char* base, std::int64_t at, std::int64_t step, C* to,
                        std::int64_t count);
  const char* base_;
  std::size_t k_;
  bool same_type_;
  Load load_;
};

/// The output (operand 0) of a walk, written as C.
template <class C>
class Sink {
 public:
  explicit Sink(const Tensor& x);
  bool is_direct(const Block& block) const { return same_type_ && block.step[0] == 1; }
  /// Where to write the block: in place, or `buffer`, which `write` then converts.
  C* place(const Block& block, C* buffer) const {
    return is_direct(block) ? reinterpret_cast<C*>(base_) + block.at[0] : buffer;
  }
  void write(const Block& block, const C* values) const {
    if (!is_direct(block)) store_(values, base_, block.at[0], block.step[0], block.count);
  }

 private:
  using Store = void (*)(const C* values, char* base, std::int64_t at, std::int64_t step,
                         std::int64_t count);
  char* base_;
  bool same_type_;
  Store store_;
};

}  // namespace tutti::kernels::cpu
