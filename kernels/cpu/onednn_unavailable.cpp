// Replaces oneDNN where the library is built without it: no function has a kernel, so that tutti's
// own loops and the reference kernels compute.
#include "onednn.h"
#include "onednn_limits.h"

namespace tutti::kernels::cpu::onednn {

bool convolution_forward(const Tensor&, const Tensor&, const Tensor&, const ConvOptions&,
                         const Tensor&) {
  return false;
}
bool convolution_backward_input(const Tensor&, const Tensor&, const ConvOptions&, const Tensor&) {
  return false;
}
bool convolution_backward_weight(const Tensor&, const Tensor&, const ConvOptions&, const Tensor&,
                                 const Tensor&) {
  return false;
}
bool matmul(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { return false; }

bool has_amx() { return false; }
bool emulates_bfloat16() { return false; }
bool needs_plain_strides() { return false; }
bool reads_unwritten_memory(const Tensor&, const ConvOptions&) { return false; }
bool misreads_bfloat16(const Tensor&, const Tensor&, const ConvOptions&) { return false; }

}  // namespace tutti::kernels::cpu::onednn
