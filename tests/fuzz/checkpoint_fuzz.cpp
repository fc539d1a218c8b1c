// Fuzzes what the trainer resumes from. An input is a list of changes to a valid checkpoint, one in
// a line, so that every input comes near to one:
//
//   m KEY TEXT                    sets an entry of the metadata       M KEY     removes it
//   t NAME DTYPE SIZES NUMBERS    sets a tensor, as in "t sums float64 2,3 0 1 2"; the numbers are
//                                 repeated until it is full, and "-"
//                                 stands for no dimension             T NAME    removes it
//
// A checkpoint is either refused, and then the network, its averages, the optimizer and the
// schedule are as before, or they have exactly its content. The file format itself is what
// safetensors_fuzz.cpp tests.
#include "input.h"
#include "report/run_report.h"
#include "train/checkpoint.h"
#include "train/training_step.h"

#include <tutti/core/create.h>
#include <tutti/nn/linear.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace tutti {
namespace {

using namespace examples;

constexpr RunLength length{.epochs = 2, .steps_per_epoch = 3, .steps = 6};

struct Contents {
  StateDict tensors;
  Metadata metadata;
};

bool equal_bits(const StateDict& a, const StateDict& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
           const Tensor &s = x.second, &t = y.second;
           return x.first == y.first && s.dtype() == t.dtype() && s.shape() == t.shape() &&
                  std::memcmp(s.raw(), t.raw(),
                              static_cast<std::size_t>(s.numel()) * size_of(s.dtype())) == 0;
         });
}

// A run whose network is so small that an input takes microseconds.
class Run {
 public:
  Run() {
    options_.precision = float16;  // so that there is a loss scale
    options_.out = folder_.path();
    options_.schedule.name = "plateau";
    optimization_.emplace(net_.parameters(), options_, length);
    for (int step = 0; step < 4; ++step) make_step();
    save_checkpoint(options_, checkpoint());
    valid_.tensors = load_safetensors(checkpoint_path(options_), &valid_.metadata);
    test::require(resume(valid_), "the valid checkpoint is refused");
  }

  // Returns whether the run resumes from these contents, and checks what became of it.
  bool resume(const Contents& contents) {
    try {
      save_safetensors(checkpoint_path(options_), contents.tensors, contents.metadata);
    } catch (const CheckpointError&) {
      return false;  // it cannot be saved, for instance with a name that is not UTF-8
    }
    const Contents before = state();
    const bool resumed = test::is_read<CheckpointError>(checkpoint_path(options_), [&] {
      const std::optional<Checkpoint> found = load_checkpoint(options_);
      for (const int now : {1, 2, 5}) {
        for (int rank = 0; rank < now; ++rank) {
          sums_of_rank(*found, rank, now);
          random_of_rank(*found, rank);
        }
      }
      check_length(options_, *found, length);
      restore(options_, *found, net_, *optimization_, &ema_);
      to_html({.options = options_,
               .data = {},
               .group = ProcessGroup(),
               .device = Device::cpu(),
               .length = length,
               .rows = found->rows,
               .headline = {},
               .confusion = {},
               .batch_norm = {}});
    });
    const Contents after = state();
    if (!resumed) {
      test::require(equal_bits(before.tensors, after.tensors) && before.metadata == after.metadata,
                    "a refused checkpoint has changed the run");
      return false;
    }
    for (const auto& [name, tensor] : after.tensors)
      for (const auto& [key, given] : contents.tensors)
        test::require(key != name || equal_bits({{name, tensor}}, {{name, given}}),
                      "the run has other values than the checkpoint: " + name);
    return true;
  }
  const Contents& valid() const { return valid_; }

 private:
  void make_step() {
    for (const Tensor& parameter : net_.parameters()) parameter.set_grad(ones(parameter.shape()));
    optimization_->update();
    optimization_->advance_schedule();
    ema_.update();
  }
  Checkpoint checkpoint() const {
    return {
        .step = 4,
        .steps = length.steps,
        .steps_per_epoch = length.steps_per_epoch,
        .model = net_.state_dict(),
        .optimizer = optimization_->optimizer_state(),
        .scaler = optimization_->scaler_state(),
        .plateau = optimization_->plateau_state(),
        .ema = ema_.state_dict(),
        .random = tensor({1, 2, 3, 4}, {2, 2}, {.dtype = int64}),
        .sums = tensor({0.5, 3, 50, 0.25, 4, 50}, {2, 3}, {.dtype = float64}),
        .samples = 100,
        .rows = {{.epoch = 1, .step = 2, .train_loss = 2},
                 {.epoch = 1, .step = 3, .train_loss = 1, .test_loss = 3, .test_accuracy = 0.5}}};
  }
  // Returns what restore() changes, under the names of a checkpoint.
  Contents state() const {
    Contents all;
    const optim::OptimizerState optimizer = optimization_->optimizer_state();
    for (const auto& [name, tensor] : net_.state_dict())
      all.tensors.emplace_back("model." + name, tensor.clone());
    for (const auto& [name, tensor] : optimizer.tensors)
      all.tensors.emplace_back("optimizer." + name, tensor);
    for (const auto& [name, tensor] : optimization_->scaler_state())
      if (name != "scale" && name != "growth_tracker")  // float32 rounds these
        all.tensors.emplace_back("scaler." + name, tensor);
    for (const auto& [name, tensor] : optimization_->plateau_state())
      all.tensors.emplace_back("plateau." + name, tensor);
    for (const auto& [name, tensor] : ema_.state_dict())
      all.tensors.emplace_back("ema." + name, tensor.clone());
    all.metadata = optimizer.metadata;
    return all;
  }

  test::InputFolder folder_;
  TrainOptions options_;
  nn::Linear net_{{.in = 2, .out = 3}};
  optim::ExponentialMovingAverage ema_{net_.named_parameters(), net_.named_buffers(), 0.9};
  std::optional<Optimization> optimization_;
  Contents valid_;
};

// Returns a tensor as a line describes it; nothing where the line does not.
std::optional<Tensor> parse_tensor(std::istringstream& line) {
  std::string dtype, sizes;
  line >> dtype >> sizes;
  Shape shape;
  std::istringstream list(sizes);
  for (std::string size; sizes != "-" && std::getline(list, size, ',');) {
    if (shape.size() == 8) return {};
    shape.push_back(std::clamp(std::atoi(size.c_str()), 0, 64));
  }
  std::vector<double> numbers;
  for (std::string number; line >> number;) numbers.push_back(std::strtod(number.c_str(), nullptr));
  if (numel(shape) > 4096 || numbers.empty()) return {};
  std::vector<double> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = numbers[i % numbers.size()];
  for (const DType each : {float32, float64, bfloat16, float16, int64, uint8, boolean})
    if (to_string(each) == dtype) return tensor(values, shape, {.dtype = each});
  return {};
}

void set_tensor(StateDict& tensors, const std::string& name, const Tensor& value) {
  for (auto& [key, tensor] : tensors)
    if (key == name) return void(tensor = value);
  tensors.emplace_back(name, value);
}

void change_contents(const std::string& change, Contents& contents) {
  std::istringstream line(change);
  std::string what, name, text;
  line >> what >> name;
  if (what == "m") {
    std::getline(line >> std::ws, text);
    contents.metadata[name] = text;
  } else if (what == "M") contents.metadata.erase(name);
  else if (what == "T") std::erase_if(contents.tensors, [&](auto& t) { return t.first == name; });
  else if (what == "t") {
    if (const auto value = parse_tensor(line)) set_tensor(contents.tensors, name, *value);
  }
}

void read(const std::string& input) {
  static Run run;
  Contents contents = run.valid();
  std::istringstream lines(input);
  for (std::string change; std::getline(lines, change);) change_contents(change, contents);
  run.resume(contents);
}

}  // namespace
}  // namespace tutti

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tutti::read({reinterpret_cast<const char*>(data), size});
  return 0;
}
