#include "device.h"

#include "error.h"
#include "parse_number.h"

namespace tutti {

Device Device::from_string(const std::string& text) {
  if (text == "cpu") return cpu();
  if (text == "cuda") return cuda();
  if (text.starts_with("cuda:"))
    if (const auto index = parse_number(text.substr(5), 0)) return cuda(*index);
  fail<ValueError>("unknown device '{}': expected cpu, cuda or cuda:INDEX", text);
}

std::string to_string(Device device) {
  return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index());
}

}  // namespace tutti
