#include "generate.h"

#include "../philox.h"
#include "launch.h"
#include "replay_calls.h"
#include "runtime.h"
#include "stream.h"

#include <algorithm>

namespace tutti::cuda {
namespace {

constexpr int threads = 256;

__device__ std::int64_t first_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ std::int64_t index_step() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

template <class U>
struct BernoulliArguments {
  U* out;
  U bits;
  std::int64_t count;
  std::uint64_t seed, position;
  const std::uint64_t* base;  // in a graph: seed and position of the generator at the replay
  std::uint64_t below;
};

// A thread draws whole blocks of four numbers, of which the first and the last may be used in part.
// In a graph `base` holds the seed, and the draw begins `position` numbers after base[1].
template <class U>
__global__ void bernoulli_kernel(BernoulliArguments<U> a) {
  if (a.base) a.seed = a.base[0], a.position += a.base[1];
  const std::uint64_t first = a.position / 4,
                      last = (a.position + static_cast<std::uint64_t>(a.count) + 3) / 4;
  for (std::uint64_t block = first + static_cast<std::uint64_t>(first_index()); block < last;
       block += static_cast<std::uint64_t>(index_step())) {
    const PhiloxBlock drawn = philox(a.seed, block);
    for (int j = 0; j < 4; ++j) {
      const std::int64_t i = static_cast<std::int64_t>(4 * block - a.position) + j;
      if (i >= 0 && i < a.count) a.out[i] = drawn.words[j] < a.below ? a.bits : U(0);
    }
  }
}

Grid grid_of(std::int64_t work, int device) {
  const std::int64_t blocks = (work + threads - 1) / threads;
  return {.blocks = static_cast<unsigned>(
              std::min<std::int64_t>(blocks, 16 * properties(device).multiprocessors)),
          .threads = threads};
}

template <class Body>
void dispatch_by_width(std::size_t width, const Body& body) {
  switch (width) {
    case 1: return body(std::uint8_t{});
    case 2: return body(std::uint16_t{});
    case 4: return body(std::uint32_t{});
    default: return body(std::uint64_t{});
  }
}

}  // namespace

void bernoulli(const Elements& out, Generator& generator, std::uint64_t below) {
  const DeviceScope scope(out.device);
  const Generator::State state = generator.state();
  ReplayCalls::RandomOffset from{nullptr, state.position};
  if (current_stream(out.device).is_capturing()) {
    ReplayCalls* const calls = ReplayCalls::current(out.device);
    if (!calls)
      fail<DeviceError>(
          "bernoulli: expected a capture by cuda::Graph, which gives each replay new random "
          "numbers; this stream is captured by other means");
    from = calls->random_offset("bernoulli", generator);
  }
  dispatch_by_width(out.width, [&](auto zero) {
    using U = decltype(zero);
    launch("bernoulli", bernoulli_kernel<U>, grid_of(out.count / 4 + 2, out.device),
           BernoulliArguments<U>{static_cast<U*>(out.data), static_cast<U>(out.bits), out.count,
                                 state.seed, from.offset, from.base, below});
  });
  generator.set_state({state.seed, state.position + static_cast<std::uint64_t>(out.count)});
}

}  // namespace tutti::cuda
