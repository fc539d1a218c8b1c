#include "replica_check.h"

#include "../../core/create.h"
#include "../../core/hash.h"
#include "../submit.h"

namespace tutti::distributed {
namespace {

std::int64_t hash_of(const Tensor& tensor) {
  const Tensor host = tensor.detach().contiguous().to(Device::cpu());
  const std::size_t bytes = static_cast<std::size_t>(host.numel()) * size_of(host.dtype());
  return static_cast<std::int64_t>(Hash64().add(host.raw(), bytes).value());
}

void check_same_count(std::int64_t count, const ProcessGroup& group) {
  const Tensor counts = empty({group.size()}, {.dtype = int64});
  group
      .all_gather(full({}, static_cast<double>(count), {.dtype = int64}), counts,
                  {.name = "ReplicaCheck: number of tensors"})
      .wait();
  for (int r = 0; r < group.size(); ++r)
    if (const std::int64_t other = counts.data<std::int64_t>()[r]; other != count)
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
  const Tensor mine = empty({count}, {.dtype = int64}),
               all = empty({group.size(), count}, {.dtype = int64});
  check_together(group, "check_replicas", [&] {
    for (std::int64_t i = 0; i < count; ++i)
      mine.data<std::int64_t>()[i] = hash_of(state[static_cast<std::size_t>(i)].second);
  });
  group.all_gather(mine, all, {.name = "ReplicaCheck: hashes"}).wait();
  const auto* hashes = all.data<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i)
    for (int r = 1; r < group.size(); ++r)
      if (hashes[r * count + i] != hashes[i])
        fail<DistributedError>(
            "replica check of group '{}': '{}' is not the same on every rank: {}{}", group.name(),
            state[static_cast<std::size_t>(i)].first,
            describe_division(hashes + i, count, group.size()), note);
}

ReplicaCheck::ReplicaCheck(StateDict state, ProcessGroup group, std::int64_t interval)
    : state_(std::move(state)), group_(std::move(group)), interval_(interval) {
  if (interval < 1)
    fail<ValueError>("ReplicaCheck: expected a positive number of steps, got {}", interval);
}

void ReplicaCheck::step() {
  if (++steps_ % interval_ == 0)
    check_replicas(state_, group_, fmt::format(" (found after step {})", steps_));
}

}  // namespace tutti::distributed
