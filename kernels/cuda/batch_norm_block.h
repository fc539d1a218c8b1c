// This file holds what the host knows of a block of the batch-norm kernels: its threads, the rows
// that they visit and the size of its scratch memory. It needs no header of CUDA, so that tests on
// the CPU can check what follows from it.
#pragma once

#include "../../core/host_device.h"

#include <cstdint>

namespace tutti::kernels::cuda {

constexpr int row_threads = 512, plane_threads = 256;

/// The rows first, first + step, ..., `count` in all.
struct RowShare {
  std::int64_t first, step, count;
};

/// Returns the rows that thread row `y` of `down` visits in block `chunk` of the `chunks` blocks
/// that share `rows` rows.
TUTTI_HOST_DEVICE inline RowShare row_share(std::int64_t rows, int y, int down, int chunk,
                                            int chunks) {
  const std::int64_t first = static_cast<std::int64_t>(chunk) * down + y,
                     step = static_cast<std::int64_t>(chunks) * down;
  return {first, step, y < down && first < rows ? (rows - 1 - first) / step + 1 : 0};
}

/// Returns the number of doubles of scratch memory that the merging of a block's moments needs, if
/// each of its threads has K channels.
constexpr int moments_scratch(int K, int across, int down) {
  return 2 + across * K + (2 * K + 1) * across * ((down + 1) / 2);
}

}  // namespace tutti::kernels::cuda
