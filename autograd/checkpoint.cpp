#include "checkpoint.h"

#include "../core/create.h"
#include "engine.h"
#include "record.h"

namespace tutti {
namespace autograd {
namespace {

thread_local CheckpointTape* current_tape = nullptr;

// Runs the thread's default generator from another state, and puts it back.
class GeneratorScope {
 public:
  explicit GeneratorScope(Generator::State state) : before_(default_generator().state()) {
    default_generator().set_state(state);
  }
  ~GeneratorScope() { default_generator().set_state(before_); }

 private:
  Generator::State before_;
};

}  // namespace

class CheckpointTape::Scope {
 public:
  Scope(CheckpointTape& tape, bool replaying) : tape_(tape), before_(current_tape) {
    tape.replaying_ = replaying;
    tape.next_ = 0;
    tape.outer_ = replaying ? nullptr : before_;
    current_tape = &tape;
  }
  ~Scope() {
    tape_.outer_ = nullptr;
    current_tape = before_;
  }

 private:
  CheckpointTape& tape_;
  CheckpointTape* before_;
};

CheckpointTape* CheckpointTape::current() { return current_tape; }

void CheckpointTape::put(const std::string& what, const std::vector<Tensor>& tensors) {
  entries_.push_back({what, tensors});
  if (outer_) outer_->put(what, tensors);
}

std::vector<Tensor> CheckpointTape::take(const std::string& what) {
  if (!replaying_ && outer_) {
    entries_.push_back({what, outer_->take(what)});
    return entries_.back().tensors;
  }
  if (next_ == entries_.size())
    fail<Error>(
        "checkpoint: the second run of the function asks for more statistics ({}, by {}) than the "
        "first one computed; the function must do the same both times",
        next_ + 1, what);
  const Entry& entry = entries_[next_];
  if (entry.what != what)
    fail<Error>(
        "checkpoint: the second run of the function is at {} where the first one was at {}; the "
        "function must do the same both times",
        what, entry.what);
  ++next_;
  return entry.tensors;
}

}  // namespace autograd

Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                  const std::vector<Tensor>& inputs) {
  using namespace autograd;
  if (!grad_enabled()) return fn(inputs);

  const auto tape = std::make_shared<CheckpointTape>();
  const Generator::State state = default_generator().state();
  const DType cast = autocast_dtype().value_or(float32);  // float32 switches it off
  Tensor output;
  {
    const NoGrad no_grad;
    const CheckpointTape::Scope scope(*tape, false);
    output = fn(inputs);
  }
  std::vector<Saved> saved;
  std::vector<bool> needed;
  for (const Tensor& input : inputs) {
    saved.emplace_back(input);
    needed.push_back(needs_grad(input));
  }
  // fn may use parameters that are not among its inputs: an extra input that always requires grad
  // makes sure that the operation is recorded.
  std::vector<Tensor> all = inputs;
  all.push_back(zeros({}).requires_grad_());
  return record("checkpoint", output.detach(), all, [=](const Tensor& gradient) {
    const EnableGrad enable_grad;
    const CheckpointTape::Scope scope(*tape, true);
    std::vector<Tensor> again;
    for (std::size_t i = 0; i < saved.size(); ++i)
      again.push_back(saved[i] ? saved[i].get().detach().requires_grad_(needed[i]) : Tensor());
    Tensor result;
    {
      const GeneratorScope generator(state);
      const Autocast autocast(cast);
      result = fn(again);
    }
    if (result.requires_grad()) backward(result, gradient, false);
    std::vector<Tensor> gradients;
    for (const Tensor& input : again)
      gradients.push_back(input.defined() ? input.grad() : Tensor());
    gradients.emplace_back();  // the extra input's
    return gradients;
  });
}

}  // namespace tutti
