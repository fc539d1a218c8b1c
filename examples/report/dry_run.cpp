#include "dry_run.h"

#include "../train/data_check.h"
#include "../train/network.h"
#include "../train/trainer.h"

#include <tutti/core/create.h>
#include <tutti/core/memory.h>

#include <fmt/format.h>

#include <algorithm>

namespace tutti::examples {
namespace {

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
  o.weights.clear();  // the memory does not depend on their values
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
  Allocator& cpu = allocator(Device::cpu());
  const std::size_t before = cpu.stats().live;
  cpu.reset_peak();
  TrainingRun run(small, data, ProcessGroup(), nullptr, nullptr);
  make_steps(run);
  return {cpu.stats().live - before, cpu.stats().peak - before};
}

// A picture of one size, for the measurement of a test.
class BlankScene final : public data::Dataset {
 public:
  BlankScene(std::int64_t height, std::int64_t width, std::int64_t channels)
      : size_{height, width, channels} {}
  std::int64_t size() const override { return 1; }
  data::Sample get(std::int64_t) const override {
    const TensorOptions bytes{.dtype = uint8};
    return {.image = zeros(size_, bytes), .mask = zeros({size_[0], size_[1], 1}, bytes)};
  }

 private:
  Shape size_;
};

// Returns what a test of a picture needs beside the network.
double measure_test(const TrainOptions& options, TrainingData data, std::int64_t height,
                    std::int64_t width) {
  data.test = std::make_shared<BlankScene>(height, width, data.channels);
  const TrainOptions small = measured(options, data, 1, 1);
  TrainingRun run(small, data, ProcessGroup(), nullptr, nullptr);
  Allocator& cpu = allocator(Device::cpu());
  const std::size_t before = cpu.stats().live;
  cpu.reset_peak();
  run.test();
  return static_cast<double>(cpu.stats().peak) - static_cast<double>(before);
}

// The tests of pictures of different sizes: that of the largest, estimated from two small ones.
struct TestMemory {
  std::int64_t height = 0, width = 0;  // zeros where all pictures have one size
  double bytes = 0;
};
TestMemory measure_largest_test(const TrainOptions& options, const TrainingData& data) {
  const auto [height, width] = largest_test_picture(data);
  if (height == 0) return {};
  const std::int64_t crop = data.image_size;
  const double one = measure_test(options, data, crop, crop),
               two = measure_test(options, data, crop, 2 * crop),
               crops = static_cast<double>(height) * static_cast<double>(width) /
                       static_cast<double>(crop * crop);
  return {height, width, std::max(one + (two - one) * (crops - 1), 0.0)};
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
  const TestMemory test = measure_largest_test(options, data);
  const Memory small = measure_memory(options, data, fewer),
               large = measure_memory(options, data, more);
  const double of_image = static_cast<double>(large.peak - small.peak) /
                          static_cast<double>(more - fewer),
               kept = static_cast<double>(large.kept),
               step = std::max(kept, static_cast<double>(large.peak) +
                                         of_image * static_cast<double>(images - more));
  const auto weights = static_cast<double>(bytes_of(net.state_dict()));
  return fmt::format(
      "memory of a rank with {} images in a {}, estimated from steps of {} and {} images:\n"
      "  weights and running statistics        {}\n"
      "  gradients, optimizer, metrics         {}\n"
      "  activations and temporaries           {}\n"
      "{}"
      "  together                              {}\n",
      images, options.accumulate > 1 ? "micro batch" : "step", fewer, more, megabytes(weights),
      megabytes(kept - weights), megabytes(step - kept),
      test.height == 0 ? ""
                       : fmt::format("  or the test of {:<22}{}\n",
                                     fmt::format("{} x {} pixels", test.height, test.width),
                                     megabytes(test.bytes)),
      megabytes(std::max(step, kept + test.bytes)));
}

}  // namespace

std::string describe_run(const TrainOptions& options, const TrainingData& data, int ranks) {
  const RunLength length = run_length(options, steps_per_epoch(options, data.train->size()));
  const TrainOptions small = measured(options, data, 2, 1);
  const TrainingRun run(small, data, ProcessGroup(), nullptr, nullptr);
  return fmt::format(
      "model {}: {}\ndata {}: {} training and {} test images of {} x {} pixels, {} channels, {} "
      "classes\nlength: {} steps in an epoch, {} steps in {} epochs, global batch {} on {} ranks\n"
      "{}run folder {}: nothing was written\n",
      options.model, describe_parameters(run.net()), options.dataset, data.train->size(),
      data.test->size(), data.image_size, data.image_size, data.channels, data.classes,
      length.steps_per_epoch, length.steps, length.epochs, options.batch_size, ranks,
      describe_memory(options, data, ranks, run.net()), options.out);
}

}  // namespace tutti::examples
