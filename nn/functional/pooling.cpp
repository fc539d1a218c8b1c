#include "pooling.h"

#include "../../autograd/record.h"
#include "../../core/create.h"
#include "spatial.h"

namespace tutti::nn {
namespace {

int spatial_rank(const char* op, const Tensor& x) {
  if (x.rank() < 3 || x.rank() > 5 || product(x.shape(), 2, x.rank()) == 0)
    fail<ShapeError>(
        "{}: expected input (N, C, ...) with one to three spatial dimensions, none empty, got "
        "shape {}",
        op, to_string(x.shape()));
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
  const auto& kernels = kernels::pooling(x.device());
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
  const auto& kernels = kernels::pooling(x.device());
  const Tensor y = empty_output(x, sizes, x.dtype());
  kernels.average_forward(x.detach(), options, y);
  return autograd::record("avg_pool", y, {x},
                          [&kernels, options, kind = TensorKind(x)](const Tensor& dy) {
                            const Tensor dx = kind.make();
                            kernels.average_backward(dy, options, dx);
                            return dx;
                          });
}

Tensor adaptive_avg_pool(const Tensor& x, const Dims& output) {
  const char* op = "adaptive_avg_pool";
  const Dims sizes = expand_option(op, "output size", output, spatial_rank(op, x), 1);
  const auto& kernels = kernels::pooling(x.device());
  const Tensor y = empty_output(x, sizes, x.dtype());
  kernels.adaptive_average_forward(x.detach(), y);
  return autograd::record(op, y, {x}, [&kernels, kind = TensorKind(x)](const Tensor& dy) {
    const Tensor dx = kind.make();
    kernels.adaptive_average_backward(dy, dx);
    return dx;
  });
}

}  // namespace tutti::nn
