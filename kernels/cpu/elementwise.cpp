#include "elementwise_kernels.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

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

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
