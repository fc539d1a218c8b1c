#include "winograd.h"

#include "../../core/cpu_level.h"
#include "../../core/create.h"
#include "onednn.h"
#include "onednn_limits.h"
#include "packed_weights.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tutti::kernels::cpu {

using TransformsFunction = const WinogradTransforms&();
TUTTI_CPU_LEVEL_FUNCTION(TransformsFunction, winograd_transforms)

namespace winograd {
namespace {

// A tile of 4x4 outputs has 6x6 inputs, of which each is an element of another plane.
constexpr std::int64_t outputs_edge = 4, planes = 36, kernel_elements = 9;
// The planes of a block of tiles should stay in the cache between a transform and the products. For
// gradients of weights blocks are larger, because each adds to all of them.
constexpr std::int64_t block_floats = std::int64_t{1} << 20,
                       gradient_block_floats = 4 * block_floats;
// Where one block holds all tiles, kernels are transformed and multiplied a part at a time: the
// planes of 2048 x 512 channels would take 144 MiB, those of a part take 16.
constexpr std::int64_t part_floats = std::int64_t{1} << 22;

// The geometry of a convolution's outputs, which are cut into tiles.
struct Tiling {
  std::int64_t rows, columns, dilation, count;

  Tiling(const Tensor& outputs, std::int64_t d)
      : rows(tiles_of(outputs.size(2), d)),
        columns(tiles_of(outputs.size(3), d)),
        dilation(d),
        count(outputs.size(0) * d * d * rows * columns) {}
  TiledTensor of(const Tensor& t, std::int64_t padding) const {
    return {.data = t.raw(),
            .dtype = t.dtype(),
            .height = t.size(2),
            .width = t.size(3),
            .channels = t.size(1),
            .tile_rows = rows,
            .tile_columns = columns,
            .padding = padding,
            .dilation = dilation};
  }

 private:
  static std::int64_t tiles_of(std::int64_t size, std::int64_t d) {
    return ((size + d - 1) / d + outputs_edge - 1) / outputs_edge;
  }
};

// 36 matrices of `rows` rows and `columns` columns. The gap of a cache line between them keeps
// elements of the same position from competing for the same lines of the cache.
class Planes {
 public:
  Planes(std::int64_t rows, std::int64_t columns)
      : Planes(rows, columns, empty({planes * stride_of(rows, columns)}, {float32}).storage()) {}
  /// The same planes in another object's memory.
  Planes(std::int64_t rows, std::int64_t columns, std::shared_ptr<Storage> memory)
      : columns_(columns),
        stride_(stride_of(rows, columns)),
        memory_(std::move(memory), {planes * stride_}, {1}, 0, float32) {}

  float* data() const { return memory_.data<float>(); }
  std::int64_t stride() const { return stride_; }
  const std::shared_ptr<Storage>& storage() const { return memory_.storage(); }
  /// Returns the first `rows` rows of all matrices, as a tensor (36, rows, columns).
  Tensor matrices(std::int64_t rows) const { return matrices(rows, 0, columns_); }
  /// Returns `count` columns of them, from `first` on: (36, rows, count).
  Tensor matrices(std::int64_t rows, std::int64_t first, std::int64_t count) const {
    return memory_.alias({planes, rows, count}, {stride_, columns_, 1}, memory_.offset() + first);
  }
  /// The same columns as rows: (36, count, rows).
  Tensor transposed(std::int64_t rows, std::int64_t first, std::int64_t count) const {
    return memory_.alias({planes, count, rows}, {stride_, 1, columns_}, memory_.offset() + first);
  }

 private:
  static std::int64_t stride_of(std::int64_t rows, std::int64_t columns) {
    constexpr std::int64_t cache_line = 64 / sizeof(float);
    return rows * columns + cache_line;
  }

  std::int64_t columns_, stride_;
  Tensor memory_;
};

TilePlanes tiles_in(const Planes& memory, std::int64_t first, std::int64_t count) {
  return {memory.data(), memory.stride(), first, count};
}

// The kernels of a weight (O, I, 3, 3) as a matrix over output and input channels.
KernelView kernel_view(const Tensor& w) {
  const auto& strides = w.strides();
  return {w.raw(), w.dtype(), w.size(0), w.size(1), strides[0], strides[1], strides[2], strides[3]};
}

KernelView transposed(const KernelView& w) {
  return {w.data, w.dtype, w.columns, w.rows, w.column, w.row, w.kernel_row, w.kernel_column};
}

KernelView moved(KernelView w, std::int64_t elements) {
  w.data = static_cast<char*>(w.data) + elements * static_cast<std::int64_t>(size_of(w.dtype));
  return w;
}

KernelView columns_of(const KernelView& w, std::int64_t first, std::int64_t count) {
  KernelView part = moved(w, first * w.column);
  part.columns = count;
  return part;
}

// The kernels seen from their last element backwards.
KernelView reversed(const KernelView& given) {
  KernelView w = moved(given, 2 * (given.kernel_row + given.kernel_column));
  w.kernel_row = -w.kernel_row;
  w.kernel_column = -w.kernel_column;
  return w;
}

// Returns how many of the tiles are computed at a time, in blocks of about the same size: as many
// as have planes of `floats` elements, or of half as many as the kernels, which every block reads.
std::int64_t block_of(std::int64_t tiles, std::int64_t ins, std::int64_t outs,
                      std::int64_t floats) {
  const std::int64_t most = std::max(floats / planes, ins * outs / 2) / (ins + outs),
                     blocks = (tiles + most - 1) / most;
  return (tiles + blocks - 1) / blocks;
}

// The transforms take channels in vectors of 16.
constexpr std::int64_t channels_at_a_time = 16;

// Returns how many of the channels are in a part, where each has kernels for so many others.
std::int64_t part_of(std::int64_t channels, std::int64_t others) {
  const std::int64_t vectors = part_floats / planes / others / channels_at_a_time;
  return std::min(channels, std::max<std::int64_t>(1, vectors) * channels_at_a_time);
}

Planes transformed(const KernelView& w) {
  Planes result(w.rows, w.columns);
  winograd_transforms_of_level()().weight(w, {result.data(), result.stride()});
  return result;
}

// The layout in PackedWeights of the forward's transformed kernels.
struct ForwardKernels {
  bool operator==(const ForwardKernels&) const = default;
};

// Returns the forward's transformed kernels if `w` keeps them.
std::optional<Planes> kept_kernels(const Tensor& w, const KernelView& kernels) {
  PackedWeights* const packed = PackedWeights::of(w);
  if (!packed) return {};
  return Planes(kernels.rows, kernels.columns,
                packed->find(ForwardKernels{}, [&] { return transformed(kernels).storage(); }));
}

// Convolves the images of x with kernels over the channels of x and those of y, which `all` has
// transformed if it is not empty.
bool convolve(const Tensor& x, const KernelView& kernels, std::optional<Planes> all,
              const Tensor& bias, std::int64_t padding, std::int64_t dilation, const Tensor& y) {
  const auto& transforms = winograd_transforms_of_level()();
  const Tiling tiling(y, dilation);
  const std::int64_t ins = x.size(1), outs = y.size(1), tiles = tiling.count,
                     block = block_of(tiles, ins, outs, block_floats);
  if (!all && block < tiles) all = transformed(kernels);
  const std::int64_t part = all ? outs : part_of(outs, ins);
  const Planes inputs(block, ins), outputs(block, outs);
  const Tensor float_bias = bias.defined() ? bias.to(float32) : bias;
  const float* const added = bias.defined() ? float_bias.data<float>() : nullptr;
  for (std::int64_t first = 0; first < tiles; first += block) {
    const std::int64_t count = std::min(block, tiles - first);
    transforms.input(tiling.of(x, padding), tiles_in(inputs, first, count));
    for (std::int64_t out = 0; out < outs; out += part) {
      const std::int64_t some = std::min(part, outs - out);
      const Planes of_part = all ? *all : transformed(columns_of(kernels, out, some));
      if (!onednn::matmul(inputs.matrices(count), of_part.matrices(ins), {},
                          outputs.matrices(count, out, some)))
        return false;
    }
    if (!transforms.output(tiles_in(outputs, first, count), added, tiling.of(y, 0))) return false;
  }
  return true;
}

// The padding in the rows of TiledTensor.
std::int64_t padding_of(const ConvOptions& options) {
  return options.padding[0] / options.dilation[0];
}

}  // namespace

bool can_convolve(const Tensor& x, const Tensor& w, const Tensor& y, const ConvOptions& options) {
  constexpr MemoryFormat last = MemoryFormat::channels_last;
  const auto is_float = [](const Tensor& t) {
    return t.dtype() == float32 || t.dtype() == bfloat16;
  };
  const auto is_image = [&](const Tensor& t) {
    return t.rank() == 4 && is_float(t) && t.is_contiguous(last) &&
           t.size(1) % channels_at_a_time == 0;
  };
  return is_image(x) && is_image(y) && is_float(w) && w.size(2) == 3 && w.size(3) == 3 &&
         options.groups == 1 && options.stride == Dims{1, 1} &&
         options.dilation[0] == options.dilation[1] && options.padding[0] == options.padding[1] &&
         options.padding[0] % options.dilation[0] == 0 && padding_of(options) <= 2;
}

// What it costs to transform an element and to write and read it in its planes, in multiplications,
// as was measured.
constexpr std::int64_t cost_of_activation = 25, cost_of_kernel = 40;

bool is_faster(const Tensor& x, const Tensor& w, const Tensor& y, const ConvOptions& options) {
  if (exact_convolutions.load(std::memory_order_relaxed)) return false;
  const bool is_bfloat16 = x.dtype() == bfloat16;  // with direct sums at twice the speed or more
  if (!can_convolve(x, w, y, options) || (is_bfloat16 && onednn::has_amx())) return false;
  const std::int64_t ins = x.size(1), outs = y.size(1),
                     tiles = Tiling(y, options.dilation[0]).count;
  const std::int64_t direct = kernel_elements * y.numel() * ins / (is_bfloat16 ? 2 : 1);
  const std::int64_t products = planes * tiles * ins * outs,
                     transforms = planes * (cost_of_activation * tiles * (ins + outs) +
                                            cost_of_kernel * ins * outs);
  return products + transforms < direct;
}

bool forward(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& options,
             const Tensor& y) {
  const KernelView kernels = transposed(kernel_view(w));
  return convolve(x, kernels, kept_kernels(w, kernels), bias, padding_of(options),
                  options.dilation[0], y);
}

bool backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                    const Tensor& dx) {
  return convolve(dy, reversed(kernel_view(w)), {}, {}, 2 - padding_of(options),
                  options.dilation[0], dx);
}

bool backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                     const Tensor& dw) {
  const auto& transforms = winograd_transforms_of_level()();
  const Tiling tiling(dy, options.dilation[0]);
  const std::int64_t ins = x.size(1), outs = dy.size(1), tiles = tiling.count,
                     block = block_of(tiles, ins, outs, gradient_block_floats),
                     part = block < tiles ? outs : part_of(outs, ins);
  const Planes inputs(block, ins), gradients(block, outs), sum(part, ins),
      summand(block < tiles ? outs : 0, ins);
  for (std::int64_t first = 0; first < tiles; first += block) {
    const std::int64_t count = std::min(block, tiles - first);
    transforms.input(tiling.of(x, padding_of(options)), tiles_in(inputs, first, count));
    transforms.output_gradient(tiling.of(dy, 0), tiles_in(gradients, first, count));
    for (std::int64_t out = 0; out < outs; out += part) {
      const std::int64_t some = std::min(part, outs - out);
      const Planes& into = first == 0 ? sum : summand;
      if (!onednn::matmul(gradients.transposed(count, out, some), inputs.matrices(count), {},
                          into.matrices(some)))
        return false;
      if (first > 0) transforms.add(summand.data(), sum.data(), planes * sum.stride());
      const KernelView rows = transposed(columns_of(transposed(kernel_view(dw)), out, some));
      if (first + block >= tiles && !transforms.weight_gradient({sum.data(), sum.stride()}, rows))
        return false;
    }
  }
  return true;
}

}  // namespace winograd
}  // namespace tutti::kernels::cpu
