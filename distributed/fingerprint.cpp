#include "fingerprint.h"

#include "../core/dtype.h"
#include "../core/error.h"
#include "../core/hash.h"

#include <algorithm>
#include <cstring>

namespace tutti::distributed {
namespace {

// Returns where the data of a call goes, if that of another one goes elsewhere.
const char* path_of(const Fingerprint& call, const Fingerprint& other) {
  if (call.path == other.path) return "";
  return call.path == Path::nccl ? " between GPUs" : " on the hosts";
}

}  // namespace

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

std::string describe(const Fingerprint& fingerprint, const std::string& group) {
  return describe(fingerprint, group, fingerprint.name());
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

}  // namespace tutti::distributed
