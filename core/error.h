// The error types of the library, and `fail`, which formats and throws one of them.
//
// Every message says what was expected, what came, and what to do. The library reports errors only
// by throwing these types. It prints and ends the process in one case, when no caller is left to
// catch an exception: a rank of an MPI job that reaches its exit while other ranks are missing
// prints one line to stderr and calls MPI_Abort (distributed/backends/mpi/library.cpp).
//
// Only `fail` needs fmt, of version 9 or later. No other public header names it, so that a program
// may have none or one of its own.
#pragma once

#if __cplusplus < 202002L
#error "tutti needs C++20: compile with -std=c++20, or link the CMake target tutti::tutti"
#endif

#if __has_include(<fmt/core.h>)
#include <fmt/core.h>
#if FMT_VERSION >= 110000  // fmt/core.h, which compiles faster, has no fmt::format any more
#include <fmt/format.h>
#endif
#endif

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace tutti {

/// Error is the base class of every error that the library throws on purpose.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A ValueError reports an argument outside its legal range: a negative eps, zero channels, an
/// unknown name.
struct ValueError : Error {
  using Error::Error;
};

/// A ShapeError reports shapes that do not fit together, or a size that overflows 64 bits.
struct ShapeError : Error {
  using Error::Error;
};

/// A DTypeError reports a dtype that the operation or the device cannot compute in.
struct DTypeError : Error {
  using Error::Error;
};

/// A DeviceError reports a device that is absent, not built in, or not the device of the other
/// arguments.
struct DeviceError : Error {
  using Error::Error;
};

/// An OutOfMemoryError reports that the CPU has no memory for a tensor or for a library's work. A
/// device without memory is a DeviceError.
struct OutOfMemoryError : Error {
  using Error::Error;
};

/// A CheckpointError reports a file that is not a valid checkpoint, or a state dict that does not
/// fit the object it is loaded into.
struct CheckpointError : Error {
  using Error::Error;
};

/// A FileError reports a file that the system could not write (a full disk, no permission, a
/// missing folder, or something in its place that is not a regular file), or a data file that it
/// cannot read at the moment (no free descriptor, a disk that fails). The message names the file
/// and the reason.
struct FileError : Error {
  using Error::Error;
};

/// A DataError reports input data that cannot be used: a file that is missing, truncated or not an
/// image, or a sample that does not fit its batch. The message names the file or the sample.
struct DataError : Error {
  using Error::Error;
};

/// CollectiveInfo says which collective failed and where. A field that is not known is -1 or empty.
struct CollectiveInfo {
  int rank = -1;
  int world_size = -1;
  std::string operation;       ///< "all_reduce", "broadcast", ...
  std::int64_t sequence = -1;  ///< the number of the collective in its group, counted from 1
  std::string name;            ///< the layer or bucket that the collective served
};

/// A DistributedError reports a collective that failed. Its message contains everything in
/// `info()`.
class DistributedError : public Error {
 public:
  explicit DistributedError(const std::string& message, CollectiveInfo info = {})
      : Error(message), info_(std::move(info)) {}
  const CollectiveInfo& info() const noexcept { return info_; }

 private:
  CollectiveInfo info_;
};

/// A TimeoutError reports that another rank did not arrive before the deadline.
struct TimeoutError : DistributedError {
  using DistributedError::DistributedError;
};

#if FMT_VERSION >= 90000
/// Throws an E whose message is the formatted text.
template <class E = Error, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw E(fmt::format(text, std::forward<Args>(args)...));
}
#endif

}  // namespace tutti
