// The peer that is PyTorch's batch_norm, autograd included, in this process. Add and ReLU follow in
// place, which is the fastest way that PyTorch offers.
#include "batch_norm_peers.h"

#include <torch/torch.h>

namespace tutti::benchmarks {
namespace {

torch::ScalarType type_of(DType dtype) {
  return dtype == bfloat16 ? torch::kBFloat16 : torch::kFloat32;
}

// These return the same memory as a tensor of the other library. The owner must outlive the view.
torch::Tensor torch_view(const Tensor& t) {
  const std::vector<std::int64_t> shape(t.shape().begin(), t.shape().end()),
      strides(t.strides().begin(), t.strides().end());
  return torch::from_blob(t.raw(), shape, strides, torch::dtype(type_of(t.dtype())));
}

Tensor tutti_view(const torch::Tensor& t, const Tensor& like) {
  return from_blob(t.data_ptr(), {like.numel()}, like.dtype())
      .alias(like.shape(), like.strides(), 0);
}

class Torch final : public BatchNormPeer {
 public:
  Torch(const BatchNormCase& of, const std::vector<StepInputs>& inputs)
      : add_relu_(of.add_relu),
        inputs_(inputs),
        weight_(torch::ones({of.channels}).requires_grad_()),
        bias_(torch::zeros({of.channels}).requires_grad_()),
        running_mean_(torch::zeros({of.channels})),
        running_var_(torch::ones({of.channels})) {
    for (const StepInputs& in : inputs)
      steps_.push_back({torch_view(in.x).requires_grad_(),
                        torch_view(in.residual).requires_grad_(),
                        torch_view(in.dy),
                        {},
                        {}});
  }
  void forward(std::size_t set) override {
    Step& s = steps_[set];
    s.y = torch::batch_norm(s.x, weight_, bias_, running_mean_, running_var_, true, 0.1,
                            batch_norm_eps, false);
    if (add_relu_) s.y = torch::relu_(s.y.add_(s.residual));
  }
  void backward(std::size_t set) override {
    Step& s = steps_[set];
    std::vector<torch::Tensor> wanted{s.x, weight_, bias_};
    if (add_relu_) wanted.push_back(s.residual);
    s.gradients = torch::autograd::grad({s.y}, wanted, {s.dy});
  }
  Tensor output(std::size_t set) const override {
    return tutti_view(steps_[set].y, inputs_[set].x);
  }
  Tensor input_grad(std::size_t set) const override {
    return tutti_view(steps_[set].gradients[0], inputs_[set].x);
  }
  void release(std::size_t set) override {
    steps_[set].y.reset();
    steps_[set].gradients.clear();
  }

 private:
  struct Step {
    torch::Tensor x, residual, dy, y;
    std::vector<torch::Tensor> gradients;
  };
  bool add_relu_;
  const std::vector<StepInputs>& inputs_;
  torch::Tensor weight_, bias_, running_mean_, running_var_;
  std::vector<Step> steps_;
};

}  // namespace

std::unique_ptr<BatchNormPeer> make_torch(const BatchNormCase& of,
                                          const std::vector<StepInputs>& inputs) {
  return std::make_unique<Torch>(of, inputs);
}

std::string torch_version() { return TORCH_VERSION; }
void set_torch_threads(int threads) { torch::set_num_threads(threads); }

}  // namespace tutti::benchmarks
