// Replaces CUDA's header of this name when a kernel is emulated. It has only the grid of a
// cooperative launch.
#pragma once

#include "../emulator.h"

namespace cooperative_groups {

struct grid_group {
  void sync(emulator::Location at = emulator::Location::current()) const {
    emulator::grid_barrier(at);
  }
};
inline grid_group this_grid() { return {}; }

}  // namespace cooperative_groups
