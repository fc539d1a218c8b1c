// The error types of the library and `fail`, the one way it raises them.
//
// Every message says what was expected, what came, and what to do. The library never prints and
// never exits: it throws one of these. Formatting lives here so that no other header needs to
// include fmt.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace tutti {

/// Base of every error that the library raises on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument outside its legal range: a negative eps, zero channels, an unknown name.
class ValueError : public Error {
 public:
  using Error::Error;
};

/// Shapes that do not fit together, or a size that overflows 64 bits.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// A dtype that the operation or the device cannot compute in.
class DTypeError : public Error {
 public:
  using Error::Error;
};

/// A device that is absent, not built in, or different from the other operands'.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A file that is not what it should be, or a state dict that does not fit the object it is loaded
/// into.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// Where a collective stood when it failed. Fields that are not known are -1 or empty.
struct CollectiveInfo {
  int rank = -1;
  int world_size = -1;
  std::string operation;       ///< "all_reduce", "broadcast", ...
  std::int64_t sequence = -1;  ///< the how-manieth collective of its group, from 1
  std::string name;            ///< what it was for: a layer or a bucket
};

/// A collective that failed. The message already contains everything in `info()`.
class DistributedError : public Error {
 public:
  explicit DistributedError(const std::string& message, CollectiveInfo info = {})
      : Error(message), info_(std::move(info)) {}
  const CollectiveInfo& info() const noexcept { return info_; }

 private:
  CollectiveInfo info_;
};

/// A wait that reached its deadline: a rank that never came.
class TimeoutError : public DistributedError {
 public:
  using DistributedError::DistributedError;
};

/// Throws an E whose message is the formatted text.
template <class E = Error, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw E(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace tutti
