// This program learns which points lie inside the unit circle. Run it alone, or on several ranks:
// mpirun -n 2 minimal
#include <tutti/tutti.h>

#include <cstdio>
using namespace tutti;

int main() {
  const auto group = ProcessGroup::from_environment();
  nn::Sequential net;
  net.append<nn::Linear>({.in = 2, .out = 32});
  net.append<nn::SyncBatchNorm>({.channels = 32, .group = group});
  net.append<nn::ReLU>();
  net.append<nn::Linear>({.in = 32, .out = 2});
  distributed::DataParallel ddp(net.named_parameters(), net.named_buffers(), group);
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  Generator points(1 + group.rank());  // every rank draws its own data
  for (int step = 1; step <= 300; ++step) {
    const Tensor x = randn({64, 2}, {}, points), labels = gt(sum(square(x), {1}), 1).to(int64);
    const Tensor loss = nn::cross_entropy(net(x), labels);
    sgd.zero_grad();
    loss.backward();  // when it returns, gradients are averaged over the ranks
    sgd.step();
    if (step % 50 == 0 && group.rank() == 0)
      std::printf("step %3d  loss %.4f\n", step, loss.item<double>());
  }
}
