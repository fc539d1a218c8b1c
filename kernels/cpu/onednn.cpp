#include "onednn.h"

#include "onednn_plan.h"

#include <optional>

namespace tutti::kernels::cpu::onednn {
namespace {

memory::data_type type_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return memory::data_type::f32;
    case DType::bfloat16: return memory::data_type::bf16;
    case DType::uint8: return memory::data_type::u8;
    default: fail<DTypeError>("oneDNN: no kernels for {}", to_string(dtype));
  }
}

memory::dims list(const Dims& dims, std::int64_t minus = 0) {
  memory::dims result(dims.begin(), dims.end());
  for (auto& value : result) value -= minus;
  return result;
}

void* pointer(const Tensor& tensor) { return tensor.defined() ? tensor.raw() : nullptr; }

Desc vector_desc(const Tensor& tensor) {
  return {list(tensor.shape()), type_of(tensor.dtype()), memory::format_tag::a};
}

// The layout that two activations share; none for other strides.
std::optional<MemoryFormat> common_format(const Tensor& x, const Tensor& y) {
  for (MemoryFormat format : {MemoryFormat::channels_last, MemoryFormat::contiguous})
    if (x.is_contiguous(format) && y.is_contiguous(format)) return format;
  return {};
}

// Activations are described with their format's exact strides: oneDNN finds its fast kernels by
// those, also where a size of 1 (one input channel) leaves the strides of a tensor open.
Desc activation(const Tensor& t, MemoryFormat format) {
  return {list(t.shape()), type_of(t.dtype()), list(dense_strides(t.shape(), format))};
}

// What a convolution looks like to oneDNN.
struct ConvDescs {
  Desc x, w, w_any, y, bias;
  memory::dims stride, dilation, padding;

  ConvDescs(const Tensor& x_tensor, const Tensor& w_tensor, const Tensor& y_tensor,
            const Tensor& bias_tensor, const ConvOptions& options)
      : stride(list(options.stride)),
        dilation(list(options.dilation, 1)),
        padding(list(options.padding)) {
    const auto format = common_format(x_tensor, y_tensor);
    if (!format)
      fail<ShapeError>(
          "convolution: expected input {} and output {} to be both contiguous or both "
          "channels_last",
          to_string(x_tensor.shape()), to_string(y_tensor.shape()));
    x = activation(x_tensor, *format);
    y = activation(y_tensor, *format);
    memory::dims sizes = list(w_tensor.shape()), steps = list(w_tensor.strides());
    if (options.groups > 1) {  // (O, I/g, ...) is (g, O/g, I/g, ...) to oneDNN
      sizes[0] /= options.groups;
      steps.insert(steps.begin(), steps[0] * sizes[0]);
      sizes.insert(sizes.begin(), options.groups);
    }
    w = Desc(sizes, type_of(w_tensor.dtype()), steps);
    w_any = Desc(sizes, type_of(x_tensor.dtype()), memory::format_tag::any);
    if (bias_tensor.defined()) bias = vector_desc(bias_tensor);
  }

  auto forward() const {
    using Forward = dnnl::convolution_forward;
    return Forward::primitive_desc(
        Forward::desc(dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, x,
                      w_any, bias, y, stride, dilation, padding, padding),
        attributes(), engine());
  }
};

}  // namespace

bool convolution_forward(const Tensor& x, const Tensor& w, const Tensor& bias,
                         const ConvOptions& options, const Tensor& y) {
  Key key('f');
  for (const Tensor& t : {x, w, bias, y}) key.add(t);
  key.add(options);
  return run("convolution", key, {pointer(x), pointer(w), pointer(y), pointer(bias)},
             [&](Plan& plan) {
               const ConvDescs descs(x, w, y, bias, options);
               const auto forward = descs.forward();
               plan.set_primitive(forward);
               plan.add(DNNL_ARG_SRC, Plan::Direction::in, descs.x, forward.src_desc());
               plan.add(DNNL_ARG_WEIGHTS, Plan::Direction::in, descs.w, forward.weights_desc());
               plan.add(DNNL_ARG_DST, Plan::Direction::out, descs.y, forward.dst_desc());
               if (bias.defined())
                 plan.add(DNNL_ARG_BIAS, Plan::Direction::in, descs.bias, forward.bias_desc());
             });
}

bool convolution_backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                                const Tensor& dx) {
  Key key('i');
  for (const Tensor& t : {dy, w, dx}) key.add(t);
  key.add(options);
  return run("convolution backward", key, {pointer(dy), pointer(w), pointer(dx)}, [&](Plan& plan) {
    using BackwardData = dnnl::convolution_backward_data;
    const ConvDescs descs(dx, w, dy, {}, options);
    const BackwardData::primitive_desc backward(
        BackwardData::desc(dnnl::algorithm::convolution_direct, descs.x, descs.w_any, descs.y,
                           descs.stride, descs.dilation, descs.padding, descs.padding),
        attributes(), engine(), descs.forward());
    plan.set_primitive(backward);
    plan.add(DNNL_ARG_DIFF_DST, Plan::Direction::in, descs.y, backward.diff_dst_desc());
    plan.add(DNNL_ARG_WEIGHTS, Plan::Direction::in, descs.w, backward.weights_desc());
    plan.add(DNNL_ARG_DIFF_SRC, Plan::Direction::out, descs.x, backward.diff_src_desc());
  });
}

bool convolution_backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                                 const Tensor& dw, const Tensor& db) {
  // oneDNN 2.6.3 reads scratch memory it never wrote where bfloat16 rows are shorter than the
  // stride: NaN, at times.
  if (x.dtype() == bfloat16 && x.shape()[x.rank() - 1] < options.stride[x.rank() - 3]) return false;
  Key key('w');
  for (const Tensor& t : {x, dy, dw, db}) key.add(t);
  key.add(options);
  return run("convolution backward", key, {pointer(x), pointer(dy), pointer(dw), pointer(db)},
             [&](Plan& plan) {
               using BackwardWeights = dnnl::convolution_backward_weights;
               const ConvDescs descs(x, dw, dy, db, options);
               // The gradient is summed in float32 anyway: where the caller keeps it so, it must
               // not be rounded on the way.
               const Desc dw_any(descs.w.dims(), descs.w.data_type(), memory::format_tag::any);
               const BackwardWeights::primitive_desc backward(
                   BackwardWeights::desc(dnnl::algorithm::convolution_direct, descs.x, dw_any,
                                         descs.bias, descs.y, descs.stride, descs.dilation,
                                         descs.padding, descs.padding),
                   attributes(), engine(), descs.forward());
               plan.set_primitive(backward);
               plan.add(DNNL_ARG_SRC, Plan::Direction::in, descs.x, backward.src_desc());
               plan.add(DNNL_ARG_DIFF_DST, Plan::Direction::in, descs.y, backward.diff_dst_desc());
               plan.add(DNNL_ARG_DIFF_WEIGHTS, Plan::Direction::out, descs.w,
                        backward.diff_weights_desc());
               if (db.defined())
                 plan.add(DNNL_ARG_DIFF_BIAS, Plan::Direction::out, descs.bias,
                          backward.diff_bias_desc());
             });
}

namespace {

// What a pooling looks like to oneDNN. Its workspace of max pooling is what kernels/pooling.h calls
// the index, as long as that is one byte for each element of y.
struct PoolDescs {
  Desc x, y, index;
  dnnl::algorithm algorithm;
  memory::dims kernel, stride, padding, dilation;

  PoolDescs(const Tensor& x_tensor, const Tensor& y_tensor, const Tensor& index_tensor,
            const PoolOptions& options, bool max)
      : algorithm(max                         ? dnnl::algorithm::pooling_max
                  : options.count_include_pad ? dnnl::algorithm::pooling_avg_include_padding
                                              : dnnl::algorithm::pooling_avg_exclude_padding),
        kernel(list(options.kernel)),
        stride(list(options.stride)),
        padding(list(options.padding)),
        dilation(kernel.size(), 0) {
    const auto format = common_format(x_tensor, y_tensor);
    const bool index_fits = !index_tensor.defined() || (index_tensor.dtype() == uint8 && format &&
                                                        index_tensor.is_contiguous(*format));
    if (!format || !index_fits) throw dnnl::error(dnnl_unimplemented, "pooling with these layouts");
    x = activation(x_tensor, *format);
    y = activation(y_tensor, *format);
    if (index_tensor.defined()) index = activation(index_tensor, *format);
  }

  auto forward() const {
    using Forward = dnnl::pooling_v2_forward;
    const auto kind = index ? dnnl::prop_kind::forward_training
                            : dnnl::prop_kind::forward_inference;
    const Forward::primitive_desc desc(
        Forward::desc(kind, algorithm, x, y, stride, kernel, dilation, padding, padding),
        attributes(), engine());
    if (index && desc.workspace_desc() != index)
      throw dnnl::error(dnnl_unimplemented, "max pooling's workspace");
    return desc;
  }
};

}  // namespace

bool pooling_forward(const Tensor& x, const PoolOptions& options, bool max, const Tensor& y,
                     const Tensor& index) {
  Key key(max ? 'M' : 'A');
  for (const Tensor& t : {x, y, index}) key.add(t);
  key.add(options);
  return run("pooling", key, {pointer(x), pointer(y), pointer(index)}, [&](Plan& plan) {
    const PoolDescs descs(x, y, index, options, max);
    const auto forward = descs.forward();
    plan.set_primitive(forward);
    plan.add(DNNL_ARG_SRC, Plan::Direction::in, descs.x, forward.src_desc());
    plan.add(DNNL_ARG_DST, Plan::Direction::out, descs.y, forward.dst_desc());
    if (index.defined())
      plan.add(DNNL_ARG_WORKSPACE, Plan::Direction::out, descs.index, forward.workspace_desc());
  });
}

bool pooling_backward(const Tensor& dy, const Tensor& index, const PoolOptions& options, bool max,
                      const Tensor& dx) {
  Key key(max ? 'm' : 'a');
  for (const Tensor& t : {dy, index, dx}) key.add(t);
  key.add(options);
  return run("pooling backward", key, {pointer(dy), pointer(dx), pointer(index)}, [&](Plan& plan) {
    using Backward = dnnl::pooling_v2_backward;
    const PoolDescs descs(dx, dy, index, options, max);
    const Backward::primitive_desc backward(
        Backward::desc(descs.algorithm, descs.x, descs.y, descs.stride, descs.kernel,
                       descs.dilation, descs.padding, descs.padding),
        attributes(), engine(), descs.forward());
    plan.set_primitive(backward);
    plan.add(DNNL_ARG_DIFF_DST, Plan::Direction::in, descs.y, backward.diff_dst_desc());
    plan.add(DNNL_ARG_DIFF_SRC, Plan::Direction::out, descs.x, backward.diff_src_desc());
    if (index.defined())
      plan.add(DNNL_ARG_WORKSPACE, Plan::Direction::in, descs.index, backward.workspace_desc());
  });
}

bool matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  Key key('p');
  for (const Tensor& t : {a, b, bias, out}) key.add(t);
  return run("matmul", key, {pointer(a), pointer(b), pointer(out), pointer(bias)}, [&](Plan& plan) {
    const auto operand = [&](const Tensor& t, DType dtype) {
      memory::dims sizes = list(t.shape()), steps = list(t.strides());
      for (std::size_t d = 0; d + 2 < sizes.size(); ++d)
        if (steps[d] == 0)
          steps[d] = sizes[d] = 1;  // an expanded batch dimension is one that broadcasts
      // Strides of size-1 dimensions say nothing, but not to all of oneDNN's kernels: those of a
      // dense matrix.
      const std::size_t column = sizes.size() - 1, row = column - 1;
      if (sizes[row] == 1) steps[row] = steps[column] == 1 ? sizes[column] : 1;
      if (sizes[column] == 1) steps[column] = steps[row] == 1 ? sizes[row] : 1;
      return Desc(sizes, type_of(dtype), steps);
    };
    const DType dtype = a.dtype();
    const Desc a_desc = operand(a, dtype), b_desc = operand(b, dtype),
               out_desc = operand(out, out.dtype());
    Desc bias_desc;
    if (bias.defined()) {
      memory::dims sizes(static_cast<std::size_t>(out.rank()), 1), steps = sizes;
      sizes.back() = bias.numel();
      bias_desc =
          Desc(sizes, type_of(bias.dtype()), dnnl::memory::dims(list(dense_strides(Shape(sizes)))));
    }
    const dnnl::matmul::primitive_desc product(
        dnnl::matmul::desc(a_desc, b_desc, bias_desc, out_desc), attributes(), engine());
    plan.set_primitive(product);
    plan.add(DNNL_ARG_SRC, Plan::Direction::in, a_desc, product.src_desc());
    plan.add(DNNL_ARG_WEIGHTS, Plan::Direction::in, operand(b, b.dtype()), product.weights_desc());
    plan.add(DNNL_ARG_DST, Plan::Direction::out, out_desc, product.dst_desc());
    if (bias.defined())
      plan.add(DNNL_ARG_BIAS, Plan::Direction::in, bias_desc, product.bias_desc());
  });
}

}  // namespace tutti::kernels::cpu::onednn
