// DataParallel over ranks that are threads: the shared cases, and disagreements between ranks.
#include "data_parallel_case.h"
#include "messages.h"
#include "unused_parameters_case.h"

#include <tutti/distributed/data_parallel/buckets.h>
#include <tutti/distributed/diagnostics/fault_injection.h>
#include <tutti/nn/batch_norm/layer.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/sequential.h>

#include <future>
#include <map>
#include <set>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;

class DataParallelRanks : public ::testing::TestWithParam<int> {};
TEST_P(DataParallelRanks, Works) { run_ranks(GetParam(), test::check_data_parallel, 60s); }
TEST_P(DataParallelRanks, MayUseDifferentParameters) {
  run_ranks(
      GetParam(),
      [](const ProcessGroup& group) { test::check_unused_parameters_of_each_rank(group); }, 60s);
}
INSTANTIATE_TEST_SUITE_P(Ranks, DataParallelRanks, ::testing::Values(1, 2, 3));

// Runs fn on `ranks` ranks. Every one of them must throw a DistributedError with these texts.
void expect_error_everywhere(int ranks, const std::function<void(const ProcessGroup&)>& fn,
                             const std::vector<std::string>& parts) {
  run_ranks(
      ranks,
      [&](const ProcessGroup& group) {
        try {
          fn(group);
          ADD_FAILURE() << "no error on rank " << group.rank();
        } catch (const DistributedError& error) {
          for (const std::string& part : parts)
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
                << part << "\nin: " << error.what();
        }
      },
      60s);
}

TEST(DataParallel, ModelsThatDifferAreRefusedAndTheDifferenceNamed) {
  const auto build = [](const std::function<void(StateDict&)>& change) {
    return [change](const ProcessGroup& group) {
      StateDict model = test::small_model(group);
      if (group.rank() == 2) change(model);
      const DataParallel ddp(model, {}, group);
    };
  };
  expect_error_everywhere(
      3, build([](StateDict& m) { m[3].second = ones({7}, {.dtype = float64}).requires_grad_(); }),
      {"tensor 3", "rank 0 has parameter 'b.bias' of shape (6,)", "rank 2", "shape (7,)"});
  expect_error_everywhere(3, build([](StateDict& m) { m[1].first = "a.offset"; }),
                          {"'a.bias'", "'a.offset'"});
  expect_error_everywhere(3, build([](StateDict& m) {
                            m[2].second = ones({6, 6}).requires_grad_();
                          }),
                          {"tensor 2", "rank 0 has parameter 'b.weight' of shape (6, 6), float64",
                           "rank 2 has", "float32"});
  expect_error_everywhere(3, build([](StateDict& m) { m[0].second.requires_grad_(false); }),
                          {"requires grad"});
  expect_error_everywhere(3, build([](StateDict& m) { m.pop_back(); }),
                          {"'c.bias'", "nothing more"});
}

TEST(DataParallel, UnusedParametersThatDifferShowBothSides) {
  expect_error_everywhere(
      2,
      [](const ProcessGroup& group) {
        const StateDict model = test::small_model(group);
        DataParallel ddp(model, {}, group, test::small_buckets);
        test::loss_of(model, group.rank(), 0, 0, group.rank() == 0 ? 3 : 2).backward();
      },
      {"rank 0 at all_reduce", "bucket 0", "rank 1 at barrier",
       "no gradient for 'c.weight', 'c.bias'"});
}

TEST(DataParallel, ABucketThatFailsIsNamedWithItsLayersSizeRankAndNumbers) {
  std::promise<void> rank_1_was_there;
  run_ranks(
      2,
      [&](const ProcessGroup& group) {
        StateDict model;  // all but the first two parameters fill a bucket each
        for (const auto& [name, count] :
             std::vector<std::pair<std::string, std::int64_t>>{{"layer3.0.weight", 1500000},
                                                               {"layer3.1.bias", 50000},
                                                               {"a", 1550000},
                                                               {"b", 1550000},
                                                               {"c", 1550000},
                                                               {"d", 1550000}})
          model.emplace_back(name, ones({count}).requires_grad_());
        // Only the rank that comes last to the last bucket has a short deadline, so no other rank
        // can miss it, however busy the machine is.
        const auto communicate = [&](const ProcessGroup& ranks, const Tensor& bucket,
                                     CallOptions call) {
          const bool last = call.name.starts_with("bucket 4"), late = last && ranks.rank() == 0;
          if (late) rank_1_was_there.get_future().wait();
          call.timeout = late ? 100ms : 60s;
          Work work = ranks.all_reduce(bucket, ReduceOp::sum, std::move(call));
          if (last && !late) rank_1_was_there.set_value();
          return work;
        };
        DataParallel ddp(model, {}, group,
                         {.bucket_cap_mb = 6, .first_bucket_mb = 6, .communication = communicate});
        const auto before = group.traffic().calls;
        const InjectFault fault(
            {.action = Fault::Action::drop, .rank = 1, .collective = before + 5});
        Tensor loss = sum(model[0].second);
        for (std::size_t p = 1; p < model.size(); ++p) loss = loss + sum(model[p].second);
        const std::string expected = fmt::format(
            "all_reduce #{} of group 'world' (bucket 4: layer3.*, 6.2 MB): rank 1 did not arrive "
            "within 100 ms; it last completed #{}. Latest call of each group: rank 1 at all_reduce "
            "#{} of group 'world' (bucket 3: a, 6.2 MB); rank 0 at all_reduce #{} of group 'world' "
            "(bucket 4: layer3.*, 6.2 MB). What one rank does alone belongs under NoGrad, in "
            "eval(), "
            "or into a no_sync() scope",
            before + 5, before + 4, before + 4, before + 5);
        const std::string text = test::message_of<TimeoutError>([&] { loss.backward(); });
        EXPECT_EQ(text, fmt::format("{} [rank {} of 2]", expected, group.rank()));
      },
      60s);
}

TEST(DataParallel, BucketsAreNamedInFewWords) {
  const auto label = [](const std::vector<std::string>& all, std::vector<std::size_t> members) {
    StateDict parameters;
    for (const std::string& name : all) parameters.emplace_back(name, ones({1}));
    return make_buckets(parameters, members, 1 << 20, 1 << 20).at(0).label;
  };
  const std::vector<std::string> net = {"conv1.weight",
                                        "layer2.0.conv1.weight",
                                        "layer2.0.bn1.bias",
                                        "layer2.1.conv1.weight",
                                        "layer3.0.conv1.weight",
                                        "layer3.10.conv1.weight",
                                        "fc.weight",
                                        "fc.bias",
                                        "scale"};
  EXPECT_EQ(label(net, {7}), "bucket 0: fc.bias");
  EXPECT_EQ(label(net, {7, 6}), "bucket 0: fc.*");
  EXPECT_EQ(label(net, {2, 1}), "bucket 0: layer2.0.*");
  EXPECT_EQ(label(net, {3, 2, 1}), "bucket 0: layer2.*");
  EXPECT_EQ(label(net, {1, 3, 4, 5}), "bucket 0: layer2.*, layer3.*");
  EXPECT_EQ(label(net, {8, 7, 6, 5, 4, 3, 2, 1, 0}), "bucket 0: scale, fc.*, layer3.* and 2 more");
  // A prefix that all parameters of the model share is left out of the comparison.
  EXPECT_EQ(label({"net.a.0.w", "net.a.1.w", "net.b.w"}, {2, 1, 0}), "bucket 0: net.b.w, net.a.*");
  EXPECT_EQ(label({"w"}, {0}), "bucket 0: w");
}

// Gives rank 1 a hook that fails in the first backward. Every rank must get its error, in that
// backward or at its next collective.
void expect_failure_everywhere(const CommunicationHook& of_rank_1) {
  std::atomic<int> errors = 0;
  run_ranks(
      3,
      [&](const ProcessGroup& group) {
        const StateDict model = test::small_model(group);
        auto options = test::small_buckets;
        if (group.rank() == 1) options.communication = of_rank_1;
        DataParallel ddp(model, {}, group, options);
        try {
          test::loss_of(model, group.rank(), 0).backward();
          group.barrier();
        } catch (const std::exception& error) {
          EXPECT_NE(std::string(error.what()).find("no compressor"), std::string::npos)
              << error.what();
          ++errors;
        }
        EXPECT_THROW(group.barrier(), DistributedError);
      },
      60s);
  EXPECT_EQ(errors, 3);
}

TEST(DataParallel, AHookThatThrowsFailsOnEveryRank) {
  expect_failure_everywhere([](const ProcessGroup&, const Tensor&, const CallOptions&) -> Work {
    throw std::runtime_error("no compressor");
  });
  expect_failure_everywhere([](const ProcessGroup&, const Tensor&, const CallOptions&) -> Work {
    throw DistributedError("no compressor");
  });
}

TEST(DataParallel, AHookWhoseWorkThrowsFailsOnEveryRank) {
  struct Broken : WorkState {
    void wait() override { throw std::runtime_error("no compressor"); }
    bool is_done() override { return true; }
  };
  expect_failure_everywhere([](const ProcessGroup& ranks, const Tensor& bucket, CallOptions call) {
    ranks.all_reduce(bucket, ReduceOp::sum, std::move(call)).wait();
    return Work(std::make_shared<Broken>());
  });
}

TEST(DataParallel, RefusesInvalidOptions) {
  EXPECT_THROW(const DataParallel ddp({}, {}, ProcessGroup(), {.bucket_cap_mb = 0}), ValueError);
  EXPECT_THROW(compress_gradients(float32), DTypeError);
}

TEST(DataParallel, GradientsAreViewsOfFewBucketsAndHooksGoWithTheObject) {
  run_ranks(2, [](const ProcessGroup& group) {
    const StateDict model = test::small_model(group);
    {
      DataParallel ddp(model, {}, group);
      test::loss_of(model, group.rank(), 0).backward();
      EXPECT_EQ(model[0].second.grad().storage(), model[5].second.grad().storage());
    }
    test::clear_gradients(model);
    const auto calls = group.traffic().calls;
    test::loss_of(model, group.rank(), 0).backward();
    EXPECT_EQ(group.traffic().calls, calls);
  });
}

// Uses the layers in another order on rank 1, so that gradients arrive in another order there.
Tensor loss_in_another_order(const StateDict& model, int rank, int step) {
  StateDict order = model;
  if (rank == 1) {
    std::swap(order[0], order[4]);
    std::swap(order[1], order[5]);
  }
  return test::loss_of(order, rank, step);
}

TEST(DataParallel, BucketsStartInTheirOrderWhateverOrderTheGradientsComeIn) {
  run_ranks(2, [](const ProcessGroup& group) {
    const StateDict model = test::small_model(group);
    std::vector<std::string> started;
    auto options = test::small_buckets;
    options.reorder_buckets = false;
    options.communication = [&](const ProcessGroup& ranks, const Tensor& bucket, CallOptions call) {
      started.push_back(call.name.substr(0, call.name.find(':')));
      return ranks.all_reduce(bucket, ReduceOp::sum, std::move(call));
    };
    DataParallel ddp(model, {}, group, options);
    for (int step = 0; step < 2; ++step) {
      test::clear_gradients(model);
      started.clear();
      loss_in_another_order(model, group.rank(), step).backward();
      ASSERT_EQ(started.size(), ddp.buckets().size());
      for (std::size_t b = 0; b < started.size(); ++b)
        EXPECT_EQ(started[b], fmt::format("bucket {}", b));
      test::expect_mean(model, group, [&](const StateDict& copy, int r) {
        loss_in_another_order(copy, r, step).backward();
      });
    }
  });
}

TEST(DataParallel, BucketsFollowTheOrderOfRank0AndAreLaidOutAnewOnce) {
  run_ranks(2, [](const ProcessGroup& group) {
    const StateDict model = test::small_model(group);
    DataParallel ddp(model, {}, group, test::small_buckets);
    std::vector<std::vector<std::string>> after_first;
    for (int step = 0; step < 3; ++step) {
      test::clear_gradients(model);
      // In the first step rank 0 uses the layers a, b, c, so their gradients arrive as c, b, a. In
      // later steps it is the other way round.
      const int as_rank = step == 0 ? group.rank() : 1;
      loss_in_another_order(model, as_rank, step).backward();
      test::expect_mean(model, group, [&](const StateDict& copy, int r) {
        loss_in_another_order(copy, step == 0 ? r : 1, step).backward();
      });
      if (step == 0) after_first = ddp.buckets();
      EXPECT_EQ(ddp.buckets(), after_first) << step;
    }
    EXPECT_EQ(after_first.front().front().substr(0, 1), "c");
    EXPECT_EQ(after_first.back().back().substr(0, 1), "a");
  });
}

TEST(DataParallel, BucketsHaveOneDTypeTheFirstIsSmallAndTheCapHolds) {
  run_ranks(2, [](const ProcessGroup& group) {
    // The parameters have 4 KiB each, every third one in a dtype of half the size. Gradients arrive
    // in reverse, so the large one comes last.
    StateDict model;
    model.emplace_back("large", ones({10000}).requires_grad_());
    for (int i = 0; i < 30; ++i)
      model.emplace_back(std::to_string(i), ones({i % 3 == 1 ? 2048 : 1024},
                                                 {.dtype = i % 3 == 1 ? bfloat16 : float32})
                                                .requires_grad_());
    constexpr double kib = 1.0 / 1024;
    DataParallel ddp(model, {}, group, {.bucket_cap_mb = 16 * kib, .first_bucket_mb = 8 * kib});
    std::map<bool, int> seen;  // buckets of each dtype
    std::set<std::string> names;
    for (const std::vector<std::string>& bucket : ddp.buckets()) {
      if (bucket[0] == "large") {
        EXPECT_EQ(bucket.size(), 1u);  // alone, above any cap
      } else {
        const bool half = std::stoi(bucket[0]) % 3 == 1;
        for (const std::string& name : bucket)
          EXPECT_EQ(name != "large" && std::stoi(name) % 3 == 1, half);
        EXPECT_LE(bucket.size(), seen[half] == 0 ? 2u : 4u);
        ++seen[half];
      }
      names.insert(bucket.begin(), bucket.end());
    }
    EXPECT_EQ(names.size(), model.size());
    EXPECT_EQ(seen[true], 3);   // 10 tensors: 2 + 4 + 4
    EXPECT_EQ(seen[false], 6);  // 20 tensors: 2 + 4 + 4 + 4 + 4 + 2
  });
}

TEST(DataParallel, LargeSixteenBitGradientsDoNotOverflowOnTheWay) {
  run_ranks(3, [](const ProcessGroup& group) {
    const Tensor parameter = zeros({100}).requires_grad_();
    DataParallel ddp({{"parameter", parameter}}, {}, group,
                     {.communication = compress_gradients(float16)});
    sum(parameter * 60000.0).backward();  // the sum over 3 ranks exceeds float16
    EXPECT_EQ(to_vector(parameter.grad()), std::vector<double>(100, 60000));
  });
}

TEST(DataParallel, AHookGetsWhatItNeedsOfItsBucketAndKeepsStateThere) {
  run_ranks(2, [](const ProcessGroup& group) {
    const StateDict model = test::small_model(group);
    auto options = test::small_buckets;
    options.reorder_buckets = false;
    std::vector<std::vector<std::string>> names;
    std::vector<int> uses;
    options.communication = [&](const ProcessGroup& ranks, const Bucket& bucket, CallOptions call) {
      EXPECT_EQ(bucket.index, names.size());
      EXPECT_EQ(bucket.views.size(), bucket.names.size());
      names.push_back(bucket.names);
      if (!bucket.state.has_value()) bucket.state = 0;
      uses.push_back(++std::any_cast<int&>(bucket.state));
      if (bucket.is_last) names.emplace_back();
      return ranks.all_reduce(bucket, ReduceOp::sum, std::move(call));
    };
    DataParallel ddp(model, {}, group, options);
    auto expected = ddp.buckets();
    expected.emplace_back();
    for (int step = 1; step <= 2; ++step) {
      names.clear(), uses.clear();
      test::loss_of(model, group.rank(), step).backward();
      EXPECT_EQ(names, expected);
      EXPECT_EQ(uses, std::vector<int>(ddp.buckets().size(), step));
    }
  });
}

TEST(DataParallel, BuffersStayEachRanksOwnUntilTheyAreAskedFor) {
  run_ranks(2, [](const ProcessGroup& group) {
    nn::Sequential net;
    net.append<nn::Linear>({.in = 3, .out = 4});
    auto& norm = net.append<nn::BatchNorm1d>({.channels = 4});
    DataParallel ddp(net.named_parameters(), net.named_buffers(), group);
    Generator data(group.rank());
    // Two forwards before one backward: the second changes nothing that the first has saved.
    const Tensor first = sum(square(net(randn({5, 3}, {}, data)))),
                 second = sum(square(net(randn({5, 3}, {}, data))));
    const auto calls = group.traffic().calls;
    (first + second).backward();
    const auto mean = to_vector(norm.running_mean);
    const Tensor all = empty({2, 4});
    group.all_gather(norm.running_mean, all).wait();
    EXPECT_NE(to_vector(all.select(0, 0)), to_vector(all.select(0, 1)));
    ddp.broadcast_buffers(1);
    EXPECT_EQ(to_vector(norm.running_mean), to_vector(all.select(0, 1)));
    EXPECT_EQ(to_vector(norm.running_mean) == mean, group.rank() == 1);
    EXPECT_GT(group.traffic().calls, calls);
  });
}

TEST(DataParallel, BucketsFollowTheOrderOfTheGradients) {
  run_ranks(2, [](const ProcessGroup& group) {
    StateDict model = test::small_model(group);
    std::swap(model[0], model[4]);  // listed last to first, used first to last
    std::swap(model[1], model[5]);
    DataParallel ddp(model, {}, group, test::small_buckets);
    EXPECT_EQ(ddp.buckets().front().front(), "a.bias");
    for (int step = 0; step < 2; ++step) {
      test::clear_gradients(model);
      std::swap(model[0], model[4]);
      std::swap(model[1], model[5]);
      test::loss_of(model, group.rank(), step).backward();
      std::swap(model[0], model[4]);
      std::swap(model[1], model[5]);
    }
    EXPECT_EQ(ddp.buckets().front().front().substr(0, 1), "c");
    EXPECT_EQ(ddp.buckets().back().back().substr(0, 1), "a");
  });
}

}  // namespace
}  // namespace tutti
