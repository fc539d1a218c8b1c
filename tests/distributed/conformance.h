// The conformance suite of process groups: what every backend must do. It compares each operation,
// dtype and size with a reduction in rank order that is computed here in plain loops. All ranks,
// threads or processes, call it at once. The name of the backend does not matter, its capabilities
// do.
#pragma once

#include <tutti/core/create.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/group_info.h>
#include <tutti/distributed/process_group.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <thread>

namespace tutti::test {

using distributed::ReduceOp;

inline const std::vector<DType> all_dtypes = {float32, float64, bfloat16, float16,
                                              int64,   uint8,   boolean};
inline const std::vector<std::int64_t> sizes = {0, 1, 7, 1025, 33000};

/// Returns what rank `rank` contributes at element `i`, the same value wherever it is computed. The
/// sums of floating-point values are inexact, so the order of the additions shows.
inline double contribution(DType dtype, int rank, std::int64_t i) {
  const std::int64_t h = (i * 2654435761 + rank * 40503 + 12345) % 1000003;
  if (dtype == boolean) return static_cast<double>((h >> 3) % 5 == 0);
  if (dtype == uint8) return static_cast<double>(h % 20);  // sums of 12 ranks fit
  if (dtype == int64) return static_cast<double>(h - 500000);
  return static_cast<double>(h - 500000) / 3e5 * static_cast<double>(1 << (h % 7));
}

inline Tensor contributed(DType dtype, const Shape& shape, int rank, std::int64_t from = 0,
                          Device device = {}) {
  std::vector<double> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = contribution(dtype, rank, from + static_cast<std::int64_t>(i));
  return tensor(values, shape, {.dtype = dtype}).to(device);
}

/// Returns the reduction of the tensors' values in rank order, in the accumulator of the dtype.
inline std::vector<double> reference(DType dtype, ReduceOp op, const std::vector<Tensor>& ranks) {
  std::vector<std::vector<double>> values;
  for (const Tensor& each : ranks) values.push_back(to_vector(each));
  std::vector<double> result = values[0];
  const bool single = accumulate_dtype(dtype) == float32;
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (std::size_t r = 1; r < values.size(); ++r) {
      if (op == ReduceOp::min) result[i] = std::min(result[i], values[r][i]);
      else if (op == ReduceOp::max) result[i] = std::max(result[i], values[r][i]);
      else
        result[i] = single ? static_cast<float>(result[i]) + static_cast<float>(values[r][i])
                           : result[i] + values[r][i];
    }
    if (op == ReduceOp::mean) {
      const auto n = static_cast<double>(values.size());
      result[i] = single ? static_cast<float>(result[i]) / static_cast<float>(n) : result[i] / n;
    }
  }
  return to_vector(tensor(result, ranks[0].shape(), {.dtype = dtype}));
}

inline bool has_op(DType dtype, ReduceOp op) {
  return !(op == ReduceOp::mean && !is_floating(dtype)) &&
         !(op == ReduceOp::sum && dtype == boolean);
}

/// Returns whether reductions have the bits of a sum in rank order. NCCL and a group on several
/// hosts add in another order.
inline bool adds_in_rank_order(const ProcessGroup& group, Device device) {
  return !group.capabilities(device).device_waits &&
         distributed::HostLayout(group.implementation()->info()).is_one_host();
}

/// Expects the bits of the reference. Where the backend does not add in rank order and rounds every
/// partial sum to the dtype, it expects values within n roundings of the sum of absolute values.
inline void expect_reduced(const Tensor& result, ReduceOp op, const std::vector<Tensor>& ranks,
                           const ProcessGroup& group, const std::string& what) {
  const DType dtype = result.dtype();
  const std::vector<double> values = to_vector(result), expected = reference(dtype, op, ranks);
  if (adds_in_rank_order(group, result.device()) || !is_floating(dtype) || op == ReduceOp::min ||
      op == ReduceOp::max) {
    ASSERT_EQ(values, expected) << what;
    return;
  }
  const double rounding = dtype == float64   ? 0x1p-52
                          : dtype == float32 ? 0x1p-23
                          : dtype == float16 ? 0x1p-10
                                             : 0x1p-7;
  std::vector<double> magnitude(values.size(), 0);
  for (const Tensor& each : ranks) {
    const std::vector<double> of_rank = to_vector(each);
    for (std::size_t i = 0; i < of_rank.size(); ++i) magnitude[i] += std::abs(of_rank[i]);
  }
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i], expected[i],
                group.size() * rounding * magnitude[i] + (dtype == float16 ? 1e-7 : 0))
        << what;
}

inline std::string where(const char* what, DType dtype, std::int64_t n, const ProcessGroup& group) {
  return fmt::format("{} of {} x {} on rank {} of {}", what, to_string(dtype), n, group.rank(),
                     group.size());
}

inline void check_all_reduce(const ProcessGroup& group, Device device) {
  for (const DType dtype : all_dtypes)
    for (const std::int64_t n : sizes) {
      std::vector<Tensor> ranks;
      for (int r = 0; r < group.size(); ++r) ranks.push_back(contributed(dtype, {n}, r));
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max}) {
        const Tensor mine = ranks[static_cast<std::size_t>(group.rank())].clone().to(device);
        if (!has_op(dtype, op)) {
          EXPECT_THROW(group.all_reduce(mine, op).wait(), DTypeError);
          continue;
        }
        group.all_reduce(mine, op, {.name = "conformance"}).wait();
        expect_reduced(mine, op, ranks, group,
                       where("all_reduce", dtype, n, group) + " " + to_string(op));
      }
    }
}

inline void check_reduce_scatter(const ProcessGroup& group, Device device) {
  const int size = group.size();
  for (const DType dtype : all_dtypes)
    for (const std::int64_t n : sizes) {
      const Tensor input = contributed(dtype, {size, n}, group.rank(), 0, device),
                   before = input.clone();
      std::vector<Tensor> ranks;
      for (int r = 0; r < size; ++r) ranks.push_back(contributed(dtype, {n}, r, group.rank() * n));
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max}) {
        const Tensor output = full({n}, 1, {.dtype = dtype, .device = device});
        if (!has_op(dtype, op)) {
          EXPECT_THROW(group.reduce_scatter(input, output, op).wait(), DTypeError);
          continue;
        }
        group.reduce_scatter(input, output, op).wait();
        expect_reduced(output, op, ranks, group,
                       where("reduce_scatter", dtype, n, group) + " " + to_string(op));
      }
      ASSERT_EQ(to_vector(input), to_vector(before))
          << where("the input of reduce_scatter", dtype, n, group);
    }
}

inline void check_all_gather_and_broadcast(const ProcessGroup& group, Device device) {
  for (const DType dtype : all_dtypes)
    for (const std::int64_t n : sizes) {
      const Tensor all = full({group.size(), n}, 1, {.dtype = dtype, .device = device});
      group.all_gather(contributed(dtype, {n}, group.rank(), 0, device), all).wait();
      for (int r = 0; r < group.size(); ++r)
        ASSERT_EQ(to_vector(all.select(0, r)), to_vector(contributed(dtype, {n}, r)))
            << where("all_gather", dtype, n, group);
      for (int root = 0; root < group.size(); ++root) {
        const Tensor x = contributed(dtype, {n}, group.rank(), 0, device);
        group.broadcast(x, root).wait();
        ASSERT_EQ(to_vector(x), to_vector(contributed(dtype, {n}, root)))
            << where("broadcast", dtype, n, group);
      }
    }
}

/// Checks tensors with gaps and transposed ones; only the elements of the view may change.
inline void check_strided(const ProcessGroup& group, Device device) {
  const int size = group.size();
  const double sum = size * (size + 1) / 2.0;
  const Tensor base = full({6, 8}, group.rank() + 1, {.device = device});
  group.all_reduce(base.slice(1, 1, 8, 3)).wait();
  for (std::int64_t i = 0; i < 6; ++i)
    for (std::int64_t j = 0; j < 8; ++j)
      EXPECT_EQ(base.select(0, i).select(0, j).item<double>(), j % 3 == 1 ? sum : group.rank() + 1);

  // The same logical tensor has another layout on every second rank.
  const Tensor order = contributed(float32, {3, 5}, 0, 0, device);
  const Tensor mine = group.rank() % 2 ? order.clone()
                                       : order.transpose(0, 1).contiguous().transpose(0, 1);
  group.broadcast(mine, size - 1).wait();
  EXPECT_EQ(to_vector(mine), to_vector(order));

  const Tensor gathered = zeros({4, size}, {.device = device}).transpose(0, 1);
  group.all_gather(full({4}, group.rank(), {.device = device}), gathered).wait();
  for (int r = 0; r < size; ++r)
    EXPECT_EQ(to_vector(gathered.select(0, r)), std::vector<double>(4, r));

  const Tensor input = full({3, size}, group.rank() + 1, {.device = device}).transpose(0, 1),
               output = zeros({6}, {.device = device}).slice(0, 0, 6, 2);
  group.reduce_scatter(input, output, ReduceOp::mean).wait();
  EXPECT_EQ(to_vector(output), std::vector<double>(3, (size + 1) / 2.0));
}

/// Checks tensors without elements, of several dimensions and layouts. Calls on them count as any
/// other, and so do those that are refused, for which the ranks meet in a barrier.
inline void check_empty(const ProcessGroup& group, Device device) {
  const std::int64_t size = group.size();
  const auto nothing = [&](const Shape& shape) { return zeros(shape, {.device = device}); };
  const auto before = group.traffic();
  for (const Tensor& x : {nothing({0, 3}), nothing({2, 0, 4}), nothing({5, 0}).transpose(0, 1),
                          ones({4, 6}, {.device = device}).slice(1, 2, 2)}) {
    Shape whole = x.shape();
    whole.insert(0, size);
    group.all_reduce(x, ReduceOp::mean).wait();
    group.broadcast(x, group.size() - 1).wait();
    group.all_gather(x, nothing(whole)).wait();
    group.reduce_scatter(nothing(whole), x, ReduceOp::max).wait();
    EXPECT_THROW(group.all_gather(x, nothing({size, 7, 0})).wait(), ShapeError);
  }
  EXPECT_EQ(group.traffic().calls - before.calls, size > 1 ? 20 : 0);
  EXPECT_EQ(group.traffic().bytes, before.bytes);
  const Tensor x = ones({2}, {.device = device});
  group.all_reduce(x).wait();
  EXPECT_EQ(x.select(0, 1).item<int>(), size);
}

/// Checks all operations at once, small and large, contiguous and not. Each rank waits for them in
/// another order.
inline void check_all_operations_in_flight(const ProcessGroup& group, Device device) {
  struct Flight {
    distributed::Work work;
    Tensor result;
    std::vector<double> expected;
  };
  const int rank = group.rank(), size = group.size();
  const double sum = size * (size + 1) / 2.0;
  std::vector<Flight> flights;
  const auto constant = [](std::int64_t n, double value) {
    return std::vector<double>(static_cast<std::size_t>(n), value);
  };
  for (const std::int64_t n : {3, 30000})
    for (const bool strided : {false, true}) {
      const double scale = static_cast<double>(1 + flights.size());
      const auto make = [&](std::int64_t rows, double value) {
        const Tensor whole = full({rows, 2 * n}, value, {.device = device});
        return strided ? whole.slice(1, 0, 2 * n, 2) : whole.slice(1, 0, n).contiguous();
      };
      const Tensor reduced = make(1, (rank + 1) * scale), told = make(1, rank * scale),
                   gathered = make(size, -1).unsqueeze(1), scattered = make(1, -1);
      std::vector<double> all;
      for (int r = 0; r < size; ++r) all.insert(all.end(), static_cast<std::size_t>(n), r * scale);
      flights.push_back({group.all_reduce(reduced), reduced, constant(n, sum * scale)});
      flights.push_back({group.all_gather(make(1, rank * scale), gathered), gathered, all});
      flights.push_back({group.broadcast(told, size - 1), told, constant(n, (size - 1) * scale)});
      flights.push_back({group.reduce_scatter(make(size, (rank + 1) * scale).unsqueeze(1),
                                              scattered, ReduceOp::max),
                         scattered, constant(n, size * scale)});
    }
  for (std::size_t i = 0; i < flights.size(); ++i) {
    // 7 and the 16 calls have no common factor, so each is waited for once.
    Flight& flight = flights[(i * 7 + static_cast<std::size_t>(rank)) % flights.size()];
    flight.work.wait();
    flight.work.wait();  // a second wait does nothing
    ASSERT_EQ(to_vector(flight.result), flight.expected) << "rank " << rank << " of " << size;
  }
}

/// Checks many calls in flight, small and large ones of two groups, waited for in reverse order.
inline void check_asynchronous(const ProcessGroup& group, Device device) {
  const double sum = group.size() * (group.size() + 1) / 2.0;
  std::vector<Tensor> tensors;
  std::vector<distributed::Work> work;
  for (int i = 0; i < 12; ++i) {
    tensors.push_back(
        full({i % 3 == 0 ? 40000 : 5}, (group.rank() + 1.0) * (i + 1), {.device = device}));
    const ProcessGroup& via = i % 2 ? group : group.for_normalization();
    work.push_back(
        via.all_reduce(tensors.back(), ReduceOp::sum, {.name = fmt::format("call {}", i)}));
  }
  group.barrier();
  for (int i = 11; i >= 0; --i) {
    work[static_cast<std::size_t>(i)].wait();
    // Where the device waits instead of the host, wait() returns before the collective is done.
    EXPECT_TRUE(work[static_cast<std::size_t>(i)].is_done() ||
                group.capabilities(tensors[0].device()).device_waits);
    EXPECT_EQ(to_vector(tensors[static_cast<std::size_t>(i)]),
              std::vector<double>(static_cast<std::size_t>(i % 3 == 0 ? 40000 : 5), sum * (i + 1)));
  }
}

/// Once is_done() has returned true the tensors hold the result, without a wait().
inline void check_polled(const ProcessGroup& group, Device device) {
  const auto poll = [](distributed::Work work) {
    while (!work.is_done()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
  const int rank = group.rank(), size = group.size();
  for (const std::int64_t n : sizes)
    for (const std::int64_t step : {1, 3}) {  // without and with gaps
      const auto part = [&](std::int64_t rows) {
        const Tensor whole = full({rows, n * step}, 1, {.device = device});
        return rows == 1 ? whole.select(0, 0).slice(0, 0, n * step, step)
                         : whole.slice(1, 0, n * step, step);
      };
      std::vector<Tensor> ranks;
      for (int r = 0; r < size; ++r) ranks.push_back(contributed(float32, {n}, r));
      const Tensor &mine = ranks[static_cast<std::size_t>(rank)], reduced = part(1), told = part(1),
                   gathered = part(size);
      reduced.copy_(mine);
      told.copy_(mine);
      distributed::Work work = group.all_reduce(reduced, ReduceOp::max);
      poll(work);
      expect_reduced(reduced, ReduceOp::max, ranks, group, where("polled", float32, n, group));
      work.wait();
      poll(group.broadcast(told, size - 1));
      ASSERT_EQ(to_vector(told), to_vector(ranks.back())) << where("polled", float32, n, group);
      if (size == 1) continue;
      poll(group.all_gather(mine.to(device), gathered));
      for (int r = 0; r < size; ++r)
        ASSERT_EQ(to_vector(gathered.select(0, r)), to_vector(ranks[static_cast<std::size_t>(r)]))
            << where("polled all_gather", float32, n, group);
    }
}

inline void check_split(const ProcessGroup& group, Device device) {
  const int rank = group.rank(), size = group.size();
  // The odd and the even ranks form a group each, in reverse order.
  const ProcessGroup half = group.split(rank % 2, -rank);
  EXPECT_EQ(half.size(), rank % 2 ? size / 2 : (size + 1) / 2);
  EXPECT_EQ(half.rank(), half.size() - 1 - rank / 2);
  const Tensor ranks = full({1}, rank, {.device = device}),
               all = zeros({half.size(), 1}, {.device = device});
  half.all_gather(ranks, all).wait();
  for (int r = 0; r < half.size(); ++r)
    EXPECT_EQ(all.select(0, r).item<int>(), 2 * (half.size() - 1 - r) + rank % 2);
  half.for_normalization().all_reduce(ranks).wait();

  // The last rank stays out.
  const ProcessGroup most = group.split(rank == size - 1 ? -1 : 0);
  const Tensor one = ones({1}, {.device = device});
  if (rank == size - 1) {
    EXPECT_EQ(most.rank(), -1);
    EXPECT_THROW(most.all_reduce(one).wait(), DistributedError);
    EXPECT_THROW(most.barrier(), DistributedError);
  } else {
    most.all_reduce(one).wait();
    EXPECT_EQ(one.item<int>(), size - 1);
  }
}

/// Checks the groups of ranks that follow each other, and of the ranks of a host.
inline void check_split_by_size_and_host(const ProcessGroup& group) {
  const int rank = group.rank(), size = group.size();
  EXPECT_THROW(group.split_by_size(0), ValueError);
  for (const int ranks : {1, 2, size + 1}) {
    const ProcessGroup part = group.split_by_size(ranks);
    EXPECT_EQ(part.name(), fmt::format("{}/part{}", group.name(), rank / ranks));
    EXPECT_EQ(part.rank(), rank % ranks);
    EXPECT_EQ(part.size(), std::min(ranks, size - rank / ranks * ranks));
    part.barrier();
  }
  if (std::getenv("TUTTI_RANKS_PER_HOST")) return;
  // The world knows the rank's number on its host from its hosts or from its launcher.
  const ProcessGroup host = group.split_by_host();
  if (const auto& info = group.implementation()->info(); !info.hosts.empty()) {
    EXPECT_EQ(host.rank(), static_cast<int>(distributed::HostLayout(info).index));
  } else if (group.name() == "world") {
    EXPECT_EQ(host.rank(), group.local_rank());
  }
  host.barrier();
}

/// Statistics that the ranks of a host share cost no collective of all ranks. TUTTI_RANKS_PER_HOST
/// must be 2.
inline void check_emulated_hosts(const ProcessGroup& group) {
  const ProcessGroup host = group.split_by_host();
  EXPECT_EQ(host.name(), fmt::format("world/host{}", group.rank() / 2));
  EXPECT_EQ(host.rank(), group.rank() % 2);
  EXPECT_EQ(host.size(), std::min(2, group.size() - group.rank() / 2 * 2));
  // In a subgroup that mixes the hosts, too.
  const ProcessGroup reversed = group.split(0, -group.rank());
  EXPECT_EQ(reversed.split_by_host().size(), host.size());
}

/// Checks several groups at the same time: the world, its halves and pairs of ranks, and the
/// normalization group of each.
inline void check_several_groups_in_flight(const ProcessGroup& group, Device device) {
  const int rank = group.rank();
  const ProcessGroup halves = group.split(rank % 2), pairs = group.split(rank / 2, -rank);
  const std::vector<const ProcessGroup*> groups = {&group,
                                                   &halves,
                                                   &pairs,
                                                   &group.for_normalization(),
                                                   &halves.for_normalization(),
                                                   &pairs.for_normalization()};
  std::vector<Tensor> tensors;
  std::vector<distributed::Work> work;
  for (int round = 0; round < 3; ++round)
    for (const ProcessGroup* each : groups) {
      tensors.push_back(full({round == 1 ? 30000 : 5}, rank + 1.0, {.device = device}));
      work.push_back(each->all_reduce(tensors.back()));
    }
  const auto sum_of = [&](const auto& is_member) {
    double sum = 0;
    for (int r = 0; r < group.size(); ++r) sum += is_member(r) ? r + 1 : 0;
    return sum;
  };
  const double sums[] = {sum_of([](int) { return true; }),
                         sum_of([&](int r) { return r % 2 == rank % 2; }),
                         sum_of([&](int r) { return r / 2 == rank / 2; })};
  for (std::size_t i = work.size(); i-- > 0;) {
    work[i].wait();
    ASSERT_EQ(to_vector(tensors[i]),
              std::vector<double>(static_cast<std::size_t>(tensors[i].numel()), sums[i % 3]))
        << i;
  }
}

/// Checks that an expanded tensor, whose elements share memory, is read and never written.
inline void check_expanded_tensors(const ProcessGroup& group, Device device) {
  const std::int64_t size = group.size();
  const auto expanded = [&](const Shape& shape) {
    Shape ones_only = shape;
    for (int d = 0; d < shape.size(); ++d) ones_only[d] = 1;
    return full(ones_only, group.rank() + 1, {.device = device}).expand(shape);
  };
  const auto expect_refused = [](const char* function, const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "no error of " << function;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_TRUE(text.starts_with(function)) << text;
      EXPECT_NE(text.find("share memory"), std::string::npos) << text;
    }
  };
  const Tensor one = ones({3}, {.device = device}), rows = ones({size, 3}, {.device = device});
  expect_refused("all_reduce: ", [&] { group.all_reduce(expanded({3})).wait(); });
  expect_refused("broadcast: ", [&] { group.broadcast(expanded({3})).wait(); });
  expect_refused("all_gather: ", [&] { group.all_gather(one, expanded({size, 3})).wait(); });
  expect_refused("reduce_scatter: ", [&] { group.reduce_scatter(rows, expanded({3})).wait(); });
  group.all_gather(expanded({3}), rows).wait();
  for (std::int64_t r = 0; r < size; ++r)
    EXPECT_EQ(to_vector(rows.select(0, r)), std::vector<double>(3, static_cast<double>(r + 1)));
  group.reduce_scatter(expanded({size, 3}), one).wait();
  EXPECT_EQ(to_vector(one), std::vector<double>(3, static_cast<double>(size * (size + 1) / 2)));
}

/// A collective counts as a change in place of what it writes to, and of nothing else.
inline void check_versions(const ProcessGroup& group, Device device) {
  if (group.size() == 1) return;
  const TensorOptions options{.device = device};
  const Tensor reduced = ones({3}, options), sent = ones({3}, options), mine = ones({3}, options),
               gathered = zeros({group.size(), 3}, options),
               parts = ones({group.size(), 3}, options), part = zeros({3}, options);
  const auto versions = [](std::initializer_list<Tensor> tensors) {
    std::vector<std::uint64_t> all;
    for (const Tensor& tensor : tensors) all.push_back(tensor.storage()->version());
    return all;
  };
  const auto inputs = versions({mine, parts}), outputs = versions({reduced, sent, gathered, part});
  group.all_reduce(reduced).wait();
  group.broadcast(sent, 0).wait();
  group.all_gather(mine, gathered).wait();
  group.reduce_scatter(parts, part).wait();
  EXPECT_EQ(versions({mine, parts}), inputs);
  const auto after = versions({reduced, sent, gathered, part});
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_GT(after[i], outputs[i]) << i;
}

/// A second wait() of a Work changes nothing, also where the result was copied back at the first.
inline void check_second_wait(const ProcessGroup& group, Device device) {
  const Tensor dense = ones({4}, {.device = device}),
               column = ones({4, 3}, {.device = device}).select(1, 1);
  for (const Tensor& tensor : {dense, column}) {
    distributed::Work work = group.all_reduce(tensor);
    work.wait();
    EXPECT_EQ(to_vector(tensor), std::vector<double>(4, group.size()));
    tensor.fill_(7);
    work.wait();
    EXPECT_EQ(to_vector(tensor), std::vector<double>(4, 7));
  }
}

/// Checks that wrong arguments are refused at once, and that the group works afterwards.
inline void check_arguments(const ProcessGroup& group, Device device) {
  const Tensor x = ones({3}, {.device = device}), before = x.clone();
  EXPECT_THROW(group.broadcast(x, group.size()).wait(), ValueError);
  EXPECT_THROW(group.broadcast(x, -1).wait(), ValueError);
  EXPECT_THROW(group.all_gather(x, zeros({group.size() + 1, 3}, {.device = device})).wait(),
               ShapeError);
  EXPECT_THROW(
      group.all_gather(x, zeros({group.size(), 3}, {.dtype = float64, .device = device})).wait(),
      DTypeError);
  EXPECT_THROW(group.reduce_scatter(x, zeros({group.size(), 3}, {.device = device})).wait(),
               ShapeError);
  EXPECT_THROW(group.all_reduce(Tensor()).wait(), Error);
  EXPECT_EQ(to_vector(x), to_vector(before));
  // The part of the whole that is this rank's may be input and output.
  const Tensor whole = full({group.size(), 2}, group.rank(), {.device = device});
  group.all_gather(whole.select(0, group.rank()), whole).wait();
  for (int r = 0; r < group.size(); ++r)
    EXPECT_EQ(to_vector(whole.select(0, r)), std::vector<double>(2, r));
  if (const int other = (group.rank() + 1) % group.size(); other != group.rank()) {
    EXPECT_THROW(group.all_gather(whole.select(0, other), whole).wait(), ValueError);
    EXPECT_THROW(group.reduce_scatter(whole, whole.select(0, other)).wait(), ValueError);
  }
  check_expanded_tensors(group, device);
  const auto calls = group.traffic().calls;
  group.all_reduce(x).wait();
  EXPECT_EQ(x.select(0, 0).item<int>(), group.size());
  EXPECT_EQ(group.traffic().calls - calls, group.size() > 1 ? 1 : 0);
}

/// Checks everything above with tensors on `device`.
inline void check_conformance_on(const ProcessGroup& group, Device device) {
  check_all_reduce(group, device);
  check_reduce_scatter(group, device);
  check_all_gather_and_broadcast(group, device);
  check_strided(group, device);
  check_empty(group, device);
  check_asynchronous(group, device);
  check_polled(group, device);
  check_all_operations_in_flight(group, device);
  check_split(group, device);
  check_split_by_size_and_host(group);
  check_several_groups_in_flight(group, device);
  check_versions(group, device);
  check_second_wait(group, device);
  check_arguments(group, device);
  group.barrier({.name = "end of the conformance suite"});
}

inline void check_conformance(const ProcessGroup& group) {
  check_conformance_on(group, Device::cpu());
}

}  // namespace tutti::test
