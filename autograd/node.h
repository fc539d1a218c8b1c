// The autograd graph consists of Nodes (recorded operations), Edges (where a gradient goes next)
// and the Meta of each tensor. A tensor's Meta owns the Node that computed it and a Node owns the
// Nodes of its inputs, so the graph lives as long as a tensor computed by it. The engine visits
// the graph.
#pragma once

#include "../core/tensor.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tutti::autograd {

struct Node;

/// A Backward maps the gradient of an operation's output to one gradient for each input; an
/// undefined tensor stands for no gradient.
using Backward = std::function<std::vector<Tensor>(const Tensor& gradient)>;

/// An Edge says where the gradient of one input goes: to the operation that computed the input, to
/// a leaf, or nowhere if both members are empty.
struct Edge {
  std::shared_ptr<Node> node;
  Tensor leaf;
};

/// A Node is one recorded operation. `edges`, `shapes` and `dtypes` have one entry for each input;
/// gradients are checked against the latter two.
struct Node {
  std::string name;
  /// Grows with every recorded operation of the process, so consumers come after producers.
  std::uint64_t sequence = 0;
  std::vector<Edge> edges;
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
  Backward backward;  ///< empty once the graph has been freed
  bool freed = false;
  /// Identifies the group whose ranks the backward waits for, after it has called
  /// compute_deferred_gradients(); null if it waits for no rank.
  const void* waits_for_group = nullptr;

  Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node();
};

/// A LeafHook is called when the gradient of a leaf is complete for this backward. It may replace
/// the gradient, for example by a view of a bucket.
using LeafHook = std::function<void(Tensor& gradient)>;

/// A hook of a leaf, and whether it takes gradients in 16 bits for a float32 leaf. For other hooks
/// they are widened first. `owner` names the hook that alone may take the gradient away.
struct InstalledHook {
  std::uint64_t id;
  LeafHook function;
  bool takes_16_bits;
  std::string owner;
};

/// Meta is the autograd state of a tensor.
struct Meta {
  bool requires_grad = false;
  Tensor grad;                 ///< set for leaves only
  std::shared_ptr<Node> node;  ///< the operation that computed this tensor; null for a leaf
  std::vector<InstalledHook> hooks;
  /// Of a leaf: the inputs of recorded operations that it was, less those that a backward has
  /// visited. DataParallel finds forwards in it whose backward one rank has left out. Atomic,
  /// because several threads may use one leaf at a time.
  std::atomic<std::int64_t> uses_without_backward{0};
  /// Of a leaf: the steps of optimizers that had it among their parameters, with a gradient or
  /// without. DataParallel finds ranks in it that have left out a step.
  std::atomic<std::int64_t> optimizer_steps{0};
  /// Of a module's parameter: its number in the process, by time; 0 for any other leaf.
  std::uint64_t parameter_number = 0;
};

/// The highest parameter_number of the process.
inline std::atomic<std::uint64_t> last_parameter_number{0};

/// Returns the Meta of a tensor and makes one if there is none.
Meta& meta_of(const Tensor& tensor);

/// Adds a hook to a leaf and returns its id. Hooks run in the order in which they were added.
/// Throws an Error for a tensor that an operation computed.
std::uint64_t add_leaf_hook(const Tensor& leaf, LeafHook hook, bool takes_16_bits = false,
                            std::string owner = {});
/// Removes the hook with this id, if the leaf has it.
void remove_leaf_hook(const Tensor& leaf, std::uint64_t id);

}  // namespace tutti::autograd
