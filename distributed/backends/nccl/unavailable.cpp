// The NCCL backend where CMake found no CUDA or NCCL.
#include "nccl.h"

namespace tutti::distributed::nccl {

std::string why_unavailable() {
  return "this library was built without NCCL; install nvcc, cuDNN 9 and NCCL, then configure "
         "again: CMake says what it finds of them";
}

void set_environment() {}

std::shared_ptr<Backend> make_world(const std::shared_ptr<rendezvous::Store>&,
                                    const ProcessWorldOptions&) {
  fail<DistributedError>("nccl: {}", why_unavailable());
}

std::shared_ptr<Backend> make_process_world(const ProcessWorldOptions&) {
  fail<DistributedError>("nccl: {}", why_unavailable());
}

RanksAsThreads make_thread_ranks(const ThreadWorldOptions&) {
  fail<DistributedError>("nccl: {}", why_unavailable());
}

}  // namespace tutti::distributed::nccl
