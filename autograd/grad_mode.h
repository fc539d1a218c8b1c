// The thread-local modes of autograd, each an RAII guard: NoGrad (record nothing), EnableGrad and Autocast (run matrix
// products and convolutions in a 16-bit dtype). They are the only hidden state in the library.
#pragma once

#include "../core/tensor.h"

#include <optional>

namespace tutti {

/// While one lives, operations on the calling thread are not recorded and leaves may be changed in place.
class NoGrad {
 public:
  explicit NoGrad(bool on = true);
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

/// Records again inside a NoGrad: for recomputation in a backward (checkpoint.h). Rarely what a user wants.
class EnableGrad {
 public:
  EnableGrad();
  ~EnableGrad();
  EnableGrad(const EnableGrad&) = delete;
  EnableGrad& operator=(const EnableGrad&) = delete;

 private:
  bool before_;
};

bool grad_enabled();

/// While one lives, matmul, linear and convolution cast floating inputs and weights to `dtype` (bfloat16 or
/// float16), as differentiable casts: parameters and their gradients keep their own dtype. Normalisation
/// statistics, softmax and losses stay in float32. `Autocast(float32)` switches it off inside.
class Autocast {
 public:
  explicit Autocast(DType dtype);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  std::optional<DType> before_;
};

/// The dtype that Autocast asks for on this thread, if any.
std::optional<DType> autocast_dtype();
/// x cast as Autocast asks, differentiably; itself where it does not ask or x is not floating. DTypeError that names
/// `op` for float16 on the CPU, which computes in bfloat16 only.
Tensor autocast(const char* op, const Tensor& x);

}  // namespace tutti
