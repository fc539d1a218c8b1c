#include "run_state.h"

#include "../autograd/functions.h"
#include "../autograd/grad_mode.h"
#include "../core/excerpt.h"
#include "../core/parse_number.h"
#include "../core/random.h"
#include "broadcast_text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace tutti::distributed {
namespace {

// Returns the entries whose names begin with "PART.", by the rest of their names.
template <class Entries>
Entries entries_of(const Entries& all, const std::string& part) {
  Entries own;
  for (const auto& [name, value] : all)
    if (name.size() > part.size() + 1 && name.starts_with(part + "."))
      own.insert(own.end(), {name.substr(part.size() + 1), value});
  return own;
}

}  // namespace

void RunState::add(const std::string& part, const StateDict& state, const Metadata& text) {
  for (const auto& [name, tensor] : state) tensors.emplace_back(part + "." + name, tensor);
  for (const auto& [key, value] : text) metadata[part + "." + key] = value;
}

StateDict RunState::part(const std::string& part) const { return entries_of(tensors, part); }

Metadata RunState::metadata_of(const std::string& part) const { return entries_of(metadata, part); }

Tensor RunState::tensor(const std::string& name, DType dtype, const Shape& shape) const {
  const auto found = std::ranges::find(tensors, name, &StateDict::value_type::first);
  if (found == tensors.end()) fail<CheckpointError>("tensor '{}' is missing", name);
  const Tensor& tensor = found->second;
  bool fits = tensor.dtype() == dtype && tensor.rank() == static_cast<int>(shape.size());
  for (int d = 0; fits && d < tensor.rank(); ++d)
    fits = shape[d] == -1 || tensor.shape()[d] == shape[d];
  if (!fits)
    fail<CheckpointError>("tensor '{}' is {} {}, expected {} {}", name, to_string(tensor.dtype()),
                          to_string(tensor.shape()), to_string(dtype), to_string(shape));
  return tensor;
}

const std::string& RunState::text(const std::string& key) const {
  const auto found = metadata.find(key);
  if (found == metadata.end()) fail<CheckpointError>("its metadata have no '{}'", key);
  return found->second;
}

std::int64_t RunState::number(const std::string& key) const {
  const std::string& digits = text(key);
  const auto value = parse_number<std::int64_t>(digits, 0);
  if (!value)
    fail<CheckpointError>("its metadata have '{}' as '{}', expected a number of at least 0",
                          excerpt(digits), key);
  return *value;
}

// First travels a list of what the state holds, then every tensor.
RunState broadcast(const RunState& of_rank_0, const ProcessGroup& group) {
  using Json = nlohmann::ordered_json;
  const bool is_sender = group.rank() == 0;
  RunState state = is_sender ? of_rank_0 : RunState();
  Json list{{"metadata", state.metadata}, {"tensors", Json::array()}};
  for (const auto& [name, tensor] : state.tensors)
    list["tensors"].push_back(
        {name, to_string(tensor.dtype()),
         std::vector<std::int64_t>(tensor.shape().begin(), tensor.shape().end())});
  list = Json::parse(broadcast_text(group, is_sender ? list.dump() : "", "run state"));
  if (!is_sender) {
    state.metadata = list["metadata"].get<Metadata>();
    for (const Json& each : list["tensors"])
      state.tensors.emplace_back(each[0].get<std::string>(),
                                 empty(Shape(each[2].get<std::vector<std::int64_t>>()),
                                       {.dtype = dtype_from_string(each[1].get<std::string>())}));
  }
  for (const auto& [name, tensor] : state.tensors)
    group.broadcast(tensor, 0, {.name = name}).wait();
  return state;
}

std::string not_finite(const StateDict& tensors) {
  const NoGrad no_grad;
  for (const auto& [name, tensor] : tensors)
    if (is_floating(tensor.dtype()) && !std::isfinite(sum(tensor * 0.0).item<double>()))
      return name;
  return {};
}

Tensor gather_generators(const ProcessGroup& group) {
  const Generator::State state = default_generator().state();
  const auto all = all_gather_numbers(
      group, {static_cast<std::int64_t>(state.seed), static_cast<std::int64_t>(state.position)},
      {.name = "generators"});
  return tensor(all, Shape{group.size(), 2});
}

void set_generator(const Tensor& seed_and_position) {
  const auto* const numbers = seed_and_position.data<std::int64_t>();
  default_generator().set_state(
      {static_cast<std::uint64_t>(numbers[0]), static_cast<std::uint64_t>(numbers[1])});
}

}  // namespace tutti::distributed
