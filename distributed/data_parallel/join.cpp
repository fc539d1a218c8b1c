#include "join.h"

#include "../../core/create.h"
#include "../broadcast_text.h"

namespace tutti::distributed {

bool Join::step(std::int64_t samples) {
  group_.check_together("Join", [&] {
    if (samples < 0) fail<ValueError>("Join: expected a number of samples, got {}", samples);
  });
  // The choice decides whether a rank goes on.
  constexpr const char* names[] = {"shadow", "stop", "error"};
  const CallOptions call{
      .name = "Join: who has samples",
      .step = fmt::format(", step {}, uneven={}", ++steps_, names[static_cast<int>(uneven_)])};
  std::int64_t sums[] = {samples, samples > 0};
  group_.all_reduce(from_blob(sums, {2}, int64), ReduceOp::sum, call).wait();
  total_ = sums[0];
  weight_ = total_ > 0 ? group_.size() / static_cast<double>(total_) : 0;
  if (sums[1] == 0 || sums[1] == group_.size()) return total_ > 0;
  if (uneven_ == Uneven::error) throw_uneven(all_gather_numbers(group_, {samples}, call));
  return uneven_ == Uneven::shadow;
}

void Join::throw_uneven(const std::vector<std::int64_t>& samples) const {
  std::vector<int> with, without;
  for (int r = 0; r < group_.size(); ++r)
    (samples[static_cast<std::size_t>(r)] > 0 ? with : without).push_back(r);
  throw DistributedError(
      fmt::format("Join: {} no samples for step {}, {} {} (rank {} of {}); give every rank as many "
                  "batches, or choose Uneven::shadow or Uneven::stop",
                  ranks_to_string(without) + (without.size() > 1 ? " have" : " has"), steps_,
                  ranks_to_string(with), with.size() > 1 ? "have" : "has", group_.rank(),
                  group_.size()),
      {group_.rank(), group_.size(), "all_gather", -1, "Join"});
}

}  // namespace tutti::distributed
