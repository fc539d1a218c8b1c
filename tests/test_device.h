// The device that a suite runs on. It is the CPU unless the main function of the GPU tests
// (tests/gpu/main.cpp) sets another one.
#pragma once

#include <tutti/core/cuda/runtime.h>
#include <tutti/core/dtype.h>

#include <atomic>
#include <vector>

namespace tutti::test {

/// The device under test.
inline Device& test_device() {
  static Device device = Device::cpu();
  return device;
}

/// `more` and the dtypes that the device trains in. The CPU has no float16 kernels.
inline std::vector<DType> trained_dtypes(std::vector<DType> more = {}) {
  more.insert(more.end(), {float32, float64, bfloat16});
  if (test_device().is_cuda()) more.push_back(float16);
  return more;
}

/// True in the emulator, where CUDA threads are slow. Tests with many shapes leave some large ones
/// out.
inline bool emulated() {
  return test_device().is_cuda() &&
         cuda::properties(test_device().index()).name.find("emulator") != std::string::npos;
}

/// Turns a switch of cuda::settings() on, and back when it is destroyed.
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

}  // namespace tutti::test
