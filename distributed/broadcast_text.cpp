#include "broadcast_text.h"

#include <cstring>

namespace tutti::distributed {

std::string broadcast_text(const ProcessGroup& group, const std::string& text,
                           const std::string& name) {
  const Tensor size = full({}, static_cast<double>(text.size()), {.dtype = int64});
  group.broadcast(size, 0, {.name = name}).wait();
  if (size.item<std::int64_t>() == 0) return {};
  const Tensor bytes = zeros({size.item<std::int64_t>()}, {.dtype = uint8});
  if (group.rank() == 0) std::memcpy(bytes.raw(), text.data(), text.size());
  group.broadcast(bytes, 0, {.name = name}).wait();
  return {static_cast<const char*>(bytes.raw()), static_cast<std::size_t>(bytes.numel())};
}

}  // namespace tutti::distributed
