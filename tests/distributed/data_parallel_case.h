// DataParallel on any process group, compared with gradients that every rank computes by itself for
// all ranks.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/autograd/matmul.h>
#include <tutti/autograd/recompute.h>
#include <tutti/autograd/record.h>
#include <tutti/core/create.h>
#include <tutti/distributed/data_parallel/data_parallel.h>

#include <gtest/gtest.h>

#include <cmath>

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
  {
    const auto scope = ddp.no_sync();
    three(model, rank);
  }
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

/// Uses weights twice, and in a recomputed block besides, so that gradients come in several parts.
inline void check_shared_and_recomputed(const ProcessGroup& group) {
  const StateDict model = small_model(group);
  distributed::DataParallel ddp(model, {}, group, small_buckets);
  const auto loss = [](const StateDict& m, int rank) {
    Generator generator(rank);
    const Tensor x = randn({4, 6}, {.dtype = float64}, generator);
    x.requires_grad_();
    const auto block = [&](const std::vector<Tensor>& in) {
      return tanh(matmul(tanh(matmul(in[0], m[0].second) + m[1].second), m[2].second) +
                  m[3].second);
    };
    const Tensor y = recompute(block, {x});
    const Tensor z = recompute(block, {tanh(matmul(y, m[4].second) + m[5].second)});
    return sum(square(matmul(matmul(z, m[2].second), m[4].second) + m[1].second));
  };
  for (int step = 0; step < 3; ++step) {
    clear_gradients(model);
    loss(model, group.rank()).backward();
    expect_mean(model, group, [&](const StateDict& copy, int r) { loss(copy, r).backward(); });
  }
}

/// Shares weights between recomputed blocks on rank 0. The other ranks use them without
/// recomputation, and one layer less.
inline void check_shared_on_some_ranks(const ProcessGroup& group) {
  const StateDict model = small_model(group);
  auto options = small_buckets;
  options.find_unused_parameters = true;
  distributed::DataParallel ddp(model, {}, group, options);
  const auto loss = [](const StateDict& m, int rank, bool recomputes) {
    Generator generator(rank);
    const Tensor x = randn({4, 6}, {.dtype = float64}, generator);
    x.requires_grad_();
    const auto block = [&m, rank](const std::vector<Tensor>& in) {  // runs again in backward
      const Tensor y = rank == 0 ? tanh(matmul(in[0], m[0].second) + m[1].second) : in[0];
      return tanh(matmul(y, m[2].second) + m[3].second);
    };
    const auto run = [&](const Tensor& in) {
      return recomputes ? recompute(block, {in}) : block({in});
    };
    const Tensor z = run(tanh(matmul(run(x), m[4].second) + m[5].second));
    return sum(square(matmul(matmul(z, m[2].second), m[4].second) + m[1].second));
  };
  for (int step = 0; step < 2; ++step) {
    clear_gradients(model);
    loss(model, group.rank(), group.rank() == 0).backward();
    expect_mean(model, group,
                [&](const StateDict& copy, int r) { loss(copy, r, false).backward(); });
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
  }
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

inline void check_data_parallel(const ProcessGroup& group) {
  check_gradients_are_averaged(group);
  check_start_of_many_tensors(group);
  check_communication_starts_before_backward_ends(group);
  check_no_sync(group);
  check_unused_parameters(group);
  check_shared_and_recomputed(group);
  check_shared_on_some_ranks(group);
  check_layouts_and_dtypes(group);
  check_compression(group);
  check_failed_backward(group);
  check_what_a_rank_does_alone(group);
}

}  // namespace tutti::test
