// RunState: the state of a whole training run in one safetensors file: the tensors and the metadata
// of its parts (model, optimizer, loss scaler, averages, ...), each under the part's name. It knows
// names and tensors, and none of the classes that the parts are of.
#pragma once

#include "../core/state_dict.h"
#include "process_group.h"

namespace tutti::distributed {

/// What a run needs to go on with the same bits as if it had never stopped:
///
///   RunState state;                                // on rank 0, which writes the file
///   state.add("model", net.state_dict());
///   const optim::OptimizerState optimizer = sgd.state_dict();
///   state.add("optimizer", optimizer.tensors, optimizer.metadata);
///   state.add("average", average.state_dict());
///   state.tensors.emplace_back("random", gather_generators(group));  // on every rank
///   state.metadata["step"] = std::to_string(step);
///   save_safetensors(path, state.tensors, state.metadata);
///
/// The loader's position and the schedule's are numbers: data::DataLoader::set_state() and
/// optim::Scheduler::set_position() take what follows from the step. To go on, rank 0 reads the
/// file, broadcast() gives it to the others, and each part loads its own:
///
///   RunState state;
///   if (group.rank() == 0) state.tensors = load_safetensors(path, &state.metadata);
///   state = distributed::broadcast(state, group);
///   net.load_state_dict(state.part("model"));
///   sgd.load_state_dict({state.part("optimizer"), state.metadata_of("optimizer")});
///   set_generator(state.tensor("random", int64, {group.size(), 2}).select(0, group.rank()));
struct RunState {
  StateDict tensors = {};
  Metadata metadata = {};

  /// Adds tensors as "PART.NAME", and metadata by the same keys.
  void add(const std::string& part, const StateDict& state, const Metadata& text = {});
  /// Returns the tensors of a part by their own names, and its metadata by their own keys.
  StateDict part(const std::string& part) const;
  Metadata metadata_of(const std::string& part) const;

  /// Returns the tensor with this name. Throws a CheckpointError that names it unless it is there
  /// with this dtype and shape, in which -1 stands for any size.
  Tensor tensor(const std::string& name, DType dtype, const Shape& shape) const;
  /// Returns a text, or a whole number of at least 0, of the metadata. Throws a CheckpointError
  /// that names the key where it is missing or no such number.
  const std::string& text(const std::string& key) const;
  std::int64_t number(const std::string& key) const;
};

/// Returns rank 0's state on every rank; what the others pass is ignored. It is empty where rank
/// 0's is. This call is collective.
RunState broadcast(const RunState& of_rank_0, const ProcessGroup& group);

/// Returns the name of the first floating-point tensor with a number that is not finite; empty if
/// there is none.
std::string not_finite(const StateDict& tensors);

/// Returns seed and position of every rank's default generator, int64 (ranks, 2), on every rank.
/// This call is collective.
Tensor gather_generators(const ProcessGroup& group);
/// Sets the default generator to seed and position, int64 (2).
void set_generator(const Tensor& seed_and_position);

}  // namespace tutti::distributed
