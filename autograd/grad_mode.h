// Modes that a guard sets for the calling thread: NoGrad records no operations, EnableGrad records
// them again, Autocast computes matrix products and convolutions in 16 bits. The other hidden state
// of a thread is its generator (core/random.h), its number of compute threads (core/parallel.h),
// its CUDA streams (core/cuda/stream.h), and the backward that it runs.
#pragma once

#include "../core/scoped_value.h"
#include "../core/tensor.h"

#include <optional>

namespace tutti {

/// While a NoGrad exists, operations on the calling thread are not recorded, and leaves may be
/// changed in place. NoGrad(false) changes nothing.
class NoGrad {
 public:
  [[nodiscard]] explicit NoGrad(bool on = true);

 private:
  ScopedValue<bool> recording_;
};

/// EnableGrad records operations again inside a NoGrad.
class EnableGrad {
 public:
  [[nodiscard]] EnableGrad();

 private:
  ScopedValue<bool> recording_;
};

/// Returns whether operations on the calling thread are recorded.
bool grad_enabled();

/// While an Autocast exists, matmul casts its inputs to `dtype` (bfloat16 or float16), and the
/// gradient flows back through the casts. Linear and convolution cast their input and use float32
/// parameters as they are, whose gradients stay float32. Normalisation statistics, softmax and
/// losses stay in float32. Autocast(float32) switches an outer Autocast off.
class Autocast {
 public:
  [[nodiscard]] explicit Autocast(DType dtype);

 private:
  ScopedValue<std::optional<DType>> casting_;
};

/// Returns the dtype of the thread's Autocast, if there is one.
std::optional<DType> autocast_dtype();
/// Returns `x` cast to the dtype of the thread's Autocast, or `x` itself if there is none or x is
/// not floating. Throws a DTypeError that names `op` for float16 on the CPU, which computes in
/// bfloat16 only.
Tensor autocast(const char* op, const Tensor& x);

}  // namespace tutti
