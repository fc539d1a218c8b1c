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

// Returns the gradient of an activation, computed from its saved output or input. It overwrites `g`
// if no other handle or view of `g` exists.
Tensor activation_grad(Binary op, const Tensor& g, const Tensor& saved) {
  const Tensor out = autograd::gradient_buffer(g, saved);
  kernels::on(g.device()).elementwise.binary(op, g, saved, out);
  return out;
}

}  // namespace

Tensor abs(const Tensor& x) {
  return record(
      "abs", compute(Unary::absolute, "abs", x), {x},
      [saved = Saved(x)](const Tensor& g) { return g * compute(Unary::sign, "abs", saved); });
}

Tensor sign(const Tensor& x) {
  if (!is_floating(x.dtype())) return gt(x, 0).to(x.dtype()) - lt(x, 0).to(x.dtype());
  return record("sign", compute(Unary::sign, "sign", x), {x},
                [](const Tensor& g) { return zeros_like(g); });
}

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

Tensor tanh(const Tensor& x) {
  const Tensor y = compute(Unary::tanh, "tanh", x);
  return record("tanh", y, {x}, [saved = Saved(y)](const Tensor& g) {
    return activation_grad(Binary::tanh_grad, g, saved);
  });
}

Tensor sigmoid(const Tensor& x) {
  const Tensor y = compute(Unary::sigmoid, "sigmoid", x);
  return record("sigmoid", y, {x}, [saved = Saved(y)](const Tensor& g) {
    return activation_grad(Binary::sigmoid_grad, g, saved);
  });
}

Tensor relu(const Tensor& x) {
  const Tensor y = compute(Unary::relu, "relu", x);
  return record("relu", y, {x}, [saved = Saved(y)](const Tensor& g) {
    return activation_grad(Binary::relu_grad, g, saved);
  });
}

Tensor gelu(const Tensor& x) {
  return record("gelu", compute(Unary::gelu, "gelu", x), {x}, [saved = Saved(x)](const Tensor& g) {
    return activation_grad(Binary::gelu_grad, g, saved);
  });
}

Tensor silu(const Tensor& x) {
  return record("silu", compute(Unary::silu, "silu", x), {x}, [saved = Saved(x)](const Tensor& g) {
    return activation_grad(Binary::silu_grad, g, saved);
  });
}

Tensor hardswish(const Tensor& x) {
  return record("hardswish", compute(Unary::hardswish, "hardswish", x), {x},
                [saved = Saved(x)](const Tensor& g) {
                  return activation_grad(Binary::hardswish_grad, g, saved);
                });
}

Tensor leaky_relu(const Tensor& x, double slope) {
  autograd::expect_trainable("leaky_relu", x);
  const Tensor y = empty_like(x);
  kernels::on(x.device()).elementwise.binary_scalar(Binary::leaky_relu, x, slope, false, y);
  return record("leaky_relu", y, {x}, [saved = Saved(x), slope](const Tensor& g) {
    return where(gt(saved, 0), g, g * slope);
  });
}

}  // namespace tutti
