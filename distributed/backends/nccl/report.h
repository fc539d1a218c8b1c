// What a rank publishes in the rendezvous store about its groups: a Report about the collectives of
// each, which becomes a value of the store and is read again with checks, and the list of those
// that it has released. It needs neither CUDA nor NCCL.
#pragma once

#include "../../../core/error.h"
#include "../../collective.h"
#include "../../launch/rendezvous/store.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <type_traits>

namespace tutti::distributed::nccl {

constexpr std::size_t max_fingerprints = 4;

/// The collectives of one group that are under way on a rank.
struct Report {
  std::int64_t last_issued = 0, calls = 0;
  CallRecord latest_call = {};
  Fingerprint fingerprints[max_fingerprints] = {};  ///< Of its oldest calls.
};
static_assert(std::is_trivially_copyable_v<Report>);

using Reports = std::map<std::string, Report>;  ///< By the key of the group.

/// The key under which a rank publishes its reports.
inline std::string state_key(int world_rank) { return fmt::format("state/{}", world_rank); }

/// Returns a value of the store: key, zero byte and report of each group as plain bytes, one after
/// the other.
inline std::string encode(const Reports& reports) {
  std::string text;
  for (const auto& [key, report] : reports) {
    text += key;
    text += '\0';
    text.append(reinterpret_cast<const char*>(&report), sizeof(report));
  }
  return text;
}

/// Returns as many of the reports as encode() puts into `max_bytes`: first those with calls under
/// way, then the others, each in the order of the keys.
inline Reports truncated_to(const Reports& reports, std::size_t max_bytes) {
  Reports chosen;
  std::size_t bytes = 0;
  for (const bool is_under_way : {true, false})
    for (const auto& [key, report] : reports) {
      const std::size_t size = key.size() + 1 + sizeof(report);
      if ((report.calls > 0) != is_under_way || bytes + size > max_bytes) continue;
      chosen.emplace(key, report);
      bytes += size;
    }
  return chosen;
}

/// Returns whether a report may have been written by encode(): its numbers are in their ranges, and
/// the names end.
inline bool is_valid(const Report& report) {
  const auto fits = [](const Fingerprint& f) {
    return f.sequence >= 0 && f.rank <= Dims::max_rank && f.operation <= Operation::barrier &&
           f.op <= static_cast<std::uint8_t>(ReduceOp::max) &&
           f.dtype <= static_cast<std::uint8_t>(DType::boolean) &&
           std::memchr(f.name, '\0', sizeof(f.name)) != nullptr;
  };
  const CallRecord& latest = report.latest_call;
  return report.last_issued >= 0 && report.calls >= 0 && latest.sequence >= 0 &&
         latest.bytes >= 0 && latest.operation <= Operation::barrier &&
         std::memchr(latest.name, '\0', sizeof(latest.name)) != nullptr &&
         std::all_of(std::begin(report.fingerprints), std::end(report.fingerprints), fits);
}

/// Reads the value that the rank `world_rank` has written. Throws a DistributedError where it is
/// malformed.
inline Reports decode_reports(const std::string& text, int world_rank) {
  Reports reports;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\0', at);
    Report report;
    const bool is_whole = end != std::string::npos && text.size() - end - 1 >= sizeof(report);
    if (is_whole) std::memcpy(static_cast<void*>(&report), text.data() + end + 1, sizeof(report));
    if (!is_whole || !is_valid(report))
      tutti::fail<DistributedError>(
          "nccl: the report of rank {} about its collectives is malformed at byte {} of {}; do all "
          "ranks run the same program?",
          world_rank, at, text.size());
    reports.insert_or_assign(text.substr(at, end - at), report);
    at = end + 1 + sizeof(report);
  }
  return reports;
}

/// The prefix of the keys under which the ranks list the keys of the groups that they have
/// released, each followed by a newline.
constexpr const char* released_prefix = "released/";
inline std::string released_key(int world_rank) {
  return fmt::format("{}{}", released_prefix, world_rank);
}

/// Returns whether the rank `world_rank` has released the group of this key, given the lists of all
/// ranks.
inline bool is_released_by(int world_rank, const std::string& group_key,
                           const rendezvous::Values& lists) {
  const auto list = lists.find(released_key(world_rank));
  return list != lists.end() &&
         ('\n' + list->second).find('\n' + group_key + '\n') != std::string::npos;
}

}  // namespace tutti::distributed::nccl
