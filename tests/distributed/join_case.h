// Join on any process group: training with uneven numbers of batches, compared step by step with
// one process that has the samples of all ranks.
#pragma once

#include "data_parallel_case.h"
#include "equal_bits.h"

#include <tutti/distributed/data_parallel/join.h>
#include <tutti/nn/activation.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>
#include <tutti/nn/conv.h>
#include <tutti/nn/flatten.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/pooling.h>
#include <tutti/nn/sequential.h>
#include <tutti/optim/sgd.h>

namespace tutti::test {

/// Returns the number of a rank's batches: rank 1 runs out first, then rank 2; rank 3 has none.
inline std::int64_t batches_of(int rank) {
  return std::array{4, 1, 3, 0}[static_cast<std::size_t>(rank % 4)];
}

/// Returns images and labels. Their number differs by rank, and is 0 where the rank has run out.
inline std::pair<Tensor, Tensor> uneven_batch(int rank, std::int64_t step) {
  Generator generator(static_cast<std::uint64_t>(1 + 100 * step + rank));
  const std::int64_t n = step < batches_of(rank) ? 5 + rank : 0;
  const Tensor images = randn({n, 2, 6, 6}, {.dtype = float64}, generator);
  const Tensor labels = empty({n}, {.dtype = int64});
  for (std::int64_t i = 0; i < n; ++i) labels.data<std::int64_t>()[i] = generator.below(3);
  return {images, labels};
}

inline std::unique_ptr<nn::Sequential> small_net(const ProcessGroup& group) {
  auto net = std::make_unique<nn::Sequential>();
  net->append<nn::Conv2d>({.in = 2, .out = 4, .kernel = 3, .padding = 1});
  net->append<nn::SyncBatchNorm>({.channels = 4, .group = group});
  net->append<nn::ReLU>();
  net->append<nn::MaxPool2d>({.kernel = 2});
  net->append<nn::Conv2d>({.in = 4, .out = 4, .kernel = 3});
  net->append<nn::SyncBatchNorm>({.channels = 4, .group = group});
  net->append<nn::Flatten>();
  net->append<nn::Linear>({.in = 4, .out = 3});
  net->to(float64);
  Generator generator(9);
  for (const Tensor& parameter : net->parameters())
    parameter.detach().copy_(randn(parameter.shape(), {.dtype = float64}, generator));
  return net;
}

/// A residual block and a mean over the positions. Its backward adds gradients that are expanded
/// tensors: that of the mean, and those that reach the input of the block on two paths.
class ResidualNet : public nn::Layer {
 public:
  explicit ResidualNet(const ProcessGroup& group)
      : conv(add<nn::Conv2d>("conv", {.in = 2, .out = 2, .kernel = 3, .padding = 1})),
        bn(add<nn::SyncBatchNorm>("bn", {.channels = 2, .group = group})),
        fc(add<nn::Linear>("fc", {.in = 2, .out = 3})) {}

  Tensor forward(const Tensor& images) override {
    const Tensor x = conv(images);
    const Tensor y = bn(x) + x;
    return fc(mean(y, {2, 3}) + mean(x, {2, 3}));
  }

  nn::Conv2d& conv;
  nn::SyncBatchNorm& bn;
  nn::Linear& fc;
};

inline std::unique_ptr<nn::Layer> residual_net(const ProcessGroup& group) {
  auto net = std::make_unique<ResidualNet>(group);
  net->to(float64);
  Generator generator(10);
  for (const Tensor& parameter : net->parameters())
    parameter.detach().copy_(randn(parameter.shape(), {.dtype = float64}, generator));
  return net;
}

/// Returns the loss of a step on the samples of all ranks, in one process.
inline Tensor whole_loss(nn::Layer& net, int ranks, std::int64_t step) {
  std::vector<Tensor> images, labels;
  for (int r = 0; r < ranks; ++r) {
    auto [x, y] = uneven_batch(r, step);
    if (x.size(0) == 0) continue;
    images.push_back(x);
    labels.push_back(y);
  }
  return nn::cross_entropy(net(cat(images)), cat(labels));
}

/// Trains `net`, and `alone` on the samples of all ranks. Both must be equal afterwards.
inline void check_shadowing(const ProcessGroup& group, bool find_unused_parameters,
                            const std::unique_ptr<nn::Layer>& net,
                            const std::unique_ptr<nn::Layer>& alone) {
  auto options = small_buckets;
  options.find_unused_parameters = find_unused_parameters;
  distributed::DataParallel ddp(net->named_parameters(), net->named_buffers(), group, options);
  const optim::SGD::Options rates{.lr = 0.01, .momentum = 0.9};
  optim::SGD sgd(net->parameters(), rates), sgd_alone(alone->parameters(), rates);
  distributed::Join join(group);
  std::int64_t steps = 0;
  for (;; ++steps) {
    const auto [images, labels] = uneven_batch(group.rank(), steps);
    if (!join.step(images.size(0))) break;
    std::int64_t samples = 0;
    for (int r = 0; r < group.size(); ++r) {
      samples += uneven_batch(r, steps).first.size(0);
    }
    EXPECT_EQ(join.samples(), samples);
    const Tensor sum =
        nn::cross_entropy((*net)(images), labels, {.reduction = nn::LossReduction::sum});
    sgd.zero_grad();
    (sum * join.weight()).backward();
    sgd.step();
    sgd_alone.zero_grad();
    whole_loss(*alone, group.size(), steps).backward();
    sgd_alone.step();
  }
  EXPECT_EQ(steps, 4);
  // Parameters and running statistics agree. Rounding, which small batches multiply, is at 1e-12
  // here; a wrong weight of one step would show at 1e-3.
  const StateDict mine = net->state_dict(), reference = alone->state_dict();
  for (std::size_t i = 0; i < mine.size(); ++i)
    expect_close(mine[i].second, reference[i].second, 1e-10, mine[i].first);
  expect_equal_bits_on_every_rank(mine, group);
}

/// Makes one step from gradients that no_sync() scopes have accumulated over uneven batches.
inline void check_accumulating(const ProcessGroup& group) {
  const auto net = small_net(group), alone = small_net(ProcessGroup());
  distributed::DataParallel ddp(net->named_parameters(), net->named_buffers(), group,
                                small_buckets);
  distributed::Join join(group);
  for (std::int64_t step = 0;; ++step) {
    const auto [images, labels] = uneven_batch(group.rank(), step);
    if (!join.step(images.size(0))) break;
    const auto scope = ddp.no_sync();
    (nn::cross_entropy((*net)(images), labels, {.reduction = nn::LossReduction::sum}) *
     join.weight())
        .backward();
    whole_loss(*alone, group.size(), step).backward();
  }
  ddp.synchronize_gradients();
  optim::SGD(net->parameters(), {.lr = 0.1}).step();
  optim::SGD(alone->parameters(), {.lr = 0.1}).step();
  const StateDict mine = net->state_dict(), reference = alone->state_dict();
  for (std::size_t i = 0; i < mine.size(); ++i)
    expect_close(mine[i].second, reference[i].second, 1e-10, mine[i].first);
}

/// All samples count alike, and where no rank has any, every weight is 0.
inline void check_weights(const ProcessGroup& group) {
  distributed::Join join(group);
  EXPECT_TRUE(join.step(group.rank() == 0 ? 4 : 0));
  EXPECT_EQ(join.weight(), group.size() / 4.0);
  EXPECT_FALSE(join.step(0));
  EXPECT_EQ(join.weight(), 0);
}

inline void check_stopping(const ProcessGroup& group) {
  using distributed::Join, distributed::Uneven;
  const std::int64_t mine = 2 + group.rank();  // rank 0 runs out first
  Join join(group, Uneven::stop);
  std::int64_t steps = 0;
  while (join.step(steps < mine ? 5 : 0)) ++steps;
  EXPECT_EQ(steps, 2);

  Join strict(group, Uneven::error);
  EXPECT_TRUE(strict.step(1));
  EXPECT_TRUE(strict.step(2));
  if (group.size() == 1) {
    EXPECT_FALSE(strict.step(0));
    return;
  }
  try {
    static_cast<void>(strict.step(group.rank() == 0 ? 0 : 1));
    ADD_FAILURE() << "no error";
  } catch (const DistributedError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0 has no samples for step 3, rank"),
              std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(strict.step(1));  // the group is still usable
  EXPECT_FALSE(strict.step(0));
}

inline void check_join(const ProcessGroup& group) {
  for (const bool find_unused_parameters : {false, true})
    check_shadowing(group, find_unused_parameters, small_net(group), small_net(ProcessGroup()));
  check_shadowing(group, false, residual_net(group), residual_net(ProcessGroup()));
  check_accumulating(group);
  check_weights(group);
  check_stopping(group);
}

}  // namespace tutti::test
