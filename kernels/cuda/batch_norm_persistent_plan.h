// How a launch of a persistent batch-norm kernel divides a tensor among its blocks. The kernels are
// in batch_norm_persistent.cu.
//
// The channels are divided into slices of up to 128 bytes. A team of blocks processes a slice, and
// each of its blocks holds a share of the rows in shared memory. If there are more slices than
// teams, the kernel runs several rounds.
#pragma once

#include "batch_norm_moments.h"
#include "workspace.h"

namespace tutti::kernels::cuda {

// The possible widths of a slice, in vectors of 16 bytes: a cache line of 128 bytes, or half of
// one.
constexpr int widest_slice = 8, narrowest_slice = 4;
constexpr int persistent_fields = 6;  // The numbers per channel in shared memory.

// How the blocks of a launch divide the tensor. No rounds mean that the tensor does not fit.
struct PersistentPlan {
  int across = 0, down = 0;  // The threads of a block form `down` rows of `across` vectors.
  int depth = 0;             // The vectors of each tensor that a thread holds.
  // The number of teams, of blocks in a team, of slices, and of rounds.
  int teams = 0, members = 0, slices = 0, rounds = 0;
  int scratch = 0;  // The size of the reductions' scratch memory, in doubles.
  std::size_t shared_bytes = 0;

  std::size_t blocks() const {
    return static_cast<std::size_t>(teams) * static_cast<std::size_t>(members);
  }
};

// Returns a plan that keeps `tensors` tensors of x's shape in shared memory, or one without rounds
// if they do not fit. It prefers slices of a cache line to slices of half a line. Several rounds
// are worth their synchronisation only if each of them fills half of the device's shared memory.
template <class T>
PersistentPlan plan_of(const Tensor& x, int tensors) {
  constexpr int V = full_width<T>;
  const auto& device = tutti::cuda::properties(x.device().index());
  const std::int64_t vectors = x.size(1) / V, rows = x.numel() / x.size(1),
                     blocks = device.multiprocessors;
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  for (const int widest : {widest_slice, narrowest_slice}) {
    PersistentPlan p;
    p.across = static_cast<int>(std::min<std::int64_t>(vectors, widest));
    p.down = row_threads / p.across;
    p.scratch = moments_scratch<V>(p.across, p.down);
    const std::size_t other =
        sizeof(double) * static_cast<std::size_t>(p.scratch + persistent_fields * p.across * V);
    // One vector of 16 bytes per thread and tensor, in bytes.
    const std::size_t layer = static_cast<std::size_t>(tensors) * row_threads * 16;
    if (device.shared_bytes_per_block < other + layer) return {};
    const auto deepest = static_cast<std::int64_t>((device.shared_bytes_per_block - other) / layer);
    const std::int64_t fewest = up(rows, deepest * p.down);
    if (fewest > blocks) continue;
    const std::int64_t slices = up(vectors, p.across), rounds = up(slices, blocks / fewest),
                       teams = up(slices, rounds);
    const std::int64_t members = std::min(blocks / teams, up(rows, p.down));
    if (rounds > 1 &&
        2 * teams * rows * p.across * p.down < blocks * deepest * row_threads * p.down)
      continue;
    p.slices = static_cast<int>(slices), p.rounds = static_cast<int>(rounds),
    p.teams = static_cast<int>(teams);
    p.members = static_cast<int>(members), p.depth = static_cast<int>(up(rows, members * p.down));
    p.shared_bytes = other + layer * static_cast<std::size_t>(p.depth);
    return p;
  }
  return {};
}

template <class T>
Geometry geometry_of(const Tensor& x, const PersistentPlan& plan) {
  Geometry g;
  g.channels = x.size(1);
  g.vectors = g.channels / full_width<T>;
  g.outer = x.numel() / g.channels;
  g.across = plan.across;
  g.down = plan.down;
  return g;
}

// Calls body.operator()<T>(plan) and returns true if there is a plan for x; else returns false.
template <class Body>
bool with_plan(const Tensor& x, int tensors, bool aligned, const Body& body) {
  if (!aligned || x.numel() == 0 || !is_rows(x)) return false;
  bool done = false;
  dispatch(TrainTypes{}, x.dtype(), "batch_norm", [&]<class H>() {
    using T = DeviceType<H>;
    if (x.size(1) % full_width<T> != 0) return;
    const PersistentPlan plan = plan_of<T>(x, tensors);
    if (plan.rounds == 0) return;
    body.template operator()<T>(plan);
    done = true;
  });
  return done;
}

template <class T>
Workspace workspace_of(const Tensor& x, const PersistentPlan& plan) {
  const auto blocks = static_cast<std::int64_t>(plan.blocks());
  return Workspace(x.device(), 2 * blocks * plan.across * full_width<T>, 2 * blocks);
}

inline tutti::cuda::Grid grid_of(const PersistentPlan& plan) {
  return {.blocks = static_cast<unsigned>(plan.blocks()),
          .threads = row_threads,
          .shared_bytes = plan.shared_bytes,
          .cooperative = true};
}

}  // namespace tutti::kernels::cuda
