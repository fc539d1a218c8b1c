#include "count_change.h"

#include "cuda/graph.h"

namespace tutti {

void count_change(const std::shared_ptr<Storage>& storage) {
  storage->bump_version();
  if (!storage->device().is_cuda()) return;
  // A graph that owned the storage would keep its memory from other tensors of the capture.
  cuda::call_before_replay(storage->device(), [changed = std::weak_ptr(storage)] {
    if (const auto alive = changed.lock()) alive->bump_version();
  });
}

}  // namespace tutti
