#include "engine.h"

#include "../core/create.h"
#include "../core/scoped_value.h"
#include "../core/trace.h"
#include "record.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tutti::autograd {
namespace {

class BackwardPass;

// The backward that runs on a thread.
struct RunningBackward {
  std::uint64_t id = 0;
  std::vector<std::function<void()>> callbacks = {};
  Tensor newest_parameter = {};  // of those that have no hook
  BackwardPass* pass = nullptr;
};
thread_local RunningBackward* running = nullptr;
thread_local std::uint64_t backward_count = 0;
BackwardPass* current_pass() { return running ? running->pass : nullptr; }
// The name of the operation whose backward runs, for errors.
thread_local const std::string* operation = nullptr;

// The sum of the gradients that have arrived for one tensor. A gradient is added in place only if
// no other handle of the sum exists: the backward of an addition passes one tensor on to both
// inputs, and closures may keep the tensors that they return.
class GradientSum {
 public:
  void add(Tensor gradient) {
    if (!sum_.defined()) {
      sum_ = std::move(gradient);
    } else if (gradient.defined()) {
      if (!(sum_.is_exclusive() && sum_.is_dense())) sum_ = sum_.clone();
      sum_.add_(gradient);
    }
  }
  Tensor take() { return std::move(sum_); }
  bool is_empty() const { return !sum_.defined(); }

 private:
  Tensor sum_;
};

struct LeafState {
  Tensor leaf;
  int outstanding = 0;  // edges into the leaf that have not been visited yet
  GradientSum gradient;
};

void expect_one_gradient_per_input(const Node& node, const std::vector<Tensor>& gradients) {
  if (gradients.size() != node.edges.size())
    fail<Error>("backward of '{}': expected {} gradients, one for each input, got {}", node.name,
                node.edges.size(), gradients.size());
}

// Returns whether `gradient` has 16 bits where its input has float32.
bool is_narrow(const Tensor& gradient, DType input) {
  return input == float32 && is_floating(gradient.dtype()) && size_of(gradient.dtype()) == 2;
}

// Returns a gradient that is_narrow() or has the dtype of its input in that dtype.
Tensor widened(const Tensor& gradient, DType input) {
  return gradient.defined() && gradient.dtype() != input ? gradient.to(input) : gradient;
}

void expect_like_input(const Node& node, std::size_t i, const Tensor& gradient) {
  const DType input = node.dtypes[i];
  if (gradient.defined() && !(gradient.shape() == node.shapes[i] &&
                              (gradient.dtype() == input || is_narrow(gradient, input))))
    fail<ShapeError>("backward of '{}': input {} has shape {} and dtype {}, its gradient {} and {}",
                     node.name, i, to_string(node.shapes[i]), to_string(node.dtypes[i]),
                     to_string(gradient.shape()), to_string(gradient.dtype()));
}

// Adds a complete gradient to the leaf's grad and runs the leaf's hooks.
void accumulate(const Tensor& leaf, Tensor gradient) {
  if (!gradient.defined()) return;
  Meta& meta = *leaf.meta();
  const bool fits = gradient.dtype() == leaf.dtype() ||
                    (!meta.hooks.empty() && meta.hooks.front().takes_16_bits);
  if (meta.grad.defined()) {
    meta.grad.add_(gradient);
  } else if (fits && gradient.is_exclusive() && gradient.strides() == leaf.strides()) {
    meta.grad = std::move(gradient);
  } else {
    // The copy has the leaf's layout, so that optimizers and buckets can treat both as flat memory.
    const Tensor copy = empty_like(leaf.detach());
    copy.copy_(gradient);
    meta.grad = copy;
  }
  for (std::size_t i = 0; i < meta.hooks.size(); ++i) {
    if (!meta.hooks[i].takes_16_bits) meta.grad = widened(meta.grad, leaf.dtype());
    meta.hooks[i].function(meta.grad);
  }
  meta.grad = widened(meta.grad, leaf.dtype());
  Tensor& newest = running->newest_parameter;
  if (meta.hooks.empty() &&
      meta.parameter_number > (newest.defined() ? newest.meta()->parameter_number : 0))
    newest = leaf;
}

// One pass from a root to the leaves below it.
class BackwardPass {
 public:
  BackwardPass(const std::shared_ptr<Node>& root, const Tensor& gradient, bool retain_graph)
      : root_(root), retain_graph_(retain_graph) {
    collect_nodes(root.get());
    gradients_[root.get()].add(gradient);
  }

  void run();
  void defer(std::function<std::vector<Tensor>()> rest) { rest_ = std::move(rest); }
  void compute_deferred_gradients();
  bool retains_graph() const { return retain_graph_; }
  std::vector<Tensor> leaves_reached_alone(const void* group) const;

 private:
  // Gradients of `node` that are still to be computed, for the inputs listed.
  struct Deferred {
    Node* node = nullptr;
    std::function<std::vector<Tensor>()> rest = {};
    std::vector<std::size_t> inputs = {};
  };

  void collect_nodes(Node* root);
  void visit(Node& node);
  std::vector<Tensor> apply(Node& node, Tensor gradient);
  void deliver(const Node& node, std::size_t i, Tensor gradient);

  std::shared_ptr<Node> root_;  // keeps the graph alive
  bool retain_graph_;
  std::function<std::vector<Tensor>()>
      rest_;  // the function that the running closure passed to defer_gradients
  Deferred deferred_;
  std::vector<Node*> order_;
  std::unordered_map<Node*, GradientSum> gradients_;
  std::unordered_map<const void*, LeafState> leaves_;
};

void BackwardPass::run() {
  for (Node* node : order_) visit(*node);
  compute_deferred_gradients();
}

// Lists the nodes below the root in the order of their visits, and counts the edges into each leaf.
void BackwardPass::collect_nodes(Node* root) {
  std::vector<Node*> stack{root};
  std::unordered_set<Node*> seen{root};
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    order_.push_back(node);
    if (node->freed)
      fail<Error>(
          "backward: the graph of '{}' was already freed by an earlier backward; run the forward "
          "again or pass retain_graph = true the first time",
          node->name);
    for (const Edge& edge : node->edges) {
      if (edge.node && seen.insert(edge.node.get()).second) stack.push_back(edge.node.get());
      if (edge.leaf.defined()) {
        edge.leaf.meta()->uses_without_backward.fetch_sub(1, std::memory_order_relaxed);
        LeafState& state = leaves_[edge.leaf.id()];
        state.leaf = edge.leaf;
        ++state.outstanding;
      }
    }
  }
  std::sort(order_.begin(), order_.end(),
            [](Node* a, Node* b) { return a->sequence > b->sequence; });
}

std::vector<Tensor> BackwardPass::leaves_reached_alone(const void* group) const {
  std::vector<Tensor> leaves;
  for (const Node* node : order_)
    if (node->waits_for_group && (!group || node->waits_for_group == group)) return leaves;
  for (const auto& [id, state] : leaves_) leaves.push_back(state.leaf);
  return leaves;
}

void BackwardPass::visit(Node& node) {
  if (!node.waits_for_group) compute_deferred_gradients();
  Tensor gradient = gradients_[&node].take();  // undefined where none has arrived
  gradients_.erase(&node);
  std::vector<Tensor> gradients(node.edges.size());
  if (gradient.defined()) gradients = apply(node, std::move(gradient));
  compute_deferred_gradients();  // in case an operation that waits for ranks did not
  Deferred deferred{&node, std::exchange(rest_, nullptr), {}};
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (deferred.rest && !gradients[i].defined()) deferred.inputs.push_back(i);
    else deliver(node, i, std::move(gradients[i]));
  }
  deferred_ = std::move(deferred);
  // The operation that computed an input may be the next one, and needs its gradient.
  const auto has_node = [&](std::size_t i) { return node.edges[i].node != nullptr; };
  if (std::ranges::any_of(deferred_.inputs, has_node)) compute_deferred_gradients();
}

void BackwardPass::compute_deferred_gradients() {
  if (!deferred_.rest) return;
  const Deferred now = std::exchange(deferred_, {});
  const ScopedValue named(operation, &now.node->name);
  const trace::Span span(now.node->name);
  std::vector<Tensor> gradients = now.rest();
  expect_one_gradient_per_input(*now.node, gradients);
  for (std::size_t i : now.inputs) deliver(*now.node, i, std::move(gradients[i]));
}

// Runs the closure of a node. It owns the gradient, so that the closure may overwrite it.
std::vector<Tensor> BackwardPass::apply(Node& node, Tensor gradient) {
  const ScopedValue named(operation, &node.name);
  const trace::Span span(node.name);
  std::vector<Tensor> gradients = node.backward(gradient);
  if (!retain_graph_) {
    node.backward = nullptr;  // frees what it saved as early as possible
    node.freed = true;
  }
  expect_one_gradient_per_input(node, gradients);
  return gradients;
}

// Adds the gradient of input i to the gradient of the operation or leaf that the input comes from.
// Only the single gradient of a leaf stays in 16 bits: sums are those of widened numbers.
void BackwardPass::deliver(const Node& node, std::size_t i, Tensor gradient) {
  const Edge& edge = node.edges[i];
  if (!edge.node && !edge.leaf.defined()) return;
  expect_like_input(node, i, gradient);
  if (edge.node) return gradients_[edge.node.get()].add(widened(gradient, node.dtypes[i]));
  LeafState& state = leaves_[edge.leaf.id()];
  if (state.outstanding > 1 || !state.gradient.is_empty())
    gradient = widened(gradient, node.dtypes[i]);
  state.gradient.add(std::move(gradient));  // the sum may now hold the only handle
  if (--state.outstanding == 0) accumulate(state.leaf, state.gradient.take());
}

// Checks the gradient that backward() begins with, or makes the default one.
Tensor initial_gradient(const Tensor& root, const Tensor& gradient) {
  if (!gradient.defined()) {
    if (root.numel() != 1)
      fail<ShapeError>(
          "backward: a tensor of shape {} needs an explicit gradient; only a one-element tensor "
          "has the default gradient 1",
          to_string(root.shape()));
    return full(root.shape(), 1, {root.dtype(), root.device()});
  }
  if (!(gradient.shape() == root.shape()) || gradient.dtype() != root.dtype() ||
      gradient.device() != root.device())
    fail<ShapeError>("backward: expected a gradient of shape {}, {} on {}, got {}, {} on {}",
                     to_string(root.shape()), to_string(root.dtype()), to_string(root.device()),
                     to_string(gradient.shape()), to_string(gradient.dtype()),
                     to_string(gradient.device()));
  return gradient.detach();
}

// Returns the operation that computed the root. For a leaf it is an identity in front of the leaf.
std::shared_ptr<Node> node_of(const Tensor& root) {
  if (!root.is_leaf()) return root.meta()->node;
  const auto identity = std::make_shared<Node>();
  identity->name = "leaf";
  identity->edges = {{nullptr, root}};
  root.meta()->uses_without_backward.fetch_add(1, std::memory_order_relaxed);
  identity->shapes = {root.shape()};
  identity->dtypes = {root.dtype()};
  identity->backward = [](const Tensor& g) { return std::vector<Tensor>{g}; };
  return identity;
}

}  // namespace

void backward(const Tensor& root, const Tensor& gradient, bool retain_graph) {
  if (!root.requires_grad())
    fail<Error>(
        "backward: the tensor does not require grad: nothing it was computed from did, or it was "
        "computed under NoGrad or by a backward (there is no double backward)");
  if (running)
    fail<Error>("backward: called inside of the backward of '{}'; call it before or after that",
                current_operation());
  const Tensor initial = initial_gradient(root, gradient);
  const trace::Span span("backward");
  const NoGrad no_grad;
  RunningBackward now{.id = ++backward_count};
  const ScopedValue scope(running, &now);
  {
    BackwardPass pass(node_of(root), initial, retain_graph);
    now.pass = &pass;
    pass.run();
    now.pass = nullptr;
  }
  // A callback may add another one.
  for (std::size_t i = 0; i < now.callbacks.size(); ++i) std::function<void()>(now.callbacks[i])();
}

void at_end_of_backward(std::function<void()> callback) {
  if (!running) fail<Error>("at_end_of_backward: no backward is running on this thread");
  running->callbacks.push_back(std::move(callback));
}

std::uint64_t current_backward() { return running ? running->id : 0; }

std::uint64_t backwards_begun() { return backward_count; }

std::vector<Tensor> leaves_reached_alone(const void* group) {
  BackwardPass* const pass = current_pass();
  return pass ? pass->leaves_reached_alone(group) : std::vector<Tensor>();
}

Tensor newest_parameter_without_hook() { return running ? running->newest_parameter : Tensor(); }

void defer_gradients(std::function<std::vector<Tensor>()> rest) {
  if (!current_pass()) fail<Error>("defer_gradients: no backward is running on this thread");
  current_pass()->defer(std::move(rest));
}

void compute_deferred_gradients() {
  if (BackwardPass* const pass = current_pass()) pass->compute_deferred_gradients();
}

bool frees_saved_tensors() { return current_pass() && !current_pass()->retains_graph(); }

void mark_waits_for_ranks(const Tensor& output, const void* group) {
  if (output.meta() && output.meta()->node) output.meta()->node->waits_for_group = group;
}

const std::string& current_operation() {
  static const auto& none = *new std::string;  // threads may outlive static objects
  return operation ? *operation : none;
}

}  // namespace tutti::autograd
