#include "engine.h"

#include "../core/create.h"
#include "../core/trace.h"
#include "record.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <utility>

namespace tutti::autograd {
namespace {

std::atomic<std::uint64_t> next_sequence{1};

struct Run {  // the outermost backward of a thread
  std::uint64_t id = 0;
  int depth = 0;
  std::vector<std::function<void()>> at_end;
};
thread_local Run run;
thread_local std::uint64_t runs = 0;
thread_local const std::string* operation = nullptr;

class RunScope {
 public:
  RunScope() {
    if (run.depth++ == 0) run.id = ++runs;
  }
  ~RunScope() {
    if (--run.depth == 0) {
      run.id = 0;
      run.at_end.clear();
    }
  }
  bool outermost() const { return run.depth == 1; }
};

class OperationScope {
 public:
  explicit OperationScope(const std::string& name) : before_(operation), span_(name) {
    operation = &name;
  }
  ~OperationScope() { operation = before_; }

 private:
  const std::string* before_;
  trace::Span span_;
};

// A gradient on its way: the sum of what has arrived. It is added to in place where nobody else
// holds it any more: an addition hands the same tensor to both inputs, and closures may keep what
// they gave.
class Arriving {
 public:
  void add(const Tensor& gradient) {
    if (!gradient.defined()) return;
    if (!sum_.defined()) {
      sum_ = gradient;
      return;
    }
    if (!(sum_.is_exclusive() && sum_.is_dense())) sum_ = sum_.clone();
    sum_.add_(gradient);
  }
  Tensor take() { return std::move(sum_); }

 private:
  Tensor sum_;
};

struct LeafState {
  Tensor leaf;
  int outstanding = 0;  // edges into it that were not visited yet
  Arriving gradient;
};

class Walk;
thread_local Walk* current_walk = nullptr;

class WalkScope {  // a recomputation runs a backward within another
 public:
  explicit WalkScope(Walk* walk) : before_(std::exchange(current_walk, walk)) {}
  ~WalkScope() { current_walk = before_; }

 private:
  Walk* before_;
};

class Walk {
 public:
  Walk(const std::shared_ptr<Node>& root, Tensor gradient, bool retain_graph)
      : retain_graph_(retain_graph) {
    discover(root.get());
    arriving_[root.get()].add(gradient);
  }

  void go() {
    const WalkScope scope(this);
    for (Node* node : order_) {
      if (!node->waits_for_ranks) compute_deferred_gradients();
      const auto at = arriving_.find(node);
      Tensor gradient = at == arriving_.end() ? Tensor() : at->second.take();
      if (at != arriving_.end()) arriving_.erase(at);
      std::vector<Tensor> gradients(node->edges.size());
      if (gradient.defined()) gradients = apply(*node, std::move(gradient));
      compute_deferred_gradients();  // where an operation that waits for ranks did not
      Deferred owed{node, std::move(rest_), {}};
      rest_ = nullptr;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (owed.rest && !gradients[i].defined()) owed.inputs.push_back(i);
        else deliver(*node, i, std::move(gradients[i]));
      }
      deferred_ = std::move(owed);
      // The operation that made an input may be next, and needs its gradient.
      for (std::size_t i : deferred_.inputs)
        if (node->edges[i].node) {
          compute_deferred_gradients();
          break;
        }
    }
    compute_deferred_gradients();
  }

  void defer(std::function<std::vector<Tensor>()> rest) { rest_ = std::move(rest); }

  void compute_deferred_gradients() {
    if (!deferred_.rest) return;
    const Deferred now = std::exchange(deferred_, {});
    const OperationScope scope(now.node->name);
    std::vector<Tensor> gradients = now.rest();
    expect_one_for_each_input(*now.node, gradients);
    for (std::size_t i : now.inputs) deliver(*now.node, i, std::move(gradients[i]));
  }

 private:
  struct Deferred {  // gradients of `node` that are still to be computed
    Node* node = nullptr;
    std::function<std::vector<Tensor>()> rest = {};
    std::vector<std::size_t> inputs = {};
  };

  void discover(Node* root) {
    std::vector<Node*> stack{root};
    std::unordered_map<Node*, bool> seen{{root, true}};
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
        if (edge.node && seen.emplace(edge.node.get(), true).second)
          stack.push_back(edge.node.get());
        if (edge.leaf.defined()) {
          LeafState& state = leaves_[edge.leaf.id()];
          state.leaf = edge.leaf;
          ++state.outstanding;
        }
      }
    }
    std::sort(order_.begin(), order_.end(),
              [](Node* a, Node* b) { return a->sequence > b->sequence; });
  }

  std::vector<Tensor> apply(Node& node, Tensor gradient) {
    const OperationScope scope(node.name);
    std::vector<Tensor> gradients = node.backward(gradient);
    if (!retain_graph_) {
      node.backward = nullptr;  // frees what it saved as early as possible
      node.freed = true;
    }
    expect_one_for_each_input(node, gradients);
    return gradients;
  }

  static void expect_one_for_each_input(const Node& node, const std::vector<Tensor>& gradients) {
    if (gradients.size() != node.edges.size())
      fail<Error>("backward of '{}': expected {} gradients, one for each input, got {}", node.name,
                  node.edges.size(), gradients.size());
  }

  void deliver(const Node& node, std::size_t i, Tensor gradient) {
    const Edge& edge = node.edges[i];
    if (!edge.node && !edge.leaf.defined()) return;
    if (gradient.defined() &&
        !(gradient.shape() == node.shapes[i] && gradient.dtype() == node.dtypes[i]))
      fail<ShapeError>(
          "backward of '{}': input {} has shape {} and dtype {}, its gradient {} and {}", node.name,
          i, to_string(node.shapes[i]), to_string(node.dtypes[i]), to_string(gradient.shape()),
          to_string(gradient.dtype()));
    if (edge.node) {
      if (gradient.defined()) arriving_[edge.node.get()].add(gradient);
      return;
    }
    LeafState& state = leaves_[edge.leaf.id()];
    state.gradient.add(gradient);
    gradient = {};
    if (--state.outstanding == 0) accumulate(state.leaf, state.gradient.take());
  }

  static void accumulate(const Tensor& leaf, Tensor gradient) {
    if (!gradient.defined()) return;
    Meta& meta = *leaf.meta();
    if (meta.grad.defined()) {
      meta.grad.add_(gradient);
    } else if (gradient.is_exclusive() && gradient.strides() == leaf.strides()) {
      meta.grad = std::move(gradient);
    } else {
      // In the leaf's own layout, so that optimizers and buckets can walk both as flat memory.
      const Tensor copy = empty_like(leaf.detach());
      copy.copy_(gradient);
      meta.grad = copy;
    }
    for (std::size_t i = 0; i < meta.hooks.size(); ++i) meta.hooks[i].second(meta.grad);
  }

  bool retain_graph_;
  std::function<std::vector<Tensor>()> rest_;  // what the running closure handed to defer_gradients
  Deferred deferred_;
  std::vector<Node*> order_;
  std::unordered_map<Node*, Arriving> arriving_;
  std::unordered_map<const void*, LeafState> leaves_;
};

}  // namespace

void backward(const Tensor& root, Tensor gradient, bool retain_graph) {
  if (!root.requires_grad())
    fail<Error>(
        "backward: the tensor does not require grad: nothing it was computed from did, or it was "
        "computed under NoGrad or by a backward (there is no double backward)");
  if (!gradient.defined()) {
    if (root.numel() != 1)
      fail<ShapeError>(
          "backward: a tensor of shape {} needs an explicit gradient; only a one-element tensor "
          "has the default gradient 1",
          to_string(root.shape()));
    gradient = full(root.shape(), 1, {root.dtype(), root.device()});
  }
  if (!(gradient.shape() == root.shape()) || gradient.dtype() != root.dtype() ||
      gradient.device() != root.device())
    fail<ShapeError>("backward: expected a gradient of shape {}, {} on {}, got {}, {} on {}",
                     to_string(root.shape()), to_string(root.dtype()), to_string(root.device()),
                     to_string(gradient.shape()), to_string(gradient.dtype()),
                     to_string(gradient.device()));
  const trace::Span span("backward");
  const NoGrad no_grad;
  const RunScope scope;
  if (root.is_leaf()) {
    // The graph of a leaf is the leaf: an identity in front of it makes the general walk serve.
    const auto identity = std::make_shared<Node>();
    identity->name = "leaf";
    identity->edges = {{nullptr, root}};
    identity->shapes = {root.shape()};
    identity->dtypes = {root.dtype()};
    identity->backward = [](const Tensor& g) { return std::vector<Tensor>{g}; };
    Walk(identity, gradient.detach(), retain_graph).go();
  } else {
    Walk(root.meta()->node, gradient.detach(), retain_graph).go();
  }
  if (scope.outermost()) {
    // A callback may queue another one.
    for (std::size_t i = 0; i < run.at_end.size(); ++i) std::function<void()>(run.at_end[i])();
  }
}

void at_end_of_backward(std::function<void()> callback) {
  if (run.depth == 0) fail<Error>("at_end_of_backward: no backward is running on this thread");
  run.at_end.push_back(std::move(callback));
}

std::uint64_t current_backward() { return run.id; }

void defer_gradients(std::function<std::vector<Tensor>()> rest) {
  if (!current_walk) fail<Error>("defer_gradients: no backward is running on this thread");
  current_walk->defer(std::move(rest));
}

void compute_deferred_gradients() {
  if (current_walk) current_walk->compute_deferred_gradients();
}

void mark_waits_for_ranks(const Tensor& output) {
  if (output.meta() && output.meta()->node) output.meta()->node->waits_for_ranks = true;
}

const std::string& current_operation() {
  static const std::string none;
  return operation ? *operation : none;
}

Saved::Saved(const Tensor& tensor) {
  if (!tensor.defined()) return;
  tensor_ = tensor.detach();
  version_ = tensor_.storage()->version();
}

const Tensor& Saved::get() const {
  if (tensor_.defined() && tensor_.storage()->version() != version_)
    fail<Error>(
        "backward of '{}': a tensor of shape {} that it saved was changed in place since (version "
        "{}, expected {}); change a clone() instead, or run backward first",
        current_operation(), to_string(tensor_.shape()), tensor_.storage()->version(), version_);
  return tensor_;
}

bool needs_grad(const Tensor& tensor) {
  return grad_enabled() && tensor.defined() && tensor.requires_grad();
}

Tensor record_node(std::string name, Tensor output, const std::vector<Tensor>& inputs,
                   Backward backward) {
  if (std::none_of(inputs.begin(), inputs.end(), needs_grad)) return output;
  if (output.meta())
    fail<Error>(
        "record('{}'): the output already has a history or is an input; compute it from detached "
        "tensors into a new one",
        name);
  const auto node = std::make_shared<Node>();
  node->name = std::move(name);
  node->sequence = next_sequence.fetch_add(1, std::memory_order_relaxed);
  for (const Tensor& input : inputs) {
    const bool needed = needs_grad(input);
    if (needed && !is_floating(input.dtype()))
      fail<DTypeError>("record('{}'): an input of dtype {} cannot require grad", node->name,
                       to_string(input.dtype()));
    node->edges.push_back(!needed           ? Edge{}
                          : input.is_leaf() ? Edge{nullptr, input}
                                            : Edge{input.meta()->node, {}});
    node->shapes.push_back(input.defined() ? input.shape() : Shape{});
    node->dtypes.push_back(input.defined() ? input.dtype() : DType::float32);
  }
  node->backward = std::move(backward);
  Meta& meta = meta_of(output);
  meta.requires_grad = true;
  meta.node = node;
  return output;
}

}  // namespace tutti::autograd
