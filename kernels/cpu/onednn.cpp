// Convolutions by oneDNN.
#include "onednn.h"

#include "../../core/create.h"
#include "../kernels.h"
#include "onednn_limits.h"
#include "onednn_primitive.h"
#include "onednn_shares.h"

#include <algorithm>
#include <optional>

namespace tutti::kernels::cpu::onednn {
namespace {

// The numbers of a convolution's tensors among the pointers of a call.
enum Number : std::size_t { number_of_x, number_of_w, number_of_y, number_of_bias };

// A convolution whose x, w and y may also be their gradients.
struct Convolution {
  Tensor x, w, y, bias;
  ConvOptions options;
  bool is_last = true;      // channels_last, else contiguous
  bool is_product = false;  // of which the positions of all images are one long row

  Convolution(const Tensor& x_tensor, const Tensor& w_tensor, const Tensor& y_tensor,
              const Tensor& bias_tensor, const ConvOptions& given)
      : x(x_tensor), w(w_tensor), y(y_tensor), bias(bias_tensor), options(given) {
    constexpr MemoryFormat last = MemoryFormat::channels_last;
    is_last = x.is_contiguous(last) && y.is_contiguous(last);
    if (!is_last && !(x.is_contiguous() && y.is_contiguous()))
      fail<ShapeError>(
          "convolution: expected input {} and output {} to be both contiguous or both "
          "channels_last",
          to_string(x.shape()), to_string(y.shape()));
  }

  /// Makes a product of a convolution with kernels of one element and without stride or padding.
  void merge_positions() {
    const auto all = [](const Dims& dims, std::int64_t value) {
      return std::ranges::all_of(dims, [=](std::int64_t d) { return d == value; });
    };
    is_product = is_last && options.groups == 1 && w.numel() == w.size(0) * w.size(1) &&
                 all(options.stride, 1) && all(options.padding, 0);
    if (!is_product) return;
    x = as_row(x), y = as_row(y);
    w = w.alias({w.size(0), w.size(1), 1}, {w.strides()[0], w.strides()[1], 1}, w.offset());
    options = {};
  }

  MemoryFormat format() const {
    return is_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
  }
  std::int64_t stride() const { return options.stride[0]; }
  std::int64_t padding() const { return options.padding[0]; }
  /// The rows that a window reaches over.
  std::int64_t reach() const { return options.dilation[0] * (w.size(2) - 1) + 1; }

  /// The sizes that decide how `divided`, x or y, is divided into blocks.
  Work work(const Tensor& divided) const {
    // oneDNN's kernels compute 16 channels at a time (8 with AVX2) and some positions of a product.
    constexpr std::int64_t channels_at_a_time = 16, positions_at_a_time = 16;
    Work work{.images = x.size(0),
              .multiplications = static_cast<double>(y.numel()) *
                                 static_cast<double>(w.numel() / w.size(0)),
              .x = static_cast<double>(x.numel()),
              .w = static_cast<double>(w.numel()),
              .y = static_cast<double>(y.numel()),
              .copies_channels = is_last || x.size(0) > 1};
    if (divided.is_same(x)) std::swap(work.x, work.y);
    if (options.groups == 1) {
      work.channels = divided.size(1);
      work.channel_unit = channels_at_a_time;
    } else if (!is_last) {
      work.channels = options.groups;
    }
    if (is_product) work.row_unit = positions_at_a_time;
    else if (x.rank() == 3) work.row_unit = 2;  // as reads_unwritten_memory() asks
    return work;
  }

 private:
  static Tensor as_row(const Tensor& t) {
    const std::int64_t channels = t.size(1), positions = t.numel() / channels;
    return t.alias({1, channels, positions}, {t.numel(), 1, channels}, t.offset());
  }
};

// What one call computes of a convolution. `lead` and `trail` are the padding above and below its
// rows.
struct ConvPart {
  Range images, x_rows, y_rows, ins, outs;
  std::int64_t groups, lead, trail;

  ConvPart(const Convolution& c, const Range& given_images)
      : images(given_images),
        x_rows{0, c.x.size(2)},
        y_rows{0, c.y.size(2)},
        ins{0, c.x.size(1)},
        outs{0, c.y.size(1)},
        groups(c.options.groups),
        lead(c.padding()),
        trail(c.padding()) {}

  /// Takes some groups, or some of the input or output channels where there is one group.
  void cut_channels(const Convolution& c, const Range& channels, Range ConvPart::*cut) {
    if (groups == 1) {
      this->*cut = channels;
    } else if (!c.is_last) {
      const std::int64_t ins_each = c.x.size(1) / groups, outs_each = c.y.size(1) / groups;
      ins = {channels.begin * ins_each, channels.end * ins_each};
      outs = {channels.begin * outs_each, channels.end * outs_each};
      groups = channels.size();
    }
  }
};

// Returns what computes a block of y, or the summand that a block of dy is for the gradient of w.
ConvPart part_of_outputs(const Convolution& c, const Work& work, const Block& block) {
  ConvPart part(c, block.images);
  part.cut_channels(c, block.channels, &ConvPart::outs);
  if (block.rows.size() == work.rows) return part;
  const std::int64_t first = block.rows.begin * c.stride() - c.padding(),
                     last = (block.rows.end - 1) * c.stride() - c.padding() + c.reach();
  part.y_rows = block.rows;
  part.x_rows = {std::max<std::int64_t>(0, first), std::min(last, c.x.size(2))};
  part.lead = part.x_rows.begin - first;
  part.trail = last - part.x_rows.end;
  return part;
}

Work work_of_outputs(const Convolution& c) {
  Work work = c.work(c.y);
  if (c.is_last && c.padding() < c.reach()) work.rows = c.y.size(2);
  return work;
}

// Returns what computes a block of dx, of which a row stands for as many as the stride.
ConvPart part_of_inputs(const Convolution& c, const Work& work, const Block& block) {
  ConvPart part(c, block.images);
  part.cut_channels(c, block.channels, &ConvPart::ins);
  if (block.rows.size() == work.rows) return part;
  const std::int64_t begin = block.rows.begin * c.stride(),
                     end = block.rows.end == work.rows ? c.x.size(2) : block.rows.end * c.stride();
  // The first window that ends behind `begin`, and the one behind the last that begins before
  // `end`.
  const std::int64_t above = begin + c.padding() - c.reach();
  const std::int64_t first = above < 0 ? 0 : above / c.stride() + 1,
                     last = std::min(c.y.size(2), (end - 1 + c.padding()) / c.stride() + 1);
  part.x_rows = {begin, end};
  part.y_rows = {first, last};
  part.lead = begin + c.padding() - first * c.stride();
  part.trail = (last - 1) * c.stride() + c.reach() - c.padding() - end;
  return part;
}

Work work_of_inputs(const Convolution& c) {
  Work work = c.work(c.x);
  if (!c.is_last || c.padding() >= c.reach() ||
      (c.reach() < c.stride() && c.padding() % c.stride() != 0))
    return work;
  const std::int64_t rows = (c.y.size(2) - 1) * c.stride() + c.reach() - c.padding();
  work.rows = (std::min(rows, c.x.size(2)) + c.stride() - 1) / c.stride();
  return work;
}

// A part of a convolution as oneDNN describes it: its operands, the layouts of the activations that
// its fast kernels recognise, and that of the weight, which is left to oneDNN.
struct ConvDescs {
  Operand x, w, y, bias;
  Desc dense_x, dense_y, w_any, dw_any;
  memory::dims stride, dilation, lead, trail;

  /// `w_dtype`: that of the weight in the caller's memory.
  ConvDescs(const Convolution& c, const ConvPart& part, DType w_dtype)
      : stride(dims_of(c.options.stride)),
        dilation(dims_of(c.options.dilation)),
        lead(dims_of(c.options.padding)),
        trail(lead) {
    for (auto& value : dilation) --value;  // A dense kernel has dilation 0 in oneDNN.
    lead[0] = part.lead, trail[0] = part.trail;
    describe_activation(c, c.x, {part.images, part.x_rows, part.ins}, x, dense_x);
    describe_activation(c, c.y, {part.images, part.y_rows, part.outs}, y, dense_y);
    x.tensor = number_of_x, y.tensor = number_of_y;
    describe_weight(c, part, w_dtype);
    if (!c.bias.defined()) return;
    bias = {number_of_bias, bytes_of(part.outs.begin, c.bias.dtype()),
            Desc({part.outs.size()}, type_of(c.bias.dtype()), memory::format_tag::a)};
  }

  auto forward() const {
    return describe<dnnl::convolution_forward>(dnnl::prop_kind::forward_training,
                                               dnnl::algorithm::convolution_direct, dense_x, w_any,
                                               bias.desc, dense_y, stride, dilation, lead, trail);
  }

 private:
  // The tensor's own strides are arbitrary in dimensions of size 1 (one input channel).
  static void describe_activation(const Convolution& c, const Tensor& t, const Block& block,
                                  Operand& operand, Desc& dense) {
    Shape shape = t.shape();
    shape[0] = block.images.size(), shape[1] = block.channels.size(), shape[2] = block.rows.size();
    const Strides whole = dense_strides(t.shape(), c.format()),
                  own = dense_strides(shape, c.format());
    bool has_gaps = false;
    for (int d = 0; d < shape.size(); ++d) has_gaps |= shape[d] > 1 && whole[d] != own[d];
    dense = Desc(dims_of(shape), type_of(t.dtype()), dims_of(own));
    operand.desc = has_gaps ? Desc(dims_of(shape), type_of(t.dtype()), dims_of(whole)) : dense;
    operand.offset = bytes_of(block.images.begin * whole[0] + block.channels.begin * whole[1] +
                                  block.rows.begin * whole[2],
                              t.dtype());
  }

  void describe_weight(const Convolution& c, const ConvPart& part, DType dtype) {
    memory::dims sizes = dims_of(c.w.shape()), steps = dims_of(c.w.strides());
    std::int64_t begin = part.outs.begin * steps[0];
    sizes[0] = part.outs.size();
    if (c.options.groups == 1) {
      sizes[1] = part.ins.size();
      begin += part.ins.begin * steps[1];
    } else {  // oneDNN reads (O, I/g, ...) as (g, O/g, I/g, ...).
      sizes[0] /= part.groups;
      steps.insert(steps.begin(), steps[0] * sizes[0]);
      sizes.insert(sizes.begin(), part.groups);
    }
    w = {number_of_w, bytes_of(begin, dtype), Desc(sizes, type_of(dtype), steps)};
    w_any = Desc(sizes, type_of(c.x.dtype()), memory::format_tag::any);
    // oneDNN sums in float32. If the caller's gradient is float32, it must not be rounded to
    // bfloat16 in between.
    dw_any = Desc(sizes, type_of(dtype), memory::format_tag::any);
  }
};

void add_forward(Plan& plan, const Convolution& c, const ConvPart& part) {
  const ConvDescs descs(c, part, c.w.dtype());
  const auto forward = descs.forward();
  plan.add_primitive(forward);
  plan.add(DNNL_ARG_SRC, descs.x, forward.src_desc());
  plan.add(DNNL_ARG_WEIGHTS, descs.w, forward.weights_desc());
  plan.add(DNNL_ARG_DST, descs.y, forward.dst_desc());
  if (c.bias.defined()) plan.add(DNNL_ARG_BIAS, descs.bias, forward.bias_desc());
}

void add_backward_input(Plan& plan, const Convolution& c, const ConvPart& part) {
  const ConvDescs descs(c, part, c.w.dtype());
  const auto backward = describe_backward<dnnl::convolution_backward_data>(
      descs.forward(), dnnl::algorithm::convolution_direct, descs.dense_x, descs.w_any,
      descs.dense_y, descs.stride, descs.dilation, descs.lead, descs.trail);
  plan.add_primitive(backward);
  plan.add(DNNL_ARG_DIFF_DST, descs.y, backward.diff_dst_desc());
  plan.add(DNNL_ARG_WEIGHTS, descs.w, backward.weights_desc());
  plan.add(DNNL_ARG_DIFF_SRC, descs.x, backward.diff_src_desc());
}

// Adds what computes a summand of the gradients, or the gradients themselves if `copy` is none.
void add_backward_weight(Plan& plan, const Convolution& c, const ConvPart& part,
                         std::optional<std::int64_t> copy) {
  ConvDescs descs(c, part, copy ? float32 : c.w.dtype());
  descs.w.copy = copy;
  if (copy && c.bias.defined())
    descs.bias = {number_of_bias, bytes_of(part.outs.begin, float32),
                  Desc({part.outs.size()}, type_of(float32), memory::format_tag::a), copy};
  const auto backward = describe_backward<dnnl::convolution_backward_weights>(
      descs.forward(), dnnl::algorithm::convolution_direct, descs.dense_x, descs.dw_any,
      descs.bias.desc, descs.dense_y, descs.stride, descs.dilation, descs.lead, descs.trail);
  plan.add_primitive(backward);
  plan.add(DNNL_ARG_SRC, descs.x, backward.src_desc());
  plan.add(DNNL_ARG_DIFF_DST, descs.y, backward.diff_dst_desc());
  plan.add(DNNL_ARG_DIFF_WEIGHTS, descs.w, backward.diff_weights_desc());
  if (c.bias.defined()) plan.add(DNNL_ARG_DIFF_BIAS, descs.bias, backward.diff_bias_desc());
}

}  // namespace

bool convolution_forward(const Tensor& x, const Tensor& w, const Tensor& bias,
                         const ConvOptions& options, const Tensor& y) {
  const auto build = [&](Plan& plan, int threads) {
    if (misreads_windows(w, options, y))
      throw dnnl::error(dnnl_unimplemented, "a fault of this version");
    Convolution c(x, w, y, bias, options);
    // The best kernel of oneDNN 2.6.3 for AMX computes two images or more.
    if (x.dtype() != bfloat16 || !has_amx()) c.merge_positions();
    const Work work = work_of_outputs(c);
    for (const Blocks& share : divide(work, threads)) {
      plan.add_share();
      for (const Block& block : share) add_forward(plan, c, part_of_outputs(c, work, block));
    }
  };
  return run_cached("convolution", PlanKey('f', {x, w, bias, y}, options),
                    {pointer(x), pointer(w), pointer(y), pointer(bias)}, build,
                    PackedWeights::of(w));
}

bool convolution_backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                                const Tensor& dx) {
  const auto build = [&](Plan& plan, int threads) {
    Convolution c(dx, w, dy, {}, options);
    c.merge_positions();
    const Work work = work_of_inputs(c);
    for (const Blocks& share : divide(work, threads)) {
      plan.add_share();
      for (const Block& block : share) add_backward_input(plan, c, part_of_inputs(c, work, block));
    }
  };
  return run_cached("convolution backward", PlanKey('i', {dy, w, dx}, options),
                    {pointer(dx), pointer(w), pointer(dy)}, build, PackedWeights::of(w));
}

bool convolution_backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                                 const Tensor& dw, const Tensor& db) {
  if (spanned_elements(dw.shape(), dw.strides()) != dw.numel()) {  // the plan adds dense copies
    const Tensor dense = empty(dw.shape(), {dw.dtype()});
    if (!convolution_backward_weight(x, dy, options, dense, db)) return false;
    table().elementwise.copy(dense, dw);
    return true;
  }
  const auto build = [&](Plan& plan, int threads) {
    Convolution c(x, dw, dy, db, options);
    c.merge_positions();
    Work work = work_of_outputs(c);
    work.adds_rows = true;
    const std::vector<Blocks> shares = divide(work, threads);
    const std::int64_t copies = copies_of(shares);
    if (copies > 1) {
      plan.add_sum(number_of_w, dw.numel(), dw.dtype(), copies);
      if (db.defined()) plan.add_sum(number_of_bias, db.numel(), db.dtype(), copies);
    }
    std::int64_t next = 0;
    for (const Blocks& share : shares) {
      plan.add_share();
      for (const Block& block : share) {
        const auto copy = copies > 1 ? std::optional(next++ % copies) : std::nullopt;
        add_backward_weight(plan, c, part_of_outputs(c, work, block), copy);
      }
    }
  };
  return run_cached("convolution backward", PlanKey('w', {x, dy, dw, db}, options),
                    {pointer(x), pointer(dw), pointer(dy), pointer(db)}, build);
}

}  // namespace tutti::kernels::cpu::onednn
