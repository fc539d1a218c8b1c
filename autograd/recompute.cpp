#include "recompute.h"

#include "../core/create.h"
#include "../core/scoped_value.h"
#include "engine.h"
#include "record.h"

namespace tutti {
namespace autograd {
namespace {

[[noreturn]] void refuse(const std::string& difference) {
  fail<Error>(
      "recompute: the second run of the function {}; the function must do the same both times",
      difference);
}

}  // namespace

Tensor RecomputeTape::run(const std::vector<Tensor>& inputs) {
  recomputing_ = first_.ended > 0;
  now_ = {};
  next_ = 0;
  const ScopedValue outer(outer_, recomputing_ ? nullptr : current());
  const ScopedValue observed(Observer::current, this);
  const ScopedValue generators(restored_, {});  // They go on where they were.
  Tensor result = function_(inputs);
  now_.ended = next_serial();
  if (!recomputing_) first_ = now_;
  before_record({});
  if (recomputing_ && next_ != entries_.size())
    refuse("leaves a saved result of " + entries_[next_].owner);
  if (now_.generators.size() != first_.generators.size()) refuse("leaves a random generator alone");
  if (now_.trained != first_.trained) refuse("finds that a parameter was frozen or unfrozen");
  return result;
}

void RecomputeTape::save(const std::string& owner, const std::vector<Tensor>& tensors) {
  entries_.push_back({owner, tensors});
  if (outer_) outer_->save(owner, tensors);
}

std::vector<Tensor> RecomputeTape::load(const std::string& owner) {
  if (!recomputing_ && outer_) {
    entries_.push_back({owner, outer_->load(owner)});
    return entries_.back().tensors;
  }
  const std::string first = next_ < entries_.size() ? entries_[next_].owner : "its end";
  if (owner != first) refuse(fmt::format("is at {} where the first one was at {}", owner, first));
  return entries_[next_++].tensors;
}

void RecomputeTape::expect_same(const std::string& state) {
  if (is_recomputing()) load(state);
  else save(state, {});
}

void RecomputeTape::before_access(const Tensor& tensor) noexcept {
  if (outer_) outer_->before_access(tensor);
  const Storage& storage = *tensor.storage();
  if (storage.serial > now_.began) return;  // The function made it.
  const auto [now, is_new] = now_.versions.emplace(storage.serial, storage.version());
  // A cache that the first run has made is not compared.
  if (!recomputing_ || (storage.serial > first_.began && storage.serial < first_.ended)) return;
  const auto first = first_.versions.find(storage.serial);
  const bool is_other = first == first_.versions.end();
  if (is_other || first->second != now->second)
    change_ = fmt::format(
        "reads a tensor of shape {} that {}", to_string(tensor.shape()),
        is_other ? "the first one did not read" : "was changed in place since the first one");
}

void RecomputeTape::before_record(const std::vector<Tensor>& inputs) {
  if (outer_) outer_->before_record(inputs);
  for (const Tensor& input : inputs) {
    if (!input.defined()) continue;
    before_access(input);
    const std::uint64_t serial = input.storage()->serial;
    if (input.requires_grad() && serial < now_.began) now_.trained.insert(serial);
  }
  if (!change_.empty()) refuse(std::exchange(change_, {}));
}

void RecomputeTape::before_draw(Generator& generator) {
  if (outer_) outer_->before_draw(generator);
  const std::uint64_t serial = &generator == &default_generator() ? 0 : generator.serial;
  if (serial > now_.began) return;  // The function made it.
  const auto [used, is_new] = now_.generators.try_emplace(serial);
  if (!is_new) return;
  used->second = generator.state();  // comes here again, and returns above
  if (!recomputing_) return;
  const auto first = first_.generators.find(serial);
  if (first == first_.generators.end()) refuse("draws from a generator that the first one did not");
  restored_.emplace_back(generator, generator);
  generator.set_state(first->second);
}

}  // namespace autograd

Tensor recompute(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                 const std::vector<Tensor>& inputs) {
  using namespace autograd;
  if (!grad_enabled()) return fn(inputs);

  const auto tape = std::make_shared<RecomputeTape>(fn);
  const DType autocast = autocast_dtype().value_or(float32);  // float32 switches Autocast off
  Tensor output;
  {
    const NoGrad no_grad;
    output = tape->run(inputs);
  }
  // fn may use parameters that are not among its inputs. An extra input that always requires grad
  // makes sure that the operation is recorded for their sake.
  std::vector<Tensor> all = inputs;
  all.push_back(zeros({}).requires_grad_());
  output = record("recompute", output.detach(), all, [=](const Tensor& gradient) {
    const EnableGrad enable_grad;
    std::vector<Tensor> leaves;
    for (const Tensor& input : inputs)
      leaves.push_back(input.defined() ? input.detach().requires_grad_(input.requires_grad())
                                       : Tensor());
    Tensor result;
    {
      const Autocast cast(autocast);
      result = tape->run(leaves);
    }
    if (result.requires_grad()) backward(result, gradient, false);
    std::vector<Tensor> gradients;
    for (const Tensor& leaf : leaves) gradients.push_back(leaf.defined() ? leaf.grad() : Tensor());
    gradients.emplace_back();  // that of the extra input
    return gradients;
  });
  output.meta()->node->runs_backward = true;
  return output;
}

}  // namespace tutti
