// Times CPU kernels on one thread, each on tensors that fit the second-level cache, where
// the instructions decide and not the memory. It prints a name and the fastest time in microseconds
// per line. benchmarks/cpu_kernels.py compares builds and levels of processors with it.
#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/data/transforms/normalize.h>
#include <tutti/distributed/data_flow.h>
#include <tutti/kernels/kernels.h>

#include "timing.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace tutti::benchmarks {
namespace {

constexpr std::int64_t elements = 65536;

double seconds = 0.05;  // For each kernel; the first argument.

template <class Work>
void measure(const std::string& name, const Work& work) {
  double best = 1e9, spent = 0;
  while (spent < seconds) {
    const double once = seconds_of(work);
    best = std::min(best, once);
    spent += once;
  }
  std::printf("%-40s %10.2f\n", name.c_str(), best * 1e6);
}

Tensor values(const Shape& shape, DType dtype = float32,
              MemoryFormat format = MemoryFormat::contiguous) {
  const Tensor result = empty(shape, {dtype}, format);
  result.copy_(randn(shape, {float32}));
  return result;
}

Tensor like(const Tensor& x, DType dtype = float32) { return values(x.shape(), dtype); }

void elementwise() {
  const auto& table = kernels::cpu::table().elementwise;
  const Tensor x = values({elements}), y = like(x), z = like(x), positive = like(x);
  table.unary(kernels::Unary::exp, x, positive);
  const Tensor half = like(x, bfloat16), half_y = like(x, bfloat16), half_z = like(x, bfloat16),
               f16 = like(x, float16), wide = like(x, float64);
  const auto unary = [&](const char* name, kernels::Unary op, const Tensor& from,
                         const Tensor& to) { measure(name, [&] { table.unary(op, from, to); }); };
  unary("exp float32", kernels::Unary::exp, x, y);
  unary("exp bfloat16", kernels::Unary::exp, half, half_y);
  unary("tanh float32", kernels::Unary::tanh, x, y);
  unary("log float32", kernels::Unary::log, positive, y);
  unary("sqrt float32", kernels::Unary::sqrt, positive, y);
  unary("relu float32", kernels::Unary::relu, x, y);
  unary("relu bfloat16", kernels::Unary::relu, half, half_y);
  const Tensor square = values({256, 256}), row = values({256}), column = values({256, 1}),
               out = like(square);
  const auto add = [&](const char* name, const Tensor& a, const Tensor& b, const Tensor& to) {
    measure(name, [&] { table.binary(kernels::Binary::add, a, b, to); });
  };
  add("add float32", x, y, z);
  add("add bfloat16", half, half_y, half_z);
  add("add float32, row broadcast", square, row, out);
  add("add float32, column broadcast", square, column, out);
  const Tensor truth = empty({elements}, {boolean});
  measure("greater float32", [&] { table.binary(kernels::Binary::greater, x, y, truth); });
  measure("where float32", [&] { table.where(truth, x, y, z); });
  measure("axpy float32 += bfloat16", [&] { table.axpy(0.5, half, y); });
  const auto copy = [&](const char* name, const Tensor& from, const Tensor& to) {
    measure(name, [&] { table.copy(from, to); });
  };
  copy("copy float32 to bfloat16", x, half);
  copy("copy bfloat16 to float32", half, x);
  copy("copy float32 to float16", x, f16);
  copy("copy float16 to float32", f16, x);
  copy("copy float32 to float64", x, wide);
  copy("copy float32 transposed", square.transpose(0, 1), out);
}

void rows() {
  for (const DType dtype : {float32, bfloat16}) {
    const std::string of = fmt::format(" {}", to_string(dtype));
    const Tensor x = values({64, 1000}, dtype), y = like(x, dtype), g = like(x, dtype);
    const auto& softmax = kernels::cpu::table().softmax;
    measure("softmax" + of, [&] { softmax.forward(x, 1, false, y); });
    measure("softmax gradient" + of, [&] { softmax.backward(g, y, 1, false, x); });
    const Tensor targets = randint(1000, {64}), losses = empty({64}), normalizers = empty({64});
    measure("cross entropy" + of,
            [&] { softmax.cross_entropy(x, targets, {}, losses, normalizers); });
    const auto& norm = kernels::cpu::table().layer_norm;
    const Tensor w = values({1000}), b = values({1000}), mean = empty({64}, {float64}),
                 rstd = empty({64}, {float64});
    measure("layer norm" + of, [&] { norm.forward(x, w, b, 1e-5, y, mean, rstd); });
    measure("layer norm input gradient" + of, [&] { norm.input_grad(g, x, mean, rstd, w, y); });
    measure("layer norm parameter gradient" + of,
            [&] { norm.parameter_grad(g, x, mean, rstd, w, b); });
    const auto& reduce = kernels::cpu::table().reduce;
    const Tensor all = empty({1, 1}, {dtype}), by_row = empty({64, 1}, {dtype}),
                 by_column = empty({1, 1000}, {dtype});
    measure("sum" + of, [&] { reduce.reduce(kernels::Reduction::sum, x, all); });
    measure("sum of rows" + of, [&] { reduce.reduce(kernels::Reduction::sum, x, by_row); });
    measure("sum of columns" + of, [&] { reduce.reduce(kernels::Reduction::sum, x, by_column); });
    measure("max" + of, [&] { reduce.reduce(kernels::Reduction::max, x, all); });
    const Tensor largest = empty({64, 5}, {int64}), first = empty({64, 1}, {int64});
    measure("topk 5 of 1000" + of, [&] { reduce.topk(x, 1, largest); });
    measure("argmax of 1000" + of, [&] { reduce.topk(x, 1, first); });
  }
}

void batch_norm(DType dtype, MemoryFormat format) {
  const auto& table = kernels::cpu::table().batch_norm;
  const std::string of = fmt::format(" {} {}", to_string(dtype), to_string(format));
  const std::int64_t channels = 64;
  const Shape shape{4, channels, 14, 14};
  const Tensor x = values(shape, dtype, format), y = values(shape, dtype, format),
               dy = values(shape, dtype, format), dx = values(shape, dtype, format);
  const auto vector = [&] { return zeros({channels}, {float64}); };
  const Tensor moments = zeros({kernels::packet_size(channels)}, {float64}),
               sums = zeros({kernels::packet_size(channels)}, {float64});
  const kernels::Normalization normalization{.mean = vector(),
                                             .rstd = vector(),
                                             .weight = values({channels}),
                                             .bias = values({channels}),
                                             .relu = true};
  measure("batch norm" + of, [&] {
    table.moments(x, {}, moments);
    table.finalize_and_apply(
        {.x = x, .sums = {}, .moments = moments, .normalization = normalization, .y = y});
  });
  const kernels::SavedForward saved{.normalization = normalization, .x = x};
  const Tensor weight_grad = zeros({channels}), bias_grad = zeros({channels});
  measure("batch norm gradient" + of, [&] {
    table.gradient_sums({.dy = dy,
                         .saved = saved,
                         .sums = sums,
                         .weight_grad = weight_grad,
                         .bias_grad = bias_grad});
    table.apply_grad({.dy = dy, .saved = saved, .sums = sums, .moments = moments, .dx = dx});
  });
}

void pooling(DType dtype, MemoryFormat format) {
  const auto& table = kernels::cpu::table().pooling;
  const std::string of = fmt::format(" {} {}", to_string(dtype), to_string(format));
  const Tensor x = values({2, 64, 28, 28}, dtype, format),
               y = values({2, 64, 14, 14}, dtype, format);
  const kernels::PoolOptions options{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  const Tensor index = empty(y.shape(), {uint8}, format);
  measure("max pooling" + of, [&] { table.max_forward(x, options, y, index); });
  measure("max pooling gradient" + of, [&] { table.max_backward(y, index, options, x); });
  const Tensor seven = values({2, 64, 7, 7}, dtype, format),
               uneven = values({2, 64, 5, 5}, dtype, format);
  measure("average pooling" + of, [&] { table.average_forward(seven, {}, uneven); });
}

void optimizers() {
  const auto& table = kernels::cpu::table().optimizer;
  for (const DType dtype : {float32, bfloat16}) {
    const std::string of = fmt::format(" {}", to_string(dtype));
    const Tensor p = values({elements}, dtype), g = values({elements}, dtype);
    const Tensor steps = zeros({}, {int64});
    const kernels::FusedUpdate sgd{
        .parameter = p, .gradient = g, .states = {zeros({elements})}, .steps = steps};
    const kernels::FusedUpdate adam{.parameter = p,
                                    .gradient = g,
                                    .states = {zeros({elements}), zeros({elements})},
                                    .steps = steps};
    const double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 1e-4, zero = 0;
    measure("sgd" + of, [&] { table.sgd({&lr, &beta1, &zero, &decay, false}, {&sgd, 1}); });
    measure("adam" + of, [&] {
      table.adam({&lr, &beta1, &beta2, &eps, &decay, true}, {&adam, 1});
    });
    const Tensor out = empty({1}, {float64});
    measure("sum of squares" + of, [&] { table.sums_of_squares({&g, 1}, out); });
  }
}

// What runs outside of kernels/.
void others() {
  for (const DType dtype : {float32, bfloat16, float16}) {
    const Tensor a = values({elements}, dtype), b = values({elements}, dtype);
    const void* const inputs[] = {a.raw(), b.raw()};
    void* const outputs[] = {a.raw(), b.raw()};
    measure("all-reduce mean of 2 ranks " + to_string(dtype), [&] {
      distributed::reduce_in_rank_order(dtype, distributed::ReduceOp::mean, inputs, outputs,
                                        elements);
    });
  }
  const Tensor image = randint(256, {128, 128, 3}).to(uint8);
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    measure("normalize image, " + to_string(format), [&] {
      data::normalize(image, {0.5f, 0.4f, 0.3f}, {0.2f, 0.3f, 0.4f}, format);
    });
  const Tensor m = randn({64, 64}, {float64}), n = randn({64, 64}, {float64}),
               o = empty({64, 64}, {float64});
  measure("matmul float64", [&] { kernels::cpu::table().matmul(m, n, {}, o); });
  measure("random normal", [&] { randn({elements}); });
}

void run_all() {
  set_num_threads(1);
  elementwise();
  rows();
  for (const DType dtype : {float32, bfloat16})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      batch_norm(dtype, format);
      pooling(dtype, format);
    }
  optimizers();
  others();
}

}  // namespace
}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  if (argc > 1) tutti::benchmarks::seconds = std::atof(argv[1]);
  tutti::benchmarks::run_all();
}
