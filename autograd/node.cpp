#include "node.h"

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
