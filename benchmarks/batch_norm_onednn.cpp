// The peer that is oneDNN's batch normalization in training. It has no residual, so add and ReLU
// are its binary primitive with a ReLU after it, and the backward of its ReLU. It keeps no running
// statistics, so it has slightly less to do than the other peers.
#include "batch_norm_peers.h"

#include <dnnl.hpp>

#include <algorithm>
#include <unordered_map>

namespace tutti::benchmarks {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;
using Arguments = std::unordered_map<int, memory>;

const auto flags = dnnl::normalization_flags::use_scale | dnnl::normalization_flags::use_shift;

// oneDNN 3 makes primitive descriptors directly, oneDNN 2 from operation descriptors.
#if DNNL_VERSION_MAJOR >= 3
auto normalization_forward(const dnnl::engine& e, const memory::desc& x) {
  return dnnl::batch_normalization_forward::primitive_desc(e, prop_kind::forward_training, x, x,
                                                           batch_norm_eps, flags);
}
auto normalization_backward(const dnnl::engine& e, const memory::desc& x,
                            const dnnl::batch_normalization_forward::primitive_desc& forward) {
  return dnnl::batch_normalization_backward::primitive_desc(e, prop_kind::backward, x, x, x,
                                                            batch_norm_eps, flags, forward);
}
auto binary_add(const dnnl::engine& e, const memory::desc& x,
                const dnnl::primitive_attr& attributes) {
  return dnnl::binary::primitive_desc(e, algorithm::binary_add, x, x, x, attributes);
}
auto relu_backward(const dnnl::engine& e, const memory::desc& x) {
  constexpr auto kind = algorithm::eltwise_relu_use_dst_for_bwd;
  const dnnl::eltwise_forward::primitive_desc forward(e, prop_kind::forward_training, kind, x, x,
                                                      0.f);
  return dnnl::eltwise_backward::primitive_desc(e, kind, x, x, x, 0.f, 0.f, forward);
}
void append_relu(dnnl::post_ops& ops) { ops.append_eltwise(algorithm::eltwise_relu, 0.f, 0.f); }
#else
auto normalization_forward(const dnnl::engine& e, const memory::desc& x) {
  return dnnl::batch_normalization_forward::primitive_desc(
      {prop_kind::forward_training, x, batch_norm_eps, flags}, e);
}
auto normalization_backward(const dnnl::engine& e, const memory::desc& x,
                            const dnnl::batch_normalization_forward::primitive_desc& forward) {
  return dnnl::batch_normalization_backward::primitive_desc(
      {prop_kind::backward, x, x, batch_norm_eps, flags}, e, forward);
}
auto binary_add(const dnnl::engine& e, const memory::desc& x,
                const dnnl::primitive_attr& attributes) {
  return dnnl::binary::primitive_desc({algorithm::binary_add, x, x, x}, attributes, e);
}
auto relu_backward(const dnnl::engine& e, const memory::desc& x) {
  constexpr auto kind = algorithm::eltwise_relu_use_dst_for_bwd;
  const dnnl::eltwise_forward::primitive_desc forward({prop_kind::forward_training, kind, x, 0.f},
                                                      e);
  return dnnl::eltwise_backward::primitive_desc({kind, x, x, 0.f, 0.f}, e, forward);
}
void append_relu(dnnl::post_ops& ops) {
  ops.append_eltwise(1.f, algorithm::eltwise_relu, 0.f, 0.f);
}
#endif

dnnl::primitive_attr with_relu() {
  dnnl::post_ops ops;
  append_relu(ops);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(ops);
  return attributes;
}

class OneDnn final : public BatchNormPeer {
 public:
  OneDnn(const BatchNormCase& of, const std::vector<StepInputs>& inputs)
      : case_(of),
        inputs_(inputs),
        x_({of.batch, of.channels, of.height, of.width},
           of.dtype == bfloat16 ? memory::data_type::bf16 : memory::data_type::f32,
           of.format == MemoryFormat::channels_last ? memory::format_tag::nhwc
                                                    : memory::format_tag::nchw),
        channels_({of.channels}, memory::data_type::f32, memory::format_tag::x),
        forward_pd_(normalization_forward(engine_, x_)),
        forward_(forward_pd_),
        backward_(normalization_backward(engine_, x_, forward_pd_)),
        add_(binary_add(engine_, x_, with_relu())),
        relu_(relu_backward(engine_, x_)) {
    for (memory* m : {&weight_, &bias_, &weight_grad_, &bias_grad_})
      *m = memory(channels_, engine_);
    std::fill_n(static_cast<float*>(weight_.get_data_handle()), of.channels, 1.f);
    std::fill_n(static_cast<float*>(bias_.get_data_handle()), of.channels, 0.f);
    for (const StepInputs& in : inputs) {
      Step s{in.x.detach(),
             empty_like(in.x),
             empty_like(in.x),
             of.add_relu ? empty_like(in.x) : Tensor(),
             {},
             {}};
      s.mean = memory(channels_, engine_);
      s.variance = memory(channels_, engine_);
      steps_.push_back(s);
    }
  }

  void forward(std::size_t set) override {
    const Step& s = steps_[set];
    const memory y = on(s.y);
    run(forward_, {{DNNL_ARG_SRC, on(s.x)},
                   {DNNL_ARG_SCALE, weight_},
                   {DNNL_ARG_SHIFT, bias_},
                   {DNNL_ARG_DST, y},
                   {DNNL_ARG_MEAN, s.mean},
                   {DNNL_ARG_VARIANCE, s.variance}});
    if (case_.add_relu)
      run(add_,
          {{DNNL_ARG_SRC_0, y}, {DNNL_ARG_SRC_1, on(inputs_[set].residual)}, {DNNL_ARG_DST, y}});
    stream_.wait();
  }
  void backward(std::size_t set) override {
    const Step& s = steps_[set];
    memory dy = on(inputs_[set].dy);
    if (case_.add_relu) {
      const memory masked = on(s.residual_grad);
      run(relu_, {{DNNL_ARG_DST, on(s.y)}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_SRC, masked}});
      dy = masked;
    }
    run(backward_, {{DNNL_ARG_SRC, on(s.x)},
                    {DNNL_ARG_MEAN, s.mean},
                    {DNNL_ARG_VARIANCE, s.variance},
                    {DNNL_ARG_SCALE, weight_},
                    {DNNL_ARG_SHIFT, bias_},
                    {DNNL_ARG_DIFF_DST, dy},
                    {DNNL_ARG_DIFF_SRC, on(s.dx)},
                    {DNNL_ARG_DIFF_SCALE, weight_grad_},
                    {DNNL_ARG_DIFF_SHIFT, bias_grad_}});
    stream_.wait();
  }
  Tensor output(std::size_t set) const override { return steps_[set].y; }
  Tensor input_grad(std::size_t set) const override { return steps_[set].dx; }
  void release(std::size_t) override {}

 private:
  struct Step {
    Tensor x, y, dx, residual_grad;
    memory mean, variance;
  };
  memory on(const Tensor& t) const { return memory(x_, engine_, t.raw()); }
  void run(const dnnl::primitive& primitive, const Arguments& arguments) const {
    primitive.execute(stream_, arguments);
  }

  BatchNormCase case_;
  const std::vector<StepInputs>& inputs_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  memory::desc x_, channels_;
  dnnl::batch_normalization_forward::primitive_desc forward_pd_;
  dnnl::batch_normalization_forward forward_;
  dnnl::batch_normalization_backward backward_;
  dnnl::binary add_;
  dnnl::eltwise_backward relu_;
  memory weight_, bias_, weight_grad_, bias_grad_;
  std::vector<Step> steps_;
};

}  // namespace

std::unique_ptr<BatchNormPeer> make_onednn(const BatchNormCase& of,
                                           const std::vector<StepInputs>& inputs) {
  return std::make_unique<OneDnn>(of, inputs);
}

std::string onednn_version() {
  const auto* v = dnnl::version();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

}  // namespace tutti::benchmarks
