// Tensor is a handle on a strided view of a shared Storage; copying a Tensor copies the handle and
// never the data. core/ defines what a tensor is (tensor.cpp) and how one is made (create.h);
// autograd/ defines the members that a gradient flows through and the autograd state.
#pragma once

#include "convert.h"
#include "dims.h"
#include "dtype.h"
#include "memory.h"

#include <concepts>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>

namespace tutti {

namespace autograd {
struct Meta;  // the autograd state of a tensor; defined in autograd/node.h
}
struct TensorImpl;
struct TensorOptions;

/// A handle on an array of numbers with shape, strides, dtype and device. Copies share the array.
class Tensor {
 public:
  /// Makes the undefined tensor: `defined()` is false, and most other members throw an Error.
  Tensor() = default;
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & noexcept = default;
  /// Changes the elements of a view, as in PyTorch: x[0] = y is x[0].copy_(y).
  void operator=(const Tensor& source) && { copy_(source); }
  /// @overload
  void operator=(double value) && { fill_(value); }
  // A module's parameter or buffer stays the same tensor: copy_() under NoGrad changes its numbers.
  template <std::same_as<Tensor> T>
  void operator=(const T& use_copy_) const& = delete;

  /// Wraps a storage. Throws a ShapeError if the view would reach outside of it.
  Tensor(std::shared_ptr<Storage> storage, const Shape& shape, const Strides& strides,
         std::int64_t offset, DType dtype);

  // ---- Properties. Strides and offsets count elements; negative dimensions count from the end.

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const;
  const Strides& strides() const;
  std::int64_t size(std::int64_t dim) const;
  int rank() const { return shape().size(); }
  std::int64_t numel() const;
  DType dtype() const;
  Device device() const;
  /// Returns the position of the first element in the storage.
  std::int64_t offset() const;
  const std::shared_ptr<Storage>& storage() const;

  /// Returns whether the elements lie densely in the order of `format`. The strides of dimensions
  /// of size 1 do not matter.
  bool is_contiguous(MemoryFormat format = MemoryFormat::contiguous) const;
  /// Returns channels_last if the strides are exactly those of that format, else contiguous.
  MemoryFormat memory_format() const;
  /// Returns whether the elements fill one block of memory without gaps or overlap, in any order.
  bool is_dense() const;
  /// Returns whether elements share memory, as those of an expanded tensor do, or might, because
  /// the strides do not nest: such a tensor must not be written.
  bool has_overlapping_elements() const;
  /// Returns whether this handle is the only one and its storage has no other view. Such a tensor
  /// may be overwritten, since no other code can see it.
  bool is_exclusive() const;
  /// Returns whether two handles refer to one tensor object, not merely to equal values.
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  /// Returns the identity of the tensor object, for use as a key.
  const void* id() const { return impl_.get(); }

  // ---- Access to the elements.

  /// Returns the address of the first element. Throws a DTypeError if T is not the C++ type of the
  /// dtype.
  template <class T>
  T* data() const {
    expect_dtype(dtype_of<T>::value);
    return static_cast<T*>(raw());
  }
  /// Returns the address of the first element without its type.
  void* raw() const;
  /// Returns the only element, converted to T by the rules of to(dtype), and copies it from its
  /// device. An int64 is exact in a T that holds it and keeps its lowest bits in a narrower
  /// integer. Throws a ShapeError unless numel() is 1.
  template <class T>
  T item() const {
    T result{};
    dispatch(AllTypes{}, dtype(), "item", [&]<class Element>() {
      Element element;
      copy_item(&element);
      result = detail::convert<T>(element);
    });
    return result;
  }
  /// Returns the values (abbreviated), the shape and the dtype as text for people.
  std::string to_string() const;

  // ---- Views. They share the storage, and the gradient flows back through them.

  /// Returns the elements in another shape, in which one size may be -1. Copies only if no view has
  /// that shape; returns the tensor itself if it has it already.
  Tensor reshape(Shape shape) const;
  Tensor flatten(std::int64_t first = 0, std::int64_t last = -1) const;
  Tensor permute(const Dims& order) const;
  Tensor transpose(std::int64_t a, std::int64_t b) const;
  Tensor slice(std::int64_t dim, std::int64_t start, std::int64_t stop,
               std::int64_t step = 1) const;
  Tensor select(std::int64_t dim, std::int64_t index) const;
  /// Returns select(0, index).
  Tensor operator[](std::int64_t index) const { return select(0, index); }
  /// Repeats dimensions of size 1 without copying; -1 keeps a size.
  Tensor expand(const Shape& shape) const;
  /// Removes a dimension of size 1; returns the tensor itself where the size is another.
  Tensor squeeze(std::int64_t dim) const;
  Tensor unsqueeze(std::int64_t dim) const;
  /// Returns another view of the storage, through which no gradient flows. `offset` counts from the
  /// start of the storage. Throws a ShapeError if the view would reach outside of it.
  Tensor alias(const Shape& shape, const Strides& strides, std::int64_t offset) const;

  // ---- Copies. The gradient flows back through them. Except for clone(), they return the tensor
  // itself if it already has the requested form.

  [[nodiscard]] Tensor contiguous(MemoryFormat format = MemoryFormat::contiguous) const;
  [[nodiscard]] Tensor clone() const;
  /// Converts every element. Floating numbers become integers by cutting off their fraction; beyond
  /// the range of the integers they become the nearest end of the range, and NaN becomes 0. An
  /// int64 keeps its lowest bits in a uint8. Everything but 0 is true, NaN too.
  [[nodiscard]] Tensor to(DType dtype) const;
  [[nodiscard]] Tensor to(Device device) const;

  // ---- Changes in place. No gradient flows through them, so they throw an Error for a tensor that
  // an operation computed and that requires grad, and outside of NoGrad also if this tensor or the
  // source requires grad. A source in the memory of this tensor is a ValueError, unless every
  // element is changed by itself alone: x.add_(x) is legal, x.add_(x.transpose(0, 1)) is not.

  const Tensor& fill_(double value) const;
  const Tensor& zero_() const;
  /// Copies the elements of `source`, broadcast and converted.
  const Tensor& copy_(const Tensor& source) const;
  /// Adds scale * other, broadcast.
  const Tensor& add_(const Tensor& other, double scale = 1) const;
  const Tensor& mul_(double factor) const;
  /// Computes in place; `other` broadcasts and has the dtype of this tensor. Where a gradient
  /// flows, as to a sum of losses, write x = x + other.
  const Tensor& operator+=(const Tensor& other) const;
  const Tensor& operator-=(const Tensor& other) const;
  const Tensor& operator*=(const Tensor& other) const;
  const Tensor& operator/=(const Tensor& other) const;
  const Tensor& operator+=(double number) const;
  const Tensor& operator-=(double number) const;
  const Tensor& operator*=(double number) const { return mul_(number); }
  const Tensor& operator/=(double number) const;

  // ---- Autograd.

  bool requires_grad() const;
  /// Throws an Error for a tensor that an operation computed and a DTypeError for integers.
  const Tensor& requires_grad_(bool value = true) const;
  /// Returns whether no recorded operation computed this tensor.
  bool is_leaf() const;
  /// Returns the gradient; undefined until a backward has reached this leaf.
  Tensor grad() const;
  /// Sets the gradient, or clears it if `grad` is undefined.
  void set_grad(const Tensor& grad) const;
  /// Returns a view of the same storage without a graph, through which no gradient flows.
  [[nodiscard]] Tensor detach() const;
  /// Adds d(this)/d(leaf), times `gradient`, to the grad of every leaf that this tensor was
  /// computed from. `gradient` defaults to 1 for a tensor of one element. Frees what the graph
  /// saved unless `retain_graph`. Gradients are not recorded: there is no double backward.
  void backward(const Tensor& gradient = {}, bool retain_graph = false) const;
  /// Replaces storage, shape, strides and dtype by those of `source` in every handle of this leaf,
  /// so that a module can move its parameters while optimizers keep their handles. Keeps
  /// requires_grad and clears the gradient.
  void set_data(const Tensor& source) const;

  // ---- For autograd itself.

  /// Returns the autograd state; null until autograd::meta_of() makes one.
  const std::shared_ptr<autograd::Meta>& meta() const;
  void set_meta(std::shared_ptr<autograd::Meta> meta) const;

 private:
  friend Tensor empty(const Shape& shape, TensorOptions options, MemoryFormat format);
  friend Tensor empty_like(const Tensor& like, DType dtype);

  // Wraps a storage that holds the view, of `numel` elements.
  Tensor(std::shared_ptr<Storage> storage, const Shape& shape, const Strides& strides,
         std::int64_t offset, DType dtype, std::int64_t numel);
  const TensorImpl& impl() const;
  void expect_dtype(DType expected) const;
  void copy_item(void* to) const;

  std::shared_ptr<TensorImpl> impl_;
};

std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace tutti
