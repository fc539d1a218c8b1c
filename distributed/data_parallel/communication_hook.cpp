#include "communication_hook.h"

#include "../../core/create.h"

namespace tutti::distributed {
namespace {

// Waits for the all-reduce of a compressed bucket, and copies the result back into the bucket.
class Decompress : public Work::State {
 public:
  Decompress(Work work, Tensor compressed, Tensor bucket)
      : work_(std::move(work)), compressed_(std::move(compressed)), bucket_(std::move(bucket)) {}
  void wait() override {
    work_.wait();
    if (compressed_.defined()) bucket_.copy_(compressed_);
    compressed_ = {};  // a second wait() copies nothing
  }
  bool is_done() override { return work_.is_done(); }

 private:
  Work work_;
  Tensor compressed_, bucket_;
};

}  // namespace

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
    return Work(std::make_shared<Decompress>(std::move(work), compressed, values));
  };
}

}  // namespace tutti::distributed
