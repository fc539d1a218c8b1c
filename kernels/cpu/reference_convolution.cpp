#include "reference.h"

#include "../../core/parallel.h"
#include "../pooling_windows.h"
#include "spatial.h"

#include <algorithm>
#include <optional>

namespace tutti::kernels::cpu::reference {
namespace {

// Maps between the input, output and kernel positions of a convolution.
struct PositionMap {
  SpatialDims stride, padding, dilation;

  explicit PositionMap(const ConvOptions& options)
      : stride(spatial_dims(options.stride, 0, 1)),
        padding(spatial_dims(options.padding, 0, 0)),
        dilation(spatial_dims(options.dilation, 0, 1)) {}
  // The input position that output position `out` sees at kernel position `k`; none in the padding.
  std::optional<SpatialDims> input(const SpatialDims& out, const SpatialDims& k,
                                   const SpatialDims& size) const {
    SpatialDims in;
    for (std::size_t d = 0; d < 3; ++d) {
      in[d] = out[d] * stride[d] - padding[d] + k[d] * dilation[d];
      if (in[d] < 0 || in[d] >= size[d]) return {};
    }
    return in;
  }
  // The outputs of a row of `outs` that see one of its `ins` inputs at kernel column k.
  PositionRange<std::int64_t> row(std::int64_t k, std::int64_t ins, std::int64_t outs) const {
    const auto first_from = [&](std::int64_t in) {
      const std::int64_t scaled = in + padding[2] - k * dilation[2];
      return std::clamp<std::int64_t>((scaled + stride[2] - 1) / stride[2], 0, outs);
    };
    return {first_from(0), first_from(ins)};
  }
  // The output position that sees input position `in` at kernel position `k`, where there is one.
  std::optional<SpatialDims> output(const SpatialDims& in, const SpatialDims& k,
                                    const SpatialDims& size) const {
    SpatialDims out;
    for (std::size_t d = 0; d < 3; ++d) {
      const std::int64_t scaled = in[d] + padding[d] - k[d] * dilation[d];
      if (scaled < 0 || scaled % stride[d] != 0 || scaled / stride[d] >= size[d]) return {};
      out[d] = scaled / stride[d];
    }
    return out;
  }
};

// Calls body(position) for every position of a volume, in row-major order.
template <class Body>
void for_each_position(const SpatialDims& size, const Body& body) {
  for (std::int64_t d = 0; d < size[0]; ++d)
    for (std::int64_t h = 0; h < size[1]; ++h)
      for (std::int64_t w = 0; w < size[2]; ++w) body(SpatialDims{d, h, w});
}

// Calls body.operator()<T, W>() with the element types of activations and weights, which may
// differ.
template <class Body>
void dispatch_both(const Tensor& activation, const Tensor& weight, Body&& body) {
  dispatch(RealTypes{}, activation.dtype(), "convolution", [&]<class T>() {
    dispatch(RealTypes{}, weight.dtype(), "convolution",
             [&]<class W>() { body.template operator()<T, W>(); });
  });
}

template <class T>
T rounded(double value) {
  return T(static_cast<Accumulate<T>>(value));
}

double element_of(const Tensor& vector, std::int64_t i) {
  double value = 0;
  dispatch(RealTypes{}, vector.dtype(), "convolution", [&]<class B>() {
    value = static_cast<double>(vector.data<B>()[i * vector.strides()[0]]);
  });
  return value;
}

// Returns `sum` plus the products of two lines of `count` elements, added in order.
template <class A, class B>
double add_products(double sum, const A& a, std::int64_t a_stride, const B& b,
                    std::int64_t b_stride, std::int64_t count) {
  const A* left = &a;
  const B* right = &b;
  for (std::int64_t i = 0; i < count; ++i)
    sum += static_cast<double>(left[i * a_stride]) * static_cast<double>(right[i * b_stride]);
  return sum;
}

// Writes sum(a, b, position) to each element of `to`, a tensor (A, B, ...), where all sums together
// take `multiplications`.
template <class T, class Sum>
void fill(const Tensor& to, std::int64_t multiplications, const Sum& sum) {
  const SpatialView<T> view(to);
  const std::int64_t inner = to.shape()[1], planes = to.shape()[0] * inner;
  const std::int64_t cost = multiplications / std::max<std::int64_t>(planes, 1);
  parallel_for(planes, 16384 / std::max<std::int64_t>(cost, 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i)
                   for_each_position(view.size, [&](const SpatialDims& position) {
                     view.at(i / inner, i % inner, position) =
                         rounded<T>(sum(i / inner, i % inner, position));
                   });
               });
}

// Returns the number of multiplications of a convolution with outputs `y` and weights `w`.
std::int64_t multiplications(const Tensor& y, const Tensor& w) {
  return y.numel() * w.numel() / std::max<std::int64_t>(w.shape()[0], 1);
}

}  // namespace

void convolution_forward(const Tensor& x_tensor, const Tensor& w_tensor, const Tensor& bias,
                         const ConvOptions& options, const Tensor& y_tensor) {
  dispatch_both(x_tensor, w_tensor, [&]<class T, class W>() {
    const SpatialView<T> x(x_tensor);
    const SpatialView<W> w(w_tensor);
    const PositionMap positions(options);
    const std::int64_t ins = w_tensor.shape()[1], per_group = w_tensor.shape()[0] / options.groups;
    fill<T>(y_tensor, multiplications(y_tensor, w_tensor),
            [&](std::int64_t n, std::int64_t o, const SpatialDims& out) {
              const std::int64_t first = o / per_group * ins;
              double sum = bias.defined() ? element_of(bias, o) : 0;
              for_each_position(w.size, [&](const SpatialDims& k) {
                if (const auto in = positions.input(out, k, x.size))
                  sum = add_products(sum, x.at(n, first, *in), x.channel_stride, w.at(o, 0, k),
                                     w.channel_stride, ins);
              });
              return sum;
            });
  });
}

void convolution_backward_input(const Tensor& dy_tensor, const Tensor& w_tensor,
                                const ConvOptions& options, const Tensor& dx_tensor) {
  dispatch_both(dy_tensor, w_tensor, [&]<class T, class W>() {
    const SpatialView<T> dy(dy_tensor);
    const SpatialView<W> w(w_tensor);
    const PositionMap positions(options);
    const std::int64_t per_group = dx_tensor.shape()[1] / options.groups,
                       outs = w_tensor.shape()[0] / options.groups;
    fill<T>(dx_tensor, multiplications(dy_tensor, w_tensor),
            [&](std::int64_t n, std::int64_t c, const SpatialDims& in) {
              const std::int64_t first = c / per_group * outs;
              double sum = 0;
              for_each_position(w.size, [&](const SpatialDims& k) {
                if (const auto out = positions.output(in, k, dy.size))
                  sum = add_products(sum, dy.at(n, first, *out), dy.channel_stride,
                                     w.at(first, c % per_group, k), w.batch_stride, outs);
              });
              return sum;
            });
  });
}

void convolution_backward_weight(const Tensor& x_tensor, const Tensor& dy_tensor,
                                 const ConvOptions& options, const Tensor& dw_tensor,
                                 const Tensor& db) {
  dispatch_both(x_tensor, dw_tensor, [&]<class T, class W>() {
    const SpatialView<T> x(x_tensor), dy(dy_tensor);
    const PositionMap positions(options);
    const std::int64_t batch = x_tensor.shape()[0], outs = dw_tensor.shape()[0],
                       ins = dw_tensor.shape()[1], per_group = outs / options.groups,
                       x_step = positions.stride[2] * x.stride[2];
    fill<W>(dw_tensor, multiplications(dy_tensor, dw_tensor),
            [&](std::int64_t o, std::int64_t c, const SpatialDims& k) {
              const std::int64_t channel = o / per_group * ins + c;
              const auto columns = positions.row(k[2], x.size[2], dy.size[2]);
              double sum = 0;
              for (std::int64_t n = 0; n < batch; ++n)
                for_each_position({dy.size[0], dy.size[1], 1}, [&](const SpatialDims& row) {
                  const SpatialDims out{row[0], row[1], columns.begin};
                  const auto in = positions.input(out, k, x.size);
                  if (columns.begin < columns.end && in)
                    sum = add_products(sum, x.at(n, channel, *in), x_step, dy.at(n, o, out),
                                       dy.stride[2], columns.end - columns.begin);
                });
              return sum;
            });
    if (!db.defined()) return;
    for (std::int64_t o = 0; o < outs; ++o) {
      double sum = 0;
      for (std::int64_t n = 0; n < batch; ++n)
        for_each_position(
            dy.size, [&](const SpatialDims& out) { sum += static_cast<double>(dy.at(n, o, out)); });
      dispatch(RealTypes{}, db.dtype(), "convolution",
               [&]<class B>() { db.data<B>()[o * db.strides()[0]] = rounded<B>(sum); });
    }
  });
}

}  // namespace tutti::kernels::cpu::reference
