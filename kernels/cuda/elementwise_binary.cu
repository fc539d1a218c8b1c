// Elementwise functions of two tensors, or of a tensor and a number: compiled for float, double and
// int64, the function is a switch in the kernel.
#include "../../core/cuda/stream.h"
#include "element.h"
#include "elementwise_loops.h"

namespace tutti::kernels::cuda {
namespace {

template <class C>
struct Values {
  C x[Layout::pack], y[Layout::pack];
};

template <class C, class F>
__device__ void each(Values<C>& v, const F& f) {
#pragma unroll
  for (int j = 0; j < Layout::pack; ++j) v.x[j] = static_cast<C>(f(v.x[j], v.y[j]));
}

template <class C>
__device__ void apply_to_reals(Binary op, Values<C>& v) {
  if constexpr (std::is_floating_point_v<C>) {
    switch (op) {
      case Binary::divide: return each(v, [](C x, C y) { return x / y; });
      case Binary::power: return each(v, [](C x, C y) { return pow(x, y); });
      case Binary::relu_grad: return each(v, [](C g, C y) { return y > C(0) ? g : C(0); });
      case Binary::gelu_grad:
        return each(v, [](C g, C x) {
          // d/dx x Phi(x) = Phi(x) + x phi(x), with the normal density phi
          const C phi = C(0.39894228040143267794) * exp(C(-0.5) * x * x);
          return g * (C(0.5) * (C(1) + erf(x * C(0.70710678118654752440))) + x * phi);
        });
      case Binary::sigmoid_grad: return each(v, [](C g, C y) { return g * y * (C(1) - y); });
      case Binary::tanh_grad: return each(v, [](C g, C y) { return g * (C(1) - y * y); });
      default: return;
    }
  }
}

template <class C>
__device__ void apply(Binary op, Values<C>& v) {
  switch (op) {
    case Binary::add: return each(v, [](C x, C y) { return x + y; });
    case Binary::subtract: return each(v, [](C x, C y) { return x - y; });
    case Binary::multiply: return each(v, [](C x, C y) { return x * y; });
    case Binary::maximum: return each(v, [](C x, C y) { return x > y || x != x ? x : y; });
    case Binary::minimum: return each(v, [](C x, C y) { return x < y || x != x ? x : y; });
    case Binary::equal: return each(v, [](C x, C y) { return x == y; });
    case Binary::not_equal: return each(v, [](C x, C y) { return x != y; });
    case Binary::less: return each(v, [](C x, C y) { return x < y; });
    case Binary::less_equal: return each(v, [](C x, C y) { return x <= y; });
    case Binary::greater: return each(v, [](C x, C y) { return x > y; });
    case Binary::greater_equal: return each(v, [](C x, C y) { return x >= y; });
    default: return apply_to_reals(op, v);
  }
}

bool has_integers(Binary op) {
  switch (op) {
    case Binary::divide:
    case Binary::power:
    case Binary::relu_grad:
    case Binary::gelu_grad:
    case Binary::sigmoid_grad:
    case Binary::tanh_grad: return false;
    default: return true;
  }
}

// How the second operand takes part: as a tensor, or as a number that stands second or first.
enum class Second { tensor, number, number_first };

template <class C>
__global__ __launch_bounds__(block_threads) void binary_kernel(Binary op, Layout layout, Operand a,
                                                               Operand b, Second second, C number,
                                                               Operand out) {
  for (std::int64_t unit = first_index(); unit < layout.units; unit += index_step()) {
    const Place<3> place = layout.place<3>(unit);
    Values<C> values;
    load(a, place.at[1], place.count, layout.constant[1],
         second == Second::number_first ? values.y : values.x);
    if (second == Second::tensor) load(b, place.at[2], place.count, layout.constant[2], values.y);
    else
      for (C& v : second == Second::number_first ? values.x : values.y) v = number;
    apply(op, values);
    store(out, place.at[0], place.count, values.x);
  }
}

void run(Binary op, const Layout& layout, const Tensor& a, Operand b, Second second, double number,
         const Tensor& out) {
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  dispatch(AllTypes{}, a.dtype(), "elementwise", [&]<class T>() {
    using C = Compute<T>;
    if (!std::is_floating_point_v<C> && !has_integers(op))
      fail<DTypeError>(
          "elementwise: this operation needs a floating dtype; convert with .to(float32)");
    tutti::cuda::launch("elementwise", binary_kernel<C>, grid_for(layout.units, device), op, layout,
                        Operand(a), b, second, static_cast<C>(number), Operand(out));
  });
}

}  // namespace

void binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) {
  run(op, Layout{&out, &a, &b}, a, Operand(b), Second::tensor, 0, out);
}

void binary_scalar(Binary op, const Tensor& a, double b, bool reversed, const Tensor& out) {
  run(op, Layout{&out, &a}, a, {}, reversed ? Second::number_first : Second::number, b, out);
}

}  // namespace tutti::kernels::cuda
