// Elementwise functions of two tensors, or of a tensor and a number. Each is compiled once for
// dense float, double and int64 (see operand.h); a number is a buffer full of it.
#include "elementwise_loops.h"
#include "operand.h"
#include "vector_math.h"

#include <cmath>
#include <type_traits>

namespace tutti::kernels::cpu {
namespace {

template <class C>
using Arithmetic = void (*)(const C* x, const C* y, C* out, std::int64_t n);
template <class C>
using Comparison = void (*)(const C* x, const C* y, bool* out, std::int64_t n);

// ivdep: the output is one of the inputs or overlaps neither.
template <class C, class Out, class F>
auto loop(F) -> void (*)(const C*, const C*, Out*, std::int64_t) {
  return [](const C* x, const C* y, Out* out, std::int64_t n) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) out[i] = F{}(x[i], y[i]);
  };
}

template <class C>
Arithmetic<C> activation_grad_of(Binary op) {
  if constexpr (std::is_floating_point_v<C>) {
    switch (op) {
      case Binary::divide: return loop<C, C>([](C x, C y) { return x / y; });
      case Binary::power: return loop<C, C>([](C x, C y) { return std::pow(x, y); });
      case Binary::relu_grad: return loop<C, C>([](C g, C y) { return y > C(0) ? g : C(0); });
      case Binary::gelu_grad:
        return loop<C, C>([](C g, C x) {
          // d/dx x Phi(x) = Phi(x) + x phi(x), with the normal density phi
          const C phi = C(0.39894228040143267794) * vector_exp(C(-0.5) * x * x);
          return g * (C(0.5) * (C(1) + std::erf(x * C(0.70710678118654752440))) + x * phi);
        });
      case Binary::sigmoid_grad: return loop<C, C>([](C g, C y) { return g * y * (C(1) - y); });
      case Binary::tanh_grad: return loop<C, C>([](C g, C y) { return g * (C(1) - y * y); });
      default: break;
    }
  }
  fail<DTypeError>("elementwise: this operation needs a floating dtype; convert with .to(float32)");
}

template <class C>
Arithmetic<C> arithmetic_of(Binary op) {
  switch (op) {
    case Binary::add: return loop<C, C>([](C x, C y) { return x + y; });
    case Binary::subtract: return loop<C, C>([](C x, C y) { return x - y; });
    case Binary::multiply: return loop<C, C>([](C x, C y) { return x * y; });
    case Binary::maximum: return loop<C, C>([](C x, C y) { return x > y || x != x ? x : y; });
    case Binary::minimum: return loop<C, C>([](C x, C y) { return x < y || x != x ? x : y; });
    default: return activation_grad_of<C>(op);
  }
}

template <class C>
Comparison<C> comparison_of(Binary op) {
  switch (op) {
    case Binary::equal: return loop<C, bool>([](C x, C y) { return x == y; });
    case Binary::not_equal: return loop<C, bool>([](C x, C y) { return x != y; });
    case Binary::less: return loop<C, bool>([](C x, C y) { return x < y; });
    case Binary::less_equal: return loop<C, bool>([](C x, C y) { return x <= y; });
    case Binary::greater: return loop<C, bool>([](C x, C y) { return x > y; });
    case Binary::greater_equal: return loop<C, bool>([](C x, C y) { return x >= y; });
    default: return nullptr;
  }
}

template <class C>
void run(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) {
  const Source<C> first(a, 1), second(b, 2);
  if (const Comparison<C> compare = comparison_of<C>(op)) {
    bool* const to = out.data<bool>();
    Walk({&out, &a, &b}).run([=](const Block& block) {
      Buffer<C> x, y;
      Buffer<bool> result;
      const bool direct = block.step[0] == 1;
      bool* const place = direct ? to + block.at[0] : result.data();
      compare(first.read(block, x.data()), second.read(block, y.data()), place, block.count);
      if (!direct)
        for (std::int64_t i = 0; i < block.count; ++i)
          to[block.at[0] + i * block.step[0]] = place[i];
    });
    return;
  }
  const Sink<C> sink(out);
  const Arithmetic<C> compute = arithmetic_of<C>(op);
  Walk({&out, &a, &b}).run([=](const Block& block) {
    Buffer<C> x, y, result;
    C* const place = sink.place(block, result.data());
    compute(first.read(block, x.data()), second.read(block, y.data()), place, block.count);
    sink.write(block, place);
  });
}

}  // namespace

void binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch(Types<float, double, BFloat16, std::int64_t, std::uint8_t, bool>{}, a.dtype(),
           "elementwise", [&]<class T>() { run<Compute<T>>(op, a, b, out); });
}

void binary_scalar(Binary op, const Tensor& a, double b, bool reversed, const Tensor& out) {
  dispatch(Types<float, double, BFloat16, std::int64_t, std::uint8_t, bool>{}, a.dtype(),
           "elementwise", [&]<class T>() {
             // The number in the compute type, as a tensor on the stack that broadcasts.
             Compute<T> number = convert<Compute<T>>(b);
             const Tensor scalar(
                 std::make_shared<Storage>(&number, sizeof(number), Device::cpu(), nullptr), {}, {},
                 0, dtype_of<Compute<T>>::value);
             if (reversed) run<Compute<T>>(op, scalar, a, out);
             else run<Compute<T>>(op, a, scalar, out);
           });
}

}  // namespace tutti::kernels::cpu
