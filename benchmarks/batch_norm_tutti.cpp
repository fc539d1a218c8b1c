// The peer that is nn::BatchNorm, as a user calls it, autograd included.
#include "batch_norm_peers.h"

#include <tutti/nn/batch_norm/layer.h>

namespace tutti::benchmarks {
namespace {

class Tutti final : public BatchNormPeer {
 public:
  Tutti(const BatchNormCase& of, const std::vector<StepInputs>& inputs)
      : add_relu_(of.add_relu),
        layer_({.channels = of.channels, .eps = batch_norm_eps}),
        outputs_(inputs.size()) {
    for (const StepInputs& in : inputs) {
      StepInputs own{in.x.detach(), in.residual.detach(), in.dy};
      own.x.requires_grad_();
      own.residual.requires_grad_();
      inputs_.push_back(own);
    }
  }
  void forward(std::size_t set) override {
    const StepInputs& in = inputs_[set];
    outputs_[set] = add_relu_ ? layer_.forward(in.x, {.residual = in.residual, .relu = true})
                              : layer_.forward(in.x);
  }
  void backward(std::size_t set) override { outputs_[set].backward(inputs_[set].dy); }
  Tensor output(std::size_t set) const override { return outputs_[set].detach(); }
  Tensor input_grad(std::size_t set) const override { return inputs_[set].x.grad(); }
  void release(std::size_t set) override {
    outputs_[set] = {};
    inputs_[set].x.set_grad({});
    inputs_[set].residual.set_grad({});
    layer_.zero_grad();
  }

 private:
  bool add_relu_;
  nn::BatchNorm layer_;
  std::vector<StepInputs> inputs_;
  std::vector<Tensor> outputs_;
};

}  // namespace

std::unique_ptr<BatchNormPeer> make_tutti(const BatchNormCase& of,
                                          const std::vector<StepInputs>& inputs) {
  return std::make_unique<Tutti>(of, inputs);
}

}  // namespace tutti::benchmarks
