// This file computes the gradient below the ReLU, called g, for the two backward passes of batch
// norm on the CPU. g is dy where the ReLU passed the element, and 0 elsewhere. The ReLU passes NaN,
// so that the gradient of a diverged network is not 0.
#pragma once

#include "batch_norm_layout.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

/// The tensor from which the mask of the ReLU is computed; `none` if there is no ReLU.
enum class ReluMask { none, from_input, from_output };

/// Pointers to the same element of each tensor that a backward pass reads.
template <class T, class A, ReluMask mask>
struct GradientSource {
  const T* __restrict dy;
  const T* __restrict x;
  const T* __restrict y = nullptr;  ///< Null unless the mask comes from the output.

  static constexpr bool reads_output = mask == ReluMask::from_output;

  GradientSource(const Tensor& gradient, const SavedForward& saved)
      : dy(gradient.data<T>()), x(saved.x.data<T>()) {
    if (reads_output) y = saved.output.data<T>();
  }

  GradientSource at(std::int64_t offset) const {
    GradientSource there = *this;
    there.dy += offset;
    there.x += offset;
    if (reads_output) there.y += offset;
    return there;
  }
  /// Returns g of the elements from i on, where x is `x_i`.
  template <class Lanes, class V, class K>
  [[gnu::always_inline]] V g(std::int64_t i, Lanes lanes, V x_i, K center, K scale, K shift) const {
    const V d = lanes.load(dy + i);
    if constexpr (mask == ReluMask::from_input)
      return (x_i - center) * scale + shift <= V{} ? V{} : d;
    if constexpr (reads_output) return lanes.load(y + i) <= V{} ? V{} : d;
    return d;
  }
};

/// Calls body.operator()<mask>() with the ReluMask of this backward pass.
template <class Body>
void with_relu_mask(const Normalization& normalization, const Body& body) {
  if (!normalization.relu) body.template operator()<ReluMask::none>();
  else if (normalization.residual.defined()) body.template operator()<ReluMask::from_output>();
  else body.template operator()<ReluMask::from_input>();
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
