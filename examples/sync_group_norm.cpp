// Writes a layer whose result depends on the data of other ranks, with the differentiable
// collectives. The images of a batch are divided by rows among the ranks, so that group
// normalisation (Wu and He, "Group normalization", 2018) needs the statistics of all of them. The
// program runs three ranks with different numbers of rows, one of them without any, and compares
// outputs and gradients with one process that has the whole images.
#include <tutti/tutti.h>

#include <cstdio>
using namespace tutti;

// [snippet]
// Returns x normalised over the rows of all ranks, for each sample and each group of channels. x
// has shape (N, C, rows of this rank, W); weight and bias have shape (C).
Tensor sync_group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight,
                       const Tensor& bias, const ProcessGroup& ranks) {
  const std::int64_t samples = x.size(0), channels = x.size(1);
  const std::int64_t values = channels / groups * x.size(2) * x.size(3);
  const Tensor local = x.to(float64).reshape({samples, groups, values});

  // One collective carries the sums, the sums of squares and the count. Its gradient is another
  // collective, which backward runs by itself.
  const Tensor sums =
      stack({sum(local, {2}), sum(square(local), {2}),
             full({samples, groups}, static_cast<double>(local.size(2)), {float64})});
  const Tensor totals = distributed::all_reduce(sums, ranks);
  const Tensor mean = totals.select(0, 0) / totals.select(0, 2);
  const Tensor variance = totals.select(0, 1) / totals.select(0, 2) - square(mean);

  const Tensor normalized = (local - mean.unsqueeze(2)) * rsqrt(variance + 1e-5).unsqueeze(2);
  const Shape per_channel{channels, 1, 1};
  return normalized.reshape(x.shape()).to(x.dtype()) * weight.reshape(per_channel) +
         bias.reshape(per_channel);
}
// [/snippet]

struct SyncGroupNorm : nn::Layer {
  struct Options {
    std::int64_t groups = 1, channels = 1;
    ProcessGroup ranks = {};
  };
  explicit SyncGroupNorm(Options o)
      : options(std::move(o)),
        weight(add_parameter("weight", ones({options.channels}, {float64}))),
        bias(add_parameter("bias", zeros({options.channels}, {float64}))) {}
  Tensor forward(const Tensor& x) override {
    return sync_group_norm(x, options.groups, weight, bias, options.ranks);
  }
  Options options;
  const Tensor &weight, &bias;
};

// The output for the rows [from, to) of the images, and the gradients of a loss that weighs every
// element of the whole output differently.
struct Result {
  Tensor y, dx, d_weight;
};
Result run(const ProcessGroup& ranks, const Tensor& images, const Tensor& weights,
           std::int64_t from, std::int64_t to) {
  SyncGroupNorm layer({.groups = 2, .channels = 4, .ranks = ranks});
  const Tensor x = images.slice(2, from, to).clone().requires_grad_();
  const Tensor y = layer(x);
  sum(y * weights.slice(2, from, to)).backward();
  return {y.detach(), x.grad(), layer.weight.grad()};
}

double largest_difference(const Tensor& a, const Tensor& b) {
  return a.numel() ? max(abs(a - b)).item<double>() : 0;
}

int main() {
  const Tensor images = randn({2, 4, 8, 3}, {float64}), weights = randn({2, 4, 8, 3}, {float64});
  const Result whole = run({}, images, weights, 0, 8);
  const std::int64_t starts[] = {0, 5, 5, 8};  // Rank 1 has no rows.

  double worst = 0;
  distributed::run_ranks(3, [&](const ProcessGroup& ranks) {
    const std::int64_t from = starts[ranks.rank()], to = starts[ranks.rank() + 1];
    const Result part = run(ranks, images, weights, from, to);
    // Each rank has its share of a parameter's gradient; DataParallel would average them.
    ranks.all_reduce(part.d_weight).wait();
    const Tensor error = full({},
                              std::max({largest_difference(part.y, whole.y.slice(2, from, to)),
                                        largest_difference(part.dx, whole.dx.slice(2, from, to)),
                                        largest_difference(part.d_weight, whole.d_weight)}),
                              {float64});
    ranks.all_reduce(error, distributed::ReduceOp::max).wait();
    if (ranks.rank() == 0) worst = error.item<double>();
  });
  std::printf("three ranks differ from one process by %.1e\n", worst);
  return worst < 1e-12 ? 0 : 1;
}
