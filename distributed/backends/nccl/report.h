// What a rank publishes in the rendezvous store: its Seat when the world starts, from which rank 0
// chooses the devices, and then a Report about the collectives of each of its groups. Both become
// values of the store and are read again with checks. It needs neither CUDA nor NCCL.
#pragma once

#include "../../../core/error.h"
#include "../../../core/parse_number.h"
#include "../../collective.h"
#include "../../launch/rendezvous/messages.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <type_traits>

namespace tutti::distributed::nccl {

constexpr std::size_t max_fingerprints = 4;

/// The collectives of one group that are under way on a rank.
struct Report {
  std::int64_t last_issued = 0, calls = 0;
  std::int64_t released = 0;                        ///< 1 where the rank has left the group.
  Fingerprint fingerprints[max_fingerprints] = {};  ///< Of its oldest calls.
};
static_assert(std::is_trivially_copyable_v<Report>);

using Reports = std::map<std::string, Report>;  ///< By the key of the group.

/// The key under which a rank publishes LatestCalls::text, a zero byte and its reports.
inline std::string state_key(int world_rank) { return fmt::format("state/{}", world_rank); }

/// Returns a text of the store: key, zero byte and report of each group as plain bytes, one after
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
  return report.last_issued >= 0 && report.calls >= 0 && (report.released | 1) == 1 &&
         std::all_of(std::begin(report.fingerprints), std::end(report.fingerprints), fits);
}

/// Reads the text that the rank `world_rank` has written. Throws a DistributedError where it is
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

/// Reads what the rank `world_rank` has published: LatestCalls::text and its reports.
inline std::pair<std::string, Reports> decode_state(const std::string& text, int world_rank) {
  const std::size_t end = text.find('\0');
  return {text.substr(0, end),
          decode_reports(end == std::string::npos ? text : text.substr(end + 1), world_rank)};
}

/// What a rank tells rank 0 when the world starts.
struct Seat {
  std::string host = {};
  int local_rank = -1, device = -1;    ///< Negative where they are to be chosen.
  std::vector<std::string> gpus = {};  ///< The ids of the GPUs that the rank sees.
};

inline std::string encode(const Seat& seat) {
  rendezvous::Message message = {seat.host, std::to_string(seat.local_rank),
                                 std::to_string(seat.device)};
  message.insert(message.end(), seat.gpus.begin(), seat.gpus.end());
  return rendezvous::framed(message);
}

/// Reads what the rank `world_rank` tells. Throws a DistributedError where it is malformed.
inline Seat decode_seat(const std::string& text, int world_rank) {
  rendezvous::Message message = rendezvous::unframed(text);
  if (message.size() < 3) message.resize(3);  // not a number
  const auto local_rank = parse_number(message[1], -1), device = parse_number(message[2], -1);
  if (!local_rank || !device)
    tutti::fail<DistributedError>(
        "nccl: expected host, local rank, device and GPUs of rank {}, got {} other bytes; do all "
        "ranks run the same program?",
        world_rank, text.size());
  return {message[0], *local_rank, *device, {message.begin() + 3, message.end()}};
}

/// Chooses the local rank of every rank, and the device: the only one that a rank sees, or else
/// that of its local rank. Throws a DistributedError where two ranks have the same GPU, unless they
/// `may_share` one.
inline void choose_devices(std::vector<Seat>& seats, bool may_share) {
  std::map<std::string, int> ranks_on_host, rank_of_gpu;
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    Seat& seat = seats[rank];
    const int on_host = ranks_on_host[seat.host]++;
    if (seat.local_rank < 0) seat.local_rank = on_host;
    if (seat.device < 0) seat.device = seat.gpus.size() == 1 ? 0 : seat.local_rank;
    const auto device = static_cast<std::size_t>(seat.device);
    if (device >= seat.gpus.size() || may_share) continue;  // the rank itself says which are there
    const auto [first, is_new] = rank_of_gpu.emplace(seat.gpus[device], static_cast<int>(rank));
    if (!is_new)
      tutti::fail<DistributedError>(
          "nccl: ranks {} and {} have the same GPU ({}); NCCL needs one for each rank. Start fewer "
          "ranks on that host, check LOCAL_RANK and CUDA_VISIBLE_DEVICES, or give "
          "WorldOptions::device. (For tests: TUTTI_NCCL_SHARE_GPU=1, and an NCCL_HOSTID of its own "
          "for each rank)",
          first->second, rank, first->first);
  }
}

}  // namespace tutti::distributed::nccl
