#include "elementwise_loops.h"

namespace tutti::kernels::cuda {

const Elementwise& elementwise() {
  static constexpr Elementwise table{fill, copy, unary, binary, binary_scalar, axpy, where};
  return table;
}

}  // namespace tutti::kernels::cuda
