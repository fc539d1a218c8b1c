#include "device.h"

#include "error.h"

#include <charconv>

namespace tutti {

Device Device::from_string(const std::string& text) {
  if (text == "cpu") return cpu();
  if (text == "cuda") return cuda();
  if (text.rfind("cuda:", 0) == 0) {
    int index = -1;
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data() + 5, last, index);
    if (error == std::errc{} && end == last && index >= 0) return cuda(index);
  }
  fail<ValueError>("unknown device '{}': expected cpu, cuda or cuda:INDEX", text);
}

std::string to_string(Device device) {
  return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index());
}

}  // namespace tutti
