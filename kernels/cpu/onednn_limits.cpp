#include "onednn_limits.h"

#include <dnnl.hpp>

#include <algorithm>

namespace tutti::kernels::cpu::onednn {
namespace {

// Returns whether oneDNN uses all instructions of `isa`, of which each is a bit.
bool has_isa(dnnl::cpu_isa isa) {
  const int bits = static_cast<int>(isa);
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

// Returns whether oneDNN is older than `major`.`minor`. The version is that at run time: a shared
// library may be newer than its header.
bool is_older_than(int major, int minor) {
  static const dnnl_version_t version = *dnnl_version();
  return version.major < major || (version.major == major && version.minor < minor);
}

bool has_stride(const ConvOptions& options) {
  return std::ranges::any_of(options.stride, [](auto step) { return step > 1; });
}

}  // namespace

bool has_amx() {
  static const bool has = has_isa(dnnl::cpu_isa::avx512_core_amx);
  return has;
}

bool emulates_bfloat16() {
  static const bool emulates = !has_isa(dnnl::cpu_isa::avx512_core_bf16);
  return emulates;
}

bool needs_plain_strides() { return !is_older_than(3, 3); }

bool misreads_windows(const Tensor& w, const ConvOptions& options, const Tensor& y) {
  if (is_older_than(3, 3)) return false;
  for (int d = 0; d < options.padding.size(); ++d)  // Is a whole window in the padding?
    if (options.padding[d] > options.dilation[d] * (w.shape()[d + 2] - 1)) return true;
  if (w.size(1) > 1) return false;
  if (w.rank() == 5) return has_stride(options);
  const bool is_column = y.size(-1) == 1 && y.numel() > y.size(0) * y.size(1);
  return is_column && w.size(-1) > 1 && options.stride[options.stride.size() - 1] > 1;
}

bool reads_unwritten_memory(const Tensor& x, const ConvOptions& options) {
  const bool is_padded = std::ranges::any_of(options.padding, [](auto size) { return size > 0; });
  return x.shape()[x.rank() - 1] < options.stride[x.rank() - 3] || (x.rank() == 5 && is_padded);
}

bool misreads_bfloat16(const Tensor& dy, const Tensor& w, const ConvOptions& options) {
  if (!is_older_than(3, 3)) return options.groups > 1 && has_stride(options);
  const bool is_pointwise = w.numel() == w.size(0) * w.size(1);
  return is_older_than(2, 7) && is_pointwise && dy.size(1) / options.groups % 2 == 1;
}

}  // namespace tutti::kernels::cpu::onednn
