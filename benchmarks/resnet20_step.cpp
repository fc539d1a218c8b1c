// Measures where the time of a training step goes: a ResNet-20 on 28x28 images, batch 64,
// channels_last, one thread, as a rank of train_resnet runs it. Convolutions and batch norms are
// timed by themselves, forwards first and then backwards, on tensors of the same shapes; what
// remains of the whole step is the rest.
#include "machine.h"
#include "timing.h"

#include <benchmark/benchmark.h>
#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/optim/sgd.h>

#include <iostream>

namespace tutti::benchmarks {
namespace {

constexpr std::int64_t batch = 64;
constexpr int repetitions = 15;

// A convolution of the network and the batch norm after it, with tensors of the shapes that they
// see in the network.
struct Pair {
  nn::Conv2d* convolution = nullptr;
  nn::BatchNorm* norm = nullptr;
  bool add = false;  // whether a residual is added before the ReLU
  Tensor x;          // the input of the convolution
  Tensor y;          // its output, the input of the norm
  Tensor dy;         // any gradient of that shape
  Tensor convolved, normalised;
};

struct Split {
  std::vector<double> forward, backward;
  double milliseconds() const { return (median(forward) + median(backward)) * 1e3; }
};

std::vector<Pair> pairs_of(nn::ResNet& net, const Tensor& images) {
  std::vector<Pair> pairs;
  std::vector<std::pair<Tensor, Tensor>> seen;
  for (const auto& [name, module] : net.named_modules()) {
    if (auto* convolution = dynamic_cast<nn::Conv2d*>(module)) {
      pairs.emplace_back().convolution = convolution;
      convolution->add_forward_hook([&seen](nn::Layer&, const Tensor& x, const Tensor& y) {
        seen.emplace_back(x.detach().clone(), y.detach().clone());
        return Tensor();
      });
    } else if (auto* norm = dynamic_cast<nn::BatchNorm*>(module)) {
      pairs.back().norm = norm;
      pairs.back().add = name.ends_with("bn2");
    }
  }
  net(images);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    pairs[i].x = seen[i].first.requires_grad_(i > 0);  // the images need no gradient
    pairs[i].y = seen[i].second.requires_grad_();
    pairs[i].dy = pairs[i].y.detach().clone();
  }
  return pairs;
}

// Runs the convolutions and norms of one step. It calls forward() directly, which runs no hooks.
void run_parts(std::vector<Pair>& pairs, Split& convolutions, Split& norms) {
  double times[4] = {};
  for (Pair& p : pairs) times[0] += seconds_of([&] { p.convolved = p.convolution->forward(p.x); });
  for (Pair& p : pairs)
    times[1] += seconds_of([&] {
      p.normalised = p.add ? p.norm->forward(p.y, {.residual = p.dy, .relu = true})
                           : p.norm->forward(p.y, {.relu = true});
    });
  for (auto p = pairs.rbegin(); p != pairs.rend(); ++p) {
    times[2] += seconds_of([&] { p->normalised.backward(p->dy); });
    p->normalised = {};
    times[3] += seconds_of([&] { p->convolved.backward(p->dy); });
    p->convolved = {};
    p->x.set_grad({});
    p->y.set_grad({});
    p->convolution->zero_grad();
    p->norm->zero_grad();
  }
  convolutions.forward.push_back(times[0]);
  norms.forward.push_back(times[1]);
  norms.backward.push_back(times[2]);
  convolutions.backward.push_back(times[3]);
}

void measure(benchmark::State& state) {
  set_num_threads(1);
  nn::ResNet net({.depth = 20, .channels = 1}), whole({.depth = 20, .channels = 1});
  for (nn::ResNet* n : {&net, &whole}) n->to(MemoryFormat::channels_last);
  const Tensor images = randn({batch, 1, 28, 28}).contiguous(MemoryFormat::channels_last);
  const Tensor labels = randint(10, {batch});
  std::vector<Pair> pairs = pairs_of(net, images);
  optim::SGD sgd(whole.parameters(), {.lr = 0.01, .momentum = 0.9});
  Split steps, convolutions, norms, ignored;
  std::vector<double> updates;
  for (auto _ : state)
    for (int r = -2; r < repetitions; ++r) {  // the first two warm up
      Tensor loss;
      sgd.zero_grad();
      const double forward = seconds_of([&] { loss = nn::cross_entropy(whole(images), labels); });
      const double backward = seconds_of([&] { loss.backward(); });
      const double update = seconds_of([&] { sgd.step(); });
      run_parts(pairs, r < 0 ? ignored : convolutions, r < 0 ? ignored : norms);
      if (r < 0) continue;
      steps.forward.push_back(forward);
      steps.backward.push_back(backward);
      updates.push_back(update);
    }
  const double step = steps.milliseconds(), update = median(updates) * 1e3;
  state.counters["step_ms"] = step + update;
  state.counters["forward_ms"] = median(steps.forward) * 1e3;
  state.counters["backward_ms"] = median(steps.backward) * 1e3;
  state.counters["optimizer_ms"] = update;
  state.counters["convolution_forward_ms"] = median(convolutions.forward) * 1e3;
  state.counters["convolution_backward_ms"] = median(convolutions.backward) * 1e3;
  state.counters["norm_forward_ms"] = median(norms.forward) * 1e3;
  state.counters["norm_backward_ms"] = median(norms.backward) * 1e3;
  state.counters["rest_ms"] = step - convolutions.milliseconds() - norms.milliseconds();
}

class Table final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const auto value = [&](const char* name) { return run.counters.at(name).value; };
      const double step = value("step_ms");
      std::cout << "| | forward ms | backward ms | % of the step |\n| --- | --- | --- | --- |\n";
      const auto line = [&](const char* what, double forward, double backward) {
        std::cout << fmt::format("| {} | {:.1f} | {:.1f} | {:.0f} |\n", what, forward, backward,
                                 100 * (forward + backward) / step);
      };
      line("convolutions", value("convolution_forward_ms"), value("convolution_backward_ms"));
      line("batch norms with ReLU and add", value("norm_forward_ms"), value("norm_backward_ms"));
      line("rest", value("forward_ms") - value("convolution_forward_ms") - value("norm_forward_ms"),
           value("backward_ms") - value("convolution_backward_ms") - value("norm_backward_ms"));
      std::cout << fmt::format(
          "| optimizer | | {:.1f} | {:.0f} |\n| whole step | {:.1f} | {:.1f} | 100 |\n",
          value("optimizer_ms"), 100 * value("optimizer_ms") / step, value("forward_ms"),
          value("backward_ms") + value("optimizer_ms"));
    }
  }
};

}  // namespace
}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  using namespace tutti::benchmarks;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  add_machine_context();
  benchmark::RegisterBenchmark("resnet20_step", measure)->Iterations(1);
  Table table;
  benchmark::RunSpecifiedBenchmarks(&table);
}
