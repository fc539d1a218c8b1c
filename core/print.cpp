// Prints a tensor: nested brackets with at most six entries for each dimension, then its shape,
// dtype and device.
#include "create.h"

#include <ostream>

namespace tutti {
namespace {

constexpr std::int64_t edge_items = 3;  // entries shown at each end of a dimension

// Appends dimension `dim` and those after it. `first` is the row-major index of their first value.
void print(std::string& text, const std::vector<double>& values, const Tensor& tensor, int dim,
           std::int64_t first) {
  if (dim == tensor.rank()) {
    text +=
        is_floating(tensor.dtype())
            ? fmt::format("{:.4g}", values[static_cast<std::size_t>(first)])
            : fmt::format("{}", static_cast<std::int64_t>(values[static_cast<std::size_t>(first)]));
    return;
  }
  const std::int64_t size = tensor.shape()[dim],
                     inner = product(tensor.shape(), dim + 1, tensor.rank());
  text += '[';
  for (std::int64_t i = 0; i < size; ++i) {
    if (i)
      text += dim + 1 < tensor.rank() ? ",\n" + std::string(static_cast<std::size_t>(dim) + 1, ' ')
                                      : ", ";
    if (size > 2 * edge_items && i == edge_items) {
      text += "..., ";
      i = size - edge_items;
    }
    print(text, values, tensor, dim + 1, first + i * inner);
  }
  text += ']';
}

}  // namespace

std::string Tensor::to_string() const {
  if (!defined()) return "tensor(undefined)";
  std::string text = "tensor(";
  print(text, to_vector(*this), *this, 0, 0);
  text += fmt::format(", shape={}, dtype={}", tutti::to_string(shape()), tutti::to_string(dtype()));
  if (!device().is_cpu()) text += fmt::format(", device={}", tutti::to_string(device()));
  return text + ")";
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  return out << tensor.to_string();
}

}  // namespace tutti
