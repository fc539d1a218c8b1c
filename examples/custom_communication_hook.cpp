// Writes a communication hook, which DataParallel calls for each gradient bucket instead of an
// all-reduce. This hook records the size of each bucket and then starts the usual all-reduce. The
// program trains on two ranks that are threads, prints the record, and checks that both ranks have
// equal weights.
#include <tutti/tutti.h>

#include <cstdio>
using namespace tutti;

// [snippet]
// A hook gets a flat bucket whose values are already divided by the number of ranks. It starts the
// exchange and returns a Work, after whose wait() the bucket holds the sum over the ranks.
// DataParallel calls it in the same order on every rank, on the thread that runs backward.
struct RecordTraffic {
  std::vector<std::string>& record;

  distributed::Work operator()(const ProcessGroup& group, const Tensor& bucket,
                               distributed::CallOptions options) const {
    record.push_back(options.name + ": " + std::to_string(bucket.numel()) + " elements");
    return group.all_reduce(bucket, distributed::ReduceOp::sum, options);
  }
};
// [/snippet]

int main() {
  distributed::run_ranks(2, [](const ProcessGroup& group) {
    manual_seed(1);
    nn::Sequential net;
    net.append<nn::Linear>({.in = 8, .out = 16});
    net.append<nn::SyncBatchNorm>({.channels = 16, .group = group});
    net.append<nn::Linear>({.in = 16, .out = 1});

    std::vector<std::string> record;
    DataParallel ddp(net.named_parameters(), net.named_buffers(), group,
                     {.communication = RecordTraffic{record}});
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    Generator points(1 + group.rank());
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      square(net(randn({32, 8}, {}, points))).backward(ones({32, 1}));
      sgd.step();
    }
    distributed::check_replicas(net.state_dict(), group);  // throws where ranks differ
    if (group.rank() == 0)
      for (const std::string& line : record) std::printf("%s\n", line.c_str());
  });
}
