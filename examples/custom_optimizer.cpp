// An optimizer of one's own, written in tensor arithmetic: Lion. An optimizer is a struct of
// options, a table of their names, and one function, update_one(). The base class owns the state
// tensors and the step counts, saves and loads them, and skips steps whose gradients overflowed
// under loss scaling. The program fits a small network, saves the state in the middle, and checks
// that the resumed run has the same bits.
#include <tutti/tutti.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
using namespace tutti;

// [snippet]
// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023):
//   direction = sign(beta1 m + (1 - beta1) g)
//   p -= lr (direction + weight_decay p)
//   m = beta2 m + (1 - beta2) g
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};

class Lion : public optim::OptimizerWith<LionOptions> {
 public:
  Lion(std::vector<Tensor> parameters, Options options)
      : Lion({{std::move(parameters), options}}) {}
  explicit Lion(const std::vector<Group>& groups)
      : OptimizerWith({.name = "Lion",
                       .options = {{"lr", &Options::lr},
                                   {"beta1", &Options::beta1, 0, 1},
                                   {"beta2", &Options::beta2, 0, 1},
                                   {"weight_decay", &Options::weight_decay}},
                       .states = {"momentum"}},
                      groups) {}

 protected:
  void update_one(const optim::ParameterUpdate& u) override {
    const Tensor lr = option(&Options::lr, u), beta1 = option(&Options::beta1, u),
                 beta2 = option(&Options::beta2, u),
                 weight_decay = option(&Options::weight_decay, u);
    const Tensor& m = u.states[0];
    const Tensor mixed = beta1 * m + (1 - beta1) * u.gradient;
    const Tensor direction = gt(mixed, 0).to(mixed.dtype()) - lt(mixed, 0).to(mixed.dtype());
    u.parameter.add_(lr * (direction + weight_decay * u.parameter), -1);
    m.copy_(beta2 * m + (1 - beta2) * u.gradient);
  }
};
// [/snippet]

// Fits y = sin(2 x) from `first` up to `last` and returns the last loss.
double train(nn::Layer& net, optim::Optimizer& optimizer, int first, int last) {
  double loss_value = 0;
  for (int step = first; step < last; ++step) {
    Generator generator(static_cast<std::uint64_t>(step));
    const Tensor x = rand({64, 1}, {}, generator) * 6 - 3;
    const Tensor loss = nn::mse_loss(net(x), sin(2 * x));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  return loss_value;
}

std::unique_ptr<nn::Sequential> make_net() {
  manual_seed(1);
  auto net = std::make_unique<nn::Sequential>();
  net->append<nn::Linear>({.in = 1, .out = 32});
  net->append<nn::Tanh>();
  net->append<nn::Linear>({.in = 32, .out = 1});
  return net;
}

// Trains once without a break and once with a break, in which the optimizer is saved to a file and
// a new one is loaded from it. Returns whether the network learned and both runs have equal bits.
template <class Optimizer>
bool learns_and_resumes(const char* name, typename Optimizer::Options options) {
  const auto whole = make_net(), parts = make_net();
  Optimizer uninterrupted(whole->parameters(), options);
  const double loss = train(*whole, uninterrupted, 0, 300);

  const std::string file = std::string(name) + ".safetensors";
  {
    Optimizer before(parts->parameters(), options);
    train(*parts, before, 0, 120);
    const optim::OptimizerState state = before.state_dict();
    save_safetensors(file, state.tensors, state.metadata);
  }
  optim::OptimizerState state;
  state.tensors = load_safetensors(file, &state.metadata);
  std::filesystem::remove(file);
  Optimizer after(parts->parameters(), {});
  after.load_state_dict(state);
  train(*parts, after, 120, 300);

  bool equal = true;
  for (std::size_t i = 0; i < whole->parameters().size(); ++i)
    equal = equal && to_vector(whole->parameters()[i]) == to_vector(parts->parameters()[i]);
  std::printf("%s: loss %.4f, resumed run has %s bits\n", name, loss, equal ? "equal" : "other");
  return equal && loss < 0.1;
}

int main() { return learns_and_resumes<Lion>("Lion", {.lr = 3e-3, .weight_decay = 1e-3}) ? 0 : 1; }
