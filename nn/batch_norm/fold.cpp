#include "fold.h"

#include "../../autograd/functions.h"
#include "../../autograd/grad_mode.h"
#include "../conv.h"
#include "../conv_transpose.h"
#include "../linear.h"
#include "../module_path.h"
#include "sync_batch_norm.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <typeinfo>

namespace tutti::nn {
namespace {

// The part of a convolution or Linear that folding changes.
struct Producer {
  Layer* layer;
  const Tensor& weight;
  const Tensor& bias;
  // The groups of a transposed convolution, whose weight is (I, O/groups, ...); 0 where the outputs
  // are the first dimension.
  std::int64_t transposed_groups = 0;

  std::int64_t outputs() const {
    return transposed_groups > 0 ? transposed_groups * weight.size(1) : weight.size(0);
  }
};

// Derived classes may compute something else with the same tensors.
template <class... Types>
bool is_exactly(const Module& module) {
  return ((typeid(module) == typeid(Types)) || ...);
}

std::optional<Producer> producer(Module& module) {
  if (is_exactly<Conv1d, Conv2d, Conv3d>(module)) {
    auto& conv = static_cast<Conv&>(module);
    return Producer{&conv, conv.weight, conv.bias};
  }
  if (is_exactly<ConvTranspose1d, ConvTranspose2d, ConvTranspose3d>(module)) {
    auto& conv = static_cast<ConvTranspose&>(module);
    return Producer{&conv, conv.weight, conv.bias, conv.options().groups};
  }
  if (!is_exactly<Linear>(module)) return {};
  auto& linear = static_cast<Linear&>(module);
  return Producer{&linear, linear.weight, linear.bias};
}

BatchNorm* foldable_batch_norm(Module& module) {
  if (!is_exactly<BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm>(module))
    return nullptr;
  auto& layer = static_cast<BatchNorm&>(module);
  return layer.running_mean.defined() && !layer.has_forward_hooks() ? &layer : nullptr;
}

Module* child(const Module& module, const std::string& name) {
  for (const auto& [own, below] : module.children())
    if (own == name) return below.get();
  fail<ValueError>(
      "fold_batch_norm: consecutive_children() of {} names '{}', which is no child of it",
      module.error_name(), name);
}

// Counts how often each storage occurs in the state dict, which lists shared tensors, and those of
// shared modules, under all of their paths.
using StorageUses = std::map<const Storage*, int>;

StorageUses storage_uses(const Module& module) {
  StorageUses uses;
  for (const auto& [path, tensor] : module.state_dict()) ++uses[tensor.storage().get()];
  return uses;
}

// A tensor that is not among the uses was made by folding: its layer is in another pair, too.
bool shares_tensors(const Module& module, const StorageUses& uses) {
  for (const auto& [path, tensor] : module.state_dict())
    if (const auto use = uses.find(tensor.storage().get()); use == uses.end() || use->second > 1)
      return true;
  return false;
}

Tensor or_filled(const Tensor& tensor, const Tensor& like, double value) {
  return tensor.defined() ? tensor.detach().to(float64)
                          : full(like.shape(), value, {float64, like.device()});
}

// y = (W x + b - mean) scale + shift = (scale W) x + ((b - mean) scale + shift), where scale is
// weight / sqrt(var + eps) and shift the bias of the BatchNorm.
void fold(const Producer& into, BatchNorm& layer) {
  const Tensor mean = layer.running_mean.detach().to(float64),
               var = layer.running_var.detach().to(float64);
  const double eps = layer.options().eps;
  const Tensor rstd = rsqrt(layer.options().eps_is_floor ? relu(var - eps) + eps : var + eps);
  const Tensor scale = or_filled(layer.weight, mean, 1) * rstd;
  const Tensor bias = (or_filled(into.bias, mean, 0) - mean) * scale +
                      or_filled(layer.bias, mean, 0);

  Shape split = into.weight.shape(), per_output = Dims::filled(split.size(), 1);
  per_output[0] = split[0];
  if (const std::int64_t groups = into.transposed_groups; groups > 0) {
    split.insert(0, groups);  // (groups, I/groups, O/groups, ...)
    split[1] /= groups;
    per_output = Dims::filled(split.size(), 1);
    per_output[0] = groups;
    per_output[2] = split[2];
  }
  const Tensor weight = into.weight.detach().to(float64).reshape(split) * scale.reshape(per_output);
  const DType dtype = into.weight.dtype();
  into.weight.set_data(
      weight.reshape(into.weight.shape()).to(dtype).contiguous(into.weight.memory_format()));
  if (into.bias.defined()) {
    into.bias.set_data(bias.to(into.bias.dtype()));
  } else {
    into.layer->replace_tensor(into.bias, bias.to(dtype));
    into.bias.requires_grad_(into.weight.requires_grad());
  }
  layer.become_identity(into.weight.rank());
}

std::string first_paths(const std::vector<std::string>& paths) {
  constexpr std::size_t most = 5;
  const std::size_t shown = std::min(paths.size(), most);
  const std::span first(paths.data(), shown);
  return fmt::format("'{}'{}", fmt::join(first, "', '"), paths.size() > shown ? ", ..." : "");
}

}  // namespace

std::string FoldedBatchNorm::to_string() const {
  std::string text = fmt::format("{} of {} BatchNorm layers are folded", folded.size(),
                                 folded.size() + left.size());
  if (!left.empty()) text += "; left: " + first_paths(left);
  if (!undeclared.empty())
    text += fmt::format("; {} of these are in no consecutive_children() of the module above them",
                        undeclared.size());
  return text;
}

FoldedBatchNorm fold_batch_norm(Module& module) {
  const NoGrad no_grad;
  const StorageUses uses = storage_uses(module);
  FoldedBatchNorm result;
  std::set<const Module*> folded, declared;
  for (const auto& [path, parent] : module.named_modules())
    for (const auto& [first, second] : parent->consecutive_children()) {
      Module &before = *child(*parent, first), &after = *child(*parent, second);
      declared.insert(&after);
      const std::optional<Producer> into = producer(before);
      BatchNorm* const layer = foldable_batch_norm(after);
      if (!into || !layer || into->layer->has_forward_hooks() || shares_tensors(before, uses) ||
          shares_tensors(after, uses) || into->outputs() != layer->options().channels)
        continue;
      fold(*into, *layer);
      folded.insert(layer);
      result.folded.push_back(join_path(path, second));
    }
  for (const auto& [path, each] : module.named_modules()) {
    const bool is_identity = each->state_dict().empty();  // folded, maybe by an earlier call
    if (!dynamic_cast<const BatchNorm*>(each) || folded.contains(each) || is_identity) continue;
    result.left.push_back(path);
    if (!declared.contains(each)) result.undeclared.push_back(path);
  }
  return result;
}

}  // namespace tutti::nn
