#include "replica_check.h"

#include "../../core/create.h"
#include "../../core/hash.h"
#include "../broadcast_text.h"

namespace tutti::distributed {
namespace {

std::int64_t hash_of(const Tensor& tensor) {
  const Tensor host = tensor.detach().contiguous().to(Device::cpu());
  const std::size_t bytes = static_cast<std::size_t>(host.numel()) * size_of(host.dtype());
  return static_cast<std::int64_t>(Hash64().add(host.raw(), bytes).value());
}

void check_same_count(std::int64_t count, const ProcessGroup& group) {
  const auto counts =
      all_gather_numbers(group, {count}, {.name = "check_replicas: number of tensors"});
  for (int r = 0; r < group.size(); ++r)
    if (const std::int64_t other = counts[static_cast<std::size_t>(r)]; other != count)
      fail<DistributedError>(
          "replica check of group '{}': rank {} holds {} tensors, rank {} holds {}; pass the same "
          "state on every rank",
          group.name(), group.rank(), count, r, other);
}

// Describes how the ranks divide over one tensor: "ranks {0, 2} hold the same bits, ranks {1}
// something else". The hash of rank r is hashes[r * stride].
std::string describe_division(const std::int64_t* hashes, std::int64_t stride, int ranks) {
  std::string same, different;
  for (int r = 0; r < ranks; ++r) {
    std::string& list = hashes[r * stride] == hashes[0] ? same : different;
    list += (list.empty() ? "" : ", ") + std::to_string(r);
  }
  return fmt::format("ranks {{{}}} hold the same bits, ranks {{{}}} something else", same,
                     different);
}

}  // namespace

void check_replicas(const StateDict& state, const ProcessGroup& group, const std::string& note) {
  if (group.size() == 1) return;
  const auto count = static_cast<std::int64_t>(state.size());
  check_same_count(count, group);
  std::vector<std::int64_t> mine;
  group.check_together("check_replicas", [&] {
    for (const auto& [name, tensor] : state) mine.push_back(hash_of(tensor));
  });
  const auto all = all_gather_numbers(group, mine, {.name = "check_replicas: hashes"});
  const std::int64_t* hashes = all.data();
  for (std::int64_t i = 0; i < count; ++i)
    for (int r = 1; r < group.size(); ++r)
      if (hashes[r * count + i] != hashes[i])
        fail<DistributedError>(
            "replica check of group '{}': '{}' is not the same on every rank: {}{}", group.name(),
            state[static_cast<std::size_t>(i)].first,
            describe_division(hashes + i, count, group.size()), note);
}

}  // namespace tutti::distributed
