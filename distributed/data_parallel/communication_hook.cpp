#include "communication_hook.h"

#include "../../core/create.h"

namespace tutti::distributed {
namespace {

class Decompress : public Work::State {
 public:
  Decompress(Work work, Tensor from, Tensor to)
      : work_(std::move(work)), from_(std::move(from)), to_(std::move(to)) {}
  void wait() override {
    work_.wait();
    if (from_.defined()) to_.copy_(from_);
    from_ = {};
  }
  bool is_done() override { return work_.is_done(); }

 private:
  Work work_;
  Tensor from_, to_;
};

}  // namespace

CommunicationHook compress_gradients(DType dtype) {
  if (dtype != bfloat16 && dtype != float16)
    fail<DTypeError>("compress_gradients: expected bfloat16 or float16, got {}", to_string(dtype));
  return [dtype](const ProcessGroup& group, const Tensor& bucket, CallOptions options) {
    const Tensor small = empty_like(bucket, dtype);
    small.copy_(bucket);
    Work work = group.all_reduce(small, ReduceOp::sum, std::move(options));
    return Work(std::make_shared<Decompress>(std::move(work), small, bucket));
  };
}

}  // namespace tutti::distributed
