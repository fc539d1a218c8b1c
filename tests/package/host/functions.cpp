// Prints what fast math would change: values of functions, and how NaN compares.
#include <tutti/tutti.h>

#include <cstdio>

int main() {
  using namespace tutti;
  const auto last = [](const Tensor& x) { return x.select(0, x.size(0) - 1).item<double>(); };
  const Tensor one = ones({1000}), nan = log(one * -1.0);
  std::printf("exp(1) = %.6f, sigmoid(1) = %.6f, tanh(1) = %.6f, ", last(exp(one)),
              last(sigmoid(one)), last(tanh(one)));
  std::printf("%.0f of 1000 NaN differ from themselves\n", sum(ne(nan, nan)).item<double>());
}
