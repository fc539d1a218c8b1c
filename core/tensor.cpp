#include "tensor.h"

#include <algorithm>
#include <cmath>
#include <ostream>
#include <utility>

namespace tutti {

struct TensorImpl {
  std::shared_ptr<Storage> storage;
  Shape shape;
  Strides strides;
  std::int64_t offset = 0;
  std::int64_t numel = 0;
  DType dtype = DType::float32;
  std::shared_ptr<autograd::Meta> meta;
};

namespace {

// Compares strides, but not those of dimensions of size 1, which do not matter.
bool same_strides(const Shape& shape, const Strides& a, const Strides& b) {
  for (int i = 0; i < shape.size(); ++i)
    if (shape[i] != 1 && a[i] != b[i]) return false;
  return true;
}

void expect_inside(const Storage& storage, const Shape& shape, const Strides& strides,
                   std::int64_t offset, DType dtype) {
  const std::int64_t spanned = spanned_elements(shape, strides);
  if (spanned == 0) return;
  std::int64_t end = 0;
  if (__builtin_add_overflow(offset, spanned, &end))
    fail<ShapeError>("view of shape {} with strides {} and offset {} overflows 64 bits",
                     to_string(shape), to_string(strides), offset);
  const std::size_t available = storage.bytes() / size_of(dtype);
  if (static_cast<std::size_t>(end) > available)
    fail<ShapeError>(
        "view of shape {} with strides {} and offset {} needs {} elements of {}, the storage holds "
        "{}",
        to_string(shape), to_string(strides), offset, end, to_string(dtype), available);
}

}  // namespace

Tensor::Tensor(std::shared_ptr<Storage> storage, const Shape& shape, const Strides& strides,
               std::int64_t offset, DType dtype, std::int64_t numel)
    : impl_(std::make_shared<TensorImpl>(
          TensorImpl{std::move(storage), shape, strides, offset, numel, dtype, nullptr})) {}

Tensor::Tensor(std::shared_ptr<Storage> storage, const Shape& shape, const Strides& strides,
               std::int64_t offset, DType dtype)
    : Tensor(std::move(storage), shape, strides, offset, dtype, tutti::numel(shape)) {
  if (strides.size() != shape.size())
    fail<ShapeError>("view of shape {} needs as many strides, got {}", tutti::to_string(shape),
                     tutti::to_string(strides));
  if (offset < 0 ||
      std::any_of(strides.begin(), strides.end(), [](std::int64_t s) { return s < 0; }))
    fail<ShapeError>("view of shape {}: offset {} and strides {} must not be negative",
                     tutti::to_string(shape), offset, tutti::to_string(strides));
  expect_inside(*impl_->storage, shape, strides, offset, dtype);
}

const TensorImpl& Tensor::impl() const {
  if (!impl_) fail<Error>("undefined tensor: it was default-constructed and never assigned");
  return *impl_;
}

const Shape& Tensor::shape() const { return impl().shape; }
const Strides& Tensor::strides() const { return impl().strides; }
std::int64_t Tensor::size(std::int64_t dim) const {
  return shape()[normalize_dim(dim, rank(), "size")];
}
std::int64_t Tensor::numel() const { return impl().numel; }
DType Tensor::dtype() const { return impl().dtype; }
Device Tensor::device() const { return impl().storage->device(); }
std::int64_t Tensor::offset() const { return impl().offset; }
const std::shared_ptr<Storage>& Tensor::storage() const { return impl().storage; }

bool Tensor::is_contiguous(MemoryFormat format) const {
  return numel() == 0 || same_strides(shape(), strides(), dense_strides(shape(), format));
}

MemoryFormat Tensor::memory_format() const {
  if (rank() < 3) return MemoryFormat::contiguous;
  // Shapes such as (N, 1, H, W) are dense in both formats; the exact strides say which is meant.
  if (strides() == dense_strides(shape(), MemoryFormat::contiguous))
    return MemoryFormat::contiguous;
  if (strides() == dense_strides(shape(), MemoryFormat::channels_last))
    return MemoryFormat::channels_last;
  return !is_contiguous() && is_contiguous(MemoryFormat::channels_last)
             ? MemoryFormat::channels_last
             : MemoryFormat::contiguous;
}

// A dimension whose stride does not lead beyond the smaller ones together may visit their elements.
bool Tensor::has_overlapping_elements() const {
  if (is_dense()) return false;
  const auto is_before = [this](int a, int b) {
    return std::pair(strides()[a], a) < std::pair(strides()[b], b);
  };
  for (int d = 0; d < rank(); ++d) {
    std::int64_t reach = 0;  // of the dimensions with smaller strides
    for (int e = 0; e < rank(); ++e)
      if (is_before(e, d)) reach += strides()[e] * (shape()[e] - 1);
    if (shape()[d] > 1 && strides()[d] <= reach) return true;
  }
  return false;
}

bool Tensor::is_dense() const {
  std::int64_t step = 1;
  while (step < numel()) {  // each dimension follows the one whose elements fill its stride
    int d = 0;
    while (d < rank() && (strides()[d] != step || shape()[d] == 1)) ++d;
    if (d == rank()) return false;
    step *= shape()[d];
  }
  return true;
}

void* Tensor::raw() const {
  // Without elements there is no address to offset, and the offset may be outside of the storage.
  if (numel() == 0) return impl().storage->data();
  return static_cast<char*>(impl().storage->data()) +
         static_cast<std::size_t>(offset()) * size_of(dtype());
}

Tensor Tensor::detach() const {
  const TensorImpl& own = impl();
  return {own.storage, own.shape, own.strides, own.offset, own.dtype, own.numel};
}

Tensor Tensor::alias(const Shape& shape, const Strides& strides, std::int64_t offset) const {
  return Tensor(storage(), shape, strides, offset, dtype());
}

void Tensor::expect_dtype(DType expected) const {
  if (dtype() != expected)
    fail<DTypeError>("data<T>(): the tensor holds {}, T is {}; convert with .to(dtype)",
                     tutti::to_string(dtype()), tutti::to_string(expected));
}

void Tensor::copy_item(void* to) const {
  if (numel() != 1)
    fail<ShapeError>("item(): expected a tensor of one element, got shape {}",
                     tutti::to_string(shape()));
  copy_bytes(to, Device::cpu(), raw(), device(), size_of(dtype()));
}

bool Tensor::is_exclusive() const {
  return impl_.use_count() == 1 && impl_->storage.use_count() == 1;
}

const std::shared_ptr<autograd::Meta>& Tensor::meta() const { return impl().meta; }

void Tensor::set_data(const Tensor& source) const {
  impl();
  if (!is_leaf())
    fail<Error>(
        "set_data: expected a leaf, got a tensor that an operation computed; detach() it first");
  const TensorImpl& from = source.impl();
  auto meta = impl_->meta;
  *impl_ = TensorImpl{from.storage, from.shape, from.strides,   from.offset,
                      from.numel,   from.dtype, std::move(meta)};
  set_grad({});
}

void Tensor::set_meta(std::shared_ptr<autograd::Meta> meta) const {
  impl();
  impl_->meta = std::move(meta);
}

// ---- Printing: nested brackets with at most six entries for each dimension, then the shape, dtype
// and device.

namespace {

constexpr std::int64_t edge_items = 3;  // entries shown at each end of a dimension

// Appends a tensor whose values begin `depth` brackets deep. It copies only what it shows from the
// tensor's device.
void print(std::string& text, const Tensor& tensor, int depth) {
  if (tensor.rank() == 0) {
    if (!is_floating(tensor.dtype())) {
      text += fmt::format("{}", tensor.item<std::int64_t>());
      return;
    }
    const auto value = tensor.item<double>();
    text += std::isnan(value) ? "nan" : fmt::format("{:.4g}", value);  // never -nan
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
