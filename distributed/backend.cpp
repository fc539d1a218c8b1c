#include "backend.h"

#include <algorithm>
#include <cstring>

namespace tutti::distributed {

std::string to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::mean: return "mean";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
  }
  return "?";
}

std::string to_string(Operation operation) {
  switch (operation) {
    case Operation::all_reduce: return "all_reduce";
    case Operation::all_gather: return "all_gather";
    case Operation::broadcast: return "broadcast";
    case Operation::reduce_scatter: return "reduce_scatter";
    case Operation::barrier: return "barrier";
  }
  return "?";
}

std::int64_t Collective::bytes() const {
  return input.defined() ? input.numel() * static_cast<std::int64_t>(size_of(input.dtype())) : 0;
}

bool Fingerprint::operator==(const Fingerprint& other) const {
  return sequence == other.sequence && count == other.count && name_hash == other.name_hash &&
         root == other.root && operation == other.operation && op == other.op &&
         dtype == other.dtype;
}

Fingerprint fingerprint(const Collective& call) {
  Fingerprint print;
  print.sequence = call.sequence;
  print.count = call.input.defined() ? call.input.numel() : 0;
  print.name_hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : call.name)
    print.name_hash = (print.name_hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  print.root = call.root;
  print.operation = call.operation;
  print.op = static_cast<std::uint8_t>(call.op);
  print.dtype = call.input.defined() ? static_cast<std::uint8_t>(call.input.dtype()) : 0;
  std::memcpy(print.name, call.name.data(), std::min(call.name.size(), sizeof(print.name) - 1));
  return print;
}

std::string to_string(const Fingerprint& print) {
  std::string text = to_string(print.operation);
  if (print.operation == Operation::all_reduce || print.operation == Operation::reduce_scatter)
    text += fmt::format("({})", to_string(static_cast<ReduceOp>(print.op)));
  if (print.operation == Operation::broadcast) text += fmt::format("(root {})", print.root);
  text += fmt::format(" #{}", print.sequence);
  if (print.operation != Operation::barrier)
    text +=
        fmt::format(" of {} x {}", tutti::to_string(static_cast<DType>(print.dtype)), print.count);
  const std::string name(print.name, strnlen(print.name, sizeof(print.name)));
  return name.empty() ? text : fmt::format("{} ({})", text, name);
}

std::string disagreement(std::span<const Fingerprint> prints) {
  for (std::size_t r = 1; r < prints.size(); ++r)
    if (!(prints[r] == prints[0]))
      return fmt::format(
          "the ranks are at different calls: rank 0 at {}, rank {} at {}. Every rank must issue "
          "the same collectives in the same order",
          to_string(prints[0]), r, to_string(prints[r]));
  return {};
}

Backend::Place Backend::place_in(const std::vector<int>& members, const std::string& name) const {
  Place there = place_;
  there.rank =
      static_cast<int>(std::find(members.begin(), members.end(), place_.rank) - members.begin());
  there.size = static_cast<int>(members.size());
  there.group = name;
  return there;
}

std::string describe(const Collective& call, const Backend::Place& place) {
  std::string text =
      fmt::format("{} #{} of group '{}'", to_string(call.operation), call.sequence, place.group);
  std::string about = call.name;
  if (call.operation != Operation::barrier) {
    const auto bytes = static_cast<double>(call.bytes());
    if (!about.empty()) about += ", ";
    about += bytes < 1e3   ? fmt::format("{:.0f} B", bytes)
             : bytes < 1e6 ? fmt::format("{:.1f} kB", bytes / 1e3)
                           : fmt::format("{:.1f} MB", bytes / 1e6);
  }
  return about.empty() ? text : fmt::format("{} ({})", text, about);
}

void raise(const Failure& failure, const Collective& call, const Backend::Place& place) {
  const std::string here = describe(call, place);
  const std::string cause =
      failure.at.empty() || failure.at == here ? failure.what : failure.at + ": " + failure.what;
  const std::string text =
      fmt::format("{}: {}{} [rank {} of {}]", here,
                  failure.at == here ? "" : "not done, because the group has failed: ", cause,
                  place.rank, place.size);
  CollectiveInfo info{place.rank, place.size, to_string(call.operation), call.sequence, call.name};
  if (failure.timeout) throw TimeoutError(text, std::move(info));
  throw DistributedError(text, std::move(info));
}

namespace {

std::string last_completed(std::span<const int> ranks, std::int64_t completed) {
  return fmt::format("{} last completed {}", ranks.size() == 1 ? "it" : "they",
                     completed == 0 ? "none" : fmt::format("#{}", completed));
}

}  // namespace

std::string absence(std::span<const int> missing, std::chrono::milliseconds timeout,
                    std::int64_t completed) {
  return fmt::format("{} did not arrive within {}; {}", ranks_to_string(missing),
                     to_string(timeout), last_completed(missing, completed));
}

std::string departure(std::span<const int> left, const char* how, std::int64_t completed) {
  return fmt::format("{} will never arrive: {} {}; {}", ranks_to_string(left),
                     left.size() == 1 ? "its" : "their", how, last_completed(left, completed));
}

std::string ranks_to_string(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return text;
}

std::string to_string(std::chrono::milliseconds duration) {
  return duration.count() % 1000 == 0 ? fmt::format("{} s", duration.count() / 1000)
                                      : fmt::format("{} ms", duration.count());
}

std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() +
         std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
}

}  // namespace tutti::distributed
