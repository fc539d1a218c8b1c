// Compares SyncBatchNorm with its reference in tensor arithmetic, on random shapes, ranks, empty
// ranks, weights and dtypes.
#include "nn/reference_batch_norm.h"
#include "kernels/compare.h"

#include <tutti/nn/batch_norm/sync_batch_norm.h>

#include <gtest/gtest.h>

#include <random>

namespace tutti {
namespace {

struct Trial {
  std::uint64_t seed = 0;  // the same on all ranks
  Shape shape = {};        // of this rank's input
  DType dtype = float32;
  bool residual = false, relu = false, affine = false, tracked = false;
  int weights = 0;  // none, of samples or of positions
};

// Draws what all ranks have in common from the seed, and a number of samples for each rank.
Trial draw(std::uint64_t seed, const ProcessGroup& group) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random);
  };
  Trial trial{.seed = seed,
              .dtype = std::array{float64, float32, bfloat16}[static_cast<std::size_t>(pick(0, 2))],
              .residual = pick(0, 1) == 1,
              .affine = pick(0, 3) > 0,
              .tracked = pick(0, 3) > 0,
              .weights = static_cast<int>(pick(0, 2))};
  // In float32 a value near 0 may fall on the other side of it than in float64.
  trial.relu = trial.dtype == float64 && pick(0, 1) == 1;
  std::vector<std::int64_t> samples;
  for (int rank = 0; rank < group.size(); ++rank) samples.push_back(pick(0, 2) * pick(1, 4));
  samples[static_cast<std::size_t>(pick(0, group.size() - 1))] += 12;  // some rank has enough
  trial.shape = {samples[static_cast<std::size_t>(group.rank())], pick(1, 9)};
  for (std::int64_t more = pick(0, 3); more > 0; --more) trial.shape.push_back(pick(1, 5));
  return trial;
}

void compare_with_reference(std::uint64_t seed, const ProcessGroup& group) {
  const Trial t = draw(seed, group);
  SCOPED_TRACE(fmt::format("seed {}, rank {} of {}, {} {}", seed, group.rank(), group.size(),
                           to_string(t.dtype), to_string(t.shape)));
  Generator own(seed + 1000 * static_cast<std::uint64_t>(group.rank())), common(seed);
  const std::int64_t c = t.shape[1];
  const auto input = [&] { return (randn(t.shape, {float64}, own) * 2 + 3).to(t.dtype); };
  // dy follows x, so that the gradient of the weight is not a small sum of large numbers by chance.
  const Tensor x = input(), residual = input(), dy = input() + x;
  Shape positions = t.shape;
  positions.erase(1);
  if (t.weights == 1) positions = {t.shape[0]};
  const Tensor weights = relu(rand(positions, {float64}, own) - 0.2) * 5;

  nn::SyncBatchNorm layer({.channels = c,
                           .affine = t.affine,
                           .track_running_stats = t.tracked,
                           .dtype = float64,
                           .group = group});
  nn::ReferenceBatchNorm reference{.relu = t.relu, .group = group};
  if (t.affine) {
    layer.weight.detach().copy_(randn({c}, {float64}, common));
    layer.bias.detach().copy_(randn({c}, {float64}, common));
    reference.weight = layer.weight.detach().clone().requires_grad_();
    reference.bias = layer.bias.detach().clone().requires_grad_();
  }
  if (t.tracked) {
    reference.running_mean = layer.running_mean.clone();
    reference.running_var = layer.running_var.clone();
  }
  const Tensor of_layer = x.clone().requires_grad_(), of_reference = x.clone().requires_grad_(),
               residual_of_layer = residual.clone().requires_grad_(),
               residual_of_reference = residual.clone().requires_grad_();
  nn::BatchNorm::ForwardOptions options{.relu = t.relu};
  if (t.residual) options.residual = residual_of_layer, reference.residual = residual_of_reference;
  if (t.weights > 0) options.position_weights = reference.position_weights = weights;
  const Tensor y = layer.forward(of_layer, options),
               expected = nn::reference_batch_norm(of_reference, reference);
  y.backward(dy), expected.backward(dy);

  const double tolerance = t.dtype == bfloat16 ? 1e-2 : t.dtype == float32 ? 1e-4 : 1e-10;
  const auto near = [&](const Tensor& got, const Tensor& wanted, const char* what) {
    EXPECT_EQ(got.shape(), wanted.shape()) << what;
    EXPECT_LT(test::relative_error(got, wanted), tolerance) << what;
  };
  if (t.shape[0] > 0) {
    near(y, expected, "output");
    near(of_layer.grad(), of_reference.grad(), "gradient of the input");
    if (t.residual) near(residual_of_layer.grad(), residual_of_reference.grad(), "residual");
  }
  if (t.affine) {
    near(layer.weight.grad(), reference.weight.grad(), "gradient of the weight");
    near(layer.bias.grad(), reference.bias.grad(), "gradient of the bias");
  }
  if (t.tracked) {
    near(layer.running_mean, reference.running_mean, "running mean");
    near(layer.running_var, reference.running_var, "running variance");
  }
}

TEST(SyncBatchNorm, ComputesWhatItsReferenceComputes) {
  const std::uint64_t first = std::random_device()();
  for (std::uint64_t seed = first; seed < first + 40; ++seed)
    distributed::run_ranks(
        1 + static_cast<int>(seed % 4),
        [&](const ProcessGroup& group) { compare_with_reference(seed, group); },
        std::chrono::seconds(60));
}

}  // namespace
}  // namespace tutti
