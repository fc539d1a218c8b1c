// This program does to a small network what people do with batch norm: it examines the layers,
// recomputes their statistics, and folds them for inference.
#include <tutti/tutti.h>

#include <cmath>
#include <cstdio>
using namespace tutti;

namespace {

// Made-up images of two classes, brighter and darker.
struct Batch {
  Tensor images, labels;
};
Batch make_batch(std::int64_t samples, Generator& random) {
  const Tensor labels = randint(2, {samples}, {.dtype = int64}, random);
  const Tensor shift = labels.to(float32).reshape({samples, 1, 1, 1}) - 0.5;
  return {randn({samples, 3, 16, 16}, {}, random) * 2 + shift, labels};
}

// Trains for a few steps only, so that the running averages still remember where they began.
void train_a_little(nn::Layer& net) {
  Generator random(1);
  optim::SGD sgd(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  for (int step = 0; step < 8; ++step) {
    const auto [images, labels] = make_batch(32, random);
    const Tensor loss = nn::cross_entropy(net(images), labels);
    sgd.zero_grad();
    loss.backward();
    sgd.step();
  }
}

double evaluate(nn::Layer& net, const Batch& batch) {
  const NoGrad no_grad;
  net.eval();
  return nn::cross_entropy(net(batch.images), batch.labels).item<double>();
}

}  // namespace

int main() {
  manual_seed(1);
  const auto net = nn::resnet("resnet20", {.classes = 2});
  train_a_little(*net);
  Generator random(2);
  const Batch test = make_batch(64, random);
  const double stale = evaluate(*net, test);

  // [snippet]
  // The report and the recomputation run forwards of the model on training batches, here four.
  const auto run_batches = [&] {
    for (int i = 0; i < 4; ++i) (*net)(make_batch(32, random).images);
  };
  const nn::BatchNormReport report = nn::batch_norm_report(*net, run_batches);
  std::printf("%s", report.to_string().c_str());
  nn::recompute_statistics(*net, run_batches);
  // [/snippet]
  const double recomputed = evaluate(*net, test);
  std::printf("test loss %.4f with running averages, %.4f with recomputed statistics\n", stale,
              recomputed);

  // [snippet]
  // For inference every normalisation becomes a part of the convolution before it.
  const nn::FoldedBatchNorm folded = nn::fold_batch_norm(*net);
  std::printf("%s\n", folded.to_string().c_str());  // 19 of 19 BatchNorm layers are folded
  // [/snippet]
  const double after = evaluate(*net, test);
  std::printf("test loss %.4f\n", after);
  const bool is_right = !report.warnings.empty() && recomputed < stale && folded.left.empty() &&
                        std::abs(after - recomputed) < 1e-3;
  return is_right ? 0 : 1;
}
