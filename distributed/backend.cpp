#include "backend.h"

#include <algorithm>

namespace tutti::distributed {

GroupInfo Backend::subgroup_info(const std::vector<int>& members, const std::string& name) const {
  GroupInfo there = *info_;
  there.rank =
      static_cast<int>(std::find(members.begin(), members.end(), info_->rank) - members.begin());
  there.size = static_cast<int>(members.size());
  there.group = name;
  there.world_ranks.clear();
  there.hosts.clear();
  for (const int member : members) {
    const auto at = static_cast<std::size_t>(member);
    there.world_ranks.push_back(info_->world_ranks[at]);
    if (!info_->hosts.empty()) there.hosts.push_back(info_->hosts[at]);
  }
  return there;
}

void Backend::abort(const std::string& cause) {
  if (world_) world_->fail({.what = fmt::format("rank {} gave up: {}", info_->rank, cause)});
}

std::optional<Failure> Backend::failure() { return world_ ? world_->failure() : std::nullopt; }

}  // namespace tutti::distributed
