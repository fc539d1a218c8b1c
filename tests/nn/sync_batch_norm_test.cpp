// Tests of SyncBatchNorm on ranks that are threads: it computes what one process computes on the
// whole batch, it needs one collective each way, and ranks that disagree get errors. tests/mpi runs
// the same comparison on MPI processes.
#include "distributed/messages.h"
#include "distributed/sync_batch_norm_case.h"

#include <tutti/distributed/diagnostics/replica_check.h>
#include <tutti/kernels/batch_norm_math.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/packet.h>

#include <mutex>

namespace tutti {
namespace {

using namespace std::chrono_literals;
using distributed::run_ranks;
using nn::BatchNorm;
using nn::SyncBatchNorm;
using test::expect_contains;
using test::relative_error;

std::vector<std::string> errors_of(int ranks, const std::function<void(const ProcessGroup&)>& fn) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_ranks(
      ranks,
      [&](const ProcessGroup& group) {
        try {
          fn(group);
        } catch (const Error& error) {
          errors[static_cast<std::size_t>(group.rank())] = error.what();
        }
      },
      60s);
  return errors;
}

Tensor shard(Generator& random, const ProcessGroup& group, const Shape& shape) {
  const Tensor whole = randn(shape, {float64}, random);
  return whole
      .slice(0, shape[0] * group.rank() / group.size(),
             shape[0] * (group.rank() + 1) / group.size())
      .clone();
}

class SyncBatchNormRanks : public ::testing::TestWithParam<int> {};
TEST_P(SyncBatchNormRanks, EqualOneProcessOnTheWholeBatch) {
  run_ranks(GetParam(), test::check_sync_batch_norm_against_one_process, 60s);
}
TEST_P(SyncBatchNormRanks, EqualOneProcessWithEveryOption) {
  run_ranks(GetParam(), test::check_sync_batch_norm_options_against_one_process, 60s);
}
TEST_P(SyncBatchNormRanks, KeepToTheirGroup) {
  run_ranks(GetParam(), test::check_sync_batch_norm_scope, 60s);
}
TEST_P(SyncBatchNormRanks, PoolTheStatisticsOfGroups) {
  run_ranks(GetParam(), test::check_pool_statistics, 60s);
}
TEST_P(SyncBatchNormRanks, PoolTheStatisticsOfUnevenRanks) {
  run_ranks(GetParam(), test::check_pool_statistics_of_uneven_ranks, 60s);
}
TEST_P(SyncBatchNormRanks, NeedMoreThanOneElementInAll) {
  run_ranks(GetParam(), test::check_sync_batch_norm_counts, 60s);
}
INSTANTIATE_TEST_SUITE_P(Threads, SyncBatchNormRanks, ::testing::Values(1, 2, 3, 4));

// Float32 input is summed in float32 over short runs, with an error of 1e-6. Adding the sums of the
// ranks may add an error of 4e-16 (1 + 1e8). Float64 input sends exact sums.
TEST(SyncBatchNorm, RightWhereTheMeanIsTenThousandDeviations) {
  for (const int ranks : {2, 3})
    for (const DType dtype : {float32, bfloat16, float64})
      run_ranks(
          ranks,
          [dtype](const ProcessGroup& group) {
            Generator random(15);
            // Numbers near 10,000 lie 64 apart in bfloat16. With two of them, of which one is rare,
            // the mean is about ten thousand deviations.
            const Tensor noise = dtype == bfloat16 ? (rand({3000, 4}, {float64}, random) * 3000)
                                                   : randn({3000, 4}, {float64}, random);
            const Tensor whole = dtype == bfloat16 ? where(lt(noise, 1), full({}, 10048, {float64}),
                                                           full({}, 9984, {float64}))
                                                         .to(dtype)
                                                   : (noise + 1e4).to(dtype);
            const Tensor exact = whole.to(float64) - 9984;
            const Tensor expected = mean(square(exact - mean(exact, {0}, true)), {0}) *
                                    (3000.0 / 2999);
            SyncBatchNorm layer({.channels = 4, .momentum = 1, .dtype = float64});
            layer(whole.slice(0, 3000 * group.rank() / group.size(),
                              3000 * (group.rank() + 1) / group.size()));
            const auto got = to_vector(layer.running_var), right = to_vector(expected);
            const auto means = to_vector(mean(whole.to(float64), {0}));
            for (std::size_t c = 0; c < got.size(); ++c) {
              const double shared = dtype != float64 && right[c] > 0
                                        ? 4e-16 * (1 + means[c] * means[c] / right[c])
                                        : 0;
              EXPECT_LE(std::abs(got[c] - right[c]),
                        right[c] * (shared + (dtype == float64 ? 1e-13 : 1e-6)) +
                            4e-16 * means[c] * means[c] * (right[c] == 0))
                  << to_string(dtype) << " channel " << c;
            }
          },
          60s);
}

TEST(SyncBatchNorm, RightAtVariancesDownToTheTwelfthDecimal) {
  for (const DType dtype : {float32, bfloat16, float64})
    run_ranks(
        3,
        [dtype](const ProcessGroup& group) {
          Generator random(16);
          const Tensor whole = (randn({3000, 4}, {float64}, random) * 1e-6).to(dtype),
                       exact = whole.to(float64);
          const Tensor centred = exact - mean(exact, {0}, true);
          const Tensor variance = mean(square(centred), {0}), y = centred * rsqrt(variance + 1e-13);
          SyncBatchNorm layer({.channels = 4, .eps = 1e-13, .momentum = 1, .dtype = float64});
          const std::int64_t from = 1000 * group.rank(), to = from + 1000;
          const Tensor got = layer(whole.slice(0, from, to));
          const double bound = dtype == float64 ? 1e-13 : 1e-6;  // sums are taken in float32
          EXPECT_LT(relative_error(layer.running_var, variance * (3000.0 / 2999)), bound);
          EXPECT_LT(relative_error(got, y.slice(0, from, to)), dtype == bfloat16 ? 4e-3 : bound);
        },
        60s);
}

// Counts of elements and sums of weights are exact beyond 2^24, where a float32 counter would stop.
TEST(SyncBatchNorm, CountsBeyondFloat32AreExact) {
  run_ranks(2, [](const ProcessGroup& group) {
    const std::int64_t n = (1 << 23) + 3;
    SyncBatchNorm layer({.channels = 1, .pooled = true, .dtype = float64});
    const NoGrad no_grad;
    const Tensor x = full({1, 1, n}, group.rank() == 0 ? 3 : 5);  // a mean of 4 and a variance of 1
    layer(x);
    EXPECT_EQ(layer.num_elements_tracked.item<double>(), 16777222);
    EXPECT_EQ(to_vector(layer.running_mean)[0], 4);
    EXPECT_NEAR(to_vector(layer.running_var)[0], 16777222.0 / 16777221, 1e-15);
    layer(x.slice(2, 0, 1));  // adds one element on each rank
    EXPECT_EQ(layer.num_elements_tracked.item<double>(), 16777224);
    EXPECT_NEAR(to_vector(layer.running_var)[0], 16777224.0 / 16777223, 1e-15);

    SyncBatchNorm weighted({.channels = 1, .pooled = true, .dtype = float64});
    const Tensor w = group.rank() == 0 ? full({2}, 16777217, {float64})
                                       : full({2}, 0.25, {float64});
    weighted.forward(full({2, 1}, group.rank(), {float64}), {.position_weights = w});
    EXPECT_EQ(weighted.num_elements_tracked.item<double>(), 33554434.5);
    EXPECT_NEAR(to_vector(weighted.running_mean)[0] / (0.5 / 33554434.5), 1, 1e-14);
  });
}

TEST(SyncBatchNorm, GroupDefaultsToTheWorldAndIsPrinted) {
  run_ranks(3, [](const ProcessGroup& group) {
    const SyncBatchNorm layer({.channels = 4});
    EXPECT_TRUE(*layer.process_group() == group);
    expect_contains(layer.to_string(), {"SyncBatchNorm(4, sync=3 ranks)"});
  });
}

TEST(SyncBatchNorm, OneCollectiveEachWayWhoseBytesDoNotDependOnTheRanks) {
  for (const int ranks : {2, 4})
    for (const DType dtype : {float32, float64})
      run_ranks(ranks, [dtype](const ProcessGroup& group) {
        SyncBatchNorm layer({.channels = 10, .dtype = dtype});
        const ProcessGroup& own = group.for_normalization();
        const Tensor x = randn({4, 10, 3, 3}, {dtype}).requires_grad_();
        // Float64 input sends each sum as two numbers. Gradient sums are one number each for either
        // dtype.
        const std::int64_t forward = 8 * ((dtype == float64 ? 4 : 2) * 10 + 8),
                           backward = 8 * (2 * 10 + 8);
        const Tensor y = layer(x);
        EXPECT_EQ(own.traffic().calls, 1);
        EXPECT_EQ(own.traffic().bytes, forward);
        y.backward(randn({4, 10, 3, 3}, {dtype}));
        EXPECT_EQ(own.traffic().calls, 2);
        EXPECT_EQ(own.traffic().bytes, forward + backward);
        layer.eval();
        layer(x).backward(randn({4, 10, 3, 3}, {dtype}));
        EXPECT_EQ(own.traffic().calls, 2) << "evaluation does not communicate";
        EXPECT_EQ(group.traffic().calls, 0) << "nothing goes where gradient buckets go";
      });
}

TEST(SyncBatchNorm, EvaluationWorksOnOneRankAlone) {
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        SyncBatchNorm tracked({.channels = 3}),
            untracked({.channels = 3, .track_running_stats = false});
        tracked.eval(), untracked.eval();
        if (group.rank() == 0) tracked(randn({2, 3})), untracked(randn({2, 3}));
      },
      60s);
}

// Without running statistics, evaluation uses the statistics of the local batch and communicates
// nothing; training shares the statistics as always.
TEST(SyncBatchNorm, WithoutRunningStatisticsEvaluationIsLocal) {
  run_ranks(2, [](const ProcessGroup& group) {
    Generator random(17);
    const Tensor x = shard(random, group, {8, 3, 2}).requires_grad_(),
                 dy = shard(random, group, {8, 3, 2});
    SyncBatchNorm layer({.channels = 3, .track_running_stats = false, .dtype = float64});
    BatchNorm local({.channels = 3, .track_running_stats = false, .dtype = float64});
    layer.eval();
    const Tensor y = layer(x), expected = local(x);
    y.backward(dy);
    const auto dx = to_vector(x.grad());
    EXPECT_EQ(group.for_normalization().traffic().calls, 0);
    EXPECT_EQ(to_vector(y), to_vector(expected));
    x.set_grad({});
    expected.backward(dy);
    EXPECT_EQ(dx, to_vector(x.grad()));
    layer.train();
    EXPECT_NE(to_vector(layer(x)), to_vector(y));
    EXPECT_EQ(group.for_normalization().traffic().calls, 1);
  });
}

TEST(SyncBatchNorm, ThereIsNoDoubleBackward) {
  run_ranks(2, [](const ProcessGroup&) {
    const Tensor x = randn({4, 3}).requires_grad_();
    SyncBatchNorm layer({.channels = 3});
    layer(x).backward(randn({4, 3}));
    try {
      sum(square(x.grad())).backward();
      ADD_FAILURE() << "a second derivative, though there is none";
    } catch (const Error& error) {
      expect_contains(error.what(), {"there is no double backward"});
    }
  });
}

// A value that is not finite on one rank makes its channel NaN on every rank, forward and backward,
// and changes no other channel.
TEST(SyncBatchNorm, NaNAndInfinityOnOneRankAreNaNOnAll) {
  for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}})
    for (const bool floor : {false, true})
      for (const DType dtype : {float32, float64, bfloat16})
        for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
          // Sample 0 is the pivot of the sums; sample 29 is a later one.
          for (const std::int64_t at : {0, 29})
            run_ranks(2, [=](const ProcessGroup& group) {
              SyncBatchNorm layer({.channels = 2, .eps_is_floor = floor});
              const Tensor x =
                  randn({30, 2, 5, 5}).to(dtype).contiguous(format).detach().requires_grad_();
              if (group.rank() == 1)
                x.detach().slice(0, at, at + 1).slice(1, 0, 1).slice(2, 4, 5).fill_(bad);
              const Tensor out = layer(x);
              out.backward(randn({30, 2, 5, 5}).to(dtype));
              const auto y = to_vector(out), dx = to_vector(x.grad());
              int wrong = 0;
              for (std::size_t i = 0; i < y.size(); ++i)
                wrong += std::isnan(y[i]) != (i / 25 % 2 == 0) ||
                         std::isnan(dx[i]) != (i / 25 % 2 == 0);
              EXPECT_EQ(wrong, 0) << bad << " " << to_string(dtype) << " " << to_string(format)
                                  << " " << at;
              for (const Tensor& t : {layer.running_mean, layer.running_var, layer.weight.grad()}) {
                EXPECT_FALSE(std::isfinite(to_vector(t)[0]));
                EXPECT_TRUE(std::isfinite(to_vector(t)[1]));
              }
            });
}

// Padding on any rank may hold NaN and infinity: results and gradients are the same as with padding
// of 0.
TEST(SyncBatchNorm, MasksLeaveNaNOutOverRanks) {
  run_ranks(3, [](const ProcessGroup& group) {
    Generator random(18);
    const Tensor values = shard(random, group, {9, 4, 5}),
                 mask = gt(shard(random, group, {9, 5}), 0).to(float64);
    const Tensor inside = mask.reshape({3, 1, 5}).expand({3, 4, 5}),
                 dy = shard(random, group, {9, 4, 5}) * inside;
    const auto run = [&](double padding) {
      SyncBatchNorm layer({.channels = 4, .dtype = float64});
      const Tensor x =
          where(gt(inside, 0.5), values, full({}, padding, {float64})).requires_grad_();
      layer.forward(x, {.position_weights = mask}).backward(dy);
      return std::vector{to_vector(x.grad()), to_vector(layer.weight.grad()),
                         to_vector(layer.running_var)};
    };
    const auto expected = run(0);
    EXPECT_EQ(run(NAN), expected);
    EXPECT_EQ(run(INFINITY), expected);
    const auto m = to_vector(inside);
    for (std::size_t i = 0; i < m.size(); ++i) EXPECT_TRUE(m[i] > 0 || expected[0][i] == 0) << i;
  });
}

TEST(SyncBatchNorm, GradcheckOverRanks) {
  // The checked function is the sum of both ranks' losses, which an all-reduce computes, as a
  // function of the inputs of either rank.
  for (const bool residual_and_relu : {false, true}) {
    run_ranks(
        2,
        [&](const ProcessGroup& group) {
          Generator random(3);
          const Tensor x0 = randn({3, 2, 2}, {float64}, random),
                       x1 = randn({4, 2, 2}, {float64}, random);
          const Tensor r0 = randn({3, 2, 2}, {float64}, random),
                       r1 = randn({4, 2, 2}, {float64}, random);
          const Tensor p0 = randn({3, 2, 2}, {float64}, random),
                       p1 = randn({4, 2, 2}, {float64}, random);
          const Tensor weight = randn({2}, {float64}, random), bias = randn({2}, {float64}, random);
          const auto loss = [&](const Tensor& x, const Tensor& r, const Tensor& w, const Tensor& b,
                                const Tensor& p) {
            nn::BatchNormArgs args;
            args.weight = w, args.bias = b;
            args.group = group;
            if (residual_and_relu) args.residual = r, args.relu = true;
            return sum(nn::batch_norm(x, args) * p);
          };
          // Both ranks perturb the same elements of all inputs in the same order. Only the leaves
          // of the rank that uses an input get its gradient.
          std::vector<Tensor> inputs{x0, x1, weight, bias, r0, r1};
          const auto total = [&] {
            const NoGrad no_grad;
            const Tensor mine = group.rank() == 0
                                    ? loss(inputs[0], inputs[4], inputs[2], inputs[3], p0)
                                    : loss(inputs[1], inputs[5], inputs[2], inputs[3], p1);
            group.all_reduce(mine).wait();
            return mine.item<double>();
          };
          std::vector<Tensor> leaves;
          for (const Tensor& t : inputs) leaves.push_back(t.clone().requires_grad_());
          (group.rank() == 0 ? loss(leaves[0], leaves[4], leaves[2], leaves[3], p0)
                             : loss(leaves[1], leaves[5], leaves[2], leaves[3], p1))
              .backward();
          for (std::size_t i = 0; i < inputs.size(); ++i) {
            if (i >= 4 && !residual_and_relu) continue;
            const Tensor reported = leaves[i].grad().defined()
                                        ? leaves[i].grad().clone()
                                        : zeros(inputs[i].shape(), {float64});
            group.all_reduce(reported).wait();
            for (std::int64_t k = 0; k < inputs[i].numel(); ++k) {
              double& element = inputs[i].data<double>()[k];
              const double before = element, h = 1e-6;
              element = before + h;
              const double up = total();
              element = before - h;
              const double down = total();
              element = before;
              EXPECT_NEAR((up - down) / (2 * h), reported.data<double>()[k], 2e-7)
                  << "input " << i << " element " << k;
            }
          }
        },
        60s);
  }
}

TEST(SyncBatchNorm, TwoDisjointGroupsAndGroupsOfOne) {
  run_ranks(4, [](const ProcessGroup& group) {
    const ProcessGroup half = group.split(group.rank() % 2), alone = group.split(group.rank());
    Generator random(4);
    const Tensor whole = randn({8, 3, 5}, {float64}, random);
    const Tensor mine = whole.slice(0, 2 * group.rank(), 2 * group.rank() + 2);
    const Tensor pair =
        cat({whole.slice(0, 2 * (group.rank() % 2), 2 * (group.rank() % 2) + 2),
             whole.slice(0, 2 * (group.rank() % 2) + 4, 2 * (group.rank() % 2) + 6)});
    SyncBatchNorm of_half({.channels = 3, .dtype = float64, .group = half}),
        of_one({.channels = 3, .dtype = float64, .group = alone});
    BatchNorm of_pair({.channels = 3, .dtype = float64}), local({.channels = 3, .dtype = float64});
    of_half(mine), of_one(mine), of_pair(pair), local(mine);
    EXPECT_LT(relative_error(of_half.running_var, of_pair.running_var), 1e-13);
    EXPECT_EQ(to_vector(of_one.running_var), to_vector(local.running_var));
    EXPECT_EQ(alone.traffic().calls + alone.for_normalization().traffic().calls, 0);
  });
}

TEST(SyncBatchNorm, ARankThatIsNoMemberGetsAnError) {
  const auto errors = errors_of(2, [](const ProcessGroup& group) {
    const ProcessGroup first = group.split(group.rank() == 0 ? 0 : -1);
    SyncBatchNorm layer({.channels = 3, .group = first});
    layer(randn({4, 3}));
  });
  EXPECT_EQ(errors[0], "");
  expect_contains(errors[1], {"SyncBatchNorm: ", "no member"});
}

TEST(SyncBatchNorm, NothingAnywhereChangesNothing) {
  run_ranks(2, [](const ProcessGroup&) {
    SyncBatchNorm layer({.channels = 3});
    const Tensor x = empty({0, 3, 2}).requires_grad_();
    layer(x).backward(empty({0, 3, 2}));
    EXPECT_EQ(layer.num_batches_tracked.item<int>(), 0);
    EXPECT_EQ(to_vector(layer.running_mean), (std::vector<double>{0, 0, 0}));
    EXPECT_EQ(to_vector(layer.bias.grad()), (std::vector<double>{0, 0, 0}));
  });
}

// The count is the sum of the weights over all ranks. If it is 0, nothing changes; up to 1 there is
// no unbiased variance, so that every rank throws.
TEST(SyncBatchNorm, WeightsThatSumToNothingOrToOneInAll) {
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        SyncBatchNorm layer({.channels = 2, .pooled = true});
        const Tensor x = randn({4, 2}).requires_grad_();
        const auto untouched = [&] {
          return layer.num_batches_tracked.item<int>() == 0 &&
                 layer.num_elements_tracked.item<double>() == 0 &&
                 to_vector(layer.running_mean) == std::vector<double>{0, 0} &&
                 to_vector(layer.running_var) == std::vector<double>{1, 1};
        };
        layer.forward(x, {.position_weights = zeros({4})}).backward(zeros({4, 2}));
        EXPECT_TRUE(untouched());
        EXPECT_EQ(to_vector(x.grad()), std::vector<double>(8, 0.0));
        for (const double each : {0.1, 0.125})
          EXPECT_THROW(layer.forward(x, {.position_weights = full({4}, each, {float64})}),
                       ShapeError)
              << each;
        EXPECT_TRUE(untouched());
        layer.forward(x, {.position_weights = full({4}, group.rank() == 0 ? 0 : 0.375)});
        EXPECT_EQ(layer.num_batches_tracked.item<int>(), 1);
        EXPECT_EQ(layer.num_elements_tracked.item<double>(), 1.5);
      },
      60s);
}

TEST(SyncBatchNorm, OneElementInAllThrowsOnEveryRankAndChangesNothing) {
  const auto errors = errors_of(3, [](const ProcessGroup& group) {
    SyncBatchNorm layer({.channels = 2});
    try {
      layer(zeros({group.rank() == 1 ? 1 : 0, 2}));
    } catch (const ShapeError&) {
      EXPECT_EQ(layer.num_batches_tracked.item<int>(), 0);
      EXPECT_EQ(to_vector(layer.running_var), (std::vector<double>{1, 1}));
      throw;
    }
  });
  for (std::size_t r = 0; r < 3; ++r)
    expect_contains(errors[r], {"SyncBatchNorm forward #1", fmt::format("rank {} of 3", r),
                                "more than 1 value per channel"});
  // One element on each of two ranks is a batch of two elements.
  run_ranks(2, [](const ProcessGroup&) { SyncBatchNorm({.channels = 2})(randn({1, 2})); });
}

TEST(SyncBatchNorm, RanksThatNeedDifferentGradientsDoNotWaitForEachOther) {
  // Each rank needs any subset of the gradients of input, weight, bias and residual. An input
  // gradient is right whatever the other rank needs.
  for (int first = 0; first < 16; ++first)
    for (int second = 0; second < 16; ++second) {
      const bool refused = ((first | second) & 1) && (first == 0 || second == 0);
      std::vector<Tensor> expected(2);
      const auto errors = errors_of(2, [&](const ProcessGroup& group) {
        Generator random(6);
        const Tensor whole = randn({6, 3}, {float64}, random),
                     dy = randn({6, 3}, {float64}, random);
        const int needs = group.rank() == 0 ? first : second;
        const std::int64_t from = group.rank() * 2, to = from + 2 + 2 * group.rank();
        const Tensor x = whole.slice(0, from, to).clone().requires_grad_(needs & 1);
        SyncBatchNorm layer({.channels = 3, .dtype = float64});
        layer.weight.requires_grad_(needs & 2);
        layer.bias.requires_grad_(needs & 4);
        const Tensor residual = dy.slice(0, from, to).clone().requires_grad_(needs & 8);
        const Tensor y = layer.forward(x, {.residual = residual});
        if (y.requires_grad()) y.backward(dy.slice(0, from, to));
        EXPECT_FALSE(refused) << first << " " << second;
        EXPECT_EQ(layer.weight.grad().defined(), (needs & 2) != 0);
        EXPECT_EQ(layer.bias.grad().defined(), (needs & 4) != 0);
        EXPECT_EQ(residual.grad().defined(), (needs & 8) != 0);
        if (needs & 1) {
          // Here both ranks run a backward, so the loss of the whole batch is the sum of both
          // losses.
          BatchNorm one({.channels = 3, .dtype = float64});
          const Tensor all = whole.clone().requires_grad_();
          one(all).backward(dy);
          EXPECT_LT(relative_error(x.grad(), all.grad().slice(0, from, to)), 1e-12);
        }
      });
      for (const auto& error : errors)
        if (refused)
          expect_contains(error, {"SyncBatchNorm forward #1",
                                  first == 0 ? "rank 1 will run a backward, rank 0 will not"
                                             : "rank 0 will run a backward, rank 1 will not"});
        else EXPECT_EQ(error, "");
    }
}

// The header of a packet on a device is checked later, where no collective can gather who does
// what.
TEST(SyncBatchNorm, ACopiedHeaderSaysWhetherThisRankRunsABackward) {
  run_ranks(3, [](const ProcessGroup& group) {
    const nn::CallId id{.name = "SyncBatchNorm 'bn1'", .group = group, .number = 4};
    kernels::PacketHeader sum = make_header(id, nn::Phase::forward, 9);
    sum.fingerprint *= 3;
    sum.fingerprint_squared *= 3;
    sum.backward = 2;
    const nn::PacketCall call{id, nn::Phase::forward, group.rank() != 1};
    expect_contains(test::message_of<DistributedError>([&] { check_copied_header(sum, call); }),
                    {"SyncBatchNorm 'bn1' forward #4",
                     fmt::format("only 2 of 3 ranks will run a backward, and rank {} will{};",
                                 group.rank(), call.runs_backward ? "" : " not")});
    sum.backward = 3;
    EXPECT_NO_THROW(check_copied_header(sum, call));
  });
}

TEST(SyncBatchNorm, RanksAtDifferentLayersCallsOrChannelsGetAnErrorThatNamesBoth) {
  struct Net : nn::Module {
    SyncBatchNorm& bn1 = add<SyncBatchNorm>("bn1", {.channels = 4});
    SyncBatchNorm& bn2 = add<SyncBatchNorm>("bn2", {.channels = 4});
    SyncBatchNorm& wide = add<SyncBatchNorm>("wide", {.channels = 6});
  };
  const auto named = [](const std::vector<std::string>& errors, const std::string& a,
                        const std::string& b) {
    for (const auto& error : errors) expect_contains(error, {"rank 0", a, "rank 1", b});
  };
  named(errors_of(2,
                  [](const ProcessGroup& group) {
                    Net net;
                    (group.rank() == 0 ? net.bn1 : net.bn2)(randn({3, 4}));
                  }),
        "SyncBatchNorm 'bn1' forward #1", "SyncBatchNorm 'bn2' forward #1");
  named(errors_of(2,
                  [](const ProcessGroup& group) {
                    Net net;
                    (group.rank() == 0 ? net.bn1 : net.wide)(randn({3, group.rank() == 0 ? 4 : 6}));
                  }),
        "SyncBatchNorm 'bn1' forward #1", "SyncBatchNorm 'wide' forward #1");
  named(errors_of(2,
                  [](const ProcessGroup& group) {
                    Net net;
                    const Tensor x = randn({3, 4}).requires_grad_();
                    const Tensor y = net.bn1(x);
                    if (group.rank() == 0) y.backward(randn({3, 4}));
                    else net.bn1(x);
                  }),
        "SyncBatchNorm 'bn1' backward #1", "SyncBatchNorm 'bn1' forward #2");
}

// A rank whose arguments are wrong tells the other ranks, which would otherwise wait for it.
TEST(SyncBatchNorm, WhatOneRankRefusesIsAnErrorOnEveryRank) {
  struct Net : nn::Module {
    nn::BatchNorm2d& bn =
        add<nn::BatchNorm2d>("bn", {.channels = 4, .group = distributed::world()});
  };
  const auto run = [](const std::function<void(nn::BatchNorm2d&)>& wrong) {
    return errors_of(3, [&](const ProcessGroup& group) {
      Net net;
      net.bn(randn({3, 4, 2, 2}));
      if (group.rank() == 1) wrong(net.bn);
      else net.bn(randn({3, 4, 2, 2}));
    });
  };
  const auto check = [](const std::vector<std::string>& errors, const std::string& why) {
    expect_contains(errors[1], {"SyncBatchNorm 'bn' forward #2 on rank 1 of 3: ", why});
    for (const int r : {0, 2})
      expect_contains(errors[static_cast<std::size_t>(r)],
                      {"SyncBatchNorm 'bn' forward #2", "rank 1 at ",
                       "SyncBatchNorm 'bn' forward #2, whose arguments it refuses", why});
  };
  check(run([](nn::BatchNorm2d& bn) {
          bn(randn({3, 5, 2, 2}));
        }),
        "expected input of shape (N, 4, ...), got (3, 5, 2, 2)");
  check(run([](nn::BatchNorm2d& bn) {
          bn(randn({3, 4, 2}));
        }),
        "expected input of shape (N, C, H, W), got (3, 4, 2)");
  check(run([](nn::BatchNorm2d& bn) {
          bn.forward(randn({3, 4, 2, 2}), {.residual = randn({3, 4, 2, 1})});
        }),
        "expected a residual like the input");
  check(run([](nn::BatchNorm2d& bn) {
          bn.forward(randn({3, 4, 2, 2}), {.position_weights = full({3}, -1)});
        }),
        "position weights of at least 0");
  check(run([](nn::BatchNorm2d& bn) {
          bn(zeros({3, 4, 2, 2}, {int64}));
        }),
        "cannot normalise int64");
  check(run([](nn::BatchNorm2d& bn) {
          bn(randn({3, 5, 2, 2}, {float64}));
        }),
        "expected input of shape (N, 4, ...), got (3, 5, 2, 2)");
  const auto errors = errors_of(2, [](const ProcessGroup& group) {
    Net net;
    const bool is_first = group.rank() == 0;
    net.bn(randn({3, is_first ? 4 : 5, 2, 2}, {is_first ? float64 : float32}));
  });
  expect_contains(errors[1], {"SyncBatchNorm 'bn' forward #1 on rank 1 of 2: ",
                              "expected input of shape (N, 4, ...)"});
  expect_contains(errors[0], {"SyncBatchNorm 'bn' forward #1", "rank 1 at ",
                              "SyncBatchNorm 'bn' forward #1, whose arguments it refuses: "
                              "expected input of shape (N, 4, ...), got (3, 5, 2, 2)"});
}

// If the arguments are wrong on every rank, each rank throws its own error, and the group stays
// usable.
TEST(SyncBatchNorm, WhatEveryRankRefusesBreaksNothing) {
  run_ranks(
      3,
      [](const ProcessGroup& group) {
        SyncBatchNorm layer({.channels = 4});
        layer(randn({3, 4}));
        EXPECT_THROW(layer(randn({3, 5 + group.rank()})), ShapeError);
        layer(randn({3, 4})).backward(Tensor(randn({3, 4})));
        EXPECT_EQ(layer.num_batches_tracked.item<int>(), 2);
      },
      60s);
}

// The headers of packets reveal that ranks are at different calls where the group does not compare
// these, as between devices.
TEST(SyncBatchNorm, ThePacketShowsThatRanksAreOutOfStep) {
  using namespace nn;
  for (const bool differ : {false, true}) {
    const auto errors = errors_of(3, [&](const ProcessGroup& group) {
      const bool other = differ && group.rank() == 2;
      const CallId id{"SyncBatchNorm 'layer3.0.bn2'", group, other ? 40 : 41};
      const Phase phase = other ? Phase::backward : Phase::forward;
      const Tensor packet = zeros({kernels::packet_size(3)}, {float64});
      write_header(packet, make_header(id, phase, packet.numel()));
      group.for_normalization().all_reduce(packet).wait();
      check_copied_header(kernels::header_of(packet.data<double>()), {id, phase});
      EXPECT_FALSE(differ);
    });
    for (std::size_t r = 0; r < 3; ++r) {
      if (!differ) EXPECT_EQ(errors[r], "");
      else
        expect_contains(errors[r], {r == 2 ? "SyncBatchNorm 'layer3.0.bn2' backward #40"
                                           : "SyncBatchNorm 'layer3.0.bn2' forward #41",
                                    "not every rank was there"});
    }
  }
}

TEST(SyncBatchNorm, ThePacketShowsThatLayersDiffer) {
  using namespace nn;
  const auto errors = errors_of(3, [&](const ProcessGroup& group) {
    const CallId id{"SyncBatchNorm 'bn'", group, 7,
                    fmt::format(", layer {} of group 'world'", group.rank() == 2 ? 5 : 4)};
    const Tensor packet = zeros({kernels::packet_size(3)}, {float64});
    write_header(packet, make_header(id, Phase::forward, packet.numel()));
    group.for_normalization().all_reduce(packet).wait();
    check_copied_header(kernels::header_of(packet.data<double>()), {id, Phase::forward});
  });
  for (std::size_t r = 0; r < 3; ++r)
    expect_contains(
        errors[r], {fmt::format("SyncBatchNorm 'bn' forward #7, layer {} of group 'world' (rank {}",
                                r == 2 ? 5 : 4, r),
                    "every rank must construct and run the same layers in the same order"});
}

TEST(SyncBatchNorm, ARankThatNeverComesIsNamedWithTheLayer) {
  std::string message, about;
  EXPECT_THROW(run_ranks(
                   2,
                   [&](const ProcessGroup& group) {
                     struct Net : nn::Module {
                       SyncBatchNorm& bn = add<SyncBatchNorm>("bn", {.channels = 4});
                     } net;
                     if (group.rank() == 1)
                       return group.barrier({.timeout = 60s});  // waits on the other communicator
                     try {
                       net.bn(randn({3, 4}));
                     } catch (const TimeoutError& error) {
                       message = error.what(), about = error.info().name;
                       throw;
                     }
                   },
                   300ms),
               TimeoutError);
  expect_contains(message, {"rank 1", "SyncBatchNorm 'bn' forward #1"});
  EXPECT_EQ(about, "SyncBatchNorm 'bn' forward #1");
}

TEST(SyncBatchNorm, SameBitsOnEveryRankAndInEveryRun) {
  std::vector<std::vector<double>> seen;
  std::mutex mutex;
  for (int run = 0; run < 2; ++run)
    run_ranks(3, [&](const ProcessGroup& group) {
      Generator random(8);
      SyncBatchNorm layer({.channels = 5});
      for (int step = 0; step < 3; ++step) layer(shard(random, group, {10, 5, 7}).to(float32));
      auto state = to_vector(layer.running_mean);
      const auto var = to_vector(layer.running_var);
      state.insert(state.end(), var.begin(), var.end());
      const std::lock_guard lock(mutex);
      seen.push_back(state);
    });
  for (const auto& state : seen) EXPECT_EQ(state, seen[0]);
}

// The gradient of x overwrites dy if nothing else holds dy, but not if dy is the gradient of the
// residual too.
TEST(SyncBatchNorm, GradientsOfInputAndResidualDoNotShareMemory) {
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        Generator random(56);
        const Tensor vx = shard(random, group, {6, 3, 2}), vr = shard(random, group, {6, 3, 2});
        const auto run = [&](bool fused) {
          SyncBatchNorm layer({.channels = 3, .dtype = float64}),
              other({.channels = 3, .dtype = float64});
          const Tensor x = vx.clone().requires_grad_(), r = vr.clone().requires_grad_();
          const Tensor y = fused ? layer.forward(x, {.residual = r}) : layer(x) + r,
                       z = fused ? other.forward(r, {.residual = x}) : other(r) + x;
          // This makes new gradients of y and z, which nothing else holds.
          (sum(y * y * y) + sum(z * z * z)).backward();
          return std::vector{x.grad(), r.grad(), layer.weight.grad(), other.bias.grad()};
        };
        const auto got = run(true), expected = run(false);
        for (std::size_t i = 0; i < got.size(); ++i)
          EXPECT_LT(relative_error(got[i], expected[i]), 1e-13) << i;
      },
      60s);
}

TEST(SyncBatchNorm, OnlyCallsOfTheGroupItHasNowAreCounted) {
  run_ranks(
      4,
      [](const ProcessGroup& group) {
        const Tensor x = randn({4, 3}).requires_grad_(), dy = randn({4, 3});
        SyncBatchNorm layer({.channels = 3, .group = group.split(group.rank() / 2)});
        for (int i = 0; i <= group.rank() / 2; ++i) layer(x);
        layer.set_process_group(group);
        for (int step = 0; step < 2; ++step) {
          const Tensor a = layer(x), b = layer(x);
          b.backward(dy);
          a.backward(dy);
        }
        EXPECT_TRUE(x.grad().defined());
      },
      60s);
}

TEST(SyncBatchNorm, TwoForwardsBeforeOneBackward) {
  run_ranks(2, [](const ProcessGroup& group) {
    Generator random(14);
    const Tensor va = shard(random, group, {6, 3}), vb = shard(random, group, {8, 3});
    const auto cube = [](const Tensor& y) { return sum(y * y * y); };
    const auto run = [&](bool together) {
      SyncBatchNorm layer({.channels = 3, .dtype = float64});
      const Tensor a = va.clone().requires_grad_(), b = vb.clone().requires_grad_();
      if (together) {
        const Tensor ya = layer(a), yb = layer(b);
        (cube(ya) + cube(yb)).backward();
      } else {
        cube(layer(a)).backward();
        cube(layer(b)).backward();
      }
      return std::vector{a.grad(), b.grad(), layer.weight.grad(), layer.running_mean};
    };
    const auto got = run(true), expected = run(false);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_LT(relative_error(got[i], expected[i]), 1e-14) << i;
  });
}

TEST(SyncBatchNorm, WeightsAndPooledStatisticsAreShared) {
  run_ranks(2, [](const ProcessGroup& group) {
    Generator random(11);
    const Tensor x = randn({6, 3, 4}, {float64}, random), w = rand({6, 4}, {float64}, random);
    const std::int64_t from = group.rank() * 2, to = 2 + group.rank() * 4;
    SyncBatchNorm layer({.channels = 3, .pooled = true, .dtype = float64});
    BatchNorm one({.channels = 3, .pooled = true, .dtype = float64});
    const Tensor y = layer.forward(x.slice(0, from, to),
                                   {.position_weights = w.slice(0, from, to)}),
                 whole = one.forward(x, {.position_weights = w});
    EXPECT_LT(relative_error(y, whole.slice(0, from, to)), 1e-12);
    layer(x.slice(0, from, to)), one(x);
    EXPECT_LT(relative_error(layer.running_var, one.running_var), 1e-12);
  });
}

TEST(SyncBatchNorm, AReplicaCheckNamesTheFirstTensorThatDrifted) {
  const auto errors = errors_of(3, [](const ProcessGroup& group) {
    struct Net : nn::Module {
      SyncBatchNorm& bn1 = add<SyncBatchNorm>("bn1", {.channels = 4});
      SyncBatchNorm& bn2 = add<SyncBatchNorm>("bn2", {.channels = 4});
    } net;
    for (int step = 0; step < 3; ++step) net.bn1(randn({3, 4})), net.bn2(randn({3, 4}));
    distributed::check_replicas(net.state_dict(), group);
    if (group.rank() == 2) net.bn2.running_mean.data<float>()[1] += 1e-6f;
    distributed::check_replicas(net.state_dict(), group);
  });
  for (const auto& error : errors)
    expect_contains(error, {"bn2.running_mean", "ranks {2} something else"});
}

}  // namespace
}  // namespace tutti
