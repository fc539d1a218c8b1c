// A program that is linked with LibTorch before tutti: the oneDNN inside of LibTorch must not catch
// calls that libdnnl makes.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/matmul.h>
#include <tutti/core/create.h>
#include <tutti/nn/functional/conv.h>

#include <cstdio>

using namespace tutti;

int main() {
  const double product = sum(matmul(ones({150, 160}), ones({160, 170}))).item<double>(),
               convolution = sum(nn::convolution(ones({2, 16, 20, 20}), ones({32, 16, 3, 3}), {},
                                                 {.stride = {2, 2}, .padding = {0, 0}}))
                                 .item<double>();
  std::printf("%g %g\n", product, convolution);
  return product == 150. * 160 * 170 && convolution == 2. * 32 * 9 * 9 * 16 * 9 ? 0 : 1;
}
