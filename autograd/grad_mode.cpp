#include "grad_mode.h"

namespace tutti {
namespace {

thread_local bool recording = true;
thread_local std::optional<DType> casting;

}  // namespace

NoGrad::NoGrad(bool on) : recording_(recording, recording && !on) {}
EnableGrad::EnableGrad() : recording_(recording, true) {}
bool grad_enabled() { return recording; }

Autocast::Autocast(DType dtype) : casting_(casting, casting) {
  if (dtype != bfloat16 && dtype != float16 && dtype != float32)
    fail<DTypeError>("Autocast: expected bfloat16, float16 or float32 (off), got {}",
                     to_string(dtype));
  casting = dtype == float32 ? std::nullopt : std::optional(dtype);
}
std::optional<DType> autocast_dtype() { return casting; }

Tensor autocast(const char* op, const Tensor& x) {
  if (!casting || !is_floating(x.dtype())) return x;
  if (*casting == float16 && x.device().is_cpu())
    fail<DTypeError>(
        "{}: Autocast(float16) needs a CUDA device, got a tensor on the cpu; use "
        "Autocast(bfloat16) there",
        op);
  return x.to(*casting);
}

}  // namespace tutti
