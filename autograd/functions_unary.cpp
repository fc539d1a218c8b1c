// Elementwise functions of one tensor, activations among them.
#include "../kernels/kernels.h"
#include "functions.h"
#include "operation.h"
#include "record.h"

namespace tutti {
namespace {

using autograd::record;
using autograd::Saved;
using kernels::Binary;
using kernels::Unary;

Tensor compute(Unary op, const char* name, const Tensor& x) {
  autograd::expect_trainable(name, x);
  const Tensor out = empty_like(x);
  kernels::on(x.device()).elementwise.unary(op, x, out);
  return out;
}

// Computes a function that is constant between its steps.
Tensor step_function(Unary op, const char* name, const Tensor& x) {
  return record(name, compute(op, name, x), {x}, [](const Tensor& g) { return zeros_like(g); });
}

// Computes an activation. `grad` computes its gradient from the incoming one and the output;
// it overwrites the incoming one if no other handle or view of that exists.
Tensor activation(Unary op, Binary grad, const char* name, const Tensor& x) {
  const Tensor y = compute(op, name, x);
  return record(name, y, {x}, [grad, s = Saved(y)](const Tensor& g) {
    const Tensor out = autograd::gradient_buffer(g, s);
    kernels::on(g.device()).elementwise.binary(grad, g, s, out);
    return out;
  });
}

}  // namespace

Tensor abs(const Tensor& x) {
  return record(
      "abs", compute(Unary::absolute, "abs", x), {x},
      [saved = Saved(x)](const Tensor& g) { return g * compute(Unary::sign, "abs", saved); });
}

Tensor sign(const Tensor& x) {
  if (!is_floating(x.dtype())) return gt(x, 0).to(x.dtype()) - lt(x, 0).to(x.dtype());
  return step_function(Unary::sign, "sign", x);
}

Tensor floor(const Tensor& x) { return step_function(Unary::floor, "floor", x); }
Tensor ceil(const Tensor& x) { return step_function(Unary::ceil, "ceil", x); }
Tensor round(const Tensor& x) { return step_function(Unary::round, "round", x); }

Tensor exp(const Tensor& x) {
  const Tensor y = compute(Unary::exp, "exp", x);
  return record("exp", y, {x}, [saved = Saved(y)](const Tensor& g) { return g * saved; });
}

Tensor log(const Tensor& x) {
  return record("log", compute(Unary::log, "log", x), {x},
                [saved = Saved(x)](const Tensor& g) { return g / saved; });
}

Tensor sqrt(const Tensor& x) {
  const Tensor y = compute(Unary::sqrt, "sqrt", x);
  return record("sqrt", y, {x}, [saved = Saved(y)](const Tensor& g) { return g * 0.5 / saved; });
}

Tensor rsqrt(const Tensor& x) {
  const Tensor y = compute(Unary::rsqrt, "rsqrt", x);
  return record("rsqrt", y, {x}, [saved = Saved(y)](const Tensor& g) {  // -y^3 / 2
    return g * -0.5 * saved * square(saved);
  });
}

Tensor square(const Tensor& x) {
  return record("square", compute(Unary::square, "square", x), {x},
                [saved = Saved(x)](const Tensor& g) { return g * saved * 2; });
}

Tensor sin(const Tensor& x) {
  return record("sin", compute(Unary::sine, "sin", x), {x},
                [saved = Saved(x)](const Tensor& g) { return g * cos(saved); });
}

Tensor cos(const Tensor& x) {
  return record("cos", compute(Unary::cosine, "cos", x), {x},
                [saved = Saved(x)](const Tensor& g) { return -(g * sin(saved)); });
}

Tensor tanh(const Tensor& x) { return activation(Unary::tanh, Binary::tanh_grad, "tanh", x); }
Tensor sigmoid(const Tensor& x) {
  return activation(Unary::sigmoid, Binary::sigmoid_grad, "sigmoid", x);
}
Tensor relu(const Tensor& x) { return activation(Unary::relu, Binary::relu_grad, "relu", x); }

Tensor leaky_relu(const Tensor& x, double slope) {
  autograd::expect_trainable("leaky_relu", x);
  const Tensor y = empty_like(x);
  kernels::on(x.device()).elementwise.binary_scalar(Binary::leaky_relu, x, slope, false, y);
  return record("leaky_relu", y, {x}, [saved = Saved(x), slope](const Tensor& g) {
    return where(gt(saved, 0), g, g * slope);
  });
}

}  // namespace tutti
