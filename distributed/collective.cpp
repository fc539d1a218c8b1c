#include "collective.h"

#include "../core/error.h"
#include "../core/hash.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace tutti::distributed {
namespace {

// Returns where the data of a call goes, if that of another one goes elsewhere.
const char* path_of(const Fingerprint& call, const Fingerprint& other) {
  if (call.path == other.path) return "";
  return call.path == Path::nccl ? " between GPUs" : " on the hosts";
}

}  // namespace

const char* to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::mean: return "mean";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
  }
  return "?";
}

const char* to_string(Operation operation) {
  switch (operation) {
    case Operation::all_reduce: return "all_reduce";
    case Operation::all_gather: return "all_gather";
    case Operation::broadcast: return "broadcast";
    case Operation::reduce_scatter: return "reduce_scatter";
    case Operation::barrier: return "barrier";
  }
  return "?";
}

bool Fingerprint::operator==(const Fingerprint& other) const {
  return sequence == other.sequence && name_hash == other.name_hash && count == other.count &&
         rank == other.rank && std::ranges::equal(sizes, other.sizes) && root == other.root &&
         operation == other.operation && op == other.op && dtype == other.dtype &&
         path == other.path;
}

std::uint64_t Fingerprint::hash() const {
  return Hash64()
      .add(static_cast<std::uint64_t>(sequence))
      .add(static_cast<std::uint64_t>(count))
      .add(sizes, sizeof(sizes))
      .add(name_hash)
      .add(static_cast<std::uint64_t>(root))
      .add(static_cast<std::uint64_t>(path) << 32 | static_cast<std::uint64_t>(rank) << 24 |
           static_cast<std::uint64_t>(operation) << 16 | static_cast<std::uint64_t>(op) << 8 |
           dtype)
      .value();
}

std::int64_t Fingerprint::bytes() const {
  return operation == Operation::barrier
             ? 0
             : count * static_cast<std::int64_t>(size_of(static_cast<DType>(dtype)));
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
  const std::string name(fingerprint.text, strnlen(fingerprint.text, sizeof(fingerprint.text)));
  return name.empty() ? text : fmt::format("{} ({})", text, name);
}

std::string describe(const Fingerprint& fingerprint, const std::string& group,
                     const std::string& name) {
  std::string text = fmt::format("{} #{} of group '{}'", to_string(fingerprint.operation),
                                 fingerprint.sequence, group);
  std::string about = name;
  if (fingerprint.operation != Operation::barrier) {
    const auto size = static_cast<double>(fingerprint.bytes());
    if (!about.empty()) about += ", ";
    about += size < 1e3   ? fmt::format("{:.0f} B", size)
             : size < 1e6 ? fmt::format("{:.1f} kB", size / 1e3)
                          : fmt::format("{:.1f} MB", size / 1e6);
  }
  return about.empty() ? text : fmt::format("{} ({})", text, about);
}

std::string disagreement(std::span<const Fingerprint> fingerprints, std::span<const int> ranks) {
  const auto rank = [&](std::size_t i) { return ranks.empty() ? static_cast<int>(i) : ranks[i]; };
  for (std::size_t i = 1; i < fingerprints.size(); ++i)
    if (!(fingerprints[i] == fingerprints[0]))
      return fmt::format(
          "the ranks are at different calls: rank {} at {}{}, rank {} at {}{}. Every rank must "
          "issue the same collectives in the same order{}",
          rank(0), to_string(fingerprints[0]), path_of(fingerprints[0], fingerprints[i]), rank(i),
          to_string(fingerprints[i]), path_of(fingerprints[i], fingerprints[0]),
          fingerprints[0].of_model || fingerprints[i].of_model
              ? fmt::format(", and construct models and layers in the same order, with the same "
                            "options; a model that one rank alone builds takes ProcessGroup() as "
                            "its group{}",
                            advice_for_one_rank)
              : "");
  return {};
}

std::int64_t Collective::bytes() const {
  return input.defined() ? input.numel() * static_cast<std::int64_t>(size_of(input.dtype())) : 0;
}

Fingerprint fingerprint(const Collective& call, Path path) {
  Fingerprint result{.sequence = call.sequence,
                     .name_hash = Hash64()
                                      .add(call.options.name.data(), call.options.name.size())
                                      .add(call.options.step.data(), call.options.step.size())
                                      .value(),
                     .root = call.root,
                     .operation = call.operation,
                     .op = static_cast<std::uint8_t>(call.op),
                     .path = path,
                     .of_model = call.options.of_model};
  if (call.input.defined()) {
    const Shape shape = call.input.shape();
    result.count = numel(shape);
    result.rank = static_cast<std::uint8_t>(shape.size());
    for (int d = 0; d < shape.size(); ++d)
      result.sizes[d] = static_cast<std::int32_t>(
          std::min<std::int64_t>(shape[d], std::numeric_limits<std::int32_t>::max()));
    result.dtype = static_cast<std::uint8_t>(call.input.dtype());
  }
  std::size_t at = 0;
  const auto add = [&](const std::string& part) {
    const std::size_t added = part.copy(result.text + at, sizeof(result.text) - 1 - at);
    at += added;
    return static_cast<std::uint8_t>(added);
  };
  result.name_bytes = add(call.options.name);
  result.step_bytes = add(call.options.step);
  add(call.options.detail);
  return result;
}

std::string describe(const Collective& call, const GroupInfo& group) {
  return describe(call.fingerprint, group.group, call.options.name + call.options.detail);
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
