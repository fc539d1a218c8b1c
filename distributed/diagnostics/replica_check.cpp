#include "replica_check.h"

#include "../../core/create.h"
#include "../../core/hash.h"

namespace tutti::distributed {
namespace {

std::int64_t hash_of(const Tensor& tensor) {
  const Tensor host = tensor.detach().contiguous().to(Device::cpu());
  const std::size_t bytes = static_cast<std::size_t>(host.numel()) * size_of(host.dtype());
  return static_cast<std::int64_t>(Hash64().add(host.raw(), bytes).value());
}

// "ranks {0, 2} hold the same, ranks {1} something else", seen from rank 0.
std::string division(const std::int64_t* hashes, std::int64_t stride, int ranks) {
  std::string with, without;
  for (int r = 0; r < ranks; ++r) {
    std::string& list = hashes[r * stride] == hashes[0] ? with : without;
    list += (list.empty() ? "" : ", ") + std::to_string(r);
  }
  return fmt::format("ranks {{{}}} hold the same, ranks {{{}}} something else", with, without);
}

}  // namespace

void expect_equal_on_ranks(const StateDict& state, const ProcessGroup& group) {
  if (group.size() == 1) return;
  const auto count = static_cast<std::int64_t>(state.size());
  const Tensor counts = empty({group.size()}, {.dtype = int64});
  group
      .all_gather(full({}, static_cast<double>(count), {.dtype = int64}), counts,
                  {.name = "audit: number of tensors"})
      .wait();
  for (int r = 0; r < group.size(); ++r)
    if (counts.data<std::int64_t>()[r] != count)
      fail<DistributedError>("audit of group '{}': rank {} holds {} tensors, rank {} {}",
                             group.name(), group.rank(), count, r, counts.data<std::int64_t>()[r]);
  const Tensor mine = empty({count}, {.dtype = int64}),
               all = empty({group.size(), count}, {.dtype = int64});
  for (std::int64_t i = 0; i < count; ++i)
    mine.data<std::int64_t>()[i] = hash_of(state[static_cast<std::size_t>(i)].second);
  group.all_gather(mine, all, {.name = "audit: hashes"}).wait();
  const auto* hashes = all.data<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i)
    for (int r = 1; r < group.size(); ++r)
      if (hashes[r * count + i] != hashes[i])
        fail<DistributedError>("audit of group '{}': '{}' is not the same on every rank: {}",
                               group.name(), state[static_cast<std::size_t>(i)].first,
                               division(hashes + i, count, group.size()));
}

Audit::Audit(StateDict state, ProcessGroup group, std::int64_t every)
    : state_(std::move(state)), group_(std::move(group)), every_(every) {
  if (every < 1) fail<ValueError>("Audit: expected a positive number of steps, got {}", every);
}

void Audit::step() {
  if (++steps_ % every_ != 0) return;
  try {
    expect_equal_on_ranks(state_, group_);
  } catch (const TimeoutError&) {
    throw;
  } catch (const DistributedError& error) {
    throw DistributedError(fmt::format("{} (found after step {})", error.what(), steps_),
                           error.info());
  }
}

}  // namespace tutti::distributed
