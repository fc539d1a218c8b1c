// Stands in for CUDA's header of this name when a kernel is emulated: the grid of a cooperative
// launch.
#pragma once

#include "../emulator.h"

namespace cooperative_groups {

struct grid_group {
  void sync(emulator::Site at = emulator::Site::current()) const { emulator::grid_barrier(at); }
};
inline grid_group this_grid() { return {}; }

}  // namespace cooperative_groups
