// Elementwise functions of one tensor. Each is compiled twice, for dense float and double (see
// operand.h).
#include "elementwise_loops.h"
#include "operand.h"
#include "vector_math.h"

#include <cmath>

namespace tutti::kernels::cpu {
namespace {

template <class C>
using Loop = void (*)(const C* x, C* y, std::int64_t n);

// ivdep: x and y are either one array or do not overlap.
template <class C, class F>
Loop<C> loop(F) {
  return [](const C* x, C* y, std::int64_t n) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = F{}(x[i]);
  };
}

template <class C>
Loop<C> loop_of(Unary op) {
  switch (op) {
    case Unary::negate: return loop<C>([](C x) { return -x; });
    case Unary::absolute: return loop<C>([](C x) { return std::abs(x); });
    case Unary::exp: return loop<C>([](C x) { return vector_exp(x); });
    case Unary::log: return loop<C>([](C x) { return std::log(x); });
    case Unary::sqrt: return loop<C>([](C x) { return std::sqrt(x); });
    case Unary::rsqrt: return loop<C>([](C x) { return C(1) / std::sqrt(x); });
    case Unary::reciprocal: return loop<C>([](C x) { return C(1) / x; });
    case Unary::square: return loop<C>([](C x) { return x * x; });
    case Unary::sine: return loop<C>([](C x) { return std::sin(x); });
    case Unary::cosine: return loop<C>([](C x) { return std::cos(x); });
    case Unary::tanh: return loop<C>([](C x) { return vector_tanh(x); });
    case Unary::sigmoid: return loop<C>([](C x) { return vector_sigmoid(x); });
    case Unary::relu: return loop<C>([](C x) { return x > C(0) || x != x ? x : C(0); });
    case Unary::gelu:
      return loop<C>(
          [](C x) { return x * C(0.5) * (C(1) + std::erf(x * C(0.70710678118654752440))); });
    case Unary::sign:
      return loop<C>([](C x) { return x > C(0) ? C(1) : (x < C(0) ? C(-1) : C(0)); });
  }
  return nullptr;
}

}  // namespace

void unary(Unary op, const Tensor& in, const Tensor& out) {
  dispatch(RealTypes{}, in.dtype(), "elementwise", [&]<class T>() {
    using C = Compute<T>;
    const Source<C> source(in, 1);
    const Sink<C> sink(out);
    const Loop<C> compute = loop_of<C>(op);
    Walk({&out, &in}).run([=](const Block& block) {
      Buffer<C> from, to;
      C* const y = sink.place(block, to.data());
      compute(source.read(block, from.data()), y, block.count);
      sink.write(block, y);
    });
  });
}

}  // namespace tutti::kernels::cpu
