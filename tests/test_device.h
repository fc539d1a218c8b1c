// Which device a suite runs on: the CPU, or what the main() of the GPU tests (tests/gpu/main.cpp)
// sets.
#pragma once

#include <tutti/core/cuda/runtime.h>
#include <tutti/core/dtype.h>

#include <atomic>
#include <vector>

namespace tutti::testing {

inline Device& test_device() {
  static Device device = Device::cpu();
  return device;
}

/// The dtypes that the device trains in, and `more`. The CPU has no float16 kernels.
inline std::vector<DType> trained_dtypes(std::vector<DType> more = {}) {
  more.insert(more.end(), {float32, float64, bfloat16});
  if (test_device().is_cuda()) more.push_back(float16);
  return more;
}

/// Where every CUDA thread costs the CPU time: tests with many shapes leave out some large ones.
inline bool emulated() {
  return test_device().is_cuda() &&
         cuda::properties(test_device().index()).name.find("emulator") != std::string::npos;
}

/// Turns a switch of cuda::settings() on and puts it back.
class Switch {
 public:
  explicit Switch(std::atomic<bool>& flag) : flag_(flag), before_(flag.exchange(true)) {}
  ~Switch() { flag_ = before_; }
  Switch(const Switch&) = delete;
  Switch& operator=(const Switch&) = delete;

 private:
  std::atomic<bool>& flag_;
  bool before_;
};

}  // namespace tutti::testing
