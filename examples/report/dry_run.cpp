#include "dry_run.h"

#include "../train/network.h"
#include "../train/trainer.h"

#include <tutti/core/memory.h>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace tutti::examples {
namespace {

constexpr std::int64_t small_batch = 2;  // of one rank, for measurements of messages
// The most images for measurements of memory. With a few images the gradients may take more than
// the activations, and the peak comes later in the step.
constexpr std::int64_t most_images = 16;

// Returns options of a run of `steps` steps on the CPU that writes nothing. A step has one micro
// batch of `batch_size` images.
TrainOptions measured(TrainOptions o, const TrainingData& data, std::int64_t batch_size,
                      std::int64_t steps) {
  o.out.clear();  // and with it all that a run writes
  o.resume = o.cuda_graph = false;
  o.checkpoint_every = 0;
  o.weights.clear();  // the memory and the messages do not depend on their values
  o.workers = 0;
  o.device = Device::cpu();
  if (o.precision == float16) o.precision = bfloat16;  // of the same size
  o.batch_size = batch_size;
  o.drop_last = data.train->size() >= batch_size;  // a step of another size is not meant
  o.accumulate = 1;
  o.log_every = steps + 1;  // the sums of a row travel in no step
  o.epochs = o.max_steps = steps;
  return o;
}

void make_steps(TrainingRun& run) {
  run.begin();
  while (!run.is_done()) run.train_epoch();
}

// ---- memory

struct Memory {
  std::size_t kept = 0;  // between two steps
  std::size_t peak = 0;
};

Memory measure_memory(const TrainOptions& options, const TrainingData& data, std::int64_t images) {
  const TrainOptions small = measured(options, data, images, 2);
  const Allocator& cpu = allocator(Device::cpu());
  const std::size_t before = cpu.stats().live;
  TrainingRun run(small, data, ProcessGroup(), nullptr, nullptr);
  make_steps(run);
  return {cpu.stats().live - before, cpu.stats().peak - before};
}

std::size_t bytes_of(const StateDict& tensors) {
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : tensors)
    bytes += static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype());
  return bytes;
}

std::string megabytes(double bytes) { return fmt::format("{:10.2f} MB", bytes / 1e6); }

std::string describe_memory(const TrainOptions& options, const TrainingData& data, int ranks,
                            const nn::Module& net) {
  const std::int64_t parts = ranks * options.accumulate;  // one of them at a time
  const std::int64_t images = (options.batch_size + parts - 1) / parts;
  const std::int64_t more =
      std::clamp<std::int64_t>(std::min(images, data.train->size()), 4, most_images);
  const std::int64_t fewer = more / 2;
  const Memory small = measure_memory(options, data, fewer),
               large = measure_memory(options, data, more);
  const double of_image = static_cast<double>(large.peak - small.peak) /
                          static_cast<double>(more - fewer),
               kept = static_cast<double>(large.kept),
               total = std::max(kept, static_cast<double>(large.peak) +
                                          of_image * static_cast<double>(images - more));
  const auto weights = static_cast<double>(bytes_of(net.named_parameters())),
             buffers = static_cast<double>(bytes_of(net.named_buffers()));
  return fmt::format(
      "memory of a rank with {} images in a {}, estimated from steps of {} and {} images:\n"
      "  weights                               {}\n"
      "  running statistics and other buffers  {}\n"
      "  gradients, optimizer, metrics         {}\n"
      "  activations and temporaries           {}\n"
      "  together                              {}\n",
      images, options.accumulate > 1 ? "micro batch" : "step", fewer, more, megabytes(weights),
      megabytes(buffers), megabytes(kept - weights - buffers), megabytes(total - kept),
      megabytes(total));
}

// ---- communication

struct Communication {
  distributed::Traffic statistics, rest;
};

Communication communicate(const TrainOptions& options, const TrainingData& data,
                          std::int64_t steps) {
  TrainOptions small = measured(options, data, 2 * small_batch * options.accumulate, steps);
  small.accumulate = options.accumulate;
  const StopRequest nobody_stops{0};
  Communication result;
  distributed::run_ranks(2, [&](const ProcessGroup& group) {
    const TrainingData own = options.sharded ? shard(data, group.rank(), group.size()) : data;
    TrainingRun run(small, own, group, nullptr, &nobody_stops);
    make_steps(run);
    if (group.rank() == 0) result = {group.for_normalization().traffic(), group.traffic()};
  });
  return result;
}

// The first steps lay out the gradient buckets anew, so that the third one counts.
std::string describe_communication(const TrainOptions& options, const TrainingData& data,
                                   int ranks) {
  if (ranks == 1) return "communication: none, there is one rank\n";
  const Communication two = communicate(options, data, 2), three = communicate(options, data, 3);
  const auto line = [](const char* what, const distributed::Traffic& a,
                       const distributed::Traffic& b) {
    return fmt::format("  {:<37} {:10.2f} MB in {} collectives\n", what,
                       static_cast<double>(b.bytes - a.bytes) / 1e6, b.calls - a.calls);
  };
  return "communication of a rank in a step:\n" +
         line("statistics of batch normalisation", two.statistics, three.statistics) +
         line("gradients, and agreement on stopping", two.rest, three.rest);
}

// ---- model and length

// Lists the types of layers with their number and their own parameters.
std::string describe_model(const TrainOptions& options, const nn::Module& net) {
  struct Type {
    std::int64_t layers = 0, parameters = 0;
  };
  std::map<std::string, Type> types;
  for (const auto& [path, module] : net.named_modules()) {
    if (!module->children().empty()) continue;
    Type& type = types[module->type_name()];
    ++type.layers;
    type.parameters += module->parameter_count();
  }
  std::string text = fmt::format("model {}: {}\n", options.model, describe_parameters(net));
  for (const auto& [name, type] : types)
    text += fmt::format("  {:<20} {:>4} layers {:>12} parameters\n", name, type.layers,
                        type.parameters);
  return text;
}

}  // namespace

std::string describe_run(const TrainOptions& options, const TrainingData& data, int ranks) {
  const RunLength length = run_length(options, steps_per_epoch(options, ranks, data.train->size()));
  const TrainOptions small = measured(options, data, small_batch, 1);
  std::string text;
  {
    const TrainingRun run(small, data, ProcessGroup(), nullptr, nullptr);
    text = describe_model(options, run.net()) +
           fmt::format(
               "data {}: {} training and {} test images of {} x {} pixels, {} channels, {} "
               "classes\nlength: {} steps in an epoch, {} steps in {} epochs, global batch {} on "
               "{} ranks\n",
               options.dataset, data.train->size(), data.test->size(), data.image_size,
               data.image_size, data.channels, data.classes, length.steps_per_epoch, length.steps,
               length.epochs, options.batch_size, ranks) +
           describe_memory(options, data, ranks, run.net());
  }
  return text + describe_communication(options, data, ranks) +
         fmt::format("run folder {}: nothing was written\n", options.out);
}

}  // namespace tutti::examples
