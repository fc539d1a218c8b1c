// A SyncBatchNorm whose ranks do not come together, over processes: what each of them says. Run by
// ctest under mpirun. Usage: mpi_sync_batch_norm_faults FAULT; rank 1 is the one at fault.
#include <tutti/core/create.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>

#include <chrono>
#include <cstdio>
#include <thread>

using namespace tutti;
using namespace std::chrono_literals;

namespace {

struct Net : nn::Module {
  nn::SyncBatchNorm& bn1 = add<nn::SyncBatchNorm>("bn1", {.channels = 4});
  nn::SyncBatchNorm& bn2 = add<nn::SyncBatchNorm>("bn2", {.channels = 4});
};

void misbehave(Net& net, const std::string& fault) {
  const Tensor x = randn({3, 4}).requires_grad_();
  if (fault == "other_layer") net.bn2(x);
  if (fault == "refuses") net.bn1(randn({3, 5}));
  if (fault == "never_comes") std::this_thread::sleep_for(20s);
}

}  // namespace

int main(int, char** argv) {
  const std::string fault = argv[1];
  // Where nobody is missing, no deadline may pass however busy the machine is.
  const ProcessGroup group = ProcessGroup::from_environment(fault == "never_comes" ? 3s : 30s);
  Net net;
  try {
    const Tensor y = net.bn1(randn({3, 4}).requires_grad_());
    if (group.rank() == 0) net.bn1(randn({3, 4}).requires_grad_());
    else if (fault == "other_phase") y.backward(randn({3, 4}));
    else misbehave(net, fault);
  } catch (const Error& error) {
    const auto* failed = dynamic_cast<const DistributedError*>(&error);
    // std::fprintf of glibc 2.37 would let the other rank write in the middle of the text.
    const std::string text =
        fmt::format("rank {} caught{}: {} {{{}}}\n", group.rank(),
                    dynamic_cast<const TimeoutError*>(&error) ? " timeout" : "", error.what(),
                    failed ? failed->info().name : "");
    std::fputs(text.c_str(), stderr);
    std::this_thread::sleep_for(300ms);  // the launcher ends the other process with this one
    return 3;
  }
  return 0;
}
