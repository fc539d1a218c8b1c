#include "communication_hook.h"

#include "../../core/create.h"
#include "../submit.h"

namespace tutti::distributed {

CommunicationHook compress_gradients(DType dtype, bool error_feedback) {
  if (dtype != bfloat16 && dtype != float16)
    fail<DTypeError>("compress_gradients: expected bfloat16 or float16, got {}", to_string(dtype));
  return [=](const ProcessGroup& group, const Bucket& bucket, CallOptions options) {
    const Tensor& values = bucket.flat;
    const auto* lost = std::any_cast<Tensor>(&bucket.state);
    if (lost) values.add_(*lost);
    const Tensor compressed = empty_like(values, dtype);
    compressed.copy_(values);
    if (error_feedback) {
      if (!lost) lost = &bucket.state.emplace<Tensor>(empty_like(values));
      lost->copy_(values);
      lost->add_(compressed.to(values.dtype()), -1);
    }
    Work work = group.all_reduce(compressed, ReduceOp::sum, std::move(options));
    return copy_after(std::move(work), compressed, values);
  };
}

}  // namespace tutti::distributed
