#include "tickets.h"

#include "../../core/create.h"
#include "../../core/cuda/stream.h"

#include <future>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::kernels::cuda {
namespace {

constexpr int streams_of_slab = 16;

// A slab of zeros serves many streams, so that only the first use on a device has to wait for it.
struct Slab {
  Tensor memory;
  int used = streams_of_slab;
};

// On a thread of its own: the caller's may be capturing a graph, of which this must not become a
// part.
Tensor zeroed(int device) {
  return std::async(std::launch::async,
                    [device] {
                      const auto stream = tutti::cuda::Stream::create(device);
                      const tutti::cuda::StreamScope scope(stream);
                      const Tensor memory = empty({streams_of_slab * tickets_of_stream / 2},
                                                  {int64, Device::cuda(device)});
                      memory.zero_();
                      stream.synchronize("tickets");
                      return memory;
                    })
      .get();
}

}  // namespace

unsigned* tickets(int device) {
  static auto* mutex = new std::mutex;
  static auto* slabs = new std::map<int, Slab>;
  static auto* known = new std::map<std::pair<int, CUstream_st*>, unsigned*>;
  static auto* kept =
      new std::vector<Tensor>;  // never given back: kernels may run until the process ends
  const std::lock_guard lock(*mutex);
  unsigned*& own = (*known)[{device, tutti::cuda::current_stream(device).get()}];
  if (own) return own;
  Slab& slab = (*slabs)[device];
  if (slab.used == streams_of_slab) {
    slab = {zeroed(device), 0};
    kept->push_back(slab.memory);
  }
  own = static_cast<unsigned*>(slab.memory.raw()) + slab.used++ * tickets_of_stream;
  return own;
}

}  // namespace tutti::kernels::cuda
