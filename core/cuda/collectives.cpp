#include "collectives.h"

#include <map>
#include <mutex>

namespace tutti::cuda {
namespace {

struct Communicators {
  std::mutex mutex;
  std::map<int, int> on_device;  // how many there are
};

Communicators& communicators() {
  static auto* communicators = new Communicators;  // never destroyed, like process groups
  return *communicators;
}

}  // namespace

CollectivesScope::CollectivesScope(int device) : device_(device) {
  const std::lock_guard lock(communicators().mutex);
  ++communicators().on_device[device];
}

CollectivesScope::~CollectivesScope() {
  const std::lock_guard lock(communicators().mutex);
  --communicators().on_device[device_];
}

bool runs_collectives(int device) {
  const std::lock_guard lock(communicators().mutex);
  return communicators().on_device[device] > 0;
}

}  // namespace tutti::cuda
