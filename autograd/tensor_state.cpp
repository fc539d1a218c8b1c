// The members of Tensor that read and set its autograd state.
#include "engine.h"
#include "record.h"

namespace tutti {

bool Tensor::requires_grad() const { return defined() && meta() && meta()->requires_grad; }

const Tensor& Tensor::requires_grad_(bool value) const {
  if (!is_leaf())
    fail<Error>(
        "requires_grad_: expected a leaf, got the result of '{}'; use detach() to stop the "
        "gradient there",
        meta()->node->name);
  if (value && !is_floating(dtype()))
    fail<DTypeError>("requires_grad_: expected a floating dtype, got {}",
                     tutti::to_string(dtype()));
  if (value || meta()) autograd::meta_of(*this).requires_grad = value;
  return *this;
}

bool Tensor::is_leaf() const { return !meta() || !meta()->node; }

Tensor Tensor::grad() const { return meta() ? meta()->grad : Tensor(); }

void Tensor::set_grad(const Tensor& grad) const {
  if (!grad.defined()) {
    if (meta()) meta()->grad = {};
    return;
  }
  if (!(grad.shape() == shape()) || grad.dtype() != dtype() || grad.device() != device())
    fail<ShapeError>("set_grad: expected shape {}, {} on {}, got {}, {} on {}",
                     tutti::to_string(shape()), tutti::to_string(dtype()),
                     tutti::to_string(device()), tutti::to_string(grad.shape()),
                     tutti::to_string(grad.dtype()), tutti::to_string(grad.device()));
  autograd::meta_of(*this).grad = grad;
}

Tensor Tensor::detach() const { return alias(shape(), strides(), offset()); }

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  autograd::backward(*this, gradient, retain_graph);
}

}  // namespace tutti
