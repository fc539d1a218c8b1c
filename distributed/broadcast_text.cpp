#include "broadcast_text.h"

#include "../core/hash.h"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace tutti::distributed {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

std::string broadcast_text(const ProcessGroup& group, const std::string& text,
                           const std::string& name, int root) {
  const Tensor size = full({}, static_cast<double>(text.size()), {.dtype = int64});
  group.broadcast(size, root, {.name = name}).wait();
  if (size.item<std::int64_t>() == 0) return {};
  const Tensor bytes = zeros({size.item<std::int64_t>()}, {.dtype = uint8});
  if (group.rank() == root) std::memcpy(bytes.raw(), text.data(), text.size());
  group.broadcast(bytes, root, {.name = name}).wait();
  return {static_cast<const char*>(bytes.raw()), static_cast<std::size_t>(bytes.numel())};
}

void compare_texts(const ProcessGroup& group, const std::string& text, const std::string& name,
                   const std::function<void(const std::vector<std::string>&,
                                            const std::vector<std::string>&, int)>& differ) {
  const auto own = static_cast<std::int64_t>(Hash64().add(text).value());
  const auto hashes = all_gather_numbers(group, {own}, {.name = name});
  const auto found = std::ranges::find_if(hashes, [&](auto hash) { return hash != hashes[0]; });
  if (found == hashes.end()) return;
  const auto other = static_cast<int>(found - hashes.begin());
  const auto of_rank_0 = lines_of(broadcast_text(group, text, name, 0));
  differ(of_rank_0, lines_of(broadcast_text(group, text, name, other)), other);
}

std::vector<std::int64_t> all_gather_numbers(const ProcessGroup& group,
                                             std::vector<std::int64_t> numbers,
                                             const CallOptions& options) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()) * numbers.size());
  group
      .all_gather(from_blob(numbers.data(), {count}, int64),
                  from_blob(all.data(), {group.size(), count}, int64), options)
      .wait();
  return all;
}

std::vector<Tensor> all_gather_rows(const ProcessGroup& group, const Tensor& rows,
                                    const std::string& name) {
  if (rows.rank() == 0)
    fail<ShapeError>("all_gather_rows: expected a tensor of rows, got shape ()");
  const std::int64_t own = rows.size(0);
  const auto counts = all_gather_numbers(group, {own}, {.name = name});
  Shape shape = rows.shape();
  shape[0] = std::ranges::max(counts);
  const Tensor padded = zeros(shape, {rows.dtype(), rows.device()});
  padded.slice(0, 0, own).copy_(rows.detach());
  shape.insert(0, group.size());
  const Tensor all = empty(shape, {rows.dtype(), rows.device()});
  if (shape[1] > 0) group.all_gather(padded, all, {.name = name}).wait();
  std::vector<Tensor> parts;
  for (std::size_t rank = 0; rank < counts.size(); ++rank)
    parts.push_back(all.select(0, static_cast<std::int64_t>(rank)).slice(0, 0, counts[rank]));
  return parts;
}

std::vector<std::string> all_gather_text(const ProcessGroup& group, const std::string& text,
                                         const std::string& name) {
  const Tensor bytes = tensor(std::vector<std::uint8_t>(text.begin(), text.end()));
  std::vector<std::string> texts;
  for (const Tensor& part : all_gather_rows(group, bytes, name)) {
    const auto values = to_vector<std::uint8_t>(part);
    texts.emplace_back(values.begin(), values.end());
  }
  return texts;
}

}  // namespace tutti::distributed
