#include "onednn.h"

#include "../kernels.h"
#include "onednn_primitive.h"
#include "onednn_shares.h"

#include <algorithm>

namespace tutti::kernels::cpu::onednn {
namespace {

using Direction = OnednnPrimitive::Direction;

memory::data_type type_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return memory::data_type::f32;
    case DType::bfloat16: return memory::data_type::bf16;
    case DType::uint8: return memory::data_type::u8;
    default: fail<DTypeError>("oneDNN: no kernels for {}", to_string(dtype));
  }
}

memory::dims dims_of(const Dims& dims) { return {dims.begin(), dims.end()}; }

Desc vector_desc(const Tensor& tensor) {
  return {dims_of(tensor.shape()), type_of(tensor.dtype()), memory::format_tag::a};
}

// Describes an activation with the exact strides of its format, by which oneDNN recognises the
// layouts of its fast kernels. The tensor's own strides are arbitrary in dimensions of size 1 (one
// input channel).
Desc activation_desc(const Tensor& t, MemoryFormat format) {
  return {dims_of(t.shape()), type_of(t.dtype()), dims_of(dense_strides(t.shape(), format))};
}

// A convolution as oneDNN describes it. `w_any` leaves the layout of the weight to oneDNN.
struct ConvDescs {
  Desc x, w, w_any, y, bias;
  memory::dims w_sizes, stride, dilation, padding;

  ConvDescs(const Tensor& x_tensor, const Tensor& w_tensor, const Tensor& y_tensor,
            const Tensor& bias_tensor, const ConvOptions& options)
      : w_sizes(dims_of(w_tensor.shape())),
        stride(dims_of(options.stride)),
        dilation(dims_of(options.dilation)),
        padding(dims_of(options.padding)) {
    for (auto& value : dilation) --value;  // A dense kernel has dilation 0 in oneDNN.
    const auto format = common_format(x_tensor, y_tensor);
    if (!format)
      fail<ShapeError>(
          "convolution: expected input {} and output {} to be both contiguous or both "
          "channels_last",
          to_string(x_tensor.shape()), to_string(y_tensor.shape()));
    x = activation_desc(x_tensor, *format);
    y = activation_desc(y_tensor, *format);
    memory::dims steps = dims_of(w_tensor.strides());
    if (options.groups > 1) {  // oneDNN reads (O, I/g, ...) as (g, O/g, I/g, ...).
      w_sizes[0] /= options.groups;
      steps.insert(steps.begin(), steps[0] * w_sizes[0]);
      w_sizes.insert(w_sizes.begin(), options.groups);
    }
    w = Desc(w_sizes, type_of(w_tensor.dtype()), steps);
    w_any = Desc(w_sizes, type_of(x_tensor.dtype()), memory::format_tag::any);
    if (bias_tensor.defined()) bias = vector_desc(bias_tensor);
  }

  auto forward() const {
    return describe<dnnl::convolution_forward>(dnnl::prop_kind::forward_training,
                                               dnnl::algorithm::convolution_direct, x, w_any, bias,
                                               y, stride, dilation, padding, padding);
  }
};

// Returns whether oneDNN uses all instructions of `isa`, of which each is a bit.
bool has_isa(dnnl::cpu_isa isa) {
  const int bits = static_cast<int>(isa);
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

// Returns whether oneDNN is older than `major`.`minor`. The version is that at run time: a shared
// library may be newer than its header.
bool is_older_than(int major, int minor) {
  static const dnnl_version_t version = *dnnl_version();
  return version.major < major || (version.major == major && version.minor < minor);
}

bool has_stride(const ConvOptions& options) {
  return std::ranges::any_of(options.stride, [](auto step) { return step > 1; });
}

// Returns whether the forward may be wrong or crash because a whole window lies in the padding.
// oneDNN 3.7.2 does both in three spatial dimensions with groups: it returns wrong bfloat16 numbers
// and crashes in float32. Versions as for misreads_strides().
bool misses_padded_windows(const Tensor& w, const ConvOptions& options) {
  if (is_older_than(3, 3)) return false;
  for (int d = 0; d < options.padding.size(); ++d)
    if (options.padding[d] > options.dilation[d] * (w.shape()[d + 2] - 1)) return true;
  return false;
}

// Returns whether the forward may be wrong because `y` is one column of several rows, computed from
// one channel of `x` for each group by wide kernels that stride. oneDNN 3.7.2 is in two spatial
// dimensions in half of such convolutions, in float32 and bfloat16, on a processor with AVX-512. In
// three it also is where only another dimension has a stride, and where `y` has more columns.
// Versions as for misreads_strides().
bool misreads_single_columns(const Tensor& w, const ConvOptions& options, const Tensor& y) {
  if (is_older_than(3, 3) || w.size(1) > 1) return false;
  const bool is_column = y.size(-1) == 1 && y.numel() > y.size(0) * y.size(1);
  if (w.rank() == 5) return has_stride(options);
  return is_column && w.size(-1) > 1 && options.stride[options.stride.size() - 1] > 1;
}

}  // namespace

bool convolution_forward(const Tensor& x, const Tensor& w, const Tensor& bias,
                         const ConvOptions& options, const Tensor& y) {
  if (misses_padded_windows(w, options) || misreads_single_columns(w, options, y)) return false;
  if (!PackedWeights::of(w) && is_divided_by_channels(w, y, options)) {
    const ChannelShares ys(y);
    return in_shares(y.size(1), {x, w, bias, y}, [&](std::int64_t begin, std::int64_t end) {
      const Tensor own = ys.part(begin, end, x);
      if (!convolution_forward(x, part(w, 0, begin, end), part(bias, 0, begin, end), options, own))
        return false;
      table().elementwise.copy(own, part(y, 1, begin, end));
      return true;
    });
  }
  if (is_divided(x.size(0)))
    return in_shares(x.size(0), {x, w, bias, y}, [&](std::int64_t begin, std::int64_t end) {
      return convolution_forward(part(x, 0, begin, end), w, bias, options, part(y, 0, begin, end));
    });
  const PrimitiveKey key('f', {x, w, bias, y}, options);
  return run_cached(
      "convolution", key, {pointer(x), pointer(w), pointer(y), pointer(bias)},
      [&](OnednnPrimitive& primitive) {
        const ConvDescs descs(x, w, y, bias, options);
        const auto forward = descs.forward();
        primitive.set_primitive(forward);
        primitive.add(DNNL_ARG_SRC, Direction::in, descs.x, forward.src_desc());
        primitive.add(DNNL_ARG_WEIGHTS, Direction::in, descs.w, forward.weights_desc());
        primitive.add(DNNL_ARG_DST, Direction::out, descs.y, forward.dst_desc());
        if (bias.defined())
          primitive.add(DNNL_ARG_BIAS, Direction::in, descs.bias, forward.bias_desc());
      },
      PackedWeights::of(w));
}

bool convolution_backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                                const Tensor& dx) {
  if (!PackedWeights::of(w) && is_divided_by_channels(w, dx, options)) {
    const ChannelShares dxs(dx);
    return in_shares(dx.size(1), {dy, w, dx}, [&](std::int64_t begin, std::int64_t end) {
      const Tensor own = dxs.part(begin, end, dy);
      if (!convolution_backward_input(dy, part(w, 1, begin, end), options, own)) return false;
      table().elementwise.copy(own, part(dx, 1, begin, end));
      return true;
    });
  }
  if (is_divided(dy.size(0)))
    return in_shares(dy.size(0), {dy, w, dx}, [&](std::int64_t begin, std::int64_t end) {
      return convolution_backward_input(part(dy, 0, begin, end), w, options,
                                        part(dx, 0, begin, end));
    });
  const PrimitiveKey key('i', {dy, w, dx}, options);
  return run_cached(
      "convolution backward", key, {pointer(dy), pointer(w), pointer(dx)},
      [&](OnednnPrimitive& primitive) {
        const ConvDescs descs(dx, w, dy, {}, options);
        const auto backward = describe_backward<dnnl::convolution_backward_data>(
            descs.forward(), dnnl::algorithm::convolution_direct, descs.x, descs.w_any, descs.y,
            descs.stride, descs.dilation, descs.padding, descs.padding);
        primitive.set_primitive(backward);
        primitive.add(DNNL_ARG_DIFF_DST, Direction::in, descs.y, backward.diff_dst_desc());
        primitive.add(DNNL_ARG_WEIGHTS, Direction::in, descs.w, backward.weights_desc());
        primitive.add(DNNL_ARG_DIFF_SRC, Direction::out, descs.x, backward.diff_src_desc());
      },
      PackedWeights::of(w));
}

bool has_amx() {
  static const bool has = has_isa(dnnl::cpu_isa::avx512_core_amx);
  return has;
}

bool emulates_bfloat16() {
  static const bool emulates = !has_isa(dnnl::cpu_isa::avx512_core_bf16);
  return emulates;
}

bool misreads_strides() { return !is_older_than(3, 3); }

bool misreads_strided_groups(const ConvOptions& options) {
  return !is_older_than(3, 3) && options.groups > 1 && has_stride(options);
}

bool reads_unwritten_memory(const Tensor& x, const ConvOptions& options) {
  const bool is_padded = std::ranges::any_of(options.padding, [](auto size) { return size > 0; });
  return x.shape()[x.rank() - 1] < options.stride[x.rank() - 3] || (x.rank() == 5 && is_padded);
}

bool misreads_odd_channels(const Tensor& dy, const Tensor& w, const ConvOptions& options) {
  const bool is_pointwise = w.numel() == w.size(0) * w.size(1);
  return is_older_than(2, 7) && is_pointwise && dy.size(1) / options.groups % 2 == 1;
}

bool convolution_backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                                 const Tensor& dw, const Tensor& db) {
  if (is_divided_by_channels(dw, dy, options)) {
    const ChannelShares dys(dy);
    return in_shares(dy.size(1), {x, dy, dw, db}, [&](std::int64_t begin, std::int64_t end) {
      const Tensor own = dys.part(begin, end, x);
      table().elementwise.copy(part(dy, 1, begin, end), own);
      return convolution_backward_weight(x, own, options, part(dw, 0, begin, end),
                                         part(db, 0, begin, end));
    });
  }
  if (is_divided(x.size(0))) return backward_weight_in_shares(x, dy, options, dw, db);
  const PrimitiveKey key('w', {x, dy, dw, db}, options);
  return run_cached(
      "convolution backward", key, {pointer(x), pointer(dy), pointer(dw), pointer(db)},
      [&](OnednnPrimitive& primitive) {
        const ConvDescs descs(x, dw, dy, db, options);
        // oneDNN sums in float32. If the caller's gradient is float32, it must not be rounded to
        // bfloat16 in between.
        const Desc dw_any(descs.w_sizes, type_of(dw.dtype()), memory::format_tag::any);
        const auto backward = describe_backward<dnnl::convolution_backward_weights>(
            descs.forward(), dnnl::algorithm::convolution_direct, descs.x, dw_any, descs.bias,
            descs.y, descs.stride, descs.dilation, descs.padding, descs.padding);
        primitive.set_primitive(backward);
        primitive.add(DNNL_ARG_SRC, Direction::in, descs.x, backward.src_desc());
        primitive.add(DNNL_ARG_DIFF_DST, Direction::in, descs.y, backward.diff_dst_desc());
        primitive.add(DNNL_ARG_DIFF_WEIGHTS, Direction::out, descs.w, backward.diff_weights_desc());
        if (db.defined())
          primitive.add(DNNL_ARG_DIFF_BIAS, Direction::out, descs.bias, backward.diff_bias_desc());
      });
}

bool pooling_takes_layouts(const Tensor& x, const Tensor& y, const Tensor& index) {
  const auto format = common_format(x, y);
  return format && (!index.defined() || (index.dtype() == uint8 && index.is_contiguous(*format)));
}

namespace {

// A pooling as oneDNN describes it. The index tensor of kernels/kernels.h holds oneDNN's workspace,
// provided that this has one byte for each element of y.
struct PoolDescs {
  Desc x, y, index;
  dnnl::algorithm algorithm;
  memory::dims kernel, stride, padding, dilation;
  bool has_index;

  PoolDescs(const Tensor& x_tensor, const Tensor& y_tensor, const Tensor& index_tensor,
            const PoolOptions& options, bool max)
      : algorithm(max                         ? dnnl::algorithm::pooling_max
                  : options.count_include_pad ? dnnl::algorithm::pooling_avg_include_padding
                                              : dnnl::algorithm::pooling_avg_exclude_padding),
        kernel(dims_of(options.kernel)),
        stride(dims_of(options.stride)),
        padding(dims_of(options.padding)),
        dilation(kernel.size(), 0),
        has_index(index_tensor.defined()) {
    if (!pooling_takes_layouts(x_tensor, y_tensor, index_tensor))
      throw dnnl::error(dnnl_unimplemented, "pooling with these layouts");
    const auto format = common_format(x_tensor, y_tensor);
    x = activation_desc(x_tensor, *format);
    y = activation_desc(y_tensor, *format);
    if (has_index) index = activation_desc(index_tensor, *format);
  }

  auto forward() const {
    const auto kind = has_index ? dnnl::prop_kind::forward_training
                                : dnnl::prop_kind::forward_inference;
    const auto desc =
        describe<PoolingForward>(kind, algorithm, x, y, stride, kernel, dilation, padding, padding);
    if (has_index && desc.workspace_desc() != index)
      throw dnnl::error(dnnl_unimplemented, "max pooling's workspace");
    return desc;
  }
};

}  // namespace

bool pooling_forward(const Tensor& x, const PoolOptions& options, bool max, const Tensor& y,
                     const Tensor& index) {
  if (is_divided(x.size(0)))
    return in_shares(x.size(0), {x, y, index}, [&](std::int64_t begin, std::int64_t end) {
      return pooling_forward(part(x, 0, begin, end), options, max, part(y, 0, begin, end),
                             part(index, 0, begin, end));
    });
  const PrimitiveKey key(max ? 'M' : 'A', {x, y, index}, options);
  return run_cached(
      "pooling", key, {pointer(x), pointer(y), pointer(index)}, [&](OnednnPrimitive& primitive) {
        const PoolDescs descs(x, y, index, options, max);
        const auto forward = descs.forward();
        primitive.set_primitive(forward);
        primitive.add(DNNL_ARG_SRC, Direction::in, descs.x, forward.src_desc());
        primitive.add(DNNL_ARG_DST, Direction::out, descs.y, forward.dst_desc());
        if (index.defined())
          primitive.add(DNNL_ARG_WORKSPACE, Direction::out, descs.index, forward.workspace_desc());
      });
}

bool pooling_backward(const Tensor& dy, const Tensor& index, const PoolOptions& options, bool max,
                      const Tensor& dx) {
  if (is_divided(dy.size(0)))
    return in_shares(dy.size(0), {dy, index, dx}, [&](std::int64_t begin, std::int64_t end) {
      return pooling_backward(part(dy, 0, begin, end), part(index, 0, begin, end), options, max,
                              part(dx, 0, begin, end));
    });
  const PrimitiveKey key(max ? 'm' : 'a', {dy, index, dx}, options);
  return run_cached(
      "pooling backward", key, {pointer(dy), pointer(dx), pointer(index)},
      [&](OnednnPrimitive& primitive) {
        const PoolDescs descs(dx, dy, index, options, max);
        const auto backward = describe_backward<PoolingBackward>(
            descs.forward(), descs.algorithm, descs.x, descs.y, descs.stride, descs.kernel,
            descs.dilation, descs.padding, descs.padding);
        primitive.set_primitive(backward);
        primitive.add(DNNL_ARG_DIFF_DST, Direction::in, descs.y, backward.diff_dst_desc());
        primitive.add(DNNL_ARG_DIFF_SRC, Direction::out, descs.x, backward.diff_src_desc());
        if (index.defined())
          primitive.add(DNNL_ARG_WORKSPACE, Direction::in, descs.index, backward.workspace_desc());
      });
}

namespace {

Desc matrix_desc(const Tensor& t, DType dtype) {
  memory::dims sizes = dims_of(t.shape()), strides = dims_of(t.strides());
  // A batch dimension that is expanded in the tensor broadcasts in oneDNN.
  for (std::size_t d = 0; d + 2 < sizes.size(); ++d)
    if (strides[d] == 0) strides[d] = sizes[d] = 1;
  // Strides of dimensions of size 1 are arbitrary, but some of oneDNN's kernels read them. They are
  // replaced by the strides of a dense matrix.
  const std::size_t column = sizes.size() - 1, row = column - 1;
  if (sizes[row] == 1) strides[row] = strides[column] == 1 ? sizes[column] : 1;
  if (sizes[column] == 1) strides[column] = strides[row] == 1 ? sizes[row] : 1;
  return Desc(sizes, type_of(dtype), strides);
}

// Describes a bias as a tensor of the rank of `out` that broadcasts.
Desc bias_desc(const Tensor& bias, const Tensor& out) {
  if (!bias.defined()) return {};
  memory::dims sizes(static_cast<std::size_t>(out.rank()), 1);
  sizes.back() = bias.numel();
  return Desc(sizes, type_of(bias.dtype()), dims_of(dense_strides(Shape(sizes))));
}

}  // namespace

bool matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  if (const auto result = matmul_in_shares(a, b, bias, out)) return *result;
  const PrimitiveKey key('p', {a, b, bias, out});
  return run_cached("matmul", key, {pointer(a), pointer(b), pointer(out), pointer(bias)},
                    [&](OnednnPrimitive& primitive) {
                      // Both factors have the dtype of `a`: a reorder converts a float32 `b`.
                      const Desc a_desc = matrix_desc(a, a.dtype()),
                                 b_desc = matrix_desc(b, a.dtype()),
                                 out_desc = matrix_desc(out, out.dtype()),
                                 added = bias_desc(bias, out);
                      const auto product = describe<dnnl::matmul>(a_desc, b_desc, added, out_desc);
                      primitive.set_primitive(product);
                      primitive.add(DNNL_ARG_SRC, Direction::in, a_desc, product.src_desc());
                      primitive.add(DNNL_ARG_WEIGHTS, Direction::in, matrix_desc(b, b.dtype()),
                                    product.weights_desc());
                      primitive.add(DNNL_ARG_DST, Direction::out, out_desc, product.dst_desc());
                      if (bias.defined())
                        primitive.add(DNNL_ARG_BIAS, Direction::in, added, product.bias_desc());
                    });
}

}  // namespace tutti::kernels::cpu::onednn
