// The NCCL backend as the rest of the library sees it: ranks are processes or threads that have a
// GPU each. It is compiled from unavailable.cpp where CMake found no CUDA or NCCL.
#pragma once

#include "../../backend.h"
#include "../../launch/rendezvous/store.h"

namespace tutti::distributed::nccl {

inline constexpr Capabilities capabilities = {.graph_capture = true,
                                              .rank_order_sums = false,
                                              .cuda_tensors = true,
                                              .device_waits = true,
                                              .issues_alone = true};

/// Returns an empty string where this process can use NCCL; else "built without NCCL", "no CUDA
/// device: ..." or what why_not_loaded() says.
std::string why_unavailable();
/// Loads NCCL's library. Returns an empty string, or else which files were tried and what to do.
std::string why_not_loaded();

/// Sets what NCCL reads from the environment when it is first called, unless the user has set it.
/// Not to be called beside threads that read the environment: that may end the process.
void set_environment();

/// Makes the world of the ranks that meet in `store`. All of them call it, and wait for each other
/// for at most the store's timeout. This process has called set_environment(). It reads only
/// local_rank and device of `options`. Throws a DeviceError where the device does not exist, and a
/// DistributedError where two ranks have the same GPU (unless TUTTI_NCCL_SHARE_GPU=1, for tests;
/// then each rank needs an NCCL_HOSTID of its own).
std::shared_ptr<Backend> make_world(const std::shared_ptr<rendezvous::Store>& store,
                                    const ProcessWorldOptions& options);

/// Makes the world of this process in the store that `options` opens.
std::shared_ptr<Backend> make_process_world(const ProcessWorldOptions& options);

/// Makes a world of threads, where rank r uses the device r.
RanksAsThreads make_thread_ranks(const ThreadWorldOptions& options);

}  // namespace tutti::distributed::nccl
