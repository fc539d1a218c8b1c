#include "block_counters.h"

#include "../../core/create.h"
#include "../../core/cuda/stream.h"

#include <future>
#include <map>
#include <mutex>
#include <vector>

namespace tutti::kernels::cuda {
namespace {

constexpr int streams_per_slab = 16;

struct Counters {
  std::vector<Tensor> slabs;  // never freed: kernels may run until the process ends
  std::map<CUstream_st*, unsigned*> of_stream;
};

// One allocation of zeros serves many streams, so that only the first use on a device waits for it.
// Allocates and zeroes a slab on a new thread: the calling thread may be capturing a graph, which
// must not contain this work.
Tensor zeroed_slab(int device) {
  return std::async(std::launch::async,
                    [device] {
                      const auto stream = tutti::cuda::Stream::create(device);
                      const tutti::cuda::StreamScope scope(stream);
                      const Tensor memory = empty({streams_per_slab * counters_per_stream / 2},
                                                  {int64, Device::cuda(device)});
                      memory.zero_();
                      stream.synchronize("block_counters");
                      return memory;
                    })
      .get();
}

}  // namespace

unsigned* block_counters(int device) {
  static auto* mutex = new std::mutex;
  static auto* devices = new std::map<int, Counters>;
  const std::lock_guard lock(*mutex);
  auto& [slabs, of_stream] = (*devices)[device];
  CUstream_st* const stream = tutti::cuda::current_stream(device).get();
  if (const auto known = of_stream.find(stream); known != of_stream.end()) return known->second;
  const std::size_t next = of_stream.size() % streams_per_slab;
  if (next == 0) slabs.push_back(zeroed_slab(device));
  return of_stream[stream] = static_cast<unsigned*>(slabs.back().raw()) +
                             next * counters_per_stream;
}

}  // namespace tutti::kernels::cuda
