// This file is compiled instead of batch_norm_torch.cpp where there is no PyTorch.
#include "batch_norm_peers.h"

namespace tutti::benchmarks {

std::unique_ptr<BatchNormPeer> make_torch(const BatchNormCase&, const std::vector<StepInputs>&) {
  return nullptr;
}
std::string torch_version() { return {}; }
void set_torch_threads(int) {}

}  // namespace tutti::benchmarks
