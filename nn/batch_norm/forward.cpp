// Batch norm in two phases: the statistics of this rank, then, after one collective for all that
// were started, the output. The backward has the same two halves, this rank's sums and the gradient
// of the input, with one collective between them. On a device nothing waits: the host neither reads
// what was shared nor decides by it (see batch_norm.h).
#include "functional.h"

#include "../../autograd/recompute.h"
#include "../../autograd/record.h"
#include "../../core/create.h"
#include "arguments.h"
#include "packet.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tutti::nn {
namespace {

using autograd::needs_grad;
using autograd::RecomputeTape;
using autograd::Saved;
using kernels::packet_size;

// ---- statistics

// What a forward knows of its batch: what backward needs of it, and what recompute() loads from its
// tape.
struct Statistics {
  Tensor mean, rstd;    // float64
  Tensor moments;       // the packet over all ranks; undefined for running statistics
  PacketHeader header;  // where ranks shared them
};

struct Started {
  BatchNormArgs args;
  Tensor input = {};            // as given, with its history
  Tensor x = {}, weights = {};  // dense
  std::uint64_t version = 0;    // of x, when its statistics were computed
  Statistics statistics = {};
  Tensor sums = {};  // of this rank, then of all
  std::optional<StatisticsSync> sync =
      {};              // where the statistics are shared; a replay has the number of the first call
  Tensor token = {};   // of a backward that several share
  bool fused = false;  // statistics and output are one step of this rank alone, in finish()
  bool finished = false;

  const kernels::BatchNorm& kernels() const { return tutti::kernels::batch_norm(x.device()); }
  std::int64_t channels() const { return x.size(1); }
  // Float32 sums M2 in float32, to which sums of squares in float64 are exact.
  bool exact() const { return x.dtype() == float64; }
  std::int64_t sums_size() const {
    return exact() ? kernels::exact_packet_size(channels()) : packet_size(channels());
  }
  // Whether backward communicates: the same on every rank. A device keeps to itself what the others
  // need, so there it always does.
  bool reduces() const {
    return sync && (x.device().is_cuda() || statistics.header.input_grad > 0);
  }
};

bool is_replaying() {
  const RecomputeTape* tape = RecomputeTape::current();
  return tape && tape->is_recomputing();
}

// What the ranks tell each other beside the statistics. Inside recompute() nothing is recorded
// yet, but will be.
Expectation expectation(const Started& s) {
  const bool later = RecomputeTape::current() != nullptr;
  const BatchNormArgs& a = s.args;
  const bool input = later || needs_grad(s.input);
  return {
      .input_grad = input,
      .backward = input || needs_grad(a.weight) || needs_grad(a.bias) || needs_grad(a.residual)};
}

// This rank's, as sums where they are shared.
void compute_moments(Started& s) {
  if (!s.sync) {
    s.statistics.moments = empty({packet_size(s.channels())}, {float64, s.x.device()});
    s.kernels().moments(s.x, s.weights, s.statistics.moments);
    return;
  }
  s.sums = empty({s.sums_size()}, {float64, s.x.device()});
  s.kernels().moment_sums(
      s.x, s.weights,
      message_of(*s.sync, s.args.name, Phase::forward, expectation(s), s.sums_size()), s.sums);
}

// One collective for the sums of all, which then lie one behind the other.
void share_moments(const std::vector<Started*>& shared) {
  Started& first = *shared.front();
  Tensor all = first.sums;
  if (shared.size() > 1) {
    std::int64_t size = 0;
    for (const Started* s : shared) size += s->sums_size();
    all = empty({size}, {float64, first.x.device()});
    for (std::int64_t at = 0; Started * s : shared) {
      const Tensor place = all.slice(0, at, at + s->sums_size());
      place.copy_(s->sums);
      s->sums = place;
      at += place.numel();
    }
  }
  reduce_packet(all, *first.sync, first.args.name, Phase::forward, shared.size() - 1).wait();
  for (Started* s : shared) {
    if (s->x.device().is_cpu())
      s->statistics.header = expect_agreement(s->sums, *s->sync, s->args.name, Phase::forward);
    else s->args.late->add(s->sums, s->sync, s->args.name, Phase::forward, s->x.shape());
    s->statistics.moments =
        s->exact() ? empty({packet_size(s->channels())}, {float64, s->x.device()}) : s->sums;
  }
}

// With weights, a sum of at most 1 has no unbiased variance either.
void check_count(const Started& s) {
  double n = s.statistics.header.count;
  if (!s.sync && !s.weights.defined())
    n = static_cast<double>(s.x.numel()) /
        static_cast<double>(std::max<std::int64_t>(1, s.channels()));
  else if (s.x.device().is_cuda())
    return s.sync ? void()
                  : s.args.late->add(s.statistics.moments, {}, s.args.name, Phase::forward,
                                     s.x.shape());
  else if (!s.sync) n = *s.statistics.moments.data<double>();
  if (n > 0 && n <= 1) fail<ShapeError>("{}", too_few(s.args, n, s.x.shape()));
}

// What the statistics of the batch lead to. The running ones will have moved.
kernels::StatisticsUpdate statistics_update(const Started& s) {
  const BatchNormArgs& a = s.args;
  kernels::StatisticsUpdate to{.eps = a.eps};
  if (s.sync) to.ranks = s.sync->group.size();
  if (!a.update_running || !a.running.mean.defined()) return to;
  to.tracking = a.tracking;
  to.momentum = a.momentum;
  to.running = a.running;
  for (const Tensor* changed :
       {&a.running.mean, &a.running.var, &a.running.batches, &a.running.elements})
    if (changed->defined()) changed->storage()->bump_version();
  return to;
}

void allocate_results(Started& s) {
  s.statistics.mean = empty({s.channels()}, {float64, s.x.device()});
  s.statistics.rstd = empty({s.channels()}, {float64, s.x.device()});
}

void finish_statistics(Started& s) {
  allocate_results(s);
  const Statistics& to = s.statistics;
  if (s.args.use_batch_statistics)
    s.kernels().finalize_statistics(s.sums, to.moments, statistics_update(s), to.mean, to.rstd);
  else s.kernels().running_statistics(s.args.running, s.args.eps, to.mean, to.rstd);
  s.sums = {};
}

// What recompute() saves of a call: its statistics, and its number, which is to be that of its
// backward too.
void remember_statistics(const Started& s) {
  const double call = s.sync ? static_cast<double>(s.sync->call) : 0;
  if (RecomputeTape* tape = RecomputeTape::current())
    tape->save(s.args.name, {s.statistics.mean, s.statistics.rstd, s.statistics.moments,
                             tensor({call, s.statistics.header.input_grad}, {float64})});
}

void replay_statistics(Started& s) {
  const std::vector<Tensor> entry = RecomputeTape::current()->load(s.args.name);
  if (entry[0].numel() != s.channels())
    fail<Error>(
        "{}: the second run of recompute() has {} channels where the first one had {}; the "
        "function must do the same both times",
        place(s.args), s.channels(), entry[0].numel());
  const double* numbers = entry[3].data<double>();
  s.statistics = {entry[0], entry[1], entry[2], {.input_grad = numbers[1]}};
  if (s.sync) s.sync->call = static_cast<std::int64_t>(numbers[0]);
}

// ---- the gradient

// What one backward of this rank alone has computed.
struct LocalGrad {
  Tensor dy;            // dense
  bool reuse = false;   // nobody else holds dy, so it is written over: it is in the cache, and a
                        // fresh block would not be
  bool masked = false;  // d_residual is dy below the ReLU
  Tensor sums;          // the packet; undefined where nothing needs it
  Tensor d_weight, d_bias, d_residual;
  Tensor dx;  // where no other rank is needed for it
};

struct Gradient {
  Saved x, output, weight, bias, position_weights;
  Tensor mask;  // of the ReLU after a residual, where the device stores one; else that is what
                // output is for
  Statistics statistics;
  kernels::Epsilon eps;
  bool relu, has_residual, needs_x, needs_weight, needs_bias, needs_residual, reduces;
  std::optional<StatisticsSync> sync;  // where the statistics were shared
  std::string name;
  std::shared_ptr<LateHeaders> late;  // on a device

  LocalGrad local(const Tensor& gradient) const;
  void expect_agreement(const Tensor& sums) const;
  Tensor of_input(const LocalGrad& local) const;

  const kernels::BatchNorm& kernels() const { return tutti::kernels::batch_norm(x.get().device()); }
  kernels::SavedForward saved() const {
    return {{.mean = statistics.mean,
             .rstd = statistics.rstd,
             .weight = weight,
             .bias = bias,
             .residual = has_residual ? x.get() : Tensor(),
             .relu = relu,
             .mask = mask},
            x,
            output,
            bool(position_weights)};
  }
};

LocalGrad Gradient::local(const Tensor& gradient) const {
  if (late) late->look();
  const Tensor& in = x.get();
  LocalGrad l;
  {
    const MemoryFormat format = format_of(in);
    Tensor copy = gradient.is_contiguous(format) ? Tensor() : gradient.contiguous(format);
    l.reuse = (copy.defined() ? copy : gradient).is_exclusive();
    l.dy = copy.defined() ? std::move(copy) : gradient;
  }
  l.masked = needs_residual && relu;
  if (l.masked) {
    l.d_residual = l.reuse ? l.dy : empty_like(in);
    l.reuse = false;
  }
  if (needs_residual && !relu) {
    l.d_residual = l.dy;
    l.reuse = false;
  }
  if (needs_weight || needs_bias || reduces || l.masked ||
      (needs_x && statistics.moments.defined())) {
    l.sums = empty({packet_size(in.size(1))}, {float64, in.device()});
    if (needs_weight) l.d_weight = empty_like(weight.get());
    if (needs_bias) l.d_bias = empty_like(bias.get());
    if (needs_x && !reduces && statistics.moments.defined()) {
      l.dx = l.reuse ? l.dy : empty_like(in);
      kernels().backward({.dy = l.dy,
                          .saved = saved(),
                          .moments = statistics.moments,
                          .position_weights = position_weights,
                          .eps = eps,
                          .sums = l.sums,
                          .masked_dy = l.masked ? l.d_residual : Tensor(),
                          .weight_grad = l.d_weight,
                          .bias_grad = l.d_bias,
                          .dx = l.dx});
      return l;
    }
    kernels().gradient_sums(
        {.dy = l.dy,
         .saved = saved(),
         .header = reduces ? message_of(*sync, name, Phase::backward, {}, l.sums.numel())
                           : kernels::PacketHeader{},
         .sums = l.sums,
         .masked_dy = l.masked ? l.d_residual : Tensor(),
         .weight_grad = l.d_weight,
         .bias_grad = l.d_bias});
  }
  return l;
}

void Gradient::expect_agreement(const Tensor& sums) const {
  if (sums.device().is_cpu()) nn::expect_agreement(sums, *sync, name, Phase::backward);
  else late->add(sums, sync, name, Phase::backward, x.get().shape());
}

// From sums over all ranks.
Tensor Gradient::of_input(const LocalGrad& l) const {
  if (!needs_x || l.dx.defined()) return l.dx;
  const Tensor dx = l.reuse ? l.dy : empty_like(x.get());
  kernels::SavedForward of = saved();
  of.normalization.relu = relu && !l.masked;
  kernels().apply_grad({.dy = l.masked ? l.d_residual : l.dy,
                        .saved = of,
                        .sums = statistics.moments.defined() ? l.sums : Tensor(),
                        .moments = statistics.moments,
                        .position_weights = position_weights,
                        .eps = eps,
                        .dx = dx});
  return dx;
}

// The backwards of several that share a collective. Each has two operations in the graph: the later
// one, that of its output, computes the local half and leaves it here; the earlier one, that of its
// input, is visited when all that this backward() comes to have done so, and the first of them
// reduces what is here. A token stands between the two.
class Together {
 public:
  explicit Together(std::size_t count) : halves_(count) {}

  void put(std::size_t i, std::shared_ptr<const Gradient> gradient, LocalGrad local) {
    halves_[i] = {std::move(gradient), std::move(local), false};
  }

  Tensor of_input(std::size_t i) {
    if (!halves_[i].reduced) reduce();
    const Half half = std::exchange(halves_[i], {});
    return half.gradient->of_input(half.local);
  }

 private:
  struct Half {
    std::shared_ptr<const Gradient> gradient;
    LocalGrad local;
    bool reduced = false;
  };

  void reduce() {
    std::vector<Half*> here;
    std::int64_t size = 0;
    for (Half& half : halves_)
      if (half.gradient && !half.reduced) {
        here.push_back(&half);
        size += half.local.sums.numel();
      }
    const Gradient& first = *here.front()->gradient;
    const Tensor all = empty({size}, {float64, here.front()->local.sums.device()});
    for (std::int64_t at = 0; Half * half : here) {
      const Tensor sums = all.slice(0, at, at + half->local.sums.numel());
      sums.copy_(half->local.sums);
      half->local.sums = sums;
      at += sums.numel();
    }
    distributed::Work work =
        reduce_packet(all, *first.sync, first.name, Phase::backward, here.size() - 1);
    autograd::compute_deferred_gradients();
    work.wait();
    for (Half* half : here) {
      half->gradient->expect_agreement(half->local.sums);
      half->reduced = true;
    }
  }

  std::vector<Half> halves_;
};

std::vector<Tensor> backward(const Gradient& of, const Tensor& dy) {
  LocalGrad local = of.local(dy);
  if (of.reduces) {
    distributed::Work work = reduce_packet(local.sums, *of.sync, of.name, Phase::backward);
    autograd::compute_deferred_gradients();
    work.wait();
    of.expect_agreement(local.sums);
  }
  const Tensor dx = of.of_input(local);
  return {dx, std::move(local.d_weight), std::move(local.d_bias), std::move(local.d_residual)};
}

// Below the outputs of a backward that is shared.
Tensor record_token(const Started& s, const std::shared_ptr<Together>& together, std::size_t i) {
  const Tensor token = zeros({}, {.device = s.x.device()});
  // The others are inputs only where x needs no gradient, so that this rank takes part in the
  // collective.
  const BatchNormArgs& a = s.args;
  const std::vector<Tensor> inputs =
      needs_grad(s.input) ? std::vector{s.input} : std::vector{a.weight, a.bias, a.residual};
  autograd::record("batch_norm", token, inputs,
                   [together, i, count = inputs.size()](const Tensor&) {
                     std::vector<Tensor> gradients(count);
                     gradients[0] = together->of_input(i);
                     return gradients;
                   });
  autograd::mark_waits_for_ranks(token);
  return token;
}

Tensor normalise(const Started& s, const std::shared_ptr<Together>& together, std::size_t i) {
  const BatchNormArgs& a = s.args;
  const auto own = [](const Tensor& t) {
    return t.defined() ? dense(t, MemoryFormat::contiguous) : Tensor();
  };
  const Tensor weight = own(a.weight), bias = own(a.bias);
  const Tensor residual = a.residual.defined() ? dense(a.residual, format_of(s.x)) : Tensor();
  const Tensor y = empty_like(s.x);
  const bool recorded = needs_grad(s.input) || needs_grad(a.weight) || needs_grad(a.bias) ||
                        needs_grad(a.residual);
  const bool masks = recorded && a.relu && residual.defined();
  const std::int64_t bits = masks ? s.kernels().mask_size(s.x) : 0;
  const Tensor mask = bits > 0 ? empty({bits}, {uint8, s.x.device()}) : Tensor();
  const kernels::Normalization to{
      s.statistics.mean, s.statistics.rstd, weight, bias, residual, a.relu, mask};
  if (s.fused) s.kernels().forward(s.x, s.statistics.moments, statistics_update(s), to, y);
  else s.kernels().apply(s.x, to, y);
  Gradient gradient{.x = s.x,
                    .output = masks && !mask.defined() ? Saved(y) : Saved(),
                    .weight = weight,
                    .bias = bias,
                    .position_weights = s.weights,
                    .mask = mask,
                    .statistics = s.statistics,
                    .eps = a.eps,
                    .relu = a.relu,
                    .has_residual = residual.defined(),
                    .needs_x = needs_grad(s.input),
                    .needs_weight = needs_grad(a.weight),
                    .needs_bias = needs_grad(a.bias),
                    .needs_residual = needs_grad(a.residual),
                    .reduces = s.reduces(),
                    .sync = s.sync,
                    .name = a.name,
                    .late = a.late};
  if (!s.token.defined()) {
    autograd::record("batch_norm", y, {s.input, a.weight, a.bias, a.residual},
                     [of = std::move(gradient)](const Tensor& dy) { return backward(of, dy); });
    if (s.reduces()) autograd::mark_waits_for_ranks(y);
    return y;
  }
  return autograd::record(
      "batch_norm", y, {s.token, a.weight, a.bias, a.residual},
      [of = std::make_shared<const Gradient>(std::move(gradient)), together, i,
       token = s.token.detach()](const Tensor& dy) {
        LocalGrad local = of->local(dy);
        const Tensor d_residual = local.masked ? local.d_residual
                                               : std::exchange(local.d_residual, {});
        std::vector<Tensor> gradients{token, std::exchange(local.d_weight, {}),
                                      std::exchange(local.d_bias, {}), d_residual};
        together->put(i, of, std::move(local));
        return gradients;
      });
}

// The arguments made ready, or an error that the other ranks hear of too.
Started prepare(const Tensor& x, BatchNormArgs args, const std::vector<Started>& before) {
  const bool shares = args.use_batch_statistics && args.sync;
  if (shares && args.sync->group.rank() < 0)
    throw DistributedError(
        fmt::format("{}: this rank is no member of its group '{}'; give the layer a group that has "
                    "this rank, or none",
                    args.name, args.sync->group.name()),
        {.operation = "all_reduce", .sequence = args.sync->call, .name = args.name});
  const bool synchronised = shares && args.sync->group.communicates();
  if (args.late) args.late->look();
  else if (x.device().is_cuda()) args.late = std::make_shared<LateHeaders>();
  try {
    check_arguments(x, args);
    if (synchronised)
      for (const Started& other : before)
        if (other.sync && !(other.sync->group == args.sync->group))
          fail<ValueError>("{} and {} have different groups; one collective needs one group",
                           place(other.args), place(args));
    Started s;
    s.input = x;
    s.x = dense(x, format_of(x));
    s.version = s.x.storage()->version();
    s.weights = dense_weights(x, args);
    if (synchronised) s.sync = args.sync;
    s.args = std::move(args);
    return s;
  } catch (const Error&) {
    if (synchronised && !is_replaying())
      announce_refusal(*args.sync, args.name, packet_size(expected_channels(x, args)), x.device());
    throw;
  }
}

}  // namespace

struct BatchNormTogether::State {
  std::vector<Started> all;
  std::shared_ptr<Together> together;
  bool exchanged = false, failed = false;
  bool alone = false;  // one call, finished as soon as it was started
};

BatchNormTogether::BatchNormTogether() : state_(std::make_unique<State>()) {}
BatchNormTogether::~BatchNormTogether() = default;
BatchNormTogether::BatchNormTogether(BatchNormTogether&&) noexcept = default;

std::size_t BatchNormTogether::start(const Tensor& x, BatchNormArgs args) {
  if (state_->exchanged)
    fail<Error>(
        "{}: the statistics of this BatchNormTogether have been exchanged; start further ones with "
        "another",
        place(args));
  Started s = prepare(x, std::move(args), state_->all);
  if (s.args.use_batch_statistics && !is_replaying()) {
    s.fused = state_->alone && !s.sync && !s.weights.defined();
    if (s.fused) s.statistics.moments = empty({packet_size(s.channels())}, {float64, s.x.device()});
    else compute_moments(s);
  }
  state_->all.push_back(std::move(s));
  return state_->all.size() - 1;
}

void BatchNormTogether::exchange() {
  if (state_->failed)
    fail<Error>(
        "BatchNormTogether: its exchange has failed, so there is nothing to finish; start again "
        "with another");
  if (std::exchange(state_->exchanged, true)) return;
  state_->failed = true;  // until all of it is done
  std::vector<Started>& all = state_->all;
  std::vector<Started*> shared;
  const bool replaying = is_replaying();
  for (Started& s : all)
    if (s.sync && !replaying) shared.push_back(&s);
  if (!shared.empty()) share_moments(shared);
  for (Started& s : all)
    if (s.args.use_batch_statistics && !replaying) check_count(s);
  for (Started& s : all) {
    if (s.args.use_batch_statistics && replaying) {
      replay_statistics(s);
      continue;
    }
    if (s.fused) allocate_results(s);
    else finish_statistics(s);
    if (s.args.use_batch_statistics) remember_statistics(s);
  }
  state_->failed = false;
  if (std::count_if(all.begin(), all.end(), [](const Started& s) { return s.reduces(); }) < 2)
    return;
  state_->together = std::make_shared<Together>(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].reduces()) all[i].token = record_token(all[i], state_->together, i);
}

Tensor BatchNormTogether::finish(std::size_t which, const Tensor& residual, bool relu) {
  if (which >= state_->all.size() || state_->all[which].finished)
    fail<Error>("BatchNormTogether: {} of {} was not started or is finished already", which,
                state_->all.size());
  exchange();
  Started& s = state_->all[which];
  if (s.x.storage()->version() != s.version)
    fail<Error>(
        "{}: its input was changed in place between start() and finish(); change a clone() instead",
        place(s.args));
  if (residual.defined()) {
    check_residual(s.x, residual, s.args);
    s.args.residual = residual;
  }
  s.args.relu = s.args.relu || relu;
  const Tensor y = normalise(s, state_->together, which);
  s = {};  // let go of its tensors
  s.finished = true;
  return y;
}

Tensor batch_norm(const Tensor& x, const BatchNormArgs& args) {
  BatchNormTogether one;
  one.state_->alone = true;
  return one.finish(one.start(x, args));
}

}  // namespace tutti::nn
