#include "nccl.h"

namespace tutti::distributed::nccl {

std::string why_unavailable() {
  return "this library was built without CUDA and NCCL; install both, then configure with -DTUTTI_CUDA=ON";
}

std::size_t registered_bytes() { return 0; }

std::shared_ptr<Backend> make_world(const std::shared_ptr<rendezvous::Store>&, const Options&) {
  fail<DistributedError>("nccl: {}", why_unavailable());
}

}  // namespace tutti::distributed::nccl
