// fold_batch_norm() merges BatchNorm layers into the convolutions and linear layers before them,
// for inference: in evaluation a BatchNorm is one multiplication and one addition per channel. It
// looks only at pairs that modules declare by Module::consecutive_children().
#pragma once

#include "layer.h"

namespace tutti::nn {

/// The BatchNorm layers of a model after fold_batch_norm(), by their paths.
struct FoldedBatchNorm {
  std::vector<std::string> folded = {};  ///< identities now
  std::vector<std::string> left = {};    ///< as they were: inference pays for them
  /// Those of `left` that no module's consecutive_children() names behind another layer. A module
  /// of one's own that does not override that function has nothing but such layers.
  std::vector<std::string> undeclared = {};

  /// Returns "53 of 53 BatchNorm layers are folded", or also which are left and why.
  std::string to_string() const;
};

/// Folds BatchNorm layers into the layers that feed them, in place, so that the outputs in
/// evaluation stay the same to rounding. Returns which were folded and are identities now
/// (BatchNorm::become_identity), and which were not. The layer before a folded one has a new
/// weight, and a bias also if it had none. The new values are computed in float64 and rounded once
/// to the dtype of the weight, so fold a model before it is moved to a 16-bit dtype.
///
/// A BatchNorm is folded if a module declares that it follows a Conv1d, Conv2d, Conv3d, one of
/// ConvTranspose1d to ConvTranspose3d, or a Linear
/// (Module::consecutive_children; Sequential and the ResNets do). A pair is left as it is where
/// that would not be exact or would change something else: the BatchNorm tracks no running
/// statistics, one of the two is of a derived class, has forward hooks, or shares itself or a
/// tensor with another place in `module`, or the numbers of channels differ. A BatchNorm may be
/// frozen or have a process group.
///
/// The tensors of a folded BatchNorm leave the state dict, so states of the folded and of the
/// original model do not fit each other: load weights first, then fold. State dicts that were taken
/// before keep their values. The training flag does not change; a folded BatchNorm refuses to run
/// in training.
FoldedBatchNorm fold_batch_norm(Module& module);

}  // namespace tutti::nn
