// The differentiable collectives on any process group: values against tensors that every rank can
// compute, and gradients against finite differences of the sum of all ranks' losses.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/broadcast_text.h>
#include <tutti/distributed/functional.h>

#include "../kernels/compare.h"

#include <gtest/gtest.h>

namespace tutti::test {

namespace functional {

using Function = std::function<Tensor(const Tensor&)>;

/// Returns the sum of all ranks' losses. The loss of a rank is quadratic in the output, and weighs
/// each element and rank differently.
inline double total_loss(const ProcessGroup& group, const Function& function, const Tensor& x) {
  const NoGrad no_grad;
  Generator random(static_cast<std::uint64_t>(7 + group.rank()));
  const Tensor y = function(x), weights = randn(y.shape(), {float64}, random);
  const Tensor total = sum(weights * square(y));
  group.all_reduce(total).wait();
  return total.item<double>();
}

/// Returns the gradient that backward gives to this rank's input.
inline Tensor gradient(const ProcessGroup& group, const Function& function, const Tensor& x) {
  Generator random(static_cast<std::uint64_t>(7 + group.rank()));
  const Tensor leaf = x.clone().requires_grad_();
  const Tensor y = function(leaf), weights = randn(y.shape(), {float64}, random);
  sum(weights * square(y)).backward();
  return leaf.grad();
}

/// Changes each element on each rank in turn, on all ranks in step, and compares the change of the
/// total loss with the gradient.
inline void check_gradient(const ProcessGroup& group, const Function& function, const Tensor& x) {
  const Tensor analytic = gradient(group, function, x);
  ASSERT_TRUE(analytic.defined());
  for (int rank = 0; rank < group.size(); ++rank) {
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const double step = 1e-5;
      double losses[2];
      for (const int side : {0, 1}) {
        const Tensor changed = x.clone();
        if (rank == group.rank()) changed.data<double>()[i] += side ? step : -step;
        losses[side] = total_loss(group, function, changed);
      }
      const double expected = (losses[1] - losses[0]) / (2 * step);
      if (rank != group.rank()) continue;
      EXPECT_NEAR(analytic.data<double>()[i], expected, 1e-6 * (1 + std::abs(expected)))
          << "element " << i;
    }
  }
}

/// Returns the input of a rank, which every rank can compute.
inline Tensor input_of(int rank, const Shape& shape) {
  Generator random(static_cast<std::uint64_t>(100 + rank));
  return randn(shape, {float64}, random);
}

inline void check_all_reduce(const ProcessGroup& group) {
  const double ranks = group.size();
  Tensor expected = zeros({2, 3}, {float64});
  for (int r = 0; r < group.size(); ++r) expected = expected + input_of(r, {2, 3});
  const Tensor x = input_of(group.rank(), {2, 3}), before = x.clone();
  EXPECT_LT(relative_error(distributed::all_reduce(x, group), expected), 1e-14);
  EXPECT_LT(relative_error(distributed::all_reduce(x, group, distributed::ReduceOp::mean),
                           expected * (1 / ranks)),
            1e-14);
  EXPECT_EQ(to_vector(x), to_vector(before)) << "the input changed";
  for (const auto op : {distributed::ReduceOp::sum, distributed::ReduceOp::mean})
    check_gradient(
        group, [&](const Tensor& t) { return distributed::all_reduce(t, group, op); }, x);
  // An input with gaps and an expanded gradient.
  const Tensor wide = input_of(group.rank(), {3, 4}), columns = wide.slice(1, 0, 4, 2);
  check_gradient(
      group, [&](const Tensor& t) { return distributed::all_reduce(t.transpose(0, 1), group); },
      columns.clone());
  EXPECT_LT(relative_error(distributed::all_reduce(columns, group),
                           distributed::all_reduce(columns.clone(), group)),
            1e-15);
  const Tensor leaf = x.clone().requires_grad_();
  sum(distributed::all_reduce(leaf, group)).backward();
  EXPECT_EQ(to_vector(leaf.grad()), std::vector<double>(6, ranks));
}

inline void check_all_gather(const ProcessGroup& group) {
  std::vector<Tensor> rows;
  for (int r = 0; r < group.size(); ++r) rows.push_back(input_of(r, {2, 2}));
  const Tensor x = rows[static_cast<std::size_t>(group.rank())];
  const Tensor y = distributed::all_gather(x, group);
  EXPECT_EQ(y.shape(), (Shape{group.size(), 2, 2}));
  EXPECT_EQ(to_vector(y), to_vector(stack(rows)));
  check_gradient(
      group, [&](const Tensor& t) { return distributed::all_gather(t, group); }, x);
  check_gradient(  // of a tensor without dimensions
      group, [&](const Tensor& t) { return distributed::all_gather(t, group); },
      input_of(group.rank(), {}));
}

inline void check_reduce_scatter(const ProcessGroup& group) {
  const double ranks = group.size();
  const Shape shape{group.size(), 2};
  Tensor sums = zeros(shape, {float64});
  for (int r = 0; r < group.size(); ++r) sums = sums + input_of(r, shape);
  const Tensor x = input_of(group.rank(), shape), expected = sums.select(0, group.rank());
  EXPECT_LT(relative_error(distributed::reduce_scatter(x, group), expected), 1e-14);
  EXPECT_LT(relative_error(distributed::reduce_scatter(x, group, distributed::ReduceOp::mean),
                           expected * (1 / ranks)),
            1e-14);
  for (const auto op : {distributed::ReduceOp::sum, distributed::ReduceOp::mean})
    check_gradient(
        group, [&](const Tensor& t) { return distributed::reduce_scatter(t, group, op); }, x);
}

/// An empty tensor takes part, forward and backward.
inline void check_empty(const ProcessGroup& group) {
  const Tensor x = zeros({group.size(), 0, 3}, {float64}).requires_grad_();
  for (const Tensor& y : {distributed::all_reduce(x, group), distributed::all_gather(x, group),
                          distributed::reduce_scatter(x, group)}) {
    EXPECT_EQ(y.numel(), 0);
    sum(y).backward();
  }
  EXPECT_EQ(x.grad().shape(), x.shape());
}

/// Tensors of different first sizes, and texts, reach every rank; rank 0 has none.
inline void check_rows(const ProcessGroup& group) {
  const auto rows_of = [](int rank) { return full({rank, 2}, rank, {int64}); };
  const std::vector<Tensor> rows =
      distributed::all_gather_rows(group, rows_of(group.rank()), "rows");
  const std::vector<std::string> texts = distributed::all_gather_text(
      group, std::string(2 * static_cast<std::size_t>(group.rank()), 'x'), "texts");
  ASSERT_EQ(rows.size(), static_cast<std::size_t>(group.size()));
  ASSERT_EQ(texts.size(), rows.size());
  for (int rank = 0; rank < group.size(); ++rank) {
    const Tensor& got = rows[static_cast<std::size_t>(rank)];
    EXPECT_EQ(got.shape(), (Shape{rank, 2}));
    EXPECT_EQ(to_vector(got), to_vector(rows_of(rank)));
    EXPECT_EQ(texts[static_cast<std::size_t>(rank)].size(), 2 * static_cast<std::size_t>(rank));
  }
  EXPECT_THROW(distributed::all_gather_rows(group, zeros({}), "no rows"), ShapeError);
}

/// Errors and timelines tell the collective of a backward from that of its forward.
inline void check_names(const ProcessGroup& group) {
  if (group.size() == 1) return;
  const Tensor x = zeros({group.size()}, {float64}).requires_grad_();
  sum(distributed::all_reduce(x, group, distributed::ReduceOp::sum, {.name = "loss"})).backward();
  sum(distributed::all_gather(x, group)).backward();
  const distributed::Backend& backend = *group.implementation();
  const auto calls = backend.world()->recorder(backend.info())->contents().entries;
  ASSERT_GE(calls.size(), 4u);
  std::vector<std::string> names;
  for (auto call = calls.end() - 4; call != calls.end(); ++call) names.push_back(call->call.name());
  EXPECT_EQ(names, (std::vector<std::string>{"loss", "loss backward", "differentiable all_gather",
                                             "differentiable all_gather backward"}));
}

inline void check_errors(const ProcessGroup& group) {
  const Tensor counts = zeros({group.size()}, {int64}), wrong = zeros({group.size() + 1});
  EXPECT_THROW(distributed::all_reduce(counts, group), DTypeError);
  EXPECT_THROW(distributed::all_gather(counts, group), DTypeError);
  EXPECT_THROW(distributed::reduce_scatter(wrong, group), ShapeError);
  EXPECT_THROW(distributed::reduce_scatter(zeros({}), group), ShapeError);
  EXPECT_THROW(distributed::all_reduce(wrong, group, distributed::ReduceOp::max), ValueError);
}

}  // namespace functional

/// Every rank of the group calls it.
inline void check_functional(const ProcessGroup& group) {
  functional::check_all_reduce(group);
  functional::check_all_gather(group);
  functional::check_reduce_scatter(group);
  functional::check_empty(group);
  functional::check_rows(group);
  functional::check_names(group);
  functional::check_errors(group);
}

}  // namespace tutti::test
