#include "block_counters.h"

#include "../../core/create.h"
#include "../../core/cuda/stream.h"

#include <future>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::kernels::cuda {
namespace {

constexpr int streams_per_slab = 16;

// One allocation of zeros serves many streams, so that only the first use on a device waits for it.
struct Slab {
  Tensor memory;
  int used = streams_per_slab;
};

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
  static auto* slabs = new std::map<int, Slab>;
  static auto* counters = new std::map<std::pair<int, CUstream_st*>, unsigned*>;
  // Slabs are never freed: kernels may run until the process ends.
  static auto* kept = new std::vector<Tensor>;
  const std::lock_guard lock(*mutex);
  unsigned*& own = (*counters)[{device, tutti::cuda::current_stream(device).get()}];
  if (own) return own;
  Slab& slab = (*slabs)[device];
  if (slab.used == streams_per_slab) {
    slab = {zeroed_slab(device), 0};
    kept->push_back(slab.memory);
  }
  own = static_cast<unsigned*>(slab.memory.raw()) + slab.used++ * counters_per_stream;
  return own;
}

}  // namespace tutti::kernels::cuda
