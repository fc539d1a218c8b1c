// Device says where a tensor's bytes are and where its operations run. It is a plain value: naming
// a CUDA device is always legal. Using one that does not exist throws a DeviceError that says why
// (see core/cuda/runtime.h).
#pragma once

#include <string>

namespace tutti {

/// The kinds of devices.
enum class DeviceType { cpu, cuda };

/// The CPU, or a CUDA device by its index.
class Device {
 public:
  Device() = default;
  static Device cpu() { return {}; }
  static Device cuda(int index = 0) { return Device(DeviceType::cuda, index); }
  /// Parses "cpu", "cuda" or "cuda:1". Throws a ValueError for anything else.
  static Device from_string(const std::string& text);

  DeviceType type() const { return type_; }
  int index() const { return index_; }
  bool is_cpu() const { return type_ == DeviceType::cpu; }
  bool is_cuda() const { return type_ == DeviceType::cuda; }
  bool operator==(const Device&) const = default;

 private:
  Device(DeviceType type, int index) : type_(type), index_(index) {}
  DeviceType type_ = DeviceType::cpu;
  int index_ = 0;
};

/// Returns "cpu" or "cuda:0".
std::string to_string(Device device);

}  // namespace tutti
