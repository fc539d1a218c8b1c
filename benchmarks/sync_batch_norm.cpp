// Compares nn::BatchNorm on one rank with the memory floor, oneDNN and PyTorch: the batch norm
// layers of a ResNet-50 at 224x224, forward and backward. benchmarks/results/layer.md explains the
// figures; sync_batch_norm_mpi.cpp measures what more ranks add.
//
// One benchmark is one row of the table. In it tutti, oneDNN, PyTorch and a plain copy take turns,
// so that whatever slows the machine slows all of them. Medians are compared.
#include "batch_norm_peers.h"
#include "copy.h"
#include "machine.h"
#include "timing.h"

#include <benchmark/benchmark.h>
#include <tutti/core/parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>

namespace tutti::benchmarks {
namespace {

struct Flags {
  std::vector<int> threads{1, 2};
  std::int64_t batch = 8;
  std::size_t samples = 21;
};

constexpr std::int64_t resnet50_shapes[][2] = {{64, 112}, {64, 56},   {128, 56}, {256, 56},
                                               {128, 28}, {256, 28},  {512, 28}, {256, 14},
                                               {512, 14}, {1024, 14}, {512, 7},  {2048, 7}};
// The size of all sets of inputs together, far more than the caches hold.
constexpr std::int64_t bytes_of_inputs = std::int64_t{128} << 20;

std::vector<StepInputs> make_inputs(const BatchNormCase& of) {
  const auto count =
      static_cast<std::size_t>(std::max<std::int64_t>(3, bytes_of_inputs / (2 * of.bytes())));
  Generator generator(7);
  const auto random = [&] {
    return randn(of.shape(), {}, generator).to(of.dtype).contiguous(of.format);
  };
  const StepInputs first{random(), random(), random()};
  std::vector<StepInputs> inputs{first};
  while (inputs.size() < count)
    inputs.push_back({first.x.clone(), first.residual.clone(), first.dy.clone()});
  return inputs;
}

double relative_difference(const Tensor& a, const Tensor& b) {
  const auto x = to_vector(a), y = to_vector(b);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return std::sqrt(difference / norm);
}

// A peer and its times in seconds.
struct Contender {
  std::string name;
  std::unique_ptr<BatchNormPeer> peer;
  std::vector<double> forward, backward;
};

// Throws where another peer computes something else than tutti from the same inputs.
void expect_same_results(const BatchNormCase& of, std::vector<Contender>& contenders) {
  for (Contender& c : contenders) {
    c.peer->forward(0);
    c.peer->backward(0);
  }
  const BatchNormPeer& ours = *contenders[0].peer;
  // Where the input of the ReLU is within rounding of 0, one peer passes the gradient and another
  // does not; hence the larger tolerance.
  const double tolerance = of.dtype == bfloat16 ? 0.01 : 1e-5,
               grad_tolerance = of.add_relu ? 0.1 : tolerance;
  for (const Contender& c : contenders) {
    const double y = relative_difference(ours.output(0), c.peer->output(0));
    const double dx = relative_difference(ours.input_grad(0), c.peer->input_grad(0));
    if (!(y < tolerance && dx < grad_tolerance))
      fail<Error>("{} computes something else: output differs by {}, input gradient by {}", c.name,
                  y, dx);
  }
  for (Contender& c : contenders) c.peer->release(0);
}

std::vector<Contender> make_contenders(const BatchNormCase& of,
                                       const std::vector<StepInputs>& inputs) {
  std::vector<Contender> contenders;
  contenders.push_back({"tutti", make_tutti(of, inputs), {}, {}});
  contenders.push_back({"onednn", make_onednn(of, inputs), {}, {}});
  if (auto torch = make_torch(of, inputs))
    contenders.push_back({"torch", std::move(torch), {}, {}});
  return contenders;
}

// Runs and times the contenders and the copies in turns.
class Measurement {
 public:
  explicit Measurement(const BatchNormCase& of)
      : inputs_(make_inputs(of)), contenders_(make_contenders(of, inputs_)), bytes_(of.bytes()) {
    expect_same_results(of, contenders_);
    for (const StepInputs& in : inputs_) targets_.push_back(in.x.clone());
  }

  std::size_t sets() const { return inputs_.size(); }
  const std::vector<Contender>& contenders() const { return contenders_; }
  const std::map<Copy, std::vector<double>>& copies_seconds() const { return copying_; }

  // Runs all sets once. Returns the seconds of tutti's backwards.
  double run_round(bool is_timed) {
    for (std::size_t set = 0; set < sets(); ++set) {
      for (std::size_t who = 0; who < contenders_.size(); ++who) {
        Contender& c = contenders_[who];
        const double t = seconds_of([&] { c.peer->forward(set_of(set, who)); });
        if (is_timed) c.forward.push_back(t);
      }
      run_copies(set_of(set, contenders_.size()), is_timed);
    }
    double tutti_seconds = 0;
    for (std::size_t set = 0; set < sets(); ++set)
      for (std::size_t who = 0; who < contenders_.size(); ++who) {
        Contender& c = contenders_[who];
        const double t = seconds_of([&] { c.peer->backward(set_of(set, who)); });
        if (is_timed) c.backward.push_back(t);
        if (is_timed && who == 0) tutti_seconds += t;
      }
    for (std::size_t set = 0; set < sets(); ++set)
      for (Contender& c : contenders_) c.peer->release(set);
    return tutti_seconds;
  }

 private:
  // Every contender works on another set than the one before it.
  std::size_t set_of(std::size_t turn, std::size_t who) const {
    return (turn + who * sets() / (contenders_.size() + 1)) % sets();
  }

  void run_copies(std::size_t set, bool is_timed) {
    for (const Copy how : copies) {
      const std::size_t to = (set + static_cast<std::size_t>(how) * sets() / copies.size()) %
                             sets();
      const double t =
          seconds_of([&] { copy(targets_[to].raw(), inputs_[to].dy.raw(), bytes_, how); });
      if (is_timed) copying_[how].push_back(t);
    }
  }

  std::vector<StepInputs> inputs_;
  std::vector<Contender> contenders_;
  std::vector<Tensor> targets_;  // of the copies
  std::map<Copy, std::vector<double>> copying_;
  std::int64_t bytes_;
};

void measure(benchmark::State& state, const BatchNormCase& of, int threads, std::size_t samples) {
  set_num_threads(threads);
  set_torch_threads(threads);
  Measurement measurement(of);
  for (auto _ : state) {
    measurement.run_round(false);  // warms up
    double seconds = 0;
    for (std::size_t taken = 0; taken < samples; taken += measurement.sets())
      seconds += measurement.run_round(true);
    state.SetIterationTime(seconds);
  }

  double best = 0;  // copy bandwidth in GB/s
  for (const auto& [how, times] : measurement.copies_seconds()) {
    const double rate = 2 * static_cast<double>(of.bytes()) / median(times) * 1e-9;
    state.counters[fmt::format("copy_{}_GBps", static_cast<int>(how))] = rate;
    best = std::max(best, rate);
  }
  state.counters["copy_GBps"] = best;
  const double pass_ms = static_cast<double>(of.bytes()) / best * 1e-6;
  state.counters["floor_forward_ms"] = pass_ms * of.forward_passes();
  state.counters["floor_backward_ms"] = pass_ms * of.backward_passes();
  for (const Contender& c : measurement.contenders()) {
    state.counters[c.name + "_forward_ms"] = median(c.forward) * 1e3;
    state.counters[c.name + "_backward_ms"] = median(c.backward) * 1e3;
  }
}

struct Row {
  BatchNormCase of;
  int threads;
};

constexpr const char* head =
    "| C | H, W | dtype | layout | | threads | tensor MiB | copy GB/s | forward ms | backward ms | "
    "% of copy, forward | % of copy, backward | oneDNN / ours, forward | backward | PyTorch / "
    "ours, forward | backward |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | "
    "--- |\n";

// Prints each row of the table when it is measured.
class Table final : public benchmark::BenchmarkReporter {
 public:
  explicit Table(const std::map<std::string, Row>& rows) : rows_(rows) {}
  bool ReportContext(const Context&) override {
    std::cout << head << std::flush;
    return true;
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.error_occurred) {
        std::cout << run.benchmark_name() << ": " << run.error_message << "\n";
        continue;
      }
      const auto row = rows_.find(run.run_name.function_name);
      if (row == rows_.end()) continue;
      std::cout << line(row->second, run.counters) << std::flush;
    }
  }

 private:
  static std::string line(const Row& row, const benchmark::UserCounters& counters) {
    const auto value = [&](const std::string& name) {
      const auto found = counters.find(name);
      return found == counters.end() ? std::nan("") : found->second.value;
    };
    const double forward = value("tutti_forward_ms"), backward = value("tutti_backward_ms");
    return fmt::format(
        "| {} | {} | {} | {} | {} | {} | {:.1f} | {:.1f} | {:.3f} | {:.3f} | {:.0f} | {:.0f} | "
        "{:.2f} | {:.2f} | {:.2f} | {:.2f} |\n",
        row.of.channels, row.of.height, to_string(row.of.dtype),
        row.of.format == MemoryFormat::channels_last ? "channels_last" : "contiguous",
        row.of.add_relu ? "add, ReLU" : "plain", row.threads,
        static_cast<double>(row.of.bytes()) / (1 << 20), value("copy_GBps"), forward, backward,
        100 * value("floor_forward_ms") / forward, 100 * value("floor_backward_ms") / backward,
        value("onednn_forward_ms") / forward, value("onednn_backward_ms") / backward,
        value("torch_forward_ms") / forward, value("torch_backward_ms") / backward);
  }

  const std::map<std::string, Row>& rows_;
};

// Parses the flags that Google Benchmark has left.
Flags parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i],
                      value = flag.substr(std::min(flag.size(), flag.find('=') + 1));
    if (flag.starts_with("--threads=")) {
      flags.threads.clear();
      for (std::size_t at = 0; at < value.size();
           at = value.find(',', at) == std::string::npos ? value.size() : value.find(',', at) + 1)
        flags.threads.push_back(std::max(1, std::atoi(value.c_str() + at)));
    } else if (flag.starts_with("--batch=")) {
      flags.batch = std::max(1, std::atoi(value.c_str()));
    } else if (flag.starts_with("--samples=")) {
      flags.samples = static_cast<std::size_t>(std::max(1, std::atoi(value.c_str())));
    } else {
      std::cerr << "sync_batch_norm: unknown flag " << flag
                << "\nusage: sync_batch_norm [--threads=1,2] [--batch=8] [--samples=21] "
                   "[--benchmark_filter=REGEX] [--benchmark_out=FILE.json]\n";
      std::exit(2);
    }
  }
  return flags;
}

std::map<std::string, Row> register_rows(const Flags& flags) {
  std::map<std::string, Row> rows;
  for (const int threads : flags.threads)
    for (const bool add_relu : {false, true})
      for (const DType dtype : {float32, bfloat16})
        for (const MemoryFormat format : {MemoryFormat::channels_last, MemoryFormat::contiguous})
          for (const auto& [channels, side] : resnet50_shapes) {
            const BatchNormCase of{flags.batch, channels, side, side, dtype, format, add_relu};
            const std::string name =
                fmt::format("C{}x{}/{}/{}/{}/threads:{}", channels, side, to_string(dtype),
                            format == MemoryFormat::channels_last ? "channels_last" : "contiguous",
                            add_relu ? "add_relu" : "plain", threads);
            rows.emplace(name, Row{of, threads});
            benchmark::RegisterBenchmark(
                name.c_str(),
                [of, threads, samples = flags.samples](benchmark::State& state) {
                  try {
                    measure(state, of, threads, samples);
                  } catch (const std::exception& error) {
                    state.SkipWithError(error.what());
                  }
                })
                ->Iterations(1)
                ->UseManualTime()
                ->Unit(benchmark::kMillisecond);
          }
  return rows;
}

}  // namespace
}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  using namespace tutti::benchmarks;
  benchmark::Initialize(&argc, argv);
  const Flags flags = parse(argc, argv);
  add_machine_context();
  benchmark::AddCustomContext("onednn", onednn_version());
  benchmark::AddCustomContext("pytorch", torch_version().empty() ? "none" : torch_version());
  const auto rows = register_rows(flags);
  Table table(rows);
  benchmark::RunSpecifiedBenchmarks(&table);
}
