#include "collective.h"

#include "../core/error.h"
#include "../core/hash.h"
#include "../core/ticks.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace tutti::distributed {
namespace {

std::string describe_call(Operation operation, std::int64_t sequence, const std::string& group,
                          const std::string& name, std::int64_t bytes) {
  std::string text = fmt::format("{} #{} of group '{}'", to_string(operation), sequence, group);
  std::string about = name;
  if (operation != Operation::barrier) {
    const auto size = static_cast<double>(bytes);
    if (!about.empty()) about += ", ";
    about += size < 1e3   ? fmt::format("{:.0f} B", size)
             : size < 1e6 ? fmt::format("{:.1f} kB", size / 1e3)
                          : fmt::format("{:.1f} MB", size / 1e6);
  }
  return about.empty() ? text : fmt::format("{} ({})", text, about);
}

void sort_latest_first(std::vector<LatestCall>& calls) {
  std::stable_sort(calls.begin(), calls.end(), [](const LatestCall& a, const LatestCall& b) {
    return a.record.stamp > b.record.stamp;
  });
}

}  // namespace

Work::Work(std::shared_ptr<State> state, RecordedCall recorded)
    : state_(std::move(state)), recorded_(std::move(recorded)) {}

void Work::wait() {
  if (!state_) return;
  if (process_.is_of_parent())
    fail<DistributedError>(
        "Work::wait: this collective belongs to the process that this one was forked from, which "
        "alone can wait for it; wait before a fork, or start the child with exec");
  const std::int64_t began = ticks_now();
  state_->wait();
  if (!recorded_.recorder) return;
  const Clock::time_point done = state_->done_at();
  const auto before = done == Clock::time_point{} ? Clock::duration{} : Clock::now() - done;
  recorded_.recorder->finish(recorded_.number, began, before);
  recorded_ = {};
}

bool Work::is_done() {
  if (!state_ || process_.is_of_parent()) return true;
  if (!state_->is_done()) return false;
  try {
    wait();  // takes the last steps, such as the copy to a tensor with gaps
  } catch (const std::exception&) {}  // the next wait() throws it again
  return true;
}

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
  return sequence == other.sequence && name_hash == other.name_hash && count == other.count &&
         rank == other.rank && std::ranges::equal(sizes, other.sizes) && root == other.root &&
         operation == other.operation && op == other.op && dtype == other.dtype;
}

std::uint64_t Fingerprint::hash() const {
  return Hash64()
      .add(static_cast<std::uint64_t>(sequence))
      .add(static_cast<std::uint64_t>(count))
      .add(sizes, sizeof(sizes))
      .add(name_hash)
      .add(static_cast<std::uint64_t>(root))
      .add(static_cast<std::uint64_t>(rank) << 24 | static_cast<std::uint64_t>(operation) << 16 |
           static_cast<std::uint64_t>(op) << 8 | dtype)
      .value();
}

Fingerprint fingerprint(const Collective& call) {
  Fingerprint fingerprint;
  fingerprint.sequence = call.sequence;
  if (call.input.defined()) {
    const Shape shape = call.input.shape();
    fingerprint.count = numel(shape);
    fingerprint.rank = static_cast<std::uint8_t>(shape.size());
    for (int d = 0; d < shape.size(); ++d)
      fingerprint.sizes[d] = static_cast<std::int32_t>(
          std::min<std::int64_t>(shape[d], std::numeric_limits<std::int32_t>::max()));
  }
  fingerprint.name_hash = Hash64()
                              .add(call.name.data(), call.name.size())
                              .add(call.step.data(), call.step.size())
                              .value();
  fingerprint.root = call.root;
  fingerprint.operation = call.operation;
  fingerprint.op = static_cast<std::uint8_t>(call.op);
  fingerprint.dtype = call.input.defined() ? static_cast<std::uint8_t>(call.input.dtype()) : 0;
  fingerprint.of_model = call.of_model;
  std::size_t room = sizeof(fingerprint.name) - 1;
  char* end = fingerprint.name;
  for (const std::string* part : {&call.name, &call.step, &call.detail}) {
    const std::size_t length = std::min(part->size(), room);
    std::memcpy(end, part->data(), length);
    end += length;
    room -= length;
  }
  return fingerprint;
}

std::string to_string(const Fingerprint& fingerprint) {
  std::string text = to_string(fingerprint.operation);
  if (fingerprint.operation == Operation::all_reduce ||
      fingerprint.operation == Operation::reduce_scatter)
    text += fmt::format("({})", to_string(static_cast<ReduceOp>(fingerprint.op)));
  if (fingerprint.operation == Operation::broadcast)
    text += fmt::format("(root {})", fingerprint.root);
  text += fmt::format(" #{}", fingerprint.sequence);
  if (fingerprint.operation != Operation::barrier)
    text += fmt::format(
        " of {} of shape {}", tutti::to_string(static_cast<DType>(fingerprint.dtype)),
        tutti::to_string(Shape(fingerprint.sizes, fingerprint.sizes + fingerprint.rank)));
  const std::string name(fingerprint.name, strnlen(fingerprint.name, sizeof(fingerprint.name)));
  return name.empty() ? text : fmt::format("{} ({})", text, name);
}

std::string disagreement(std::span<const Fingerprint> fingerprints, std::span<const int> ranks) {
  const auto rank = [&](std::size_t i) { return ranks.empty() ? static_cast<int>(i) : ranks[i]; };
  for (std::size_t i = 1; i < fingerprints.size(); ++i)
    if (!(fingerprints[i] == fingerprints[0]))
      return fmt::format(
          "the ranks are at different calls: rank {} at {}, rank {} at {}. Every rank must issue "
          "the same collectives in the same order{}",
          rank(0), to_string(fingerprints[0]), rank(i), to_string(fingerprints[i]),
          fingerprints[0].of_model || fingerprints[i].of_model
              ? fmt::format(", and construct models and layers in the same order, with the same "
                            "options; a model that one rank alone builds takes ProcessGroup() as "
                            "its group{}",
                            advice_for_one_rank)
              : "");
  return {};
}

std::string describe(const Collective& call, const GroupInfo& group) {
  return describe_call(call.operation, call.sequence, group.group, call.name + call.detail,
                       call.bytes());
}

CallRecord call_record(const Collective& call) {
  CallRecord record{.sequence = call.sequence, .bytes = call.bytes(), .operation = call.operation};
  call.name.copy(record.name, sizeof(record.name) - 1);
  return record;
}

std::string calls_to_string(std::vector<LatestCall> calls) {
  constexpr std::size_t most = 6;
  std::erase_if(calls, [](const LatestCall& call) { return call.record.sequence == 0; });
  if (calls.empty()) return "no call";
  sort_latest_first(calls);
  const std::size_t shown = std::min(calls.size(), most);
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& [record, group, id] = calls[i];
    if (i > 0) text += i + 1 == calls.size() ? " and " : ", ";
    text += describe_call(record.operation, record.sequence, group, record.name, record.bytes);
  }
  if (shown < calls.size()) text += fmt::format(" and {} more", calls.size() - shown);
  return text;
}

LatestCalls::LatestCalls(std::vector<LatestCall> calls) {
  sort_latest_first(calls);
  for (const LatestCall& call : calls)
    if (!is_full()) sequences.emplace_back(call.group_id, call.record.sequence);
  text = calls_to_string(std::move(calls));
}

std::optional<std::int64_t> LatestCalls::sequence_of(std::uint64_t group_id) const {
  for (const auto& [group, sequence] : sequences)
    if (group == group_id) return sequence;
  return {};
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string ranks_to_string(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return text;
}

std::string to_string(const Absence& absence) {
  std::string text = ranks_to_string(absence.ranks);
  if (absence.of > 0) text += fmt::format(" of {}", absence.of);
  text += " " + absence.what;
  return absence.timeout.count() > 0 ? text + " within " + to_string(absence.timeout) : text;
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

std::string to_string(std::chrono::milliseconds duration) {
  return duration.count() % 1000 == 0 ? fmt::format("{} s", duration.count() / 1000)
                                      : fmt::format("{} ms", duration.count());
}

void check_timeout(const char* where, std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0)
    fail<ValueError>("{}: expected a positive timeout, got {}", where, to_string(timeout));
}

Clock::time_point deadline_after(std::chrono::milliseconds timeout, Clock::time_point start) {
  return start + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
}

}  // namespace tutti::distributed
