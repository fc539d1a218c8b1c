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

CommunicationHook compress_gradients(DType dtype) {
  if (dtype != bfloat16 && dtype != float16)
    fail<DTypeError>("compress_gradients: expected bfloat16 or float16, got {}", to_string(dtype));
  return [dtype](const ProcessGroup& group, const Tensor& bucket, CallOptions options) {
    const Tensor compressed = empty_like(bucket, dtype);
    compressed.copy_(bucket);
    Work work = group.all_reduce(compressed, ReduceOp::sum, std::move(options));
    return Work(std::make_shared<Decompress>(std::move(work), compressed, bucket));
  };
}

}  // namespace tutti::distributed
