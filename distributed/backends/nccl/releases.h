// Releases: the agreement of all members of a group that none of them uses it any more, which they
// reach over the rendezvous store. It needs neither CUDA nor NCCL.
//
// Each rank overwrites one value of the store, which lists the groups that it has released. Once
// it has found a group in the lists of all members, it marks the group as seen in its own list. A
// group leaves a list when no member looks for it any more: every other list has it as seen, or has
// it no longer. So a list is as long as there are groups that some member still holds, however many
// a run splits.
#pragma once

#include "../../../core/error.h"
#include "../../launch/rendezvous/store.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tutti::distributed::nccl {

/// The list of one rank: by the key of each group, whether the rank has found it in all lists.
using ReleaseList = std::map<std::string, bool>;

/// Returns a value of the store: '+' where the group was seen and '-' otherwise, its key and a
/// newline for each group.
inline std::string encode(const ReleaseList& list) {
  std::string text;
  for (const auto& [key, is_seen] : list) text += (is_seen ? '+' : '-') + key + '\n';
  return text;
}

/// Reads the value that the rank `world_rank` has written. Throws a DistributedError where it is
/// malformed.
inline ReleaseList decode_releases(const std::string& text, int world_rank) {
  ReleaseList list;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos || end < at + 2 || (text[at] != '+' && text[at] != '-'))
      tutti::fail<DistributedError>(
          "nccl: the list of groups that rank {} has released is malformed at byte {} of {}; do "
          "all ranks run the same program?",
          world_rank, at, text.size());
    list.insert_or_assign(text.substr(at + 1, end - at - 1), text[at] == '+');
    at = end + 1;
  }
  return list;
}

/// The releases as one rank sees them. One thread, the watcher's, uses it.
class Releases {
 public:
  explicit Releases(std::shared_ptr<rendezvous::Store> store) : store_(std::move(store)) {}

  /// Adds a group that this rank has released to its list. `world_ranks` are the members.
  void add(const std::string& key, const std::vector<int>& world_ranks) {
    members_.emplace(key, world_ranks);
    own_.emplace(key, false);
  }

  /// Publishes this rank's list and reads those of the others, unless this rank waits for none.
  /// Throws a DistributedError where the store cannot be reached or a list is malformed.
  void exchange() {
    publish();
    if (own_.empty()) return;
    const std::map<int, ReleaseList> lists = read();
    std::vector<std::string> over;
    for (auto& [key, is_seen] : own_) {
      if (is_seen && is_over(key, lists)) over.push_back(key);
      else if (!is_seen) is_seen = is_in_all(key, lists);
    }
    for (const std::string& key : over) {
      own_.erase(key);
      members_.erase(key);
    }
  }

  /// Returns whether the exchange() just before has found that all members have released the group.
  bool is_released_by_all(const std::string& key) const {
    const auto found = own_.find(key);
    return found != own_.end() && found->second;
  }

  /// Returns the lists of all ranks that have one, by rank of the world. Throws as exchange().
  std::map<int, ReleaseList> read() const {
    std::map<int, ReleaseList> lists;
    const rendezvous::Values values = store_->list(prefix);
    for (int rank = 0; rank < store_->member().size; ++rank)
      if (const auto found = values.find(key_of(rank)); found != values.end())
        lists.emplace(rank, decode_releases(found->second, rank));
    return lists;
  }

 private:
  static constexpr const char* prefix = "released/";
  static std::string key_of(int world_rank) { return prefix + std::to_string(world_rank); }

  // A value of the store has a limit. Where the list is longer, entries that are published already
  // stay, because other ranks take a group that has left a list for released by all, and the others
  // follow once these have gone.
  void publish() {
    ReleaseList list;
    std::size_t bytes = 0;
    for (const bool is_published : {true, false})
      for (const auto& [key, is_seen] : own_) {
        if (published_.contains(key) != is_published) continue;
        bytes += key.size() + 2;  // the sign and the newline
        if (bytes > rendezvous::max_value_bytes) break;
        list.emplace(key, is_seen);
      }
    if (list == published_) return;
    store_->set(key_of(store_->member().rank), encode(list));
    published_ = std::move(list);
  }

  bool is_in_all(const std::string& key, const std::map<int, ReleaseList>& lists) const {
    const std::vector<int>& members = members_.at(key);
    return std::all_of(members.begin(), members.end(), [&](int rank) {
      const auto list = lists.find(rank);
      return list != lists.end() && list->second.contains(key);
    });
  }

  // This rank has seen the group in all lists, so one that has it no longer has dropped it.
  bool is_over(const std::string& key, const std::map<int, ReleaseList>& lists) const {
    const std::vector<int>& members = members_.at(key);
    return std::all_of(members.begin(), members.end(), [&](int rank) {
      const auto list = lists.find(rank);
      if (list == lists.end()) return true;
      const auto entry = list->second.find(key);
      return entry == list->second.end() || entry->second;
    });
  }

  const std::shared_ptr<rendezvous::Store> store_;
  ReleaseList own_;
  std::map<std::string, std::vector<int>> members_;  // of the groups in own_
  ReleaseList published_;                            // what the store holds
};

}  // namespace tutti::distributed::nccl
