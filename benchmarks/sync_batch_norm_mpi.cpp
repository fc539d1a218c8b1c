// Measures what synchronization adds to a batch norm layer: forward and backward over the ranks of
// the world against the same layer alone, on batches so small that the difference shows. Run it
// under a launcher: mpirun -n 2 sync_batch_norm_mpi
#include "machine.h"
#include "timing.h"

#include <benchmark/benchmark.h>
#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/nn/batch_norm/layer.h>

#include <iostream>

namespace tutti::benchmarks {
namespace {

constexpr std::int64_t all_channels[] = {64, 128, 256, 512, 1024, 2048};
constexpr int repetitions = 2000;

struct Times {
  std::vector<double> forward, backward;
};

void step(nn::BatchNorm& layer, const Tensor& x, const Tensor& dy, const ProcessGroup& group,
          Times& times) {
  Tensor y;
  group.barrier();
  times.forward.push_back(seconds_of([&] { y = layer.forward(x); }));
  group.barrier();
  times.backward.push_back(seconds_of([&] { y.backward(dy); }));
  x.set_grad({});
  layer.zero_grad();
}

// The two layers take turns. Ranks start together, so the time that a rank waits for another one
// counts.
void measure(benchmark::State& state, const ProcessGroup& group, std::int64_t channels) {
  nn::BatchNorm alone({.channels = channels}), together({.channels = channels, .group = group});
  const Tensor x = randn({8, channels, 2, 2}).contiguous(MemoryFormat::channels_last),
               dy = x.clone();
  x.requires_grad_();
  Times of_alone, of_together;
  for (auto _ : state) {
    for (int r = 0; r < repetitions / 10; ++r) {  // warm up
      Times ignored;
      step(alone, x, dy, group, ignored);
      step(together, x, dy, group, ignored);
    }
    for (int r = 0; r < repetitions; ++r) {
      step(alone, x, dy, group, of_alone);
      step(together, x, dy, group, of_together);
    }
    state.SetIterationTime(median(of_together.forward) + median(of_together.backward));
  }
  state.counters["alone_forward_us"] = median(of_alone.forward) * 1e6;
  state.counters["alone_backward_us"] = median(of_alone.backward) * 1e6;
  state.counters["added_forward_us"] = (median(of_together.forward) - median(of_alone.forward)) *
                                       1e6;
  state.counters["added_backward_us"] = (median(of_together.backward) - median(of_alone.backward)) *
                                        1e6;
}

// Prints the table on rank 0, and nothing on the others.
class Table final : public benchmark::BenchmarkReporter {
 public:
  explicit Table(const ProcessGroup& group) : group_(group) {}
  bool ReportContext(const Context&) override {
    if (group_.rank() == 0)
      std::cout << group_.size() << " ranks, backend " << group_.backend()
                << "\n\n| C | alone, forward us | alone, backward us | added, forward us | added, "
                   "backward us | added a layer us |\n"
                   "| --- | --- | --- | --- | --- | --- |\n";
    return true;
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    if (group_.rank() != 0) return;
    for (const Run& run : runs) {
      if (run.error_occurred) {
        std::cout << run.benchmark_name() << ": " << run.error_message << "\n";
        continue;
      }
      const auto value = [&](const char* name) { return run.counters.at(name).value; };
      std::cout << fmt::format("| {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |\n",
                               run.run_name.function_name, value("alone_forward_us"),
                               value("alone_backward_us"), value("added_forward_us"),
                               value("added_backward_us"),
                               value("added_forward_us") + value("added_backward_us"))
                << std::flush;
    }
  }

 private:
  const ProcessGroup& group_;
};

}  // namespace
}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  using namespace tutti;
  using namespace tutti::benchmarks;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const ProcessGroup group = ProcessGroup::from_environment();
  if (group.size() < 2) {
    std::cerr << "sync_batch_norm_mpi: expected at least 2 ranks, got 1; run it as mpirun -n 2 "
                 "sync_batch_norm_mpi\n";
    return 2;
  }
  set_num_threads(1);
  add_machine_context();
  for (const std::int64_t channels : all_channels)
    benchmark::RegisterBenchmark(
        std::to_string(channels).c_str(),
        [&group, channels](benchmark::State& state) { measure(state, group, channels); })
        ->Iterations(1)
        ->UseManualTime();
  Table table(group);
  benchmark::RunSpecifiedBenchmarks(&table);
}
