// The graph: Node (one recorded operation), Edge (where a gradient goes next) and Meta (what a
// tensor carries). A tensor's Meta owns the Node that made it, a Node owns the Nodes of its inputs:
// the graph lives as long as something computed from it. Walking it is the engine's business.
#pragma once

#include "../core/tensor.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tutti::autograd {

struct Node;

/// Maps the gradient of an operation's output to the gradients of its inputs; undefined means none.
using Backward = std::function<std::vector<Tensor>(const Tensor& gradient)>;

/// Where the gradient of one input goes: to the operation that made it, to a leaf, or (both empty)
/// nowhere.
struct Edge {
  std::shared_ptr<Node> node;
  Tensor leaf;
};

struct Node {
  std::string name;
  std::uint64_t sequence =
      0;                    ///< grows with every recorded operation: consumers come after producers
  std::vector<Edge> edges;  ///< one for each input
  std::vector<Shape> shapes;  ///< of the inputs, to check the gradients against
  std::vector<DType> dtypes;
  Backward backward;  ///< empty once the graph was freed
  bool freed = false;
  bool waits_for_ranks = false;  ///< its backward waits for other ranks and calls
                                 ///< compute_deferred_gradients() meanwhile

  Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node();
};

/// Called when the gradient of a leaf is complete for this backward. It may replace the gradient (a
/// bucket view).
using LeafHook = std::function<void(Tensor& gradient)>;

struct Meta {
  bool requires_grad = false;
  Tensor grad;                 ///< leaves only
  std::shared_ptr<Node> node;  ///< the operation that made this tensor; empty for a leaf
  std::vector<std::pair<std::uint64_t, LeafHook>> hooks;
};

/// The Meta of a tensor, made where there is none.
Meta& meta_of(const Tensor& tensor);

/// Adds a hook to a leaf that requires grad; the result removes it. Hooks run in the order they
/// were added.
std::uint64_t add_leaf_hook(const Tensor& leaf, LeafHook hook);
void remove_leaf_hook(const Tensor& leaf, std::uint64_t id);

}  // namespace tutti::autograd
