// BatchNormPeer: one training step of one batch norm layer, computed by tutti, oneDNN or PyTorch on
// the same tensors. A peer owns its results; the inputs belong to the caller. sync_batch_norm.cpp
// takes the times.
#pragma once

#include <tutti/core/create.h>

#include <memory>
#include <string>
#include <vector>

namespace tutti::benchmarks {

/// A layer in training; its input x is (batch, channels, height, width).
struct BatchNormCase {
  std::int64_t batch = 8, channels = 64, height = 56, width = 56;
  DType dtype = float32;
  MemoryFormat format = MemoryFormat::channels_last;
  bool add_relu = false;  ///< y = max(0, batch_norm(x) + residual); else y = batch_norm(x).

  Shape shape() const { return {batch, channels, height, width}; }
  /// Returns the bytes of one tensor.
  std::int64_t bytes() const {
    return batch * channels * height * width * static_cast<std::int64_t>(size_of(dtype));
  }
  /// Return how many tensors must be read or written at least. Forward: x for the moments, x again,
  /// y, and the residual. Backward: dy and x for the sums, both again, dx; with add and ReLU the
  /// output is read, and the masked dy is written, and read in the place of dy.
  int forward_passes() const { return add_relu ? 4 : 3; }
  int backward_passes() const { return add_relu ? 7 : 5; }
};

inline constexpr float batch_norm_eps = 1e-5f;

/// The inputs of one step. There are several sets, which the steps take in turn, so that no step
/// finds its inputs in the cache because the step before has left them there.
struct StepInputs {
  Tensor x, residual, dy;
};

class BatchNormPeer {
 public:
  virtual ~BatchNormPeer() = default;
  /// Computes the output, which stays alive until release(), as it would in training.
  virtual void forward(std::size_t set) = 0;
  /// Computes the gradients of x, weight, bias and residual.
  virtual void backward(std::size_t set) = 0;
  virtual Tensor output(std::size_t set) const = 0;
  virtual Tensor input_grad(std::size_t set) const = 0;
  /// Frees what forward and backward of this set have left behind. It is not timed.
  virtual void release(std::size_t set) = 0;
};

std::unique_ptr<BatchNormPeer> make_tutti(const BatchNormCase& of,
                                          const std::vector<StepInputs>& inputs);
std::unique_ptr<BatchNormPeer> make_onednn(const BatchNormCase& of,
                                           const std::vector<StepInputs>& inputs);
/// Returns null where there is no PyTorch.
std::unique_ptr<BatchNormPeer> make_torch(const BatchNormCase& of,
                                          const std::vector<StepInputs>& inputs);

std::string onednn_version();
/// Returns an empty string where there is no PyTorch.
std::string torch_version();
void set_torch_threads(int threads);

}  // namespace tutti::benchmarks
