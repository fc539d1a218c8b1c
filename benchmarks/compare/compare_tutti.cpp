// The contender tutti of benchmarks/compare: measures one workload, which its arguments name as
// compare.py passes them. All state of a workload is made once; only its iterations are timed.
#include "../../examples/unet.h"
#include "contender.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/core/random.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/nn/activation.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/conv_transpose.h>
#include <tutti/nn/dropout.h>
#include <tutti/nn/functional/interpolate.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/models/predictor.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/nn/models/segmentation.h>
#include <tutti/optim/adam.h>
#include <tutti/optim/sgd.h>

#include <memory>
#include <optional>
#include <string>

namespace {

using namespace tutti;
using compare::times_of;
using compare::Workload;

struct Arguments {
  std::string kind, model, folder;
  DType dtype = float32;
  bool sync = false;  // whether ranks share the statistics of batch normalisation
  bool recompute_output = false;
};

constexpr optim::SGDOptions sgd_options{.lr = 0.001, .momentum = 0.9, .weight_decay = 1e-4};

Tensor find(const StateDict& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors)
    if (key == name) return tensor;
  throw Error("the input file has no tensor " + name);
}

struct Batch {
  Tensor images, labels;

  explicit Batch(const Arguments& arguments) {
    const StateDict tensors = load_safetensors(arguments.folder + "/input.safetensors");
    images = find(tensors, "images").contiguous(MemoryFormat::channels_last);
    labels = find(tensors, "labels");
  }
  // The share of a rank.
  Batch part(int rank, int ranks) const {
    const std::int64_t each = images.size(0) / ranks;
    Batch result = *this;
    result.images = images.slice(0, rank * each, (rank + 1) * each);
    result.labels = labels.slice(0, rank * each, (rank + 1) * each);
    return result;
  }
};

// Dropout would draw other numbers than PyTorch's, so both sides leave it out.
std::shared_ptr<nn::Layer> make_model(const std::string& name) {
  if (name == "unet")
    return std::make_shared<examples::UNet>(examples::UNet::Options{.classes = 21});
  if (!name.starts_with("fcn")) return nn::resnet(name);
  const auto model = nn::segmentation_network(name, {.classes = 21});
  for (const auto& [path, module] : model->named_modules())
    if (auto* dropout = dynamic_cast<nn::Dropout*>(module)) dropout->eval();
  return model;
}

std::shared_ptr<nn::Layer> load_model(const Arguments& arguments) {
  auto model = make_model(arguments.model);
  model->load_state_dict(load_safetensors(arguments.folder + "/weights.safetensors"));
  model->to(MemoryFormat::channels_last);
  if (arguments.recompute_output) nn::set_recompute_output(*model);
  return model;
}

// A step of training: the loss of one batch, its gradients, SGD with momentum.
class Training {
 public:
  explicit Training(const Arguments& arguments)
      : model_(load_model(arguments)),
        batch_(arguments),
        sgd_(model_->parameters(), sgd_options),
        dtype_(arguments.dtype) {}

  double step() {
    sgd_.zero_grad();
    Tensor loss;
    {
      std::optional<Autocast> autocast;
      if (dtype_ != float32) autocast.emplace(dtype_);
      auto* const segments = dynamic_cast<nn::SegmentationNetwork*>(model_.get());
      loss = segments ? segments->loss(batch_.images, batch_.labels)
                      : nn::cross_entropy((*model_)(batch_.images), batch_.labels);
    }
    loss.backward();
    sgd_.step();
    return loss.item<double>();
  }

 private:
  std::shared_ptr<nn::Layer> model_;
  Batch batch_;
  optim::SGD sgd_;
  DType dtype_;
};

Workload training(const Arguments& arguments) {
  const auto train = std::make_shared<Training>(arguments);
  std::vector<double> losses;
  for (int i = 0; i < 3; ++i) losses.push_back(train->step());
  return {losses, [train](int count) { return times_of(count, 1, [&] { train->step(); }); }};
}

// Classification through nn::Predictor, which folds batch normalisation.
Workload inference(const Arguments& arguments) {
  const Batch batch(arguments);
  nn::ModelCard card{.model = arguments.model,
                     .classes = 1000,
                     .channels = 3,
                     .mean = {0, 0, 0},
                     .std = {1, 1, 1},
                     .input_size = batch.images.size(2)};
  const auto predictor = std::make_shared<nn::Predictor>(
      load_model(arguments), card, nn::Predictor::Options{.bf16 = arguments.dtype == bfloat16});
  std::vector<double> logits;
  for (int i = 0; i < 2; ++i) {
    const Tensor out = predictor->logits(batch.images);
    logits.assign(out.data<float>(), out.data<float>() + 16);
  }
  return {logits, [=, images = batch.images](int count) {
            return times_of(count, 1, [&] { predictor->logits(images); });
          }};
}

// Forward and backward of one operation: the loss of logits that are upsampled by 8, or the
// transposed convolution by which a U-Net goes from 128 to 64 channels. The output is the loss or
// the mean of the squares.
Workload operation(const Arguments& arguments) {
  const Batch batch(arguments);
  const Tensor x = batch.images.requires_grad_();
  const auto up = std::make_shared<nn::ConvTranspose2d>(
      nn::ConvTranspose2d::Options{.in = 128, .out = 64, .kernel = 2, .stride = 2});
  if (arguments.model == "conv_transpose")
    up->load_state_dict(load_safetensors(arguments.folder + "/weights.safetensors"));
  const Tensor dy = ones({4, 64, 128, 128}).contiguous(MemoryFormat::channels_last);
  const auto run = [=, labels = batch.labels] {
    x.set_grad({});
    up->zero_grad();
    if (arguments.model == "conv_transpose") {
      const Tensor y = (*up)(x);
      y.backward(dy);
      return y;
    }
    const Tensor loss = nn::cross_entropy(
        nn::interpolate(x, {.scale_factor = {8}, .mode = nn::InterpolateMode::bilinear}), labels);
    loss.backward();
    return loss;
  };
  return {{mean(square(run())).item<double>(), sum(square(x.grad())).item<double>()},
          [run](int count) { return times_of(count, 1, run); }};
}

// Two ranks as threads, each with half of the batch, as train_resnet --ranks 2 runs them.
Workload two_ranks(const Arguments& arguments) {
  const auto run = [arguments](int count) {
    std::vector<double> losses, seconds;
    set_num_threads(2);
    distributed::run_ranks(2, [&](const ProcessGroup& group) {
      const Batch batch = Batch(arguments).part(group.rank(), group.size());
      const auto model = load_model(arguments);
      if (arguments.sync) nn::convert_sync_batchnorm(*model, group);
      DataParallel data_parallel(model->named_parameters(), model->named_buffers(), group);
      optim::SGD sgd(model->parameters(), sgd_options);
      const auto step = [&] {
        sgd.zero_grad();
        const Tensor loss = nn::cross_entropy((*model)(batch.images), batch.labels);
        loss.backward();
        sgd.step();
        return loss.item<double>();
      };
      for (int i = 0; i < 3; ++i) {
        const double loss = step();
        if (group.rank() == 0) losses.push_back(loss);
      }
      const auto mine = times_of(count, 1, [&] { step(); });
      if (group.rank() == 0) seconds = mine;
    });
    return std::pair(losses, seconds);
  };
  return {run(0).first, [run](int count) { return run(count).second; }};
}

// A small network: 16 inputs, two hidden layers of 32, 4 outputs; batch 8.
Workload small_mlp(const Arguments& arguments) {
  const StateDict tensors = load_safetensors(arguments.folder + "/small.safetensors");
  const Tensor x = find(tensors, "x"), target = find(tensors, "target");
  const auto model = std::make_shared<nn::Sequential>();
  model->append<nn::Linear>({.in = 16, .out = 32});
  model->append<nn::ReLU>();
  model->append<nn::Linear>({.in = 32, .out = 32});
  model->append<nn::ReLU>();
  model->append<nn::Linear>({.in = 32, .out = 4});
  StateDict weights;
  for (const auto& [name, tensor] : model->state_dict())
    weights.emplace_back(name, find(tensors, name));
  model->load_state_dict(weights);
  const auto adam =
      std::make_shared<optim::Adam>(model->parameters(), optim::Adam::Options{.lr = 1e-3});
  const auto step = [=] {
    adam->zero_grad();
    const Tensor loss = nn::mse_loss((*model)(x), target);
    loss.backward();
    adam->step();
    return loss;
  };
  std::vector<double> losses;
  for (int i = 0; i < 3; ++i) losses.push_back(step().item<double>());
  return {losses, [step](int count) {
            return times_of(count, 200, [&] {
              for (int i = 0; i < 200; ++i) step();
            });
          }};
}

// The cost of an operation on 16 numbers, or of a linear layer of 16 inputs and outputs.
Workload overhead(const Arguments& arguments) {
  constexpr int repeats = 2000;
  const StateDict tensors = load_safetensors(arguments.folder + "/small.safetensors");
  const Tensor a = find(tensors, "a").requires_grad_(), b = find(tensors, "b"),
               x = find(tensors, "row");
  const auto linear = std::make_shared<nn::Linear>(nn::Linear::Options{.in = 16, .out = 16});
  linear->load_state_dict({{"weight", find(tensors, "weight")}, {"bias", find(tensors, "bias")}});
  const auto repeat = [](const auto& work) {
    return [work](int count) {
      return times_of(count, repeats, [&] {
        for (int i = 0; i < repeats; ++i) work();
      });
    };
  };
  const auto some = [](const Tensor& t) {
    return std::vector<double>(t.data<float>(), t.data<float>() + 4);
  };
  if (arguments.model == "add") return {some(a + b), repeat([=] { a + b; })};
  if (arguments.model == "add_backward") {
    const Tensor seed = ones({16});
    const auto sums = std::make_shared<std::vector<Tensor>>();
    const auto add = [=] {
      sums->clear();
      for (int i = 0; i < repeats; ++i) sums->push_back(a + b);
    };
    const auto backward = [=] {
      for (const Tensor& sum : *sums) {
        a.set_grad({});
        sum.backward(seed);
      }
    };
    add();
    backward();
    return {some(a.grad()), [=](int count) { return times_of(count, repeats, backward, add); }};
  }
  if (arguments.model == "linear") return {some((*linear)(x)), repeat([=] { (*linear)(x); })};
  return {some((*linear)(x)), [=](int count) {
            const NoGrad guard;
            return repeat([=] { (*linear)(x); })(count);
          }};
}

Workload workload_of(const Arguments& arguments) {
  if (arguments.kind == "train") return training(arguments);
  if (arguments.kind == "infer") return inference(arguments);
  if (arguments.kind == "ranks") return two_ranks(arguments);
  if (arguments.kind == "mlp") return small_mlp(arguments);
  if (arguments.kind == "overhead") return overhead(arguments);
  if (arguments.kind == "operation") return operation(arguments);
  throw Error("unknown workload " + arguments.kind);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr,
                 "usage: %s train|infer|ranks|mlp|overhead|operation MODEL FOLDER OPTION "
                 "[recompute-output]\n",
                 argv[0]);
    return 2;
  }
  const std::string option = argv[4];
  compare::serve(workload_of({.kind = argv[1],
                              .model = argv[2],
                              .folder = argv[3],
                              .dtype = option == "bfloat16" ? bfloat16 : float32,
                              .sync = option == "sync",
                              .recompute_output = argc > 5}));
}
