// Which devices may be running kernels of a collective. Such a kernel waits for other ranks and
// holds multiprocessors meanwhile. This header needs none of CUDA's.
#pragma once

namespace tutti::cuda {

/// A CollectivesScope says, while it lives, that a communicator of several ranks runs kernels on a
/// device.
class CollectivesScope {
 public:
  explicit CollectivesScope(int device);
  ~CollectivesScope();
  CollectivesScope(const CollectivesScope&) = delete;
  CollectivesScope& operator=(const CollectivesScope&) = delete;

 private:
  int device_;
};

/// Returns whether a CollectivesScope of the device lives, in any thread of this process.
bool runs_collectives(int device);

}  // namespace tutti::cuda
