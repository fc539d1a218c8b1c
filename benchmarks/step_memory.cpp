// Records the memory of all tensors over one training step of a ResNet in float32, channels_last,
// for the plot that step_memory.py draws. It prints two numbers a line: the milliseconds since the
// step began and the MiB then. Between the forward and the backward it prints a line "backward".
#include <tutti/core/create.h>
#include <tutti/core/memory.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/optim/sgd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

namespace {

using namespace tutti;

void print_memory(const std::atomic<bool>& is_done) {
  const auto start = std::chrono::steady_clock::now();
  while (!is_done) {
    const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() -
                                                             start;
    const auto live = static_cast<double>(allocator(Device::cpu()).stats().live);
    std::printf("%.1f %.1f\n", passed.count(), live / (1 << 20));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s MODEL BATCH SIDE [recompute-output]\n", argv[0]);
    return 2;
  }
  const std::int64_t batch = std::stoll(argv[2]), side = std::stoll(argv[3]);
  const auto net = nn::resnet(argv[1]);
  net->to(MemoryFormat::channels_last);
  if (argc > 4) nn::set_recompute_output(*net);
  optim::SGD sgd(net->parameters(), {.lr = 0.001, .momentum = 0.9});
  const Tensor images = randn({batch, 3, side, side}).contiguous(MemoryFormat::channels_last),
               labels = zeros({batch}, {.dtype = int64});
  std::atomic<bool> is_done = false;
  std::thread watcher;
  for (const bool is_watched : {false, true}) {  // the momentum exists in the second step
    if (is_watched) watcher = std::thread([&] { print_memory(is_done); });
    sgd.zero_grad();
    const Tensor loss = nn::cross_entropy((*net)(images), labels);
    if (is_watched) std::printf("backward\n");
    loss.backward();
    sgd.step();
  }
  is_done = true;
  watcher.join();
}
