#include "pooling.h"

#include "../../autograd/functions.h"
#include "../../autograd/operation.h"
#include "../../autograd/record.h"
#include "../../core/create.h"
#include "../../kernels/kernels.h"
#include "spatial.h"

#include <algorithm>

namespace tutti::nn {
namespace {

// The number of elements beyond which a window is averaged in two steps, the rows first: so many
// numbers are not added one by one. Beyond `large_plane` a reduction divides a plane among threads.
constexpr std::int64_t large_window = 256, large_plane = 65536;

int spatial_rank(const char* op, const Tensor& x) {
  if (x.rank() < 3 || x.rank() > 5 || product(x.shape(), 2, x.rank()) == 0)
    fail<ShapeError>(
        "{}: expected input (N, C, ...) with one to three spatial dimensions, none empty, got "
        "shape {}",
        op, to_string(x.shape()));
  autograd::expect_trainable(op, x);
  return x.rank() - 2;
}

Tensor empty_output(const Tensor& x, const Dims& spatial, DType dtype) {
  Shape shape{x.shape()[0], x.shape()[1]};
  for (std::int64_t size : spatial) shape.push_back(size);
  return empty(shape, {dtype, x.device()}, x.memory_format());
}

// Checks the arguments, and returns the options with one number for each spatial dimension. Sets
// `sizes` to the spatial sizes of the output.
PoolOptions check(const char* op, const Tensor& x, const PoolOptions& given, Dims& sizes) {
  const int rank = spatial_rank(op, x);
  const PoolOptions options = pool_options(op, given, rank);
  numel(options.kernel);  // Throws if the number of elements in a window overflows.
  sizes = output_sizes(op, x.shape(),
                       {.kernel = options.kernel,
                        .stride = options.stride,
                        .padding = options.padding,
                        .dilation = Dims::filled(rank, 1),
                        .ceil_mode = options.ceil_mode});
  return options;
}

// The properties of a tensor whose values backward does not need.
struct TensorKind {
  Shape shape;
  TensorOptions options;
  MemoryFormat format;

  explicit TensorKind(const Tensor& t)
      : shape(t.shape()), options{t.dtype(), t.device()}, format(t.memory_format()) {}
  Tensor make() const { return empty(shape, options, format); }
};

// Averages the windows of `options`, or without a kernel those that cover the input evenly.
Tensor average(const char* op, const Tensor& x, const Dims& sizes, const PoolOptions& options) {
  const auto& kernels = kernels::on(x.device()).pooling;
  const Tensor y = empty_output(x, sizes, x.dtype());
  kernels.average_forward(x.detach(), options, y);
  return autograd::record(op, y, {x}, [&kernels, options, kind = TensorKind(x)](const Tensor& dy) {
    const Tensor dx = kind.make();
    kernels.average_backward(dy, options, dx);
    return dx;
  });
}

}  // namespace

PoolOptions pool_options(const char* op, const PoolOptions& given, int rank) {
  PoolOptions options = given;
  options.kernel = expand_option(op, "kernel", given.kernel, rank, 1);
  options.stride = given.stride.empty() ? options.kernel
                                        : expand_option(op, "stride", given.stride, rank, 1);
  options.padding = given.padding.empty() ? Dims::filled(rank, 0)
                                          : expand_option(op, "padding", given.padding, rank, 0);
  for (int d = 0; d < rank; ++d)
    if (options.padding[d] > options.kernel[d] / 2)
      fail<ValueError>("{}: expected padding of at most half of the kernel {}, got {}", op,
                       to_string(options.kernel), to_string(options.padding));
  return options;
}

Tensor max_pool(const Tensor& x, const PoolOptions& given) {
  Dims sizes;
  const PoolOptions options = check("max_pool", x, given, sizes);
  const auto& kernels = kernels::on(x.device()).pooling;
  const Tensor y = empty_output(x, sizes, x.dtype());
  Tensor index;
  if (autograd::needs_grad(x))
    index = empty_output(x, sizes, kernels::pool_index_dtype(options.kernel));
  kernels.max_forward(x.detach(), options, y, index);
  return autograd::record("max_pool", y, {x},
                          [&kernels, options, index, kind = TensorKind(x)](const Tensor& dy) {
                            const Tensor dx = kind.make();
                            kernels.max_backward(dy, index, options, dx);
                            return dx;
                          });
}

Tensor avg_pool(const Tensor& x, const PoolOptions& given) {
  Dims sizes;
  const PoolOptions options = check("avg_pool", x, given, sizes);
  PoolOptions rows = options, rest = options;
  const int last = options.kernel.size() - 1;
  for (int d = 0; d <= last; ++d) {
    PoolOptions& other = d == last ? rest : rows;
    other.kernel[d] = other.stride[d] = 1;
    other.padding[d] = 0;
  }
  if (numel(options.kernel) > large_window && numel(rest.kernel) > 1 && numel(rows.kernel) > 1)
    return avg_pool(avg_pool(x.to(accumulate_dtype(x.dtype())), rows), rest).to(x.dtype());
  return average("avg_pool", x, sizes, options);
}

Tensor adaptive_avg_pool(const Tensor& x, const Dims& output) {
  const char* op = "adaptive_avg_pool";
  const Dims sizes = expand_option(op, "output size", output, spatial_rank(op, x), 1);
  Dims spatial, rows(x.shape().begin() + 2, x.shape().end()), window = rows;
  for (int d = 0; d < sizes.size(); ++d) {
    spatial.push_back(d + 2);
    window[d] = (window[d] + sizes[d] - 1) / sizes[d];
  }
  if (numel(sizes) == 1 && numel(window) > large_plane)
    return mean(x, spatial, true).contiguous(x.memory_format());
  rows[rows.size() - 1] = sizes.back();
  if (numel(window) > std::max(large_window, window.back()) && rows.back() < x.shape().back())
    return adaptive_avg_pool(adaptive_avg_pool(x.to(accumulate_dtype(x.dtype())), rows), sizes)
        .to(x.dtype());
  return average(op, x, sizes, {});
}

}  // namespace tutti::nn
