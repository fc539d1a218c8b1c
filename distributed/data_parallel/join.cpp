#include "join.h"

#include "../../core/create.h"
#include "../broadcast_text.h"
#include "../submit.h"

namespace tutti::distributed {

bool Join::step(std::int64_t samples) {
  check_together(group_, "Join", [&] {
    if (samples < 0) fail<ValueError>("Join: expected a number of samples, got {}", samples);
  });
  // The choices decide whether and how a rank goes on.
  constexpr const char *uneven_names[] = {"shadow", "stop", "error"},
                       *divisor_names[] = {"samples", "active_ranks", "world_size"};
  const CallOptions call{.name = "Join: who has samples",
                         .step = fmt::format(", step {}, uneven={}, divide_by={}", ++steps_,
                                             uneven_names[static_cast<int>(options_.uneven)],
                                             divisor_names[static_cast<int>(options_.divide_by)])};
  std::int64_t sums[] = {samples, samples > 0};
  group_.all_reduce(from_blob(sums, {2}, int64), ReduceOp::sum, call).wait();
  total_ = sums[0];
  active_ = static_cast<int>(sums[1]);
  weight_ = weight_of(samples);
  if (active_ == 0 || active_ == group_.size()) return active_ > 0;
  if (options_.uneven == Uneven::error) throw_uneven(all_gather_numbers(group_, {samples}, call));
  return options_.uneven == Uneven::shadow;
}

double Join::weight_of(std::int64_t samples) const {
  const auto mine = static_cast<double>(samples), ranks = static_cast<double>(group_.size());
  switch (options_.divide_by) {
    case Divisor::samples: return total_ > 0 ? ranks / static_cast<double>(total_) : 0;
    case Divisor::active_ranks: return samples > 0 ? ranks / (active_ * mine) : 0;
    case Divisor::world_size: return samples > 0 ? 1 / mine : 0;
  }
  return 0;
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
