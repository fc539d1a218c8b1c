// Tells the process that made an object from the child of a fork that got a copy of it: groups,
// threads, MPI and CUDA work in the process that made them only.
#pragma once

#include <cstdint>

namespace tutti {

/// Returns a number that changes in the child of every fork. It costs one load.
std::uint64_t process_generation();

/// Records the process in which it was constructed. The copy in the child of a fork keeps that
/// record.
class ProcessMark {
 public:
  /// Returns true in the child of a fork, where this mark and what bears it are the parent's.
  bool is_of_parent() const { return generation_ != process_generation(); }

 private:
  std::uint64_t generation_ = process_generation();
};

}  // namespace tutti
