#include "generate.h"

#include "../philox.h"
#include "host_values.h"
#include "launch.h"
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
__global__ void fill_kernel(U* out, U bits, std::int64_t count) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) out[i] = bits;
}

// Work is cut at the generator's blocks of four numbers, of which the first and the last may be
// used in part. `base`, in a graph: seed and position are there, and the draw begins `position`
// after that.
template <class U>
__global__ void bernoulli_kernel(U* out, U bits, std::int64_t count, std::uint64_t seed,
                                 std::uint64_t position, const std::uint64_t* base,
                                 std::uint64_t below) {
  if (base) seed = base[0], position += base[1];
  const std::uint64_t first = position / 4,
                      last = (position + static_cast<std::uint64_t>(count) + 3) / 4;
  for (std::uint64_t block = first + static_cast<std::uint64_t>(first_index()); block < last;
       block += static_cast<std::uint64_t>(index_step())) {
    const PhiloxBlock drawn = philox(seed, block);
    for (int j = 0; j < 4; ++j) {
      const std::int64_t i = static_cast<std::int64_t>(4 * block - position) + j;
      if (i >= 0 && i < count) out[i] = drawn.words[j] < below ? bits : U(0);
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
void by_width(std::size_t width, const Body& body) {
  switch (width) {
    case 1: return body(std::uint8_t{});
    case 2: return body(std::uint16_t{});
    case 4: return body(std::uint32_t{});
    default: return body(std::uint64_t{});
  }
}

}  // namespace

void fill(void* data, int device, std::size_t width, std::uint64_t bits, std::int64_t count) {
  const DeviceScope scope(device);
  by_width(width, [&](auto zero) {
    using U = decltype(zero);
    launch("fill", fill_kernel<U>, grid_of(count, device), static_cast<U*>(data),
           static_cast<U>(bits), count);
  });
}

void bernoulli(void* data, int device, std::size_t width, std::uint64_t bits, std::int64_t count,
               Generator& generator, std::uint64_t below) {
  const DeviceScope scope(device);
  const Generator::State state = generator.state();
  HostValues::RandomOffset from{nullptr, state.position};
  if (current_stream(device).is_capturing()) {
    HostValues* const values = HostValues::current(device);
    if (!values)
      fail<DeviceError>(
          "bernoulli: expected a capture by cuda::Graph, which gives each replay new random "
          "numbers; this stream is captured by other means");
    from = values->random_offset("bernoulli", generator);
  }
  by_width(width, [&](auto zero) {
    using U = decltype(zero);
    launch("bernoulli", bernoulli_kernel<U>, grid_of(count / 4 + 2, device), static_cast<U*>(data),
           static_cast<U>(bits), count, state.seed, from.offset, from.base, below);
  });
  generator.set_state({state.seed, state.position + static_cast<std::uint64_t>(count)});
}

}  // namespace tutti::cuda
