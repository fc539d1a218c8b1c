#include "trainer.h"

#include "../data/loader.h"
#include "checkpoint.h"
#include "progress.h"
#include "step.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/parallel.h>
#include <tutti/core/random.h>
#include <tutti/core/trace.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/distributed/data_parallel/join.h>
#include <tutti/distributed/diagnostics/straggler_monitor.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/resnet.h>
#include <tutti/optim/grad_scaler.h>
#include <tutti/optim/schedule.h>
#include <tutti/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

namespace tutti::examples {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Sums of loss and correct answers that stay on the device until somebody asks, so that no step
/// waits for the host.
class Tally {
 public:
  explicit Tally(Device device) : sums_(zeros({2}, {.dtype = float64, .device = device})) {}

  void add(const Tensor& loss_sum, const Tensor& logits, const Tensor& labels) {
    const NoGrad no_grad;
    const Tensor right = eq(argmax(logits.detach(), 1), labels);
    sums_.slice(0, 0, 1).add_(loss_sum.detach().to(float64));
    sums_.slice(0, 1, 2).add_(sum(right).to(float64));
  }
  void count(std::int64_t global_size) { samples_ += global_size; }
  /// Mean loss and accuracy over all ranks since the last call.
  std::pair<double, double> take(const ProcessGroup& group) {
    group.all_reduce(sums_, distributed::ReduceOp::sum, {.name = "metrics"}).wait();
    const std::vector<double> sums = to_vector(sums_);
    const auto n = static_cast<double>(std::max<std::int64_t>(samples_, 1));
    sums_.zero_();
    samples_ = 0;
    return {sums[0] / n, sums[1] / n};
  }
  std::int64_t samples() const { return samples_; }
  /// This rank's sums of losses and of correct answers since then, on the CPU.
  Tensor sums() const { return sums_.to(Device::cpu()); }
  void restore(const Tensor& sums, std::int64_t samples) {
    sums_.copy_(sums);
    samples_ = samples;
  }

 private:
  Tensor sums_;
  std::int64_t samples_ = 0;
};

Loader::Options loader_options(const TrainOptions& o, const ProcessGroup& group, Device device,
                               bool training) {
  if (training && o.sharded)  // a loader that knows of no other rank
    return {.batch_size = std::max<std::int64_t>(o.batch_size / group.size(), 1),
            .seed = o.seed + static_cast<std::uint64_t>(group.rank()),
            .format = o.memory_format,
            .dtype = o.precision == float64 ? float64 : float32,
            .device = device};
  return {.batch_size = training ? o.batch_size : std::max<std::int64_t>(o.batch_size, 250),
          .training = training,
          .seed = o.seed,
          .rank = group.rank(),
          .ranks = group.size(),
          .format = o.memory_format,
          .dtype = o.precision == float64 ? float64 : float32,
          .device = device};
}

// The same on every rank, which may have more or fewer batches than others where each has images of
// its own.
std::int64_t steps_per_epoch(const Loader& loader, const TrainOptions& o,
                             const ProcessGroup& group) {
  const Tensor steps = full({}, static_cast<double>(loader.batches_per_epoch()), {.dtype = int64});
  const bool stop = o.uneven == distributed::Uneven::stop;
  group
      .all_reduce(steps, stop ? distributed::ReduceOp::min : distributed::ReduceOp::max,
                  {.name = "steps per epoch"})
      .wait();
  return steps.item<std::int64_t>();
}

// Row r is what rank r gives.
Tensor gather(const Tensor& mine, const ProcessGroup& group) {
  const Tensor all = empty({group.size(), mine.size(0)}, {.dtype = mine.dtype()});
  group.all_gather(mine, all, {.name = "checkpoint"}).wait();
  return all;
}

Tensor random_state() {
  const Generator::State state = default_generator().state();
  const Tensor numbers = empty({2}, {.dtype = int64});
  numbers.data<std::int64_t>()[0] = static_cast<std::int64_t>(state.seed);
  numbers.data<std::int64_t>()[1] = static_cast<std::int64_t>(state.position);
  return numbers;
}

void set_random_state(const Tensor& numbers) {
  default_generator().set_state({static_cast<std::uint64_t>(numbers.data<std::int64_t>()[0]),
                                 static_cast<std::uint64_t>(numbers.data<std::int64_t>()[1])});
}

std::pair<double, double> evaluate(nn::Layer& net, Loader& loader, const ProcessGroup& group,
                                   Device device) {
  const trace::Span span("evaluate");
  const NoGrad no_grad;
  net.eval();
  Tally tally(device);
  for (std::int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
    const Batch batch = loader.batch(0, i);
    if (batch.images.size(0) == 0) continue;  // evaluation communicates at its end only
    const Tensor logits = net(batch.images);
    tally.add(nn::cross_entropy(logits, batch.labels, {.reduction = nn::LossReduction::sum}),
              logits, batch.labels);
  }
  net.train();
  return tally.take(group);
}

// Why steps cannot be recorded as a CUDA graph; empty where they can.
std::string no_graph(const TrainOptions& o, const ProcessGroup& group, Device device) {
  if (device.is_cpu()) return "needs --device cuda";
  if (group.size() > 1 && !group.capabilities().graph_capture)
    return fmt::format("the ranks' group ({}) passes CUDA tensors through the host",
                       group.backend());
  if (o.sharded)
    return "with --sharded the batches of the ranks change independently of each other";
  return {};
}

}  // namespace

Device device_of_rank(const TrainOptions& o, int local_rank) {
  if (o.device.is_cpu()) return o.device;
  const int count = cuda::device_count(), index = o.device.index() + local_rank;
  return Device::cuda(index < count || count == 0 ? index : index % count);
}

TrainResult train(const TrainOptions& o, const Datasets& data, const ProcessGroup& group,
                  std::FILE* screen) {
  set_num_threads(o.threads > 0 ? o.threads : fair_threads(group));
  const bool first = group.rank() == 0;
  const Device device = device_of_rank(o, group.local_rank());

  // ---- model, optimizer, data
  const std::optional<Checkpoint> before =
      o.resume ? share(first ? load_checkpoint(o, group.size()) : std::nullopt, group)
               : std::nullopt;
  manual_seed(o.seed);
  const auto net =
      nn::resnet(o.model, {.classes = data.train.classes, .channels = data.train.channels});
  const DType dtype = o.precision == float64 ? float64 : float32;  // of weights and images
  net->to(device, dtype, o.memory_format);
  if (before) net->load_state_dict(before->model);
  if (o.sync_bn) nn::convert_sync_batchnorm(*net, group);
  distributed::DataParallel ddp(net->named_parameters(), net->named_buffers(), group);
  Loader train_loader(data.train, loader_options(o, group, device, true));
  Loader test_loader(data.test, loader_options(o, group, device, false));
  const std::int64_t per_epoch = steps_per_epoch(train_loader, o, group);
  const std::int64_t steps = o.max_steps > 0 ? std::min(o.max_steps, o.epochs * per_epoch)
                                             : o.epochs * per_epoch;
  if (before && before->steps != steps)
    fail<CheckpointError>(
        "cannot resume: the checkpoint is of a run of {} steps, this one has {}: other data?",
        before->steps, steps);
  const bool cycles = o.momentum == 0;
  optim::SGD sgd(net->parameters(), {.lr = o.lr,
                                     .momentum = cycles ? 0.95 : o.momentum,
                                     .weight_decay = o.weight_decay,
                                     .nesterov = o.nesterov});
  optim::Scheduler schedule(
      sgd, optim::one_cycle({.steps = steps}),
      cycles ? optim::one_cycle_momentum({.steps = steps}) : optim::Schedule{});

  // ---- where results go
  std::optional<RunFolder> folder;
  if (first && !o.out.empty())
    folder.emplace(o.out, before ? before->rows : std::vector<Metrics>());
  if (folder) folder->write_config(to_json(o));
  Progress progress(first ? screen : nullptr, o.epochs, per_epoch, before ? before->step : 0,
                    steps);
  progress.say(
      fmt::format("{} ({} parameters) on {}: {} training and {} test images, {} rank{} ({}) of {} "
                  "thread{}, global batch {}, {}, {}",
                  o.model, net->parameter_count(), o.dataset, data.train.count, data.test.count,
                  group.size(), group.size() > 1 ? "s" : "", group.backend(), num_threads(),
                  num_threads() > 1 ? "s" : "", o.batch_size, to_string(o.precision),
                  o.sync_bn ? "SyncBatchNorm" : "BatchNorm of each rank"));

  // ---- training
  std::optional<Autocast> autocast;
  if (size_of(o.precision) == 2) autocast.emplace(o.precision);
  std::optional<optim::GradScaler> scaler;
  if (o.precision == float16) scaler.emplace();
  TrainResult result;
  Metrics row;
  Tally tally(device);
  distributed::StragglerMonitor monitor(group);
  distributed::Join join(group, {.uneven = o.uneven});
  std::int64_t begin = 0;
  if (before) {
    begin = before->step;
    sgd.load_state_dict(before->optimizer);
    if (scaler) scaler->load_state_dict(before->scaler);
    schedule.set_position(begin);
    result.rows = before->rows;
    if (!result.rows.empty()) row = result.rows.back();
    row.test_loss = row.test_accuracy = {};
    tally.restore(before->sums.select(0, group.rank()), before->samples);
    set_random_state(before->random.select(0, group.rank()));
    progress.say(fmt::format("going on after step {} of {}", begin, steps));
  } else if (o.resume) {
    progress.say("no checkpoint yet: from the beginning");
  }
  const auto work = [&](const Batch& batch) {
    Tensor logits, loss_sum;
    {
      const trace::Span span("forward");
      logits = (*net)(batch.images);
      loss_sum = nn::cross_entropy(logits, batch.labels, {.reduction = nn::LossReduction::sum});
    }
    // DataParallel averages over the ranks; scaled like this, the average is the gradient of the
    // mean over the global batch, however unevenly it is split.
    sgd.zero_grad();
    const Tensor objective =
        loss_sum * (static_cast<double>(group.size()) / static_cast<double>(batch.global_size));
    (scaler ? scaler->scale(objective) : objective).backward();
    tally.add(loss_sum, logits, batch.labels);
    const trace::Span span("optimizer");
    if (scaler) {
      scaler->step(sgd);
      scaler->update();
    } else {
      sgd.step();
    }
  };
  const std::string why_not = o.cuda_graph ? no_graph(o, group, device) : "";
  if (!why_not.empty()) progress.say("cuda graph: none, steps run as they are: " + why_not);
  Step on_device(work, o.cuda_graph && why_not.empty() ? std::optional(device) : std::nullopt,
                 [&](const std::string& line) { progress.say(line); });
  auto window = Clock::now();
  for (std::int64_t step = begin; step < steps; ++step) {
    const std::int64_t epoch = step / per_epoch, index = step % per_epoch;
    const trace::Span whole([&] { return fmt::format("step {}", step + 1); });
    Batch batch = [&] {
      const trace::Span span("load");
      return train_loader.batch(epoch, index);
    }();
    if (o.sharded) {  // else every rank knows the global batch
      if (!join.step(batch.global_size)) fail<Error>("step {}: no rank has images", step + 1);
      batch.global_size = join.samples();
    }
    on_device.run(batch);
    tally.count(batch.global_size);
    row.learning_rate = sgd.learning_rate();
    schedule.step();

    row.epoch = epoch + 1;
    row.step = step + 1;
    const bool ends = index + 1 == per_epoch || step + 1 == steps;
    const bool saves = !o.out.empty() &&
                       (ends || (o.checkpoint_every > 0 && row.step % o.checkpoint_every == 0));
    if (ends || row.step % o.log_every == 0) {
      const auto samples = static_cast<double>(tally.samples());
      std::tie(row.train_loss, row.train_accuracy) = tally.take(group);
      row.images_per_second = samples / seconds_since(window);
      if (!std::isfinite(row.train_loss))
        fail<Error>("the loss is not finite at step {}; try a smaller --lr than {}", row.step,
                    o.lr);
      Metrics done = row;
      if (ends) {
        nn::check_batch_statistics(*net);
        // Statistics of plain batch norm differ from rank to rank: those of rank 0 are evaluated
        // and saved.
        if (!o.sync_bn) ddp.broadcast_buffers();
        const auto [loss, accuracy] = evaluate(*net, test_loader, group, device);
        if (group.size() > 1) done.stragglers = monitor.report();
        done.test_loss = loss / static_cast<double>(data.test.count);
        done.test_accuracy = accuracy / static_cast<double>(data.test.count);
      }
      result.rows.push_back(done);
      if (folder) folder->add(done);
      if (ends) progress.epoch_done(done);
      if (ends && folder) folder->draw_curves();
      window = Clock::now();
    }
    if (saves) {
      if (!o.sync_bn && !ends) ddp.broadcast_buffers();
      const Tensor random = gather(random_state(), group), sums = gather(tally.sums(), group);
      if (folder)
        save_checkpoint(o, {.step = row.step,
                            .steps = steps,
                            .model = net->state_dict(),
                            .optimizer = sgd.state_dict(),
                            .scaler = scaler ? scaler->state_dict() : StateDict(),
                            .random = random,
                            .sums = sums,
                            .samples = tally.samples(),
                            .rows = result.rows});
    }
    if (!ends) progress.update(row);
  }

  result.state = net->state_dict();
  result.test_accuracy = result.rows.back().test_accuracy.value_or(0);
  if (folder) {
    folder->save_weights(
        result.state,
        {{"model", o.model}, {"dataset", o.dataset}, {"step", std::to_string(steps)}});
    const std::string& path = folder->path();
    progress.say(fmt::format(
        "metrics  {0}/metrics.jsonl\nweights  {0}/model.safetensors\ncurves   {0}/curves.svg",
        path));
  }
  progress.say(fmt::format("test accuracy {:.4f}", result.test_accuracy));
  return result;
}

}  // namespace tutti::examples
