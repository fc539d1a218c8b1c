// SyncBatchNorm inside of DataParallel: converting the network before or after DataParallel is made
// gives the same gradients and statistics, and both kinds of collectives have their own
// communicator.
#include "early_model_case.h"
#include "unused_parameters_case.h"

#include <tutti/autograd/functions.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>
#include <tutti/nn/linear.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace tutti {
namespace {

struct Net : nn::Layer {
  nn::Linear& first = add<nn::Linear>("first", {.in = 5, .out = 6});
  nn::BatchNorm& bn1 = add<nn::BatchNorm1d>("bn1", {.channels = 6});
  nn::Linear& second = add<nn::Linear>("second", {.in = 6, .out = 6});
  nn::BatchNorm& bn2 = add<nn::BatchNorm1d>("bn2", {.channels = 6});
  Tensor forward(const Tensor& x) override { return bn2(second(tanh(bn1(first(x))))); }
};

TEST(SyncDataParallel, ConvertingBeforeOrAfterWrappingIsTheSame) {
  distributed::run_ranks(3, [](const ProcessGroup& group) {
    std::vector<std::vector<double>> results[2];
    for (const int convert_first : {0, 1}) {
      Net net;
      Generator generator(5);
      for (const auto& [name, parameter] : net.named_parameters())
        parameter.detach().copy_(randn(parameter.shape(), {}, generator));
      if (convert_first) nn::convert_sync_batchnorm(net, group);
      DataParallel ddp(net.named_parameters(), net.named_buffers(), group,
                       {.bucket_cap_mb = 5e-4, .first_bucket_mb = 3e-4});
      if (!convert_first) nn::convert_sync_batchnorm(net, group);
      Generator data(group.rank());
      const auto before = group.for_normalization().traffic().calls;
      sum(square(net(randn({group.rank() + 2, 5}, {}, data)))).backward();
      EXPECT_EQ(group.for_normalization().traffic().calls - before,
                4);  // two layers, forward and backward
      for (const auto& [name, parameter] : net.named_parameters())
        results[convert_first].push_back(to_vector(parameter.grad()));
      for (const auto& [name, buffer] : net.named_buffers())
        results[convert_first].push_back(to_vector(buffer));
    }
    EXPECT_EQ(results[0], results[1]);
  });
}

TEST(SyncDataParallel, AModelMayBeMadeBeforeItsWorld) {
  std::vector<test::EarlyModels> models(3);
  distributed::run_ranks(3, [&](const ProcessGroup& group) {
    EXPECT_EQ(test::train_early_models(models[static_cast<std::size_t>(group.rank())], group), "");
  });
}

// Passes calls on and writes down the order in which this rank issues those of all its groups. Its
// capabilities say that devices wait, if asked to.
class Ordered : public distributed::Backend {
 public:
  using Order = std::vector<std::string>;
  Ordered(std::shared_ptr<Backend> inner, bool device_waits, std::shared_ptr<Order> order)
      : Backend(inner),
        inner_(std::move(inner)),
        device_waits_(device_waits),
        order_(std::move(order)) {}
  std::shared_ptr<distributed::WorkState> submit(const distributed::Collective& call) override {
    order_->push_back(call.options.name);
    return inner_->submit(call);
  }
  std::shared_ptr<Backend> subgroup(const std::vector<int>& members,
                                    const std::string& name) override {
    return std::make_shared<Ordered>(inner_->subgroup(members, name), device_waits_, order_);
  }
  distributed::Capabilities capabilities(Device device) const override {
    distributed::Capabilities all = inner_->capabilities(device);
    all.device_waits = device_waits_;
    return all;
  }

 private:
  std::shared_ptr<Backend> inner_;
  bool device_waits_;
  std::shared_ptr<Order> order_;
};

// Two communicators of devices deadlock where ranks issue their collectives in different orders.
TEST(SyncDataParallel, WhereDevicesWaitTheOrderOfBucketsAndStatisticsIsTheSameOnEveryRank) {
  for (const bool device_waits : {false, true}) {
    Ordered::Order orders[2];
    distributed::run_ranks(2, [&](const ProcessGroup& threads) {
      const auto order = std::make_shared<Ordered::Order>();
      const ProcessGroup group(
          std::make_shared<Ordered>(threads.implementation(), device_waits, order));
      test::NetWithOptionalLayer net;
      net.uses_optional = group.rank() == 0;
      nn::convert_sync_batchnorm(net, group);
      DataParallel ddp(
          net.named_parameters(), {}, group,
          {.bucket_cap_mb = 1e-4, .first_bucket_mb = 1e-4, .find_unused_parameters = true});
      ASSERT_GT(ddp.buckets().size(), 3u);
      for (int step = 0; step < 2; ++step) sum(square(net(randn({4, 5})))).backward();
      orders[group.rank()] = *order;
    });
    const auto is_bucket = [](const std::string& name) { return name.starts_with("bucket "); };
    const auto is_statistics = [](const std::string& name) {
      return name.starts_with("SyncBatchNorm");
    };
    for (const Ordered::Order& order : orders) {
      EXPECT_EQ(std::ranges::count_if(order, is_statistics), 8);
      EXPECT_GT(std::ranges::count_if(order, is_bucket), 6);
    }
    // Where hosts wait, rank 1 starts buckets of the layer that it does not use at once.
    EXPECT_EQ(orders[0] == orders[1], device_waits);
  }
}

TEST(SyncDataParallel, WhereDevicesWaitRanksMayUseDifferentParameters) {
  distributed::run_ranks(3, [](const ProcessGroup& threads) {
    test::check_unused_parameters_of_each_rank(ProcessGroup(std::make_shared<Ordered>(
        threads.implementation(), true, std::make_shared<Ordered::Order>())));
  });
}

TEST(SyncDataParallel, TwoForwardsBeforeOneBackward) {
  distributed::run_ranks(2, [](const ProcessGroup& group) {
    const auto run = [&](bool together) {
      Net net;
      Generator generator(6), data(10 + group.rank());
      for (const auto& [name, parameter] : net.named_parameters())
        parameter.detach().copy_(randn(parameter.shape(), {}, generator));
      nn::convert_sync_batchnorm(net, group);
      DataParallel ddp(net.named_parameters(), net.named_buffers(), group,
                       {.bucket_cap_mb = 5e-4, .first_bucket_mb = 3e-4});
      const Tensor a = randn({group.rank() + 2, 5}, {}, data), b = randn({4, 5}, {}, data);
      if (together) {
        const Tensor ya = net(a), yb = net(b);
        (sum(square(ya) * ya) + sum(square(yb) * yb)).backward();
      } else {
        const auto loss = [&](const Tensor& x) {
          const Tensor y = net(x);
          return sum(square(y) * y);
        };
        {
          const auto later = ddp.no_sync();
          loss(a).backward();
        }
        loss(b).backward();
      }
      std::vector<std::vector<double>> values;
      for (const auto& [name, parameter] : net.named_parameters())
        values.push_back(to_vector(parameter.grad()));
      for (const auto& [name, buffer] : net.named_buffers()) values.push_back(to_vector(buffer));
      return values;
    };
    const auto got = run(true), expected = run(false);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      for (std::size_t k = 0; k < got[i].size(); ++k)
        EXPECT_NEAR(got[i][k], expected[i][k], 2e-5 * (1 + std::abs(expected[i][k])))
            << i << " " << k;
  });
}

// Mean losses that are scaled by world_size * local_batch / global_batch train as one process does
// on the whole batch.
TEST(SyncDataParallel, ScaledLossesOfUnevenRanksMatchOneProcess) {
  distributed::run_ranks(3, [](const ProcessGroup& group) {
    const std::vector<std::int64_t> sizes{4, 0, 7};
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::int64_t from = rank == 0 ? 0 : 4, local = sizes[rank], global = 11;
    Generator data(7);
    const Tensor x = randn({global, 5}, {float64}, data),
                 target = randn({global, 6}, {float64}, data);
    const auto fill = [](Net& net) {
      net.to(float64);
      Generator generator(8);
      for (const auto& [name, parameter] : net.named_parameters())
        parameter.detach().copy_(randn(parameter.shape(), {}, generator));
    };
    const auto loss = [](Net& net, const Tensor& in, const Tensor& to, double share) {
      return sum(square(net(in) - to)) *
             (share / (6.0 * static_cast<double>(std::max<std::int64_t>(1, in.size(0)))));
    };
    Net one, net;
    fill(one), fill(net);
    loss(one, x, target, 1).backward();
    nn::convert_sync_batchnorm(net, group);
    DataParallel ddp(net.named_parameters(), net.named_buffers(), group);
    loss(net, x.slice(0, from, from + local), target.slice(0, from, from + local),
         3.0 * static_cast<double>(local) / global)
        .backward();
    const auto expected = one.named_parameters(), got = net.named_parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto a = to_vector(got[i].second.grad()), b = to_vector(expected[i].second.grad());
      for (std::size_t k = 0; k < a.size(); ++k) EXPECT_NEAR(a[k], b[k], 1e-12) << got[i].first;
    }
  });
}

// After its construction DataParallel never copies a buffer by itself.
TEST(SyncDataParallel, BuffersOfSynchronisedLayersAreLeftAlone) {
  distributed::run_ranks(2, [](const ProcessGroup& group) {
    Net net;
    nn::convert_sync_batchnorm(net, group);
    DataParallel ddp(net.named_parameters(), net.named_buffers(), group);
    net.bn1.running_mean.fill_(100 * group.rank());  // in practice they are equal
    for (int step = 0; step < 2; ++step) sum(net(randn({3, 5}))).backward();
    const double here = to_vector(net.bn1.running_mean)[0];
    EXPECT_NEAR(here, 81 * group.rank(), 5);
    EXPECT_EQ(net.bn1.num_batches_tracked.item<int>(), 2);
  });
}

}  // namespace
}  // namespace tutti
