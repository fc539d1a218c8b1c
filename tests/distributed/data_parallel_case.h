// DataParallel on any process group, compared with gradients that every rank computes by itself for
// all ranks.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/autograd/matmul.h>
#include <tutti/autograd/record.h>
#include <tutti/core/create.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/distributed/diagnostics/replica_check.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/sequential.h>
#include <tutti/optim/sgd.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "messages.h"

namespace tutti::test {

/// Makes three layers of 6 x 6 and biases, in float64. Every rank starts from other values unless
/// `same`.
inline StateDict small_model(const ProcessGroup& group, bool same = false) {
  Generator generator(same ? 7 : 100 + group.rank());
  StateDict parameters;
  for (const char* layer : {"a", "b", "c"}) {
    parameters.emplace_back(std::string(layer) + ".weight",
                            randn({6, 6}, {.dtype = float64}, generator));
    parameters.emplace_back(std::string(layer) + ".bias",
                            randn({6}, {.dtype = float64}, generator));
  }
  for (const auto& [name, parameter] : parameters) parameter.requires_grad_();
  return parameters;
}

/// Returns a scalar loss from the layers [first, last) of the model, on data that differ by rank
/// and step.
inline Tensor loss_of(const StateDict& model, int rank, int step, std::size_t first = 0,
                      std::size_t last = 3) {
  Generator generator(1000 * step + rank);
  Tensor x = randn({4, 6}, {.dtype = float64}, generator);
  for (std::size_t layer = first; layer < last; ++layer)
    x = tanh(matmul(x, model[2 * layer].second) + model[2 * layer + 1].second);
  return sum(x);
}

inline StateDict detached_copy(const StateDict& model) {
  StateDict copy;
  for (const auto& [name, tensor] : model)
    copy.emplace_back(name, tensor.detach().clone().requires_grad_());
  return copy;
}

inline void expect_close(const Tensor& a, const Tensor& b, double tolerance,
                         const std::string& what) {
  const std::vector<double> x = to_vector(a), y = to_vector(b);
  ASSERT_EQ(x.size(), y.size()) << what;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << what;
}

/// Expects that the gradients of `model` are the mean over the ranks of what `backward` computes
/// for each rank, on a copy of the model.
inline void expect_mean(const StateDict& model, const ProcessGroup& group,
                        const std::function<void(const StateDict&, int rank)>& backward,
                        double tolerance = 1e-13) {
  const StateDict copy = detached_copy(model);
  for (int r = 0; r < group.size(); ++r) backward(copy, r);
  for (std::size_t p = 0; p < model.size(); ++p) {
    ASSERT_TRUE(model[p].second.grad().defined()) << model[p].first;
    const Tensor mean = copy[p].second.grad().clone();
    mean.mul_(1.0 / group.size());
    expect_close(model[p].second.grad(), mean, tolerance, model[p].first);
  }
}

inline void clear_gradients(const StateDict& model) {
  for (const auto& [name, parameter] : model) parameter.set_grad({});
}

inline const distributed::DataParallelOptions small_buckets = {.bucket_cap_mb = 5e-4,
                                                               .first_bucket_mb = 3e-4};

inline void check_gradients_are_averaged(const ProcessGroup& group) {
  const StateDict model = small_model(group);
  const Tensor buffer = full({3}, group.rank());
  distributed::DataParallel ddp(model, {{"buffer", buffer}}, group, small_buckets);
  EXPECT_EQ(buffer.select(0, 1).item<int>(), 0);
  if (group.size() > 1) {
    ASSERT_GE(ddp.buckets().size(), 3u);
    EXPECT_EQ(ddp.buckets()[0][0], "c.bias");
  } else {
    EXPECT_TRUE(ddp.buckets().empty());
  }
  for (int step = 0; step < 3; ++step) {
    clear_gradients(model);
    loss_of(model, group.rank(), step).backward();
    expect_mean(model, group,
                [&](const StateDict& copy, int r) { loss_of(copy, r, step).backward(); });
  }
  // One more backward adds to the gradients that are there, which are the same on every rank.
  loss_of(model, group.rank(), 3).backward();
  expect_mean(model, group, [&](const StateDict& copy, int r) {
    loss_of(copy, r, 2).backward();
    loss_of(copy, r, 3).backward();
  });
  const Tensor first = model[0].second.detach().clone(),
               all = empty({group.size(), 6, 6}, {.dtype = float64});
  group.all_gather(first, all).wait();
  for (int r = 0; r < group.size(); ++r) EXPECT_EQ(to_vector(all.select(0, r)), to_vector(first));
}

/// A model of hundreds of tensors starts with as few collectives as a small one, and all values are
/// rank 0's, in every layout and to the bit.
inline void check_start_of_many_tensors(const ProcessGroup& group) {
  const auto make = [](std::uint64_t seed, StateDict& buffers) {
    Generator generator(seed);
    StateDict parameters;
    for (int i = 0; i < 300; ++i) {
      const Tensor weight = randn({i % 5, 3, 2, 2}, {}, generator);
      parameters.emplace_back(fmt::format("p{}", i),
                              i % 2 ? weight.contiguous(MemoryFormat::channels_last) : weight);
      buffers.emplace_back(fmt::format("b{}", i),
                           full({}, static_cast<double>(seed) + i, {.dtype = int64}));
    }
    // A buffer that is a view with gaps.
    buffers.emplace_back("column", randn({4, 3}, {.dtype = float64}, generator).select(1, 1));
    return parameters;
  };
  StateDict expected_buffers, buffers;
  const StateDict expected = make(50, expected_buffers),
                  parameters = make(50 + static_cast<std::uint64_t>(group.rank()), buffers);
  for (const auto& [name, parameter] : parameters) parameter.requires_grad_();
  const auto before = group.traffic().calls;
  const distributed::DataParallel ddp(parameters, buffers, group);
  // One comparison, and a broadcast for each of float32, int64 and float64.
  EXPECT_EQ(group.traffic().calls - before, group.size() > 1 ? 4 : 0);
  const auto expect_equal = [](const StateDict& a, const StateDict& b) {
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_EQ(to_vector(a[i].second), to_vector(b[i].second)) << a[i].first;
  };
  expect_equal(parameters, expected);
  expect_equal(buffers, expected_buffers);
}

inline void check_communication_starts_before_backward_ends(const ProcessGroup& group) {
  if (group.size() == 1) return;
  const StateDict model = small_model(group);
  distributed::DataParallel ddp(model, {}, group, small_buckets);
  const Tensor& weight = model[0].second;
  std::int64_t before = 0, at_first_layer = 0;
  // The first layer's weight goes through an operation that reads the counter when backward reaches
  // it.
  const Tensor spy =
      autograd::record("spy", weight.detach().clone(), {weight}, [&](const Tensor& g) {
        at_first_layer = group.traffic().calls;
        return g;
      });
  StateDict spied = model;
  spied[0].second = spy;
  const Tensor loss = loss_of(spied, group.rank(), 1);
  before = group.traffic().calls;
  loss.backward();
  EXPECT_GT(at_first_layer, before);
  EXPECT_GT(group.traffic().calls, at_first_layer);
}

inline void check_no_sync(const ProcessGroup& group) {
  const StateDict model = small_model(group);
  distributed::DataParallel ddp(model, {}, group, small_buckets);
  const int rank = group.rank();
  const auto three = [](const StateDict& copy, int r) {
    for (int step = 0; step < 3; ++step) loss_of(copy, r, step).backward();
  };
  Tensor outside;
  {
    const auto scope = ddp.no_sync();
    const auto calls = group.traffic().calls;
    loss_of(model, rank, 0).backward();
    outside = loss_of(model, rank, 2);  // its backward runs outside of the scope
    EXPECT_EQ(group.traffic().calls, calls);
  }
  {
    const Tensor inside = loss_of(model, rank, 1);
    const auto scope = ddp.no_sync();
    inside.backward();
  }
  outside.backward();
  expect_mean(model, group, three);

  clear_gradients(model);
  std::optional<distributed::DataParallel::NoSync> scope;  // as of a loop that leaves it at times
  scope.emplace(ddp.no_sync());
  three(model, rank);
  scope.reset();
  ddp.synchronize_gradients();
  expect_mean(model, group, three);
}

inline void check_unused_parameters(const ProcessGroup& group) {
  if (group.size() == 1) return;
  const StateDict model = small_model(group);
  {
    distributed::DataParallel ddp(model, {}, group, small_buckets);
    for (int attempt = 0; attempt < 2; ++attempt) {
      clear_gradients(model);
      try {
        loss_of(model, group.rank(), 0, 0, 2).backward();
        ADD_FAILURE() << "no error for an unused parameter";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("'c.weight', 'c.bias'"), std::string::npos)
            << error.what();
      }
      // The group and the object stay usable.
      clear_gradients(model);
      loss_of(model, group.rank(), 1).backward();
      expect_mean(model, group,
                  [](const StateDict& copy, int r) { loss_of(copy, r, 1).backward(); });
    }
  }
  auto options = small_buckets;
  options.find_unused_parameters = true;
  distributed::DataParallel ddp(model, {}, group, options);
  for (int step = 0; step < 3; ++step) {
    clear_gradients(model);
    // Every rank uses layer a, rank 0 alone uses b, and none uses c; in the last step all use all.
    const auto backward = [&](const StateDict& copy, int r) {
      loss_of(copy, r, step, 0, step == 2 ? 3 : r == 0 ? 2 : 1).backward();
    };
    backward(model, group.rank());
    if (step < 2) {
      EXPECT_FALSE(model[4].second.grad().defined());
      expect_mean({model.begin(), model.begin() + 4}, group, [&](const StateDict& copy, int r) {
        StateDict whole = copy;
        whole.insert(whole.end(), model.begin() + 4, model.end());
        backward(whole, r);
      });
    } else {
      expect_mean(model, group, backward);
    }
  }
}

/// Uses weights several times, on rank 1 and above in one layer less.
inline void check_shared_weights(const ProcessGroup& group) {
  for (const bool ranks_differ : {false, true}) {
    const StateDict model = small_model(group);
    auto options = small_buckets;
    options.find_unused_parameters = ranks_differ;
    distributed::DataParallel ddp(model, {}, group, options);
    const auto loss = [&](const StateDict& m, int rank) {
      Generator generator(rank);
      const Tensor x = randn({4, 6}, {.dtype = float64}, generator);
      const auto block = [&](const Tensor& in) {
        const bool is_deep = !ranks_differ || rank == 0;
        const Tensor y = is_deep ? tanh(matmul(in, m[0].second) + m[1].second) : in;
        return tanh(matmul(y, m[2].second) + m[3].second);
      };
      const Tensor z = block(tanh(matmul(block(x), m[4].second) + m[5].second));
      return sum(square(matmul(matmul(z, m[2].second), m[4].second) + m[1].second));
    };
    for (int step = 0; step < 3; ++step) {
      clear_gradients(model);
      loss(model, group.rank()).backward();
      expect_mean(model, group, [&](const StateDict& copy, int r) { loss(copy, r).backward(); });
    }
  }
}

inline void check_layouts_and_dtypes(const ProcessGroup& group) {
  Generator generator(3);
  const Tensor filter = randn({4, 3, 2, 2}, {}, generator).contiguous(MemoryFormat::channels_last);
  const Tensor wide = randn({5}, {.dtype = float64}, generator), frozen = ones({2});
  const Tensor half = randn({70}, {.dtype = bfloat16}, generator);
  const StateDict model = {{"filter", filter.requires_grad_()},
                           {"wide", wide.requires_grad_()},
                           {"half", half.requires_grad_()},
                           {"frozen", frozen}};
  distributed::DataParallel ddp(model, {}, group);
  const double factor = group.rank() + 1, mean = (group.size() + 1) / 2.0;
  (sum(filter * factor).to(float64) + sum(wide * factor) + sum(half * factor).to(float64))
      .backward();
  EXPECT_EQ(filter.grad().strides(), filter.strides());
  EXPECT_EQ(to_vector(filter.grad()), std::vector<double>(48, mean));
  EXPECT_EQ(to_vector(wide.grad()), std::vector<double>(5, mean));
  EXPECT_EQ(to_vector(half.grad()), std::vector<double>(70, mean));
  EXPECT_FALSE(frozen.grad().defined());
}

inline void check_compression(const ProcessGroup& group) {
  for (const DType dtype : {bfloat16, float16}) {
    const StateDict model = small_model(group);
    auto options = small_buckets;
    options.communication = distributed::compress_gradients(dtype);
    distributed::DataParallel ddp(model, {}, group, options);
    loss_of(model, group.rank(), 0).backward();
    expect_mean(
        model, group, [](const StateDict& copy, int r) { loss_of(copy, r, 0).backward(); }, 1e-2);
    const Tensor bucket = ones({5});
    distributed::Work work = options.communication(group, {.flat = bucket}, {});
    work.wait();
    EXPECT_EQ(to_vector(bucket), std::vector<double>(5, group.size()));
    bucket.fill_(7);
    work.wait();  // copies nothing a second time
    EXPECT_EQ(to_vector(bucket), std::vector<double>(5, 7));
  }
}

/// A communication hook gets this rank's part of the mean and zeros: the gaps between the
/// gradients, which are sent too, count in no norm of a bucket.
inline void check_buckets_hold_zeros_beside_gradients(const ProcessGroup& group) {
  const StateDict model = small_model(group, true), alone = detached_copy(model);
  auto options = small_buckets;
  double squares = 0;
  options.communication = [&](const ProcessGroup& ranks, const Tensor& bucket,
                              distributed::CallOptions call) {
    squares += sum(square(bucket)).item<double>();
    return ranks.all_reduce(bucket, distributed::ReduceOp::sum, std::move(call));
  };
  distributed::DataParallel ddp(model, {}, group, options);
  loss_of(model, group.rank(), 0).backward();
  loss_of(alone, group.rank(), 0).backward();
  double expected = 0;
  for (const auto& [name, parameter] : alone)
    expected += sum(square(parameter.grad() * (1.0 / group.size()))).item<double>();
  if (group.size() > 1) {
    EXPECT_NEAR(squares, expected, 1e-12 * expected);
  }
}

/// Buckets start in the order in which their last gradients arrive, whatever their dtypes.
inline void check_buckets_of_several_dtypes_are_in_order(const ProcessGroup& group) {
  const StateDict model{{"first", ones({2}).requires_grad_()},
                        {"second", ones({2}, {.dtype = float64}).requires_grad_()},
                        {"third", ones({2}).requires_grad_()}};
  const distributed::DataParallel ddp(model, {}, group);
  if (group.size() == 1) return;
  const std::vector<std::vector<std::string>> expected{{"second"}, {"third", "first"}};
  EXPECT_EQ(ddp.buckets(), expected);
}

/// A backward that throws half way, on all ranks alike, leaves a clean state.
inline void check_failed_backward(const ProcessGroup& group) {
  const StateDict model = small_model(group);
  distributed::DataParallel ddp(model, {}, group, small_buckets);
  StateDict broken = model;
  broken[0].second =
      autograd::record("broken", model[0].second.detach().clone(), {model[0].second},
                       [](const Tensor&) -> Tensor { throw std::runtime_error("on purpose"); });
  EXPECT_THROW(loss_of(broken, group.rank(), 0).backward(), std::runtime_error);
  clear_gradients(model);
  loss_of(model, group.rank(), 1).backward();
  expect_mean(model, group, [](const StateDict& copy, int r) { loss_of(copy, r, 1).backward(); });
}

/// What one rank does alone under NoGrad or in a no_sync() scope does not count as a step.
inline void check_what_a_rank_does_alone(const ProcessGroup& group) {
  const StateDict model = small_model(group);
  distributed::DataParallel ddp(model, {}, group, small_buckets);
  for (int step = 0; step < 3; ++step) {
    clear_gradients(model);
    if (step == 1 && group.rank() == 1) {
      const NoGrad no_grad;
      loss_of(model, 1, 7);
    }
    if (step == 1 && group.rank() == group.size() - 1) {
      const auto scope = ddp.no_sync();
      sum(ones({3}).requires_grad_()).backward();
    }
    const auto backward = [step](const StateDict& copy, int r) {
      loss_of(copy, r, step).backward();
    };
    backward(model, group.rank());
    if (group.size() > 1) expect_mean(model, group, backward);
  }
}

/// Expects that every rank gets an E with these texts, and that the group works afterwards.
template <class E>
void expect_refused_together(const ProcessGroup& group, const std::vector<std::string>& parts,
                             const std::function<void()>& fn) {
  expect_contains(message_of<E>(fn), parts);
  const Tensor count = ones({3});
  group.all_reduce(count).wait();
  EXPECT_EQ(to_vector(count), std::vector<double>(3, group.size()));
}

/// Returns a leaf with these values that lies in memory as `format` says.
inline Tensor filter_leaf(MemoryFormat format, std::uint64_t seed = 3) {
  Generator generator(seed);
  return randn({4, 3, 2, 2}, {}, generator).contiguous(format).requires_grad_();
}

/// Ranks whose tensors lie differently in memory would add other elements to each other.
inline void check_memory_formats(const ProcessGroup& group) {
  if (group.size() == 1) return;
  const auto last = group.rank() == group.size() - 1 ? MemoryFormat::channels_last
                                                     : MemoryFormat::contiguous;
  for (const bool is_buffer : {false, true}) {
    const Tensor filter = filter_leaf(last), before = filter.detach().clone();
    const StateDict list = {{"conv.weight", filter}};
    expect_refused_together<DistributedError>(
        group,
        {is_buffer ? "rank 0 has buffer 'conv.weight'" : "rank 0 has parameter 'conv.weight'",
         "float32, contiguous", fmt::format("rank {} has", group.size() - 1), "channels_last"},
        [&] {
          const DataParallel ddp(is_buffer ? StateDict{} : list, is_buffer ? list : StateDict{},
                                 group);
        });
    EXPECT_EQ(to_vector(filter), to_vector(before));
  }
  // The strides of dimensions of size 1 do not matter.
  const Tensor one = ones({4, 3, 1, 1}).contiguous(last);
  DataParallel ddp({{"one", one.alias({4, 3, 1, 1}, one.strides(), 0).requires_grad_()}}, {},
                   group);
}

/// The formats change after the construction, on the last rank or on all of them.
inline void check_formats_that_change_afterwards(const ProcessGroup& group) {
  const Tensor weights = (arange(48).to(float32) * 6.0).reshape({4, 3, 2, 2});  // exact means
  for (const bool everywhere : {false, true})
    for (const bool before_first_step : {false, true}) {
      const Tensor filter = filter_leaf(MemoryFormat::contiguous);
      const Tensor other = ones({5}).requires_grad_(), expected = filter.detach().clone();
      const Tensor buffer = filter_leaf(MemoryFormat::contiguous, 4).detach().clone();
      DataParallel ddp({{"filter", filter}, {"other", other}}, {{"buffer", buffer}}, group);
      optim::SGD sgd({filter, other}, {.lr = 0.5, .momentum = 0.9});
      optim::SGD reference({expected.requires_grad_()}, {.lr = 0.5, .momentum = 0.9});
      const double mean = (group.size() + 1) / 2.0;
      for (int step = 0; step < 3; ++step) {
        if (step == (before_first_step ? 0 : 2) &&
            (everywhere || group.rank() == group.size() - 1)) {
          filter.set_data(filter.detach().contiguous(MemoryFormat::channels_last));
          buffer.set_data(buffer.contiguous(MemoryFormat::channels_last));
        }
        sgd.zero_grad();
        // The gradient of `filter` is the first to arrive, so the buckets are laid out anew.
        const double factor = group.rank() + 1;
        const Tensor loss = sum(other * 1.0);
        (loss + sum(filter * (weights * factor))).backward();
        EXPECT_EQ(to_vector(filter.grad()), to_vector(weights * (group.size() > 1 ? mean : 1.0)));
        sgd.step();
        expected.set_grad(weights * (group.size() > 1 ? mean : 1.0));
        reference.step();
      }
      EXPECT_EQ(to_vector(filter), to_vector(expected));
      distributed::check_replicas({{"filter", filter}}, group);
      if (group.rank() == 0) buffer.copy_(weights);
      ddp.broadcast_buffers();
      EXPECT_EQ(to_vector(buffer), to_vector(weights));
    }
}

/// A parameter that was frozen when DataParallel was made is not averaged, so training it later is
/// an error, in whatever way its gradient comes.
inline void check_unfrozen_parameters(const ProcessGroup& group) {
  if (group.size() == 1) return;
  for (const bool alone : {false, true}) {  // its gradient is the only one
    const StateDict model = small_model(group);
    model[0].second.requires_grad_(false);
    DataParallel ddp(model, {}, group, small_buckets);
    loss_of(model, group.rank(), 0).backward();
    const auto backward = [&] {
      if (alone) sum(model[0].second * 2.0).backward();
      else loss_of(model, group.rank(), 1).backward();
    };
    model[0].second.requires_grad_();
    const std::vector<std::string> parts = {"'a.weight'", "was frozen when this DataParallel",
                                            "make the DataParallel again"};
    expect_refused_together<Error>(group, parts, backward);
    expect_refused_together<Error>(group, parts, [&] { ddp.synchronize_gradients(); });
    {
      const auto scope = ddp.no_sync();
      backward();
    }
    model[0].second.requires_grad_(false);
    clear_gradients(model);
    loss_of(model, group.rank(), 2).backward();
    EXPECT_FALSE(model[0].second.grad().defined());
  }
}

/// A parameter that is frozen after the construction gets no gradient, which the error must
/// explain.
inline void check_parameters_frozen_afterwards(const ProcessGroup& group) {
  if (group.size() == 1) return;
  const StateDict model = small_model(group);
  DataParallel ddp(model, {}, group, small_buckets);
  model[1].second.requires_grad_(false);
  const std::string text = message_of<Error>([&] { loss_of(model, group.rank(), 0).backward(); });
  expect_contains(text, {"no gradient for 'a.bias'",
                         "or make the DataParallel after freezing what is never trained"});
  EXPECT_EQ(text.find("requires_grad_(false)"), std::string::npos) << text;
}

inline std::shared_ptr<nn::Linear> linear(std::int64_t out) {
  return std::make_shared<nn::Linear>(nn::Linear::Options{.in = 6, .out = out});
}

/// A head that takes the place of another one after the construction is in no bucket.
inline void check_new_heads(const ProcessGroup& group) {
  if (group.size() == 1) return;
  for (const bool finds_unused : {false, true}) {
    nn::Sequential net{linear(6), linear(2)};
    auto options = small_buckets;
    options.find_unused_parameters = finds_unused;
    DataParallel ddp(net.named_parameters(), {}, group, options);
    const auto backward = [&] {
      Generator data(group.rank());
      sum(square(net(randn({3, 6}, {}, data)))).backward();
    };
    backward();
    net.replace_child("1", linear(5));
    net.zero_grad();
    expect_refused_together<Error>(
        group, {"of shape (5", "after this DataParallel was made", "make the DataParallel again"},
        backward);
    nn::Linear& head = net.child<nn::Linear>("1");
    for (const Tensor& frozen : head.parameters()) frozen.requires_grad_(false);
    if (finds_unused) backward();  // a head that is not trained is nobody's business
  }
}

/// What gets a gradient in the same backward and is meant to: inputs, the parameters of another
/// DataParallel, and those that were left out on purpose.
inline void check_other_leaves_of_a_backward(const ProcessGroup& group) {
  if (group.size() == 1) return;
  nn::Sequential own{linear(6)}, generator{linear(6), linear(6)};  // `own`: of each rank
  DataParallel of_generator(generator.named_parameters(), {}, group, small_buckets);
  nn::Sequential critic{linear(6), linear(1)};
  DataParallel of_critic(critic.named_parameters(), {}, group, small_buckets);
  for (int step = 0; step < 3; ++step) {
    Generator data(10 * step + group.rank());
    const Tensor x = randn({3, 6}, {}, data).requires_grad_();
    for (nn::Sequential* net : {&own, &generator, &critic}) net->zero_grad();
    sum(critic(generator(own(x)))).backward();
    EXPECT_TRUE(x.grad().defined());
    EXPECT_TRUE(own.parameters()[0].grad().defined());
    const auto scope = of_critic.no_sync();  // its gradients stay local
    sum(critic(generator(x))).backward();
    sum(critic(x)).backward();
  }
}

/// Values that change on one rank after the construction are found in the first averaging backward.
inline void check_replicas_are_compared_once(const ProcessGroup& group) {
  if (group.size() == 1) return;
  for (const bool by_hand : {false, true})
    for (const std::size_t changed : {0u, 3u}) {
      const StateDict model = small_model(group);
      model[3].second.requires_grad_(false);
      DataParallel ddp(model, {}, group, small_buckets);
      {
        const auto scope = ddp.no_sync();
        loss_of(model, group.rank(), 0).backward();
      }
      const Tensor value = model[changed].second.detach(), before = value.clone();
      if (group.rank() == 0) value.add_(ones({}, {.dtype = float64}), 1e-3);
      const auto average = [&] {
        if (by_hand) ddp.synchronize_gradients();
        else loss_of(model, group.rank(), 1).backward();
      };
      expect_refused_together<DistributedError>(
          group,
          {"'" + model[changed].first + "'", "ranks {0} hold the same bits",
           "load weights on every rank, or before the DataParallel is made"},
          average);
      value.copy_(before);
      average();
      // Afterwards nothing is compared any more.
      if (group.rank() == 0) value.add_(ones({}, {.dtype = float64}), 1e-3);
      average();
    }
}

/// A DataParallel that is refused says why on every rank, and leaves nothing behind.
inline void check_refused_construction(const ProcessGroup& group) {
  const auto leaf = [] { return ones({3}).requires_grad_(); };
  const Tensor w = leaf(), v = leaf(), shared = ones({1}).expand({3});
  const auto refuse = [&](const std::vector<std::string>& parts, const StateDict& parameters,
                          const StateDict& buffers = {},
                          const distributed::DataParallelOptions& options = {}) {
    const auto make = [&](const StateDict& list) {
      const DataParallel ddp(list, buffers, group, options);
    };
    expect_refused_together<ValueError>(group, parts, [&] { make(parameters); });
    for (const auto& [name, tensor] : parameters)
      EXPECT_TRUE(!tensor.defined() || !tensor.meta() || tensor.meta()->hooks.empty()) << name;
    if (group.size() == 1 || options.bucket_cap_mb != 25 || !buffers.empty()) return;
    // The same on one rank alone.
    expect_refused_together<DistributedError>(group, parts, [&] {
      make(group.rank() == 0 ? StateDict{{"w", leaf()}, {"again", leaf()}} : parameters);
    });
  };
  refuse({"'again'", "has the same memory as parameter 'w'"}, {{"w", w}, {"again", w}});
  refuse({"'again'", "has the same memory as parameter 'w'"},
         {{"w", w}, {"again", w.detach().requires_grad_()}});
  refuse({"buffer 'again'", "has the same memory as parameter 'w'"}, {{"w", w}}, {{"again", w}});
  refuse({"'again'", "computed by an operation"}, {{"w", w}, {"again", v * 2.0}});
  refuse({"'again'", "undefined"}, {{"w", w}, {"again", Tensor()}});
  refuse({"'again'", "share memory"}, {{"w", w}, {"again", shared.detach().requires_grad_()}});
  refuse({"buffer 'again'", "share memory"}, {{"w", w}}, {{"again", shared}});
  refuse({"bucket_cap_mb", "nan"}, {{"w", w}}, {},
         {.bucket_cap_mb = std::numeric_limits<double>::quiet_NaN()});
  if (group.size() > 1) {
    const DataParallel first({{"net.w", w}}, {}, group);
    expect_refused_together<ValueError>(
        group, {"parameter 'w'", "averaged by another DataParallel", "'net.w'"}, [&] {
          const DataParallel second({{"w", w}}, {}, group);
        });
  }
  const DataParallel again({{"w", w}}, {}, group);  // w is free again
  sum(w * (group.rank() + 1.0)).backward();
  EXPECT_EQ(to_vector(w.grad()), std::vector<double>(3, (group.size() + 1) / 2.0));
}

inline void check_large_caps(const ProcessGroup& group) {
  if (group.size() == 1) return;
  for (const double cap : {1e13, 1e300, std::numeric_limits<double>::infinity()}) {
    const StateDict model = small_model(group);
    const DataParallel ddp(model, {}, group, {.bucket_cap_mb = cap, .first_bucket_mb = cap});
    EXPECT_EQ(ddp.buckets().size(), 1u) << cap;
  }
}

inline void check_data_parallel(const ProcessGroup& group) {
  check_gradients_are_averaged(group);
  check_start_of_many_tensors(group);
  check_communication_starts_before_backward_ends(group);
  check_no_sync(group);
  check_unused_parameters(group);
  check_shared_weights(group);
  check_layouts_and_dtypes(group);
  check_compression(group);
  check_buckets_hold_zeros_beside_gradients(group);
  check_buckets_of_several_dtypes_are_in_order(group);
  check_failed_backward(group);
  check_what_a_rank_does_alone(group);
  check_memory_formats(group);
  check_formats_that_change_afterwards(group);
  check_unfrozen_parameters(group);
  check_parameters_frozen_afterwards(group);
  check_new_heads(group);
  check_other_leaves_of_a_backward(group);
  check_replicas_are_compared_once(group);
  check_refused_construction(group);
  check_large_caps(group);
}

}  // namespace tutti::test
