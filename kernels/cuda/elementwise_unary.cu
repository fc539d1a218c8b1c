// Elementwise functions of one tensor: compiled for float and double, the function is a switch in
// the kernel.
#include "../../core/cuda/stream.h"
#include "element.h"
#include "elementwise_loops.h"

namespace tutti::kernels::cuda {
namespace {

template <class C, class F>
__device__ void each(C (&values)[Layout::pack], const F& f) {
#pragma unroll
  for (C& v : values) v = f(v);
}

template <class C>
__device__ void apply(Unary op, C (&v)[Layout::pack]) {
  switch (op) {
    case Unary::negate: return each(v, [](C x) { return -x; });
    case Unary::absolute: return each(v, [](C x) { return fabs(x); });
    case Unary::exp: return each(v, [](C x) { return exp(x); });
    case Unary::log: return each(v, [](C x) { return log(x); });
    case Unary::sqrt: return each(v, [](C x) { return sqrt(x); });
    case Unary::rsqrt: return each(v, [](C x) { return C(1) / sqrt(x); });
    case Unary::reciprocal: return each(v, [](C x) { return C(1) / x; });
    case Unary::square: return each(v, [](C x) { return x * x; });
    case Unary::sine: return each(v, [](C x) { return sin(x); });
    case Unary::cosine: return each(v, [](C x) { return cos(x); });
    case Unary::tanh: return each(v, [](C x) { return tanh(x); });
    case Unary::sigmoid: return each(v, [](C x) { return C(1) / (C(1) + exp(-x)); });
    case Unary::relu: return each(v, [](C x) { return x > C(0) || x != x ? x : C(0); });
    case Unary::gelu:
      return each(v, [](C x) { return x * C(0.5) * (C(1) + erf(x * C(0.70710678118654752440))); });
    case Unary::sign:
      return each(v, [](C x) { return x > C(0) ? C(1) : (x < C(0) ? C(-1) : C(0)); });
  }
}

template <class C>
__global__ __launch_bounds__(block_threads) void unary_kernel(Unary op, Layout layout, Operand in,
                                                              Operand out) {
  for (std::int64_t unit = first_index(); unit < layout.units; unit += index_step()) {
    const Place<2> place = layout.place<2>(unit);
    C values[Layout::pack];
    load(in, place.at[1], place.count, layout.constant[1], values);
    apply(op, values);
    store(out, place.at[0], place.count, values);
  }
}

}  // namespace

void unary(Unary op, const Tensor& in, const Tensor& out) {
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  dispatch(TrainTypes{}, in.dtype(), "elementwise", [&]<class T>() {
    const Layout layout{&out, &in};
    tutti::cuda::launch("elementwise", unary_kernel<Compute<T>>, grid_for(layout.units, device), op,
                        layout, Operand(in), Operand(out));
  });
}

}  // namespace tutti::kernels::cuda
