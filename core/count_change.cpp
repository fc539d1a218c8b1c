#include "count_change.h"

#include "cuda/graph.h"

namespace tutti {

void count_change(const std::shared_ptr<Storage>& storage) {
  storage->bump_version();
  if (storage->kernel_data())
    cuda::call_before_replay(storage->device(), [storage] { storage->bump_version(); });
}

}  // namespace tutti
