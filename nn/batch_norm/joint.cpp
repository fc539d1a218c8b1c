#include "joint.h"

#include "../../autograd/record.h"
#include "../../core/create.h"
#include "backward.h"

#include <algorithm>
#include <utility>

namespace tutti::nn {
namespace {

// JointBackward is the backward of several layers that share a collective. The graph holds two
// operations for each layer, connected by a scalar, the link. A backward first visits the
// operations of the outputs, which compute local gradients and store them here. It then visits the
// operations of the inputs; the first of these all-reduces all stored sums in one collective.
class JointBackward {
 public:
  explicit JointBackward(std::size_t layers) : halves_(layers) {}

  void put(std::size_t i, std::shared_ptr<const BackwardContext> context, LocalGradients local) {
    halves_[i] = {std::move(context), std::move(local), false};
  }

  Tensor input_gradient(std::size_t i) {
    if (!halves_[i].is_reduced) all_reduce();
    const Half half = std::exchange(halves_[i], {});
    return nn::input_gradient(*half.context, half.local);
  }

 private:
  struct Half {
    std::shared_ptr<const BackwardContext> context;  // null: the layer has not been visited
    LocalGradients local;
    bool is_reduced = false;
  };

  void all_reduce() {
    std::vector<Half*> visited;
    std::vector<Tensor*> packets;
    for (Half& half : halves_)
      if (half.context && !half.is_reduced) {
        visited.push_back(&half);
        packets.push_back(&half.local.sums);
      }
    const CallId& first = visited.front()->context->id;
    distributed::Work work =
        start_all_reduce(concatenate(packets), first, Phase::backward, packets.size() - 1);
    autograd::compute_deferred_gradients();
    work.wait();
    for (Half* half : visited) {
      const BackwardContext& context = *half->context;
      checked_or_assumed_header(half->local.sums, context.id, Phase::backward);
      half->is_reduced = true;
    }
  }

  std::vector<Half> halves_;
};

// Records the operation of the input, and returns the link.
Tensor record_input(const Call& call, const std::shared_ptr<JointBackward>& backward,
                    std::size_t i) {
  const Tensor link = zeros({}, {.device = call.x.device()});
  // If x needs no gradient, the other inputs stand in for it, so that the operation is recorded:
  // this rank must take part in the collective.
  const BatchNormArgs& args = call.args;
  const std::vector<Tensor> inputs = autograd::needs_grad(call.input)
                                         ? std::vector{call.input}
                                         : std::vector{args.weight, args.bias, args.residual};
  autograd::record("batch_norm", link, inputs, [backward, i, count = inputs.size()](const Tensor&) {
    std::vector<Tensor> gradients(count);
    gradients[0] = backward->input_gradient(i);
    return gradients;
  });
  autograd::mark_waits_for_ranks(link);
  return link;
}

// Records the operation of the output.
Tensor record_output(const Call& call, const Output& output,
                     const std::shared_ptr<JointBackward>& backward, std::size_t i,
                     const Tensor& link) {
  const auto context = std::make_shared<const BackwardContext>(call, output);
  const BatchNormArgs& args = call.args;
  return autograd::record("batch_norm", output.y, {link, args.weight, args.bias, args.residual},
                          [context, backward, i, link_gradient = link.detach()](const Tensor& dy) {
                            context->history->deferred_errors.throw_arrived();
                            LocalGradients local = local_gradients(*context, dy);
                            std::vector<Tensor> gradients{
                                link_gradient, std::exchange(local.weight, {}),
                                std::exchange(local.bias, {}), std::exchange(local.residual, {})};
                            backward->put(i, context, std::move(local));
                            return gradients;
                          });
}

}  // namespace

struct JointBatchNorm::Started {
  BatchNorm* layer = nullptr;
  Call call = {};
  std::uint64_t version = 0;  // the version of x when its sums were computed
  Tensor packet = {};         // the sums of this rank, after exchange() those of all ranks
  kernels::PacketHeader header = {};
  Statistics statistics = {};
  std::shared_ptr<JointBackward> backward = {};  // null: this layer shares no backward collective
  Tensor link = {};
  bool is_finished = false;

  bool shares_collective() const { return call.is_synchronized && call.computes_statistics(); }
  bool all_reduces_in_backward() const {
    return call.is_synchronized && statistics.input_gradient_needed;
  }

  void check(const Tensor& residual) const {
    if (call.x.storage()->version() != version)
      fail<Error>(
          "{}: its input was changed in place between start() and finish(); change a clone() "
          "instead",
          to_string(call.id));
    if (residual.defined()) check_residual(call, residual);
  }

  Statistics compute_statistics() const {
    if (call.uses_running_statistics()) return running_statistics(call);
    if (call.is_recomputation) return saved_statistics(call);
    Statistics pending = pending_statistics(call, packet, header);
    remember(call, pending);
    return pending;
  }
};

JointBatchNorm::JointBatchNorm() = default;
JointBatchNorm::~JointBatchNorm() = default;
JointBatchNorm::JointBatchNorm(JointBatchNorm&&) noexcept = default;
JointBatchNorm& JointBatchNorm::operator=(JointBatchNorm&&) noexcept = default;

std::size_t JointBatchNorm::start(BatchNorm& layer, const Tensor& x,
                                  const BatchNorm::ForwardOptions& options) {
  const trace::Span here = layer.span();
  const BatchNormArgs args = layer.arguments(options);
  if (is_exchanged_)
    fail<Error>(
        "{}: this JointBatchNorm has exchanged its statistics already; start the layer with "
        "another one",
        args.name);
  if (layer.channel_groups() > 0 || layer.has_ghost_batches(args))
    fail<ValueError>(
        "{}: JointBatchNorm runs layers that normalise by whole batches; this one has {}, so call "
        "its forward() alone",
        args.name, layer.channel_groups() > 0 ? "groups of channels" : "ghost batches");
  const auto partner = std::find_if(started_.begin(), started_.end(),
                                    [](const Started& s) { return s.call.is_synchronized; });
  Started s{.layer = &layer,
            .call = checked_call(x, args, layer.history_,
                                 partner == started_.end() ? nullptr : &partner->call)};
  observe(s.call);
  s.version = s.call.x.storage()->version();
  if (s.call.computes_statistics()) s.packet = local_sums(s.call);
  started_.push_back(std::move(s));
  return started_.size() - 1;
}

Tensor JointBatchNorm::finish(std::size_t number, const Tensor& residual) {
  if (number >= started_.size() || started_[number].is_finished)
    fail<Error>("JointBatchNorm: layer {} of {} was not started or is finished already", number,
                started_.size());
  Started& s = started_[number];
  const trace::Span here = s.layer->span();
  exchange();
  try {
    s.check(residual);
  } catch (const std::exception&) {
    // The other ranks move the running statistics of all layers.
    for (Started& each : started_) finalize_statistics(each.call, each.statistics);
    throw;
  }
  if (residual.defined()) s.call.args.residual = residual;
  s.call.needed = needed_gradients(s.call.input, s.call.args);  // The grad mode may have changed.
  const Output output = apply(s.call, s.statistics);
  const Tensor y = s.backward ? record_output(s.call, output, s.backward, number, s.link)
                              : record_backward(s.call, output);
  BatchNorm& layer = *s.layer;
  const Tensor input = s.call.input;
  s = {.is_finished = true};  // releases the tensors
  return layer.run_hooks(input, y);
}

void JointBatchNorm::exchange() {
  if (has_failed_)
    fail<Error>(
        "JointBatchNorm: its exchange has failed, so there is nothing to finish; start again with "
        "another one");
  if (std::exchange(is_exchanged_, true)) return;
  has_failed_ = true;  // an exception below leaves it set
  all_reduce();
  for (Started& s : started_)
    if (s.call.computes_statistics()) s.header = read_header(s.call, s.packet);
  for (const Started& s : started_) expect_variance(s.header, s.call.id, s.call.x.shape());
  for (Started& s : started_) s.statistics = s.compute_statistics();
  has_failed_ = false;

  if (std::count_if(started_.begin(), started_.end(),
                    [](const Started& s) { return s.all_reduces_in_backward(); }) < 2)
    return;
  const auto backward = std::make_shared<JointBackward>(started_.size());
  for (std::size_t i = 0; i < started_.size(); ++i)
    if (Started& s = started_[i]; s.all_reduces_in_backward()) {
      s.backward = backward;
      s.link = record_input(s.call, backward, i);
    }
}

void JointBatchNorm::all_reduce() {
  std::vector<Tensor*> packets;
  const CallId* first = nullptr;
  for (Started& s : started_)
    if (s.shares_collective()) {
      packets.push_back(&s.packet);
      if (!first) first = &s.call.id;
    }
  if (packets.empty()) return;
  start_all_reduce(concatenate(packets), *first, Phase::forward, packets.size() - 1).wait();
}

}  // namespace tutti::nn
