#include "on_host.h"

#include <tutti/kernels/convolution.h>

namespace tutti::kernels::cuda {

const Convolution& convolution() {
  static const Convolution table{
      [](const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& options, const Tensor& y) {
        enqueue(y, [x = on_host(x), w = on_host(w), bias = on_host(bias), options, y = on_host(y)] {
          const Output to(y);
          cpu::convolution().forward(widened(x), widened(w), widened(bias), options, to.wide);
        });
      },
      [](const Tensor& dy, const Tensor& w, const ConvOptions& options, const Tensor& dx) {
        enqueue(dx, [dy = on_host(dy), w = on_host(w), options, dx = on_host(dx)] {
          const Output to(dx);
          cpu::convolution().backward_input(widened(dy), widened(w), options, to.wide);
        });
      },
      [](const Tensor& x, const Tensor& dy, const ConvOptions& options, const Tensor& dw, const Tensor& db) {
        enqueue(dw, [x = on_host(x), dy = on_host(dy), options, dw = on_host(dw), db = on_host(db)] {
          const Output weight(dw), bias(db);
          cpu::convolution().backward_weight(widened(x), widened(dy), options, weight.wide, bias.wide);
        });
      }};
  return table;
}

}  // namespace tutti::kernels::cuda
