// The contender LibTorch of benchmarks/compare, for the rows that measure overhead: there Python
// would cost more than the operations. compare.sh compiles it against PyTorch's wheel.
#include "contender.h"

#include <torch/torch.h>

#include <string>

namespace {

using compare::times_of;
using compare::Workload;

// Reads a tensor that compare.py has written as plain float32 numbers.
torch::Tensor read(const std::string& folder, const std::string& name, std::vector<int64_t> shape) {
  torch::Tensor tensor = torch::empty(shape);
  const std::string path = folder + "/" + name + ".f32";
  std::FILE* file = std::fopen(path.c_str(), "rb");
  TORCH_CHECK(file, "cannot open ", path);
  const auto count = static_cast<std::size_t>(tensor.numel());
  TORCH_CHECK(std::fread(tensor.data_ptr<float>(), 4, count, file) == count, "short file ", path);
  std::fclose(file);
  return tensor;
}

void load(torch::nn::Linear& linear, const std::string& folder, const std::string& prefix) {
  torch::NoGradGuard guard;
  linear->weight.copy_(read(folder, prefix + "weight", linear->weight.sizes().vec()));
  linear->bias.copy_(read(folder, prefix + "bias", linear->bias.sizes().vec()));
}

Workload small_mlp(const std::string& folder) {
  const auto x = read(folder, "x", {8, 16}), target = read(folder, "target", {8, 4});
  torch::nn::Linear first(16, 32), second(32, 32), third(32, 4);
  load(first, folder, "0.");
  load(second, folder, "2.");
  load(third, folder, "4.");
  torch::nn::Sequential model(first, torch::nn::ReLU(), second, torch::nn::ReLU(), third);
  const auto adam =
      std::make_shared<torch::optim::Adam>(model->parameters(), torch::optim::AdamOptions(1e-3));
  auto step = [=]() mutable {
    adam->zero_grad();
    const auto loss = torch::mse_loss(model->forward(x), target);
    loss.backward();
    adam->step();
    return loss;
  };
  std::vector<double> losses;
  for (int i = 0; i < 3; ++i) losses.push_back(step().item<double>());
  return {losses, [step](int count) mutable {
            return times_of(count, 200, [&] {
              for (int i = 0; i < 200; ++i) step();
            });
          }};
}

Workload overhead(const std::string& what, const std::string& folder) {
  constexpr int repeats = 2000;
  const auto a = read(folder, "a", {16}).requires_grad_(), b = read(folder, "b", {16}),
             x = read(folder, "row", {1, 16});
  torch::nn::Linear linear(16, 16);
  load(linear, folder, "");
  const auto repeat = [](auto work) {
    return [work](int count) mutable {
      return times_of(count, repeats, [&] {
        for (int i = 0; i < repeats; ++i) work();
      });
    };
  };
  const auto some = [](const torch::Tensor& t) {
    const auto flat = t.detach().flatten();
    return std::vector<double>(flat.data_ptr<float>(), flat.data_ptr<float>() + 4);
  };
  if (what == "add") return {some(a + b), repeat([=] { a + b; })};
  if (what == "add_backward") {
    const auto seed = torch::ones({16});
    const auto sums = std::make_shared<std::vector<torch::Tensor>>();
    const auto add = [=] {
      sums->clear();
      for (int i = 0; i < repeats; ++i) sums->push_back(a + b);
    };
    const auto backward = [=] {
      for (const torch::Tensor& sum : *sums) {
        a.mutable_grad().reset();
        sum.backward(seed);
      }
    };
    add();
    backward();
    return {some(a.grad()), [=](int count) { return times_of(count, repeats, backward, add); }};
  }
  if (what == "linear") return {some(linear(x)), repeat([=]() mutable { linear(x); })};
  return {some(linear(x)), [=](int count) {
            torch::NoGradGuard guard;
            return repeat([=]() mutable { linear(x); })(count);
          }};
}

}  // namespace

int main(int argc, char** argv) {
  TORCH_CHECK(argc == 5, "usage: compare_libtorch mlp|overhead WHAT FOLDER OPTION");
  const std::string kind = argv[1];
  compare::serve(kind == "mlp" ? small_mlp(argv[3]) : overhead(argv[2], argv[3]));
}
