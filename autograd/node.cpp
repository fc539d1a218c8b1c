// The nodes of the graph, the hooks of leaves, and the members of Tensor that read and set its
// autograd state.
#include "node.h"

#include "../core/overlap.h"
#include "engine.h"
#include "record.h"

#include <algorithm>

namespace tutti::autograd {
namespace {

struct NodeContents {
  std::vector<Edge> edges;
  Backward backward;
};

}  // namespace

// Each node of a chain owns the next one, and destroying them recursively would overflow the stack
// for a deep graph. The outermost destructor therefore collects the contents of the inner nodes and
// destroys them in a loop.
Node::~Node() {
  thread_local std::vector<NodeContents>* pending = nullptr;
  if (pending) {
    pending->push_back({std::move(edges), std::move(backward)});
    return;
  }
  std::vector<NodeContents> contents;
  pending = &contents;
  contents.push_back({std::move(edges), std::move(backward)});
  while (!contents.empty()) {
    const NodeContents next = std::move(contents.back());
    contents.pop_back();
  }
  pending = nullptr;
}

Meta& meta_of(const Tensor& tensor) {
  if (!tensor.meta()) tensor.set_meta(std::make_shared<Meta>());
  return *tensor.meta();
}

std::uint64_t add_leaf_hook(const Tensor& leaf, LeafHook hook, bool takes_16_bits,
                            std::string owner) {
  if (!leaf.is_leaf())
    fail<Error>("add_leaf_hook: expected a leaf, got the result of '{}' of shape {}",
                leaf.meta()->node->name, to_string(leaf.shape()));
  auto& hooks = meta_of(leaf).hooks;
  const std::uint64_t id = hooks.empty() ? 1 : hooks.back().id + 1;
  hooks.push_back({id, std::move(hook), takes_16_bits, std::move(owner)});
  return id;
}

void remove_leaf_hook(const Tensor& leaf, std::uint64_t id) {
  std::erase_if(meta_of(leaf).hooks, [id](const auto& hook) { return hook.id == id; });
}

}  // namespace tutti::autograd

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
  expect_no_overlap("set_grad", *this, grad);  // for an optimizer's step
  autograd::meta_of(*this).grad = grad;
}

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  autograd::backward(*this, gradient, retain_graph);
}

}  // namespace tutti
