// What is compared: one training step of one batch norm layer, by us and by others, on the same
// tensors. A peer owns what it computes; inputs belong to the caller. Times are taken outside
// (sync_batch_norm.cpp).
#pragma once

#include <tutti/core/create.h>

#include <memory>
#include <string>
#include <vector>

namespace tutti::benchmarks {

/// A layer of a model in training: x is (batch, channels, height, width).
struct BatchNormCase {
  std::int64_t batch = 8, channels = 64, height = 56, width = 56;
  DType dtype = float32;
  MemoryFormat format = MemoryFormat::channels_last;
  bool add_relu = false;  ///< y = max(0, batch_norm(x) + residual), else y = batch_norm(x)

  Shape shape() const { return {batch, channels, height, width}; }
  std::int64_t bytes() const {
    return batch * channels * height * width * static_cast<std::int64_t>(size_of(dtype));
  }
  /// Tensors read or written once each, at least. Forward: x for the moments, x again, y; and the
  /// residual. Backward: dy and x for the sums, both again, dx; with add and ReLU the output is
  /// read, and dy masked by it written and read in the place of dy.
  int forward_passes() const { return add_relu ? 4 : 3; }
  int backward_passes() const { return add_relu ? 7 : 5; }
};

inline constexpr float batch_norm_eps = 1e-5f;

/// The inputs of one step. Steps take turns over several sets of them, so that none is found in the
/// cache because the last step left it there.
struct StepInputs {
  Tensor x, residual, dy;
};

class BatchNormPeer {
 public:
  virtual ~BatchNormPeer() = default;
  virtual void forward(
      std::size_t set) = 0;  ///< the output stays until `release`, as it would in training
  virtual void backward(std::size_t set) = 0;  ///< gradients of x, weight, bias and residual
  virtual Tensor output(std::size_t set) const = 0;
  virtual Tensor input_grad(std::size_t set) const = 0;
  virtual void release(
      std::size_t set) = 0;  ///< what forward and backward of this set left behind; not timed
};

std::unique_ptr<BatchNormPeer> make_tutti(const BatchNormCase& of,
                                          const std::vector<StepInputs>& inputs);
std::unique_ptr<BatchNormPeer> make_onednn(const BatchNormCase& of,
                                           const std::vector<StepInputs>& inputs);
/// Null where there is no PyTorch.
std::unique_ptr<BatchNormPeer> make_torch(const BatchNormCase& of,
                                          const std::vector<StepInputs>& inputs);

std::string onednn_version();
std::string torch_version();  ///< empty where there is none
void set_torch_threads(int threads);

}  // namespace tutti::benchmarks
