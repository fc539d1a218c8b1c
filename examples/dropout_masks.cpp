// Trains with dropout on two ranks that are threads, and prints how many of 1,000 elements are
// dropped on both: about 250 where each rank draws masks of its own, 500 where all draw the same.
#include <tutti/tutti.h>

#include <cstdio>
#include <cstdlib>
using namespace tutti;

int main() {
  distributed::run_ranks(2, [](const ProcessGroup& group) {
    nn::Sequential net;
    net.append<nn::Linear>({.in = 8, .out = 1000});
    net.append<nn::Dropout>({.p = 0.5});
    // [snippet]
    DataParallel ddp(net.named_parameters(), net.named_buffers(), group);  // equal weights
    manual_seed(1 + group.rank());  // from here on, dropout draws other masks on every rank
    // [/snippet]
    const Tensor dropped = eq(net(ones({1, 8})), 0).to(float32);
    group.all_reduce(dropped).wait();
    const auto on_both = sum(eq(dropped, 2)).item<int>();
    if (group.rank() == 0) std::printf("dropped on both ranks: %d of 1000\n", on_both);
    if (on_both < 150 || on_both > 350) std::exit(1);
  });
}
