// NoGrad (record nothing), EnableGrad, Autocast (matrix products and convolutions in 16 bits):
// guards, for one thread. What else a thread has unseen: its generator, OpenMP threads and CUDA
// stream, and the backward or recompute() it runs.
#pragma once

#include "../core/tensor.h"

#include <optional>

namespace tutti {

/// While one lives, operations on the calling thread are not recorded and leaves may be changed in
/// place.
class NoGrad {
 public:
  explicit NoGrad(bool on = true);
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

/// Records again inside a NoGrad: for recomputation in a backward (recompute.h). Rarely what a
/// user wants.
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

/// While one lives, matmul casts its operands to `dtype` (bfloat16 or float16), differentiably.
/// Linear and convolution cast their input so and take float32 parameters as they are, whose
/// gradients are then float32, too. Normalisation statistics, softmax and losses stay in float32.
/// `Autocast(float32)` switches it off inside.
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
/// x cast as Autocast asks, differentiably; itself where it does not ask or x is not floating.
/// DTypeError that names `op` for float16 on the CPU, which computes in bfloat16 only.
Tensor autocast(const char* op, const Tensor& x);

}  // namespace tutti
