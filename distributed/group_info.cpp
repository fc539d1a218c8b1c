#include "group_info.h"

#include "../core/error.h"
#include "../core/parse_number.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>

namespace tutti::distributed {

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

int emulated_ranks_per_host() {
  const char* text = std::getenv("TUTTI_RANKS_PER_HOST");
  if (!text) return 0;
  const auto value = parse_number(text, 1);
  if (!value)
    fail<ValueError>(
        "TUTTI_RANKS_PER_HOST='{}': expected a positive number; unset it where no hosts are to be "
        "emulated",
        text);
  return *value;
}

HostLayout::HostLayout(const GroupInfo& group) {
  std::map<int, std::size_t> positions;  // in `hosts`, by the number of the host
  for (int rank = 0; rank < group.size; ++rank) {
    const int number = group.hosts.empty() ? 0 : group.hosts[static_cast<std::size_t>(rank)];
    const std::size_t at = positions.emplace(number, hosts.size()).first->second;
    if (at == hosts.size()) hosts.emplace_back();
    if (rank == group.rank) {
      host = at;
      index = hosts[at].size();
    }
    hosts[at].push_back(rank);
  }
}

std::size_t HostLayout::host_of(int rank) const {
  const auto has_rank = [&](const std::vector<int>& ranks) {
    return std::binary_search(ranks.begin(), ranks.end(), rank);
  };
  return static_cast<std::size_t>(std::ranges::find_if(hosts, has_rank) - hosts.begin());
}

std::size_t HostLayout::fewest_ranks() const {
  return std::ranges::min_element(hosts, {}, &std::vector<int>::size)->size();
}

std::size_t HostLayout::most_ranks() const {
  return std::ranges::max_element(hosts, {}, &std::vector<int>::size)->size();
}

}  // namespace tutti::distributed
