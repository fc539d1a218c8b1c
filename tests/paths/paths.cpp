// Runs one path through tutti once, between a reset and a dump of gcov's counters: paths NAME. What
// runs before, the first calls of the same path among it, is not counted.
#include <tutti/tutti.h>

#include <train/options.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

extern "C" void __gcov_reset();
extern "C" void __gcov_dump();

namespace tutti {
namespace {

void count(const std::function<void()>& path) {
  __gcov_reset();
  path();
  __gcov_dump();
}

void add() {
  const Tensor a = randn({64, 64}), b = randn({64, 64});
  Tensor c = a + b;
  count([&] { c = a + b; });
}

void convolve() {
  const NoGrad no_grad;
  const Tensor x = randn({2, 16, 16, 16});
  nn::Conv2d conv({.in = 16, .out = 16, .kernel = 3, .padding = 1});
  Tensor y = conv(x);
  count([&] { y = conv(x); });
}

void step_sgd() {
  nn::Linear net({.in = 8, .out = 8});
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  const auto compute_gradients = [&] {
    sgd.zero_grad();
    sum(square(net(randn({4, 8})))).backward();
  };
  for (int i = 0; i < 2; ++i) {
    compute_gradients();
    sgd.step();
  }
  compute_gradients();
  count([&] { sgd.step(); });
}

// Forward and backward of a network on every rank. Rank 0 counts its third ones.
void run_both_ways(const ProcessGroup& group, nn::Sequential& net, const Shape& shape) {
  const Tensor x = randn(shape);
  for (int i = 0; i < 3; ++i) {
    for (Tensor parameter : net.parameters()) parameter.set_grad(Tensor());
    group.barrier();
    const bool counts = i == 2 && group.rank() == 0;
    if (counts) __gcov_reset();
    group.barrier();
    sum(square(net(x))).backward();
    group.barrier();
    if (counts) __gcov_dump();
    group.barrier();
  }
}

void normalize(const ProcessGroup& group) {
  nn::Sequential net;
  net.append<nn::SyncBatchNorm>({.channels = 16, .group = group});
  run_both_ways(group, net, {4, 16, 8, 8});
}

void reduce_bucket(const ProcessGroup& group) {
  nn::Sequential net;
  net.append<nn::Linear>({.in = 512, .out = 512});
  const distributed::DataParallel parallel(net.named_parameters(), net.named_buffers(), group);
  run_both_ways(group, net, {4, 512});
}

void load_jpeg(const std::string& file) {
  struct OnePicture : data::Dataset {
    explicit OnePicture(std::string name) : file(std::move(name)) {}
    std::int64_t size() const override { return 1; }
    data::Sample get(std::int64_t) const override { return {.image = data::read_image(file)}; }
    std::string file;
  };
  count([&] {
    data::DataLoader loader(
        std::make_shared<OnePicture>(file),
        {.sampler = {.batch_size = 1},
         .transforms = {data::RandomResizedCrop({.size = 64}), data::RandomHorizontalFlip(),
                        data::Normalize({.format = MemoryFormat::channels_last})},
         .workers = 0});
    loader.next();
  });
}

void train(const std::string& folder) {
  std::vector<std::string> words = {
      "train_resnet", "--dataset", "synthetic", "--model", "resnet20", "--max-steps", "1",
      "--batch-size", "8",         "--workers", "0",       "--out",    folder};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  count([&] {
    examples::run_program(static_cast<int>(arguments.size()), arguments.data(),
                          examples::Task::classification);
  });
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  using namespace tutti;
  const std::string path = argc > 1 ? argv[1] : "", argument = argc > 2 ? argv[2] : "";
  const std::map<std::string, std::function<void()>> paths = {
      {"add", add},
      {"convolution", convolve},
      {"sgd", step_sgd},
      {"sync_batch_norm_threads", [] { distributed::run_ranks(2, normalize); }},
      {"sync_batch_norm", [] { normalize(ProcessGroup::from_environment()); }},
      {"bucket", [] { reduce_bucket(ProcessGroup::from_environment()); }},
      {"jpeg", [&] { load_jpeg(argument); }},
      {"trainer", [&] { train(argument); }}};
  const auto found = paths.find(path);
  if (found == paths.end()) return 2;
  found->second();
  _exit(0);
}
