// Counts a training step of ResNet-50 with SyncBatchNorm in bfloat16, as the trainer makes it, on a
// device that census.h describes. No kernel runs.
#include "step_census.h"

#include "census_arguments.h"
#include "emulator.h"
#include "train/training_step.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/trace.h>
#include <tutti/distributed/launch/launch.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/models/resnet.h>

#include <fmt/format.h>

#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <mutex>
#include <thread>

namespace emulator::census {
namespace {

using namespace tutti;
using namespace tutti::examples;

TrainOptions imagenet_options(std::int64_t batch_size) {
  TrainOptions o;
  o.model = "resnet50";
  o.batch_size = batch_size;
  o.precision = bfloat16;
  o.optimizer = {
      .lr = 0.1, .momentum = 0.9, .nesterov = false, .weight_decay = 1e-4, .norm_decay = false};
  o.schedule.name = "cosine";
  o.augmentation.label_smoothing = 0.1;
  return o;
}

// Makes three steps on this rank and records the last: buckets, optimizer state and the pools of
// events and pinned memory exist by then.
std::vector<Call> record_step_of_rank(const ProcessGroup& group, const Question& question) {
  const std::int64_t images = question.images;
  const TrainOptions options = imagenet_options(images * group.size());
  const Device device = Device::cuda(group.rank());
  const auto net = nn::resnet(options.model, {.classes = 1000, .channels = 3});
  net->to(device, float32, MemoryFormat::channels_last);
  nn::convert_sync_batchnorm(*net, group);
  if (question.recompute_output) nn::set_recompute_output(*net);
  DataParallel data_parallel(net->named_parameters(), net->named_buffers(), group);
  Optimization optimization(net->parameters(), options,
                            {.epochs = 90, .steps_per_epoch = 100, .steps = 9000});
  LossSums sums(device);
  TrainingStep step({.options = options,
                     .net = *net,
                     .data_parallel = data_parallel,
                     .optimization = optimization,
                     .sums = sums});
  const Autocast autocast(options.precision);
  data::Batch batch{
      .images = empty({images, 3, 224, 224}, {float32, device}, MemoryFormat::channels_last),
      .labels = empty({images}, {int64, device})};
  batch.global_size = images * group.size();
  for (int i = 0; i < 3; ++i) {
    if (i == 2) {
      // Collectives that have ended hold their tensors until the watcher comes by.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      reset_peak_bytes(device.index());
      start_recording(read_arguments);
    }
    step.run(batch);
    optimization.advance_schedule();
  }
  return stop_recording();
}

// "moments_kernel" of a demangled name.
std::string short_name(const std::string& signature) {
  const std::size_t kernel = signature.find("_kernel");
  if (kernel == std::string::npos) return signature;
  const std::size_t begin = signature.find_last_of(": ", kernel) + 1;
  return signature.substr(begin, kernel + 7 - begin);
}

// PyTorch's SyncBatchNorm reads x for its statistics, reads it again and writes y. Its backward
// reads dy and x for the sums, reads both again and writes dx. A ReLU in place reads and writes,
// and its backward reads two tensors and writes one; adding the residual in place reads two and
// writes one.
double torch_passes(const std::string& layer) {
  const double norm = 1 + 2 + 2 + 3, relu = 2 + 3, addition = 3;
  if (layer.find("downsample") != std::string::npos) return norm;
  return norm + relu + (layer.ends_with("bn3") ? addition : 0);
}

// Returns the kind of layer that makes a call. In the forward pass the innermost span is the path
// of the layer, in the backward pass the name of an operation.
std::string layer_of(const std::vector<std::string>& spans) {
  static const std::pair<const char*, const char*> kinds[] = {
      {"bn", "SyncBatchNorm"},
      {"downsample.1", "SyncBatchNorm"},
      {"batch_norm", "SyncBatchNorm"},
      {"conv", "convolution"},
      {"downsample.0", "convolution"},
      {"pool", "pooling"},
      {"fc", "linear"},
      {"linear", "linear"},
      {"optimizer", "optimizer"},
      {"forward", "loss"},
      {"cross_entropy", "loss"},
      {"multiply", "loss"},
      {"backward", "gradients: copies to buckets, sums"}};
  if (!spans.empty())
    for (const auto& [word, kind] : kinds)
      if (spans.back().find(word) != std::string::npos) return kind;
  return "metrics";
}

std::string to_line(const Row& r) {
  return fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", static_cast<int>(r.kind), r.name,
                     r.calls, r.bytes, r.flops, r.seconds, r.fewest_blocks, r.most_blocks,
                     r.threads, r.shared_bytes);
}

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  for (const char c : line)
    if (c == '\t') fields.emplace_back();
    else fields.back() += c;
  return fields;
}

Row row_of(const std::vector<std::string>& fields) {
  Row r{.kind = static_cast<Kind>(std::stoi(fields[0])), .name = fields[1]};
  r.calls = std::stoll(fields[2]);
  r.bytes = std::stod(fields[3]);
  r.flops = std::stod(fields[4]);
  r.seconds = std::stod(fields[5]);
  r.fewest_blocks = static_cast<unsigned>(std::stoul(fields[6]));
  r.most_blocks = static_cast<unsigned>(std::stoul(fields[7]));
  r.threads = static_cast<unsigned>(std::stoul(fields[8]));
  r.shared_bytes = std::stoull(fields[9]);
  return r;
}

std::string text_of(const StepCensus& census) {
  std::string text =
      fmt::format("{}\t{}\t{}\n", census.peak_bytes, census.torch_norm_bytes, census.norm_layers);
  for (const auto& [layer, launches] : census.by_layer)
    text += fmt::format("-1\t{}\t{}\t{}\n", layer, launches.forward, launches.backward);
  for (const Row& row : census.rows) text += to_line(row);
  return text;
}

StepCensus census_of(const std::string& text) {
  StepCensus census;
  int read = 0;
  long long layers = 0;
  if (std::sscanf(text.c_str(), "%zu\t%lf\t%lld\n%n", &census.peak_bytes, &census.torch_norm_bytes,
                  &layers, &read) != 3)
    fatal("census: the process that counts a step has failed");
  census.norm_layers = layers;
  for (std::size_t begin = static_cast<std::size_t>(read); begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const std::vector<std::string> fields = fields_of(text.substr(begin, end - begin));
    if (fields[0] == "-1")
      census.by_layer[fields[1]] = {std::stoll(fields[2]), std::stoll(fields[3])};
    else census.rows.push_back(row_of(fields));
    begin = end + 1;
  }
  return census;
}

}  // namespace

std::vector<Call> record_step(const Question& question, std::size_t& peak_bytes) {
  begin(*question.device);
  trace::detail::spans_enabled = true;
  std::vector<Call> first;
  std::mutex mutex;
  if (question.ranks == 1) {
    first = record_step_of_rank(ProcessGroup(), question);
    peak_bytes = census::peak_bytes(0);
    return first;
  }
  distributed::run_ranks(
      question.ranks,
      [&](const ProcessGroup& group) {
        std::vector<Call> calls = record_step_of_rank(group, question);
        const std::lock_guard lock(mutex);
        if (group.rank() == 0) first = std::move(calls);
      },
      std::chrono::seconds(600));
  peak_bytes = census::peak_bytes(0);
  return first;
}

StepCensus sum_up(const std::vector<Call>& calls, const DeviceModel& device) {
  StepCensus census;
  std::map<std::pair<Kind, std::string>, Row> rows;
  for (const Call& call : calls) {
    const std::string name = short_name(call.name);
    if (name == "moments_kernel") {
      ++census.norm_layers;
      census.torch_norm_bytes += call.bytes * torch_passes(call.spans.back());
    }
    if (is_launch(call.kind)) {
      LayerLaunches& layer = census.by_layer[layer_of(call.spans)];
      ++(!call.spans.empty() && call.spans.front() == "backward" ? layer.backward : layer.forward);
    }
    Row& row = rows[{call.kind, name}];
    row.kind = call.kind;
    row.name = name;
    ++row.calls;
    row.bytes += call.bytes;
    row.flops += call.flops;
    row.seconds +=
        std::max(call.bytes / device.bytes_per_second, call.flops / device.flops_per_second);
    const unsigned blocks = call.grid.x * call.grid.y * call.grid.z;
    if (blocks > 0) row.fewest_blocks = std::min(row.fewest_blocks, blocks);
    row.most_blocks = std::max(row.most_blocks, blocks);
    row.threads = std::max(row.threads, call.block.x);
    row.shared_bytes = std::max(row.shared_bytes, call.shared_bytes);
  }
  for (auto& [_, row] : rows) census.rows.push_back(std::move(row));
  return census;
}

StepCensus count_step(const Question& question) {
  int ends[2];
  if (pipe(ends) != 0) fatal("census: no pipe");
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    std::size_t peak_bytes = 0;
    const std::vector<Call> calls = record_step(question, peak_bytes);
    StepCensus census = sum_up(calls, *question.device);
    census.peak_bytes = peak_bytes;
    std::FILE* out = fdopen(ends[1], "w");
    std::fputs(text_of(census).c_str(), out);
    std::fclose(out);
    std::_Exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) fatal("census: the process that counts a step has failed");
  return census_of(text);
}

}  // namespace emulator::census
