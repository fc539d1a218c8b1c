#include "rounded_weights.h"

#include "../core/create.h"
#include "../core/cuda/graph.h"
#include "kernels.h"

#include <atomic>

namespace tutti::kernels {
namespace {

using tutti::cuda::call_before_replay;
using tutti::cuda::is_capturing;

struct RoundedCopy : Storage::Companion {
  /// The 16-bit dtype that the weight was last used in; float32 until then.
  std::atomic<DType> wanted = float32;
  Tensor copy;  // undefined until an update makes it
  /// The version of the weight's storage whose values the copy has.
  std::atomic<std::uint64_t> version = 0;
};

RoundedCopy* copy_of(const Tensor& weight) {
  return static_cast<RoundedCopy*>(weight.storage()->rounded_weight.get());
}

bool is_like(const Tensor& copy, const Tensor& weight, DType dtype) {
  return copy.defined() && copy.dtype() == dtype && copy.shape() == weight.shape() &&
         copy.strides() == weight.strides();
}

bool is_whole_storage(const Tensor& t) {
  return t.offset() == 0 &&
         static_cast<std::size_t>(t.numel()) * size_of(t.dtype()) == t.storage()->bytes();
}

// Makes the copy current.
void refresh(const Tensor& weight) {
  RoundedCopy& kept = *copy_of(weight);
  const std::uint64_t version = weight.storage()->version();
  if (kept.version == version) return;
  on(weight.device()).elementwise.copy(weight, kept.copy);
  kept.version = version;
}

// Returns whether work that is enqueued now may read the copy: it is current, and a captured graph
// makes it so before each replay.
bool may_read(const RoundedCopy& kept, const Tensor& weight) {
  if (kept.version != weight.storage()->version()) return false;
  if (!is_capturing(weight.device())) return true;
  const auto prepare = [weight, copy = kept.copy] {
    const RoundedCopy* now = copy_of(weight);
    if (now && now->copy.is_same(copy)) return refresh(weight);
    on(weight.device()).elementwise.copy(weight, copy);  // a later use in another dtype replaced it
  };
  return call_before_replay(weight.device(), prepare);
}

}  // namespace

Tensor rounded_weight(const Tensor& weight, DType dtype) {
  if (weight.dtype() == dtype) return weight;
  RoundedCopy* const kept = copy_of(weight);
  if (!kept || size_of(dtype) != 2) return weight.to(dtype);
  kept->wanted.store(dtype, std::memory_order_relaxed);
  return is_like(kept->copy, weight, dtype) && may_read(*kept, weight) ? kept->copy
                                                                       : weight.to(dtype);
}

Tensor copy_to_update(const Tensor& weight) {
  if (!weight.device().is_cuda() || weight.dtype() != float32 || !is_whole_storage(weight))
    return {};
  RoundedCopy* const kept = copy_of(weight);
  if (!kept) {
    weight.storage()->rounded_weight = std::make_unique<RoundedCopy>();
    return {};
  }
  const DType wanted = kept->wanted.load(std::memory_order_relaxed);
  if (wanted == float32) return {};
  const bool exists = is_like(kept->copy, weight, wanted);
  const bool is_current = exists && kept->version == weight.storage()->version();
  // What a capture enqueues has not run when the capture ends, and its memory is the graph's.
  if (!is_current && is_capturing(weight.device())) return {};
  if (!exists) {
    kept->copy = empty_like(weight.detach(), wanted);
    kept->version = weight.storage()->version() - 1;
  }
  refresh(weight.detach());
  return kept->copy;
}

void count_update(const Tensor& weight, const Tensor& copy) {
  weight.storage()->bump_version();
  RoundedCopy* const kept = copy_of(weight);
  if (kept && copy.defined() && kept->copy.is_same(copy))
    kept->version = weight.storage()->version();
}

}  // namespace tutti::kernels
