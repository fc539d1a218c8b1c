// The main claim of SyncBatchNorm: ranks with shards of a batch compute what one process computes
// on the whole. Called on every rank of a group, as threads or as processes; the whole batch is
// made from one seed everywhere.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/nn/batch_norm/pool_statistics.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>
#include <tutti/nn/sequential.h>

#include "../kernels/compare.h"
#include "../test_device.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tutti::test {

namespace sync_batch_norm {

struct Setup {
  DType dtype = float64;
  MemoryFormat format = MemoryFormat::contiguous;
  Shape shape = {12, 5, 4, 3};
  std::vector<std::int64_t> sizes;  ///< samples of each rank
  bool residual = false, relu = false;
  bool floor = false;     ///< eps as a floor that some variances are below
  bool weighted = false;  ///< weights of positions, many of them 0
  bool cumulative = false, tracked = true;
  bool strided = false;  ///< an input with gaps, and a gradient in the other layout
};

struct Result {
  Tensor y, dx, d_residual, d_weight, d_bias, running_mean, running_var;
};

/// Two training steps on samples [from, to) of one seed's batches; the results of the second.
inline Result train(const Setup& s, std::optional<ProcessGroup> group, std::int64_t from,
                    std::int64_t to) {
  Generator random(31);
  nn::SyncBatchNorm layer({.channels = s.shape[1],
                           .eps = s.floor ? 4.0 : 1e-5,
                           .momentum = s.cumulative ? std::nullopt : std::optional(0.1),
                           .track_running_stats = s.tracked,
                           .eps_is_floor = s.floor,
                           .dtype = s.dtype == float64 ? float64 : float32,
                           .group = group ? *group : ProcessGroup()});
  {
    const NoGrad no_grad;
    layer.weight.copy_(randn({s.shape[1]}, {float64}, random));
    layer.bias.copy_(randn({s.shape[1]}, {float64}, random));
    layer.to(test_device());
  }
  Result r;
  for (int step = 0; step < 2; ++step) {
    layer.zero_grad();
    const auto part = [&](double scale, double shift, bool gaps, MemoryFormat format) {
      Shape shape = s.shape;
      if (gaps) shape[3] *= 2;
      const Tensor whole = randn(shape, {float64}, random) * scale + shift;
      const Tensor mine =
          whole.to(s.dtype).slice(0, from, to).to(test_device()).contiguous(format).detach();
      return gaps ? mine.slice(3, 0, shape[3], 2) : mine;
    };
    const MemoryFormat other_format = s.strided != (s.format == MemoryFormat::contiguous)
                                          ? MemoryFormat::contiguous
                                          : MemoryFormat::channels_last;
    const Tensor x = part(2, 3, s.strided, s.format).requires_grad_(),
                 other = part(1, 0, false, s.format).requires_grad_();
    const Tensor dy = part(1, 0.5, false, other_format);
    const Tensor positions = rand({s.shape[0], s.shape[2], s.shape[3]}, {float64}, random);
    const Tensor weights =
        (positions * gt(positions, 0.4).to(float64)).slice(0, from, to).to(test_device());
    r.y = layer.forward(x, {.residual = s.residual ? other : Tensor(),
                            .relu = s.relu,
                            .position_weights = s.weighted ? weights : Tensor()});
    r.y.backward(dy);
    r.dx = x.grad(), r.d_residual = other.grad(), r.d_weight = layer.weight.grad(),
    r.d_bias = layer.bias.grad();
  }
  if (!s.tracked) return r;
  r.running_mean = layer.running_mean, r.running_var = layer.running_var;
  EXPECT_EQ(layer.num_batches_tracked.item<int>(), 2);
  return r;
}

inline void check_shards(const ProcessGroup& group, const Setup& s) {
  SCOPED_TRACE(fmt::format("rank {} of {}, {} {}, sizes {}, {}", group.rank(), group.size(),
                           tutti::to_string(s.dtype), tutti::to_string(s.format),
                           tutti::to_string(Dims(s.sizes)),
                           s.floor        ? "floor"
                           : s.weighted   ? "weighted"
                           : s.cumulative ? "cumulative"
                           : !s.tracked   ? "not tracked"
                           : s.strided    ? "strided"
                                          : ""));
  std::int64_t from = 0;
  for (int r = 0; r < group.rank(); ++r) from += s.sizes[static_cast<std::size_t>(r)];
  const std::int64_t to = from + s.sizes[static_cast<std::size_t>(group.rank())];
  const Result whole = train(s, std::nullopt, 0, s.shape[0]), mine = train(s, group, from, to);
  const double statistics = s.dtype == float64 ? 1e-10 : 1e-5;
  const double tolerance =
      s.dtype == bfloat16 ? 4e-3 : statistics;  // a rounding, of the few that fall the other way
  const auto near = [&](const Tensor& got, const Tensor& expected, double allowed,
                        const char* what) {
    EXPECT_LT(relative_error(got, expected), allowed) << what;
  };
  EXPECT_EQ(mine.dx.shape(), mine.y.shape());
  if (from < to) {
    near(mine.y, whole.y.slice(0, from, to), tolerance, "output");
    near(mine.dx, whole.dx.slice(0, from, to), tolerance, "input gradient");
    if (s.residual)
      near(mine.d_residual, whole.d_residual.slice(0, from, to), tolerance, "residual gradient");
  } else {
    EXPECT_EQ(mine.y.numel(), 0);
    EXPECT_EQ(to_vector(mine.d_weight),
              std::vector<double>(static_cast<std::size_t>(s.shape[1]), 0.0));
    EXPECT_EQ(to_vector(mine.d_bias),
              std::vector<double>(static_cast<std::size_t>(s.shape[1]), 0.0));
  }
  if (s.tracked) {
    near(mine.running_mean, whole.running_mean, statistics, "running mean");
    near(mine.running_var, whole.running_var, statistics, "running variance");
  }
  // Weight and bias gradients are shares, to be summed.
  const Tensor d_weight = mine.d_weight.clone(), d_bias = mine.d_bias.clone();
  group.all_reduce(d_weight).wait();
  group.all_reduce(d_bias).wait();
  near(d_weight, whole.d_weight, statistics, "weight gradient");
  near(d_bias, whole.d_bias, statistics, "bias gradient");
}

/// A split of `samples` over `ranks`: even as far as possible, uneven, or with empty ranks.
inline std::vector<std::int64_t> split(std::int64_t samples, int ranks, int kind) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks), kind == 0   ? samples / ranks
                                                                   : kind == 1 ? 1
                                                                               : 0);
  std::int64_t rest = samples;
  for (const std::int64_t size : sizes) rest -= size;
  sizes[static_cast<std::size_t>(kind == 2 ? ranks - 1 : 0)] += rest;
  return sizes;
}

}  // namespace sync_batch_norm

/// N shards, even, uneven and empty, equal one process on the concatenated batch: output, gradients
/// and running statistics, in float64 to 1e-10 and in float32 to 1e-5, in both memory formats, with
/// and without the fused parts.
inline void check_sync_batch_norm_against_one_process(const ProcessGroup& group) {
  using namespace sync_batch_norm;
  for (const DType dtype : {float64, float32})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (int kind = 0; kind < 3; ++kind)
        for (const bool residual : {false, true})
          for (const bool relu : {false, true})
            check_shards(group, {.dtype = dtype,
                                 .format = format,
                                 .sizes = split(12, group.size(), kind),
                                 .residual = residual,
                                 .relu = relu});
}

/// The same for every other option, and in bfloat16.
inline void check_sync_batch_norm_options_against_one_process(const ProcessGroup& group) {
  using namespace sync_batch_norm;
  for (const DType dtype : {float64, float32, bfloat16})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (int kind = 0; kind < 3; ++kind) {
        const Setup plain{.dtype = dtype, .format = format, .sizes = split(12, group.size(), kind)};
        const auto with = [&](auto change) {
          Setup changed = plain;
          change(changed);
          check_shards(group, changed);
        };
        with([](Setup&) {});
        with([](Setup& s) { s.residual = s.relu = true; });
        with([](Setup& s) { s.floor = true; });
        with([](Setup& s) { s.weighted = true; });
        with([](Setup& s) { s.cumulative = true; });
        with([](Setup& s) { s.tracked = false; });
        with([](Setup& s) { s.strided = true; });
      }
}

/// Two groups at the same time, groups of one, and a rank that is in none.
inline void check_sync_batch_norm_scope(const ProcessGroup& group) {
  const int half = group.rank() % 2;
  const ProcessGroup mine = group.split(half), alone = group.split(group.rank());
  const ProcessGroup others = group.split(group.rank() == 0 ? -1 : 0);
  Generator random(4);
  const Tensor whole = randn({2 * group.size(), 3, 5}, {float64}, random);
  const auto of_rank = [&](int r) { return whole.slice(0, 2 * r, 2 * r + 2); };
  std::vector<Tensor> parts;
  for (int r = half; r < group.size(); r += 2) parts.push_back(of_rank(r));
  nn::SyncBatchNorm of_half({.channels = 3, .dtype = float64, .group = mine}),
      of_one({.channels = 3, .dtype = float64, .group = alone});
  nn::BatchNorm of_parts({.channels = 3, .dtype = float64}),
      local({.channels = 3, .dtype = float64});
  const Tensor x = of_rank(group.rank());
  of_half(x), of_one(x), of_parts(cat(parts)), local(x);
  EXPECT_LT(relative_error(of_half.running_var, of_parts.running_var), 1e-13);
  EXPECT_EQ(to_vector(of_one.running_var), to_vector(local.running_var));
  EXPECT_EQ(alone.traffic().calls + alone.for_normalization().traffic().calls, 0);

  nn::SyncBatchNorm no_member({.channels = 3, .dtype = float64, .group = others});
  if (group.rank() == 0) {
    try {
      no_member(x);
      ADD_FAILURE() << "a rank outside of the group got statistics";
    } catch (const DistributedError& error) {
      EXPECT_NE(std::string(error.what()).find("SyncBatchNorm: this rank is no member"),
                std::string::npos)
          << error.what();
    }
    EXPECT_EQ(no_member.num_batches_tracked.item<int>(), 0);
  } else {
    no_member(x);
  }
}

namespace sync_batch_norm {

/// The running statistics of every rank, gathered as they were before they were pooled.
struct GatheredStatistics {
  Tensor means, vars, weights;
};

inline GatheredStatistics gather_statistics(const nn::BatchNorm& layer, const ProcessGroup& group) {
  const auto gather = [&](const Tensor& mine) {
    const Tensor values = mine.to(float64).reshape({-1});
    const Tensor all = empty({group.size(), values.numel()}, {.dtype = float64});
    group.all_gather(values, all).wait();
    return all;
  };
  const auto& shared = layer.process_group();
  const Tensor batches = layer.num_batches_tracked.to(float64);
  const Tensor weight = layer.options().pooled
                            ? layer.num_elements_tracked * (shared ? 1.0 / shared->size() : 1.0)
                        : layer.options().momentum
                            ? full({}, batches.item<double>() > 0, {.dtype = float64})
                            : batches;
  return {gather(layer.running_mean), gather(layer.running_var), gather(weight)};
}

/// Compares the layer with mean and variance that plain loops compute in two passes.
inline void expect_pooled(const nn::BatchNorm& layer, const GatheredStatistics& before,
                          const ProcessGroup& group) {
  const std::vector<double> means = to_vector(before.means), vars = to_vector(before.vars),
                            weights = to_vector(before.weights);
  const auto channels = static_cast<std::size_t>(layer.options().channels);
  for (std::size_t c = 0; c < channels; ++c) {
    double total = 0, mean = 0, var = 0;
    for (std::size_t r = 0; r < weights.size(); ++r) {
      total += weights[r];
      mean += weights[r] * means[r * channels + c];
    }
    mean /= total;
    for (std::size_t r = 0; r < weights.size(); ++r) {
      const double off = means[r * channels + c] - mean;
      var += weights[r] * (vars[r * channels + c] + off * off) / total;
    }
    EXPECT_NEAR(to_vector(layer.running_mean)[c], mean, 1e-12 * std::abs(mean));
    EXPECT_NEAR(to_vector(layer.running_var)[c], var, 1e-12 * var);
  }
  const GatheredStatistics after = gather_statistics(layer, group);
  for (int r = 1; r < group.size(); ++r) {
    EXPECT_EQ(to_vector(after.means.select(0, r)), to_vector(after.means.select(0, 0)));
    EXPECT_EQ(to_vector(after.vars.select(0, r)), to_vector(after.vars.select(0, 0)));
  }
}

}  // namespace sync_batch_norm

/// Statistics of groups of two ranks, and of ranks alone, are pooled over all ranks in one
/// collective for all layers: the means are those of a layer that all ranks share.
inline void check_pool_statistics(const ProcessGroup& group) {
  using namespace sync_batch_norm;
  const ProcessGroup pair = group.split_by_size(2);
  const nn::BatchNorm::Options kinds[] = {
      {.momentum = 0.3}, {.momentum = std::nullopt}, {.pooled = true}};
  for (const bool alone : {false, true})
    for (nn::BatchNorm::Options options : kinds) {
      options.dtype = float64;
      nn::Sequential net;
      std::vector<nn::BatchNorm*> layers, shared_by_all;
      for (const std::int64_t channels : {3, 5}) {
        options.channels = channels;
        layers.push_back(&net.append<nn::BatchNorm>(options));
        if (!alone) layers.back()->set_process_group(pair);
      }
      options.group = group;
      nn::BatchNorm world(options);  // of the 5 channels
      Generator random(90 + static_cast<std::uint64_t>(group.rank()));
      for (int batch = 0; batch < 3; ++batch)
        for (nn::BatchNorm* layer : layers) {
          const Tensor x = randn({6, layer->options().channels, 2}, {.dtype = float64}, random) *
                               (1.0 + batch) +
                           (20.0 + group.rank());
          (*layer)(x);
          if (layer->options().channels == 5) world(x);
        }
      const GatheredStatistics first = gather_statistics(*layers[0], group),
                               second = gather_statistics(*layers[1], group);
      const auto calls = group.traffic().calls;
      const bool differs = group.size() > (alone ? 1 : 2);
      EXPECT_EQ(nn::pool_statistics(net, group).size(), differs ? 2u : 0u);
      EXPECT_EQ(group.traffic().calls - calls, differs ? 1 : 0);
      expect_pooled(*layers[0], first, group);
      expect_pooled(*layers[1], second, group);
      EXPECT_LT(relative_error(layers[1]->running_mean, world.running_mean), 1e-12);
      const Tensor var = layers[1]->running_var.clone();
      nn::pool_statistics(net, group);
      EXPECT_LT(relative_error(layers[1]->running_var, var), 1e-12);
      EXPECT_EQ(layers[1]->num_batches_tracked.item<int>(), 3);
      if (options.pooled && !alone && group.size() % 2 == 0) {
        EXPECT_EQ(layers[1]->num_elements_tracked.item<double>(),
                  3 * 2 * std::min(2, group.size()) * 6);
      }
    }
}

/// Ranks have seen different numbers of batches, the last one none: with a momentum each rank that
/// has statistics counts alike, else it counts by its batches or elements. A frozen layer is left
/// alone.
inline void check_pool_statistics_of_uneven_ranks(const ProcessGroup& group) {
  using namespace sync_batch_norm;
  const nn::BatchNorm::Options kinds[] = {
      {.momentum = 0.3}, {.momentum = std::nullopt}, {.pooled = true}};
  for (nn::BatchNorm::Options options : kinds) {
    options.channels = 3;
    options.dtype = float64;
    nn::Sequential net;
    auto &layer = net.append<nn::BatchNorm>(options), &frozen = net.append<nn::BatchNorm>(options);
    Generator random(70 + static_cast<std::uint64_t>(group.rank()));
    for (int batch = group.rank() + 1; batch < group.size(); ++batch)
      for (nn::BatchNorm* each : {&layer, &frozen})
        (*each)(randn({4, 3, 2}, {.dtype = float64}, random) + 10.0 * group.rank());
    frozen.freeze();
    const std::vector<double> own = to_vector(frozen.running_mean);
    const GatheredStatistics before = gather_statistics(layer, group);
    const std::vector<std::string> pooled = nn::pool_statistics(net, group);
    EXPECT_EQ(to_vector(frozen.running_mean), own);
    if (group.size() == 1) continue;
    EXPECT_EQ(pooled, (std::vector<std::string>{"0"}));
    expect_pooled(layer, before, group);
    EXPECT_EQ(layer.num_batches_tracked.item<int>(), group.size() / 2) << "the mean, rounded up";
  }
}

/// One element in all is an error on every rank, none in all changes nothing, and both leave the
/// group usable.
inline void check_sync_batch_norm_counts(const ProcessGroup& group) {
  nn::SyncBatchNorm layer({.channels = 2, .group = group});
  const auto expect_untouched = [&] {
    EXPECT_EQ(layer.num_batches_tracked.item<int>(), 0);
    EXPECT_EQ(to_vector(layer.running_mean), (std::vector<double>{0, 0}));
    EXPECT_EQ(to_vector(layer.running_var), (std::vector<double>{1, 1}));
  };
  const auto expect_refused = [&](int owner, int number) {
    try {
      layer(ones({group.rank() == owner ? 1 : 0, 2}));
      ADD_FAILURE() << "one element has no variance";
    } catch (const ShapeError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(fmt::format("forward #{} on rank {} of {}", number, group.rank(),
                                      group.size())),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("expected more than 1 value per channel"), std::string::npos) << text;
      EXPECT_NE(text.find("got 1 "), std::string::npos) << text;
    }
    expect_untouched();
  };
  for (int owner = 0; owner < group.size(); ++owner) expect_refused(owner, 1);
  const Tensor nothing = empty({0, 2, 3}).requires_grad_();
  layer(nothing).backward(empty({0, 2, 3}));
  EXPECT_EQ(nothing.grad().shape(), nothing.shape());
  EXPECT_EQ(to_vector(layer.weight.grad()), (std::vector<double>{0, 0}));
  expect_untouched();
  expect_refused(0, 2);  // a group of one rank counts its forwards, too
  if (group.size() == 1) return;
  layer(full({1, 2}, group.rank()));  // one element each are enough together
  EXPECT_EQ(layer.num_batches_tracked.item<int>(), 1);
}

}  // namespace tutti::test
