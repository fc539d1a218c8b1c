#include "on_host.h"

#include <tutti/kernels/matmul.h>

namespace tutti::kernels::cuda {

const Matmul& matmul() {
  static const Matmul table{[](const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out) {
    enqueue(out, [a = on_host(a), b = on_host(b), bias = on_host(epilogue.bias), activation = epilogue.activation,
                  out = on_host(out)] {
      const Output to(out);
      cpu::matmul().matmul(widened(a), widened(b), {widened(bias), activation}, to.wide);
    });
  }};
  return table;
}

}  // namespace tutti::kernels::cuda
