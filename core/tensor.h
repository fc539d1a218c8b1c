// Tensor: a value handle on a strided view of a shared Storage. Copying a Tensor copies the handle,
// never the data. This folder defines what a tensor *is* (tensor.cpp) and how one is made
// (create.h); the members that a gradient flows through, and the state that autograd attaches, are
// defined in autograd/.
#pragma once

#include "dims.h"
#include "dtype.h"
#include "memory.h"

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>

namespace tutti {

namespace autograd {
struct Meta;  // what autograd knows of a tensor; defined in autograd/node.h
}
struct TensorImpl;

class Tensor {
 public:
  /// The undefined tensor: `defined()` is false and everything else throws or is empty.
  Tensor() = default;

  // ---- what it is
  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const;
  const Strides& strides() const;             ///< in elements
  std::int64_t size(std::int64_t dim) const;  ///< negative dims count from the end
  int rank() const { return shape().size(); }
  std::int64_t numel() const;
  DType dtype() const;
  Device device() const;
  std::int64_t offset() const;  ///< of the first element in the storage, in elements
  const std::shared_ptr<Storage>& storage() const;

  /// True where the elements lie densely in the order of `format`. Strides of size-1 dimensions do
  /// not count.
  bool is_contiguous(MemoryFormat format = MemoryFormat::contiguous) const;
  /// channels_last where the strides are exactly that format's; contiguous otherwise.
  MemoryFormat memory_format() const;
  /// True where the elements fill one block of memory without gaps or overlap, in whatever order.
  bool is_dense() const;

  void* raw() const;  ///< address of the first element, untyped
  template <class T>
  T* data() const {
    expect_dtype(dtype_of<T>::value);
    return static_cast<T*>(raw());
  }
  /// The only element as a C++ value, converted; copies from the device. ShapeError unless numel()
  /// is 1.
  template <class T>
  T item() const {
    return static_cast<T>(item_as_double());
  }
  /// Two handles on one tensor object (not merely equal values).
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  const void* id() const { return impl_.get(); }
  /// True where this handle is the only one and its storage has no other view: it may be written
  /// over unseen.
  bool is_exclusive() const;

  /// Another view of the same storage, with no history. `offset` counts from the start of the
  /// storage. ShapeError where it would reach outside.
  Tensor alias(const Shape& shape, const Strides& strides, std::int64_t offset) const;
  std::string to_string() const;  ///< values (abbreviated), shape, dtype; for people

  // ---- views: share storage; the gradient flows back through them
  Tensor reshape(Shape shape) const;  ///< one size may be -1; copies only where no view can do it
  Tensor flatten(std::int64_t first = 0, std::int64_t last = -1) const;
  Tensor permute(const Dims& order) const;
  Tensor transpose(std::int64_t a, std::int64_t b) const;
  Tensor slice(std::int64_t dim, std::int64_t start, std::int64_t stop,
               std::int64_t step = 1) const;
  Tensor select(std::int64_t dim, std::int64_t index) const;
  Tensor expand(const Shape& shape) const;  ///< sizes of 1 grow; -1 keeps a size
  Tensor squeeze(std::int64_t dim) const;
  Tensor unsqueeze(std::int64_t dim) const;

  // ---- copies: the gradient flows back through them
  Tensor contiguous(
      MemoryFormat format = MemoryFormat::contiguous) const;  ///< itself where it is already
  Tensor clone() const;
  Tensor to(DType dtype) const;  ///< itself where nothing changes
  Tensor to(Device device) const;

  // ---- in place: no gradient flows; an Error on a tensor that has a history or, outside NoGrad,
  // where this or the source needs one
  const Tensor& fill_(double value) const;
  const Tensor& zero_() const;
  const Tensor& copy_(const Tensor& source) const;  ///< broadcasts and converts
  const Tensor& add_(const Tensor& other, double scale = 1) const;
  const Tensor& mul_(double factor) const;

  // ---- autograd
  bool requires_grad() const;
  const Tensor& requires_grad_(bool value = true) const;  ///< Error on a tensor that was computed
  bool is_leaf() const;                     ///< made by the user, not by a recorded operation
  Tensor grad() const;                      ///< undefined until a backward reached this leaf
  void set_grad(const Tensor& grad) const;  ///< an undefined tensor clears it
  Tensor detach() const;                    ///< the same storage, no history
  /// Adds d(this)/d(leaf), times `gradient` (default: 1, for a one-element tensor), to the grad of
  /// every leaf below. Frees what the graph saved unless `retain_graph`. The gradients themselves
  /// have no history: there is no double backward.
  void backward(const Tensor& gradient = {}, bool retain_graph = false) const;
  /// Replaces storage, shape, strides and dtype by those of `source` in every handle of this
  /// tensor: how a module moves its parameters without an optimizer losing them. Keeps
  /// requires_grad, drops the gradient.
  void set_data(const Tensor& source) const;
  /// What autograd attached. Created on demand by autograd::meta_of, for implementations only.
  const std::shared_ptr<autograd::Meta>& meta() const;
  void set_meta(std::shared_ptr<autograd::Meta> meta) const;

  /// Wraps a storage. ShapeError where the view would reach outside of it.
  Tensor(std::shared_ptr<Storage> storage, const Shape& shape, const Strides& strides,
         std::int64_t offset, DType dtype);

 private:
  const TensorImpl& impl() const;
  void expect_dtype(DType expected) const;
  double item_as_double() const;

  std::shared_ptr<TensorImpl> impl_;
};

std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace tutti
