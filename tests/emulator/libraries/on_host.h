// What stands in for kernels that call cuBLASLt and cuDNN: the CPU's kernels on the same memory, in the stream's order. A
// file here takes the place of the file of its name in kernels/cuda.
#pragma once

#include "../emulator.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/stream.h>
#include <tutti/kernels/elementwise.h>

namespace tutti::kernels::cuda {
// The same memory as a tensor of the CPU. It owns nothing: what is released later in the stream is there until then.
inline Tensor on_host(const Tensor& t) {
  if (!t.defined()) return {};
  const Storage& storage = *t.storage();
  return Tensor(std::make_shared<Storage>(storage.data(), storage.bytes(), Device::cpu(), [] {}), t.shape(), t.strides(),
                t.offset(), t.dtype());
}

// The CPU does not compute in float16: in a copy in float32, which the output comes back from.
inline Tensor widened(const Tensor& t) {
  if (!t.defined() || t.dtype() != float16) return t;
  const Tensor wide = empty_like(t, float32);
  cpu::elementwise().copy(t, wide);
  return wide;
}

template <class Work>
void enqueue(const Tensor& output, Work work) {
  if (!is_floating(output.dtype())) fail<DTypeError>("emulated library: {} is no type it computes in", to_string(output.dtype()));
  emulator::enqueue(tutti::cuda::current_stream(output.device().index()).get(), std::move(work));
}

/// What a kernel writes into instead of `narrow`; copied there at the end.
struct Output {
  Tensor narrow, wide;
  explicit Output(const Tensor& t) : narrow(t), wide(widened(t)) {}
  ~Output() {
    if (narrow.defined() && narrow.dtype() != wide.dtype()) cpu::elementwise().copy(wide, narrow);
  }
};

}  // namespace tutti::kernels::cuda
