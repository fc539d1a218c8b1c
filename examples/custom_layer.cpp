// Writes an operation and a layer outside of the library: Swish with a trained slope, y = x
// sigmoid(beta x) (Ramachandran, Zoph and Le, "Searching for activation functions", 2017). The
// operation is one function; the layer adds its parameter. The program checks the gradient and then
// fits a small network with this layer to a curve.
#include <tutti/tutti.h>

#include <cstdio>
using namespace tutti;

// [snippet]
// A differentiable operation computes its output from detached inputs and then records how
// gradients flow back. Only what the closure captures is kept for backward. Changing a tensor that
// is captured as Saved in place is an error in backward, not a wrong gradient.
Tensor swish(const Tensor& x, const Tensor& beta) {
  const Tensor s = sigmoid(x.detach() * beta.detach());
  return autograd::record(
      "swish", x.detach() * s, {x, beta},
      [x = autograd::Saved(x), beta = autograd::Saved(beta), s](const Tensor& g) {
        const Tensor slope = s * (1 - s);
        return std::vector<Tensor>{
            g * (s + x.get() * beta.get() * slope),
            autograd::sum_to(g * square(x.get()) * slope, beta.get().shape())};
      });
}
// [/snippet]

// [snippet]
// A layer is a struct whose parameters are references that add_parameter() returns.
struct Swish : nn::Layer {
  const Tensor& beta = add_parameter("beta", ones({1}));
  Tensor forward(const Tensor& x) override { return swish(x, beta); }
};
// [/snippet]

// [snippet]
// A block of a decoder takes what comes from below and a skip connection. It has hooks, and errors
// name it, as those of a layer with one input.
struct DecoderBlock : nn::TwoInputLayer {
  nn::Linear& up = add<nn::Linear>("up", {.in = 8, .out = 4});
  nn::Linear& join = add<nn::Linear>("join", {.in = 8, .out = 4});
  Tensor forward(const Tensor& x, const Tensor& skip) override {
    return relu(join(cat({up(x), skip}, 1)));
  }
};
// [/snippet]

// [snippet]
// A block that says which of its layers runs on the output of which, and on nothing else, so that
// fold_batch_norm() and Predictor can merge them.
struct ConvNorm : nn::Layer {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in = 3, .out = 8, .kernel = 3});
  nn::BatchNorm2d& bn = add<nn::BatchNorm2d>("bn", {.channels = 8});
  Tensor forward(const Tensor& x) override { return bn.forward(conv(x), {.relu = true}); }
  std::vector<ConsecutiveChildren> consecutive_children() const override {
    return {{"conv", "bn"}};
  }
};
// [/snippet]

int main() {
  // [snippet]
  // Compares the gradients of x and of the parameter beta with differences of the values.
  const TensorOptions wide{.dtype = float64};
  const auto check = autograd::gradcheck([](const auto& in) { return swish(in[0], in[1]); },
                                         {randn({4, 3}, wide), rand({1}, wide)});
  std::printf("gradient check: %s\n", check ? "passed" : check.message.c_str());
  // [/snippet]

  nn::Sequential net;
  net.append<nn::Linear>({.in = 1, .out = 32});
  net.append<Swish>();
  net.append<nn::Linear>({.in = 32, .out = 1});
  std::printf("%s\n", net.to_string().c_str());
  optim::Adam adam(net.parameters(), {.lr = 0.01});
  for (int step = 1; step <= 500; ++step) {
    const Tensor x = rand({128, 1}) * 6 - 3;
    const Tensor loss = nn::mse_loss(net(x), sin(2 * x));
    adam.zero_grad();
    loss.backward();
    adam.step();
    if (step % 100 == 0) std::printf("step %d  loss %.5f\n", step, loss.item<double>());
  }
  DecoderBlock decode;
  std::printf("decoder block: %s\n", to_string(decode(ones({2, 8}), ones({2, 4})).shape()).c_str());
  ConvNorm block;
  nn::fold_batch_norm(block);
  const bool is_folded = block.state_dict().size() == 2;  // weight and bias of the convolution
  std::printf("the batch norm of the block is%s folded\n", is_folded ? "" : " not");
  return check && is_folded ? 0 : 1;
}
