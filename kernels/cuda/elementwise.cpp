#include "elementwise_kernels.h"

namespace tutti::kernels::cuda {

const Elementwise& elementwise() {
  static constexpr Elementwise table{.fill = fill,
                                     .copy = copy,
                                     .unary = unary,
                                     .binary = binary,
                                     .binary_scalar = binary_scalar,
                                     .axpy = axpy,
                                     .where = where};
  return table;
}

}  // namespace tutti::kernels::cuda
