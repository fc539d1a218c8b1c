// Prints a tensor: nested brackets with at most six entries for each dimension, then its shape,
// dtype and device.
#include "tensor.h"

#include <ostream>

namespace tutti {
namespace {

constexpr std::int64_t edge_items = 3;  // entries shown at each end of a dimension

// Appends a tensor whose values begin `depth` brackets deep. It copies only what it shows from the
// tensor's device.
void print(std::string& text, const Tensor& tensor, int depth) {
  if (tensor.rank() == 0) {
    text += is_floating(tensor.dtype()) ? fmt::format("{:.4g}", tensor.item<double>())
                                        : fmt::format("{}", tensor.item<std::int64_t>());
    return;
  }
  const std::int64_t size = tensor.shape()[0];
  text += '[';
  for (std::int64_t i = 0; i < size; ++i) {
    if (i)
      text += tensor.rank() > 1 ? ",\n" + std::string(static_cast<std::size_t>(depth) + 1, ' ')
                                : ", ";
    if (size > 2 * edge_items && i == edge_items) {
      text += "..., ";
      i = size - edge_items;
    }
    print(text, tensor.select(0, i), depth + 1);
  }
  text += ']';
}

}  // namespace

std::string Tensor::to_string() const {
  if (!defined()) return "tensor(undefined)";
  std::string text = "tensor(";
  print(text, detach(), 0);
  text += fmt::format(", shape={}, dtype={}", tutti::to_string(shape()), tutti::to_string(dtype()));
  if (!device().is_cpu()) text += fmt::format(", device={}", tutti::to_string(device()));
  return text + ")";
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  return out << tensor.to_string();
}

}  // namespace tutti
