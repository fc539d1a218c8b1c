// The NCCL backend as the rest of the library sees it. Compiled from unavailable.cpp where CMake
// found no CUDA or NCCL.
#pragma once

#include "../../backend.h"
#include "../../launch/rendezvous/store.h"

namespace tutti::distributed::nccl {

/// Empty where this process can use NCCL; else "built without NCCL", "no CUDA device: ...".
std::string why_unavailable();

/// Bytes of memory from ProcessGroup::empty() that NCCL gave, in this process: in no device's
/// MemoryStats.
std::size_t registered_bytes();

struct Options {
  int local_rank = -1;  ///< negative: counted among the ranks of this host
  int device = -1;      ///< negative: the local rank
};

/// The world of the ranks that meet in `store`; collective among them, at most as long as its
/// timeout. DeviceError where the device is not there, DistributedError where two ranks have the
/// same GPU (unless TUTTI_NCCL_SHARE_GPU=1, for tests: then each rank needs an NCCL_HOSTID of its
/// own).
std::shared_ptr<Backend> make_world(const std::shared_ptr<rendezvous::Store>& store,
                                    const Options& options);

}  // namespace tutti::distributed::nccl
