#include "node.h"

#include <algorithm>

namespace tutti::autograd {
namespace {

struct Remains {
  std::vector<Edge> edges;
  Backward backward;
};

}  // namespace

// A chain of nodes owns itself link by link; destroying it recursively would overflow the stack on
// a deep graph. The outermost destructor therefore collects what the inner ones leave and destroys
// it in a loop.
Node::~Node() {
  thread_local std::vector<Remains>* pile = nullptr;
  if (pile) {
    pile->push_back({std::move(edges), std::move(backward)});
    return;
  }
  std::vector<Remains> mine;
  pile = &mine;
  mine.push_back({std::move(edges), std::move(backward)});
  while (!mine.empty()) {
    const Remains next = std::move(mine.back());
    mine.pop_back();
  }
  pile = nullptr;
}

Meta& meta_of(const Tensor& tensor) {
  if (!tensor.meta()) tensor.set_meta(std::make_shared<Meta>());
  return *tensor.meta();
}

std::uint64_t add_leaf_hook(const Tensor& leaf, LeafHook hook) {
  if (!leaf.is_leaf() || !leaf.requires_grad())
    fail<Error>("add_leaf_hook: expected a leaf that requires grad, got shape {} ({})",
                to_string(leaf.shape()),
                leaf.is_leaf() ? "does not require grad" : "computed by an operation");
  auto& hooks = meta_of(leaf).hooks;
  const std::uint64_t id = hooks.empty() ? 1 : hooks.back().first + 1;
  hooks.emplace_back(id, std::move(hook));
  return id;
}

void remove_leaf_hook(const Tensor& leaf, std::uint64_t id) {
  std::erase_if(meta_of(leaf).hooks, [id](const auto& hook) { return hook.first == id; });
}

}  // namespace tutti::autograd
