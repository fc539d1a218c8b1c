#include "recompute.h"

#include "../core/create.h"
#include "engine.h"
#include "record.h"

namespace tutti {
namespace autograd {
namespace {

thread_local RecomputeTape* current_tape = nullptr;

// Gives the thread's default generator another state for as long as the scope lives.
class GeneratorScope {
 public:
  explicit GeneratorScope(Generator::State state) : before_(default_generator().state()) {
    default_generator().set_state(state);
  }
  ~GeneratorScope() { default_generator().set_state(before_); }
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  Generator::State before_;
};

}  // namespace

// Makes a tape the thread's current one for the first run (`recomputing` is false) or the second.
class RecomputeTape::Scope {
 public:
  Scope(RecomputeTape& tape, bool recomputing) : tape_(tape), before_(current_tape) {
    tape.recomputing_ = recomputing;
    tape.next_ = 0;
    tape.outer_ = recomputing ? nullptr : before_;
    current_tape = &tape;
  }
  ~Scope() {
    tape_.outer_ = nullptr;
    current_tape = before_;
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  RecomputeTape& tape_;
  RecomputeTape* before_;
};

RecomputeTape* RecomputeTape::current() { return current_tape; }

void RecomputeTape::save(const std::string& owner, const std::vector<Tensor>& tensors) {
  entries_.push_back({owner, tensors});
  if (outer_) outer_->save(owner, tensors);
}

std::vector<Tensor> RecomputeTape::load(const std::string& owner) {
  if (!recomputing_ && outer_) {
    entries_.push_back({owner, outer_->load(owner)});
    return entries_.back().tensors;
  }
  if (next_ == entries_.size())
    fail<Error>(
        "recompute: the second run of the function asks for more saved results ({}, by {}) than "
        "the first one left; the function must do the same both times",
        next_ + 1, owner);
  const Entry& entry = entries_[next_];
  if (entry.owner != owner)
    fail<Error>(
        "recompute: the second run of the function is at {} where the first one was at {}; the "
        "function must do the same both times",
        owner, entry.owner);
  ++next_;
  return entry.tensors;
}

}  // namespace autograd

Tensor recompute(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                 const std::vector<Tensor>& inputs) {
  using namespace autograd;
  if (!grad_enabled()) return fn(inputs);

  const auto tape = std::make_shared<RecomputeTape>();
  const Generator::State state = default_generator().state();
  const DType autocast = autocast_dtype().value_or(float32);  // float32 switches Autocast off
  Tensor output;
  {
    const NoGrad no_grad;
    const RecomputeTape::Scope scope(*tape, false);
    output = fn(inputs);
  }
  std::vector<Saved> saved;
  std::vector<bool> needed;
  for (const Tensor& input : inputs) {
    saved.emplace_back(input);
    needed.push_back(needs_grad(input));
  }
  // fn may use parameters that are not among its inputs. An extra input that always requires grad
  // makes sure that the operation is recorded for their sake.
  std::vector<Tensor> all = inputs;
  all.push_back(zeros({}).requires_grad_());
  return record("recompute", output.detach(), all, [=](const Tensor& gradient) {
    const EnableGrad enable_grad;
    const RecomputeTape::Scope scope(*tape, true);
    std::vector<Tensor> leaves;
    for (std::size_t i = 0; i < saved.size(); ++i)
      leaves.push_back(saved[i] ? saved[i].get().detach().requires_grad_(needed[i]) : Tensor());
    Tensor result;
    {
      const GeneratorScope generator(state);
      const Autocast cast(autocast);
      result = fn(leaves);
    }
    if (result.requires_grad()) backward(result, gradient, false);
    std::vector<Tensor> gradients;
    for (const Tensor& leaf : leaves) gradients.push_back(leaf.defined() ? leaf.grad() : Tensor());
    gradients.emplace_back();  // that of the extra input
    return gradients;
  });
}

}  // namespace tutti
