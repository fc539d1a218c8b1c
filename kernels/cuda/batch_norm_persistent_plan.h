// How a launch of a persistent batch-norm kernel divides a tensor among its blocks, and which
// tensors it takes. The kernels are in batch_norm_persistent.cu. This file needs no header of CUDA.
//
// The channels are divided into slices of up to 128 bytes. A team of blocks processes a slice, and
// each of its blocks holds a share of the rows in shared memory.
#pragma once

#include "batch_norm_block.h"

#include <algorithm>
#include <cstddef>

namespace tutti::kernels::cuda {

// The possible widths of a slice, in vectors of 16 bytes: a cache line of 128 bytes, or half of
// one.
constexpr int widest_slice = 8, narrowest_slice = 4;
constexpr int persistent_fields = 6;  // The numbers per channel in shared memory.

/// What a persistent kernel keeps in shared memory.
struct PersistentTensors {
  std::int64_t rows = 0, channels = 0;
  int lanes = 0;  ///< The elements of a vector of 16 bytes.
  int count = 0;  ///< How many tensors of this shape it keeps.
};

/// What a plan has to know about a device.
struct PersistentDevice {
  int multiprocessors = 0;
  std::size_t shared_bytes_per_block = 0;  ///< The most that a kernel can ask for.
  /// Whether a block of the kernel with all this shared memory fits on a multiprocessor.
  bool holds_block = true;
  /// Whether kernels of a collective may be running, for each of which a persistent kernel would
  /// wait.
  bool runs_collectives = false;
};

// How the blocks of a launch divide the tensor. Without teams there is no plan.
struct PersistentPlan {
  int across = 0, down = 0;    // The threads of a block form `down` rows of `across` vectors.
  int depth = 0;               // The vectors of each tensor that a thread holds.
  int teams = 0, members = 0;  // There is one team for each slice, of `members` blocks.
  int scratch = 0;             // The size of the reductions' scratch memory, in doubles.
  std::size_t shared_bytes = 0;

  std::size_t blocks() const {
    return static_cast<std::size_t>(teams) * static_cast<std::size_t>(members);
  }
};

/// Returns a plan in which `device` holds all of `of` at once, or one without teams where streaming
/// kernels must do the work. It prefers slices of a cache line to slices of half a line.
///
/// A tensor that does not fit at once would take several rounds, and every block would wait for all
/// others in each of them. Next to a collective the launch would start only when the collective
/// ends, because it takes every multiprocessor.
inline PersistentPlan persistent_plan(const PersistentTensors& of, const PersistentDevice& device) {
  if (!device.holds_block || device.runs_collectives || of.rows == 0 || of.channels == 0 ||
      of.channels % of.lanes != 0)
    return {};
  const std::int64_t vectors = of.channels / of.lanes, blocks = device.multiprocessors;
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  for (const int widest : {widest_slice, narrowest_slice}) {
    PersistentPlan p;
    p.across = static_cast<int>(std::min<std::int64_t>(vectors, widest));
    p.down = row_threads / p.across;
    p.scratch = moments_scratch(of.lanes, p.across, p.down);
    const std::size_t other =
        sizeof(double) *
        static_cast<std::size_t>(p.scratch + persistent_fields * p.across * of.lanes);
    // One vector of 16 bytes per thread and tensor, in bytes.
    const std::size_t layer = static_cast<std::size_t>(of.count) * row_threads * 16;
    if (device.shared_bytes_per_block < other + layer) continue;
    const auto deepest = static_cast<std::int64_t>((device.shared_bytes_per_block - other) / layer);
    const std::int64_t slices = up(vectors, p.across), fewest = up(of.rows, deepest * p.down);
    if (fewest > blocks || slices > blocks / fewest) continue;
    const std::int64_t members = std::min(blocks / slices, up(of.rows, p.down));
    p.teams = static_cast<int>(slices);
    p.members = static_cast<int>(members);
    p.depth = static_cast<int>(up(of.rows, members * p.down));
    p.shared_bytes = other + layer * static_cast<std::size_t>(p.depth);
    return p;
  }
  return {};
}

}  // namespace tutti::kernels::cuda
