// The difference between oneDNN 2 and 3, so that the files above this header are the same for both.
// oneDNN 2 makes the descriptor of a primitive from an operation descriptor, oneDNN 3 directly. The
// arguments and their order are the same.
#pragma once

#include <dnnl.hpp>

namespace tutti::kernels::cpu::onednn {

const dnnl::engine& engine();
dnnl::primitive_attr attributes();

#if DNNL_VERSION_MAJOR >= 3

using PoolingForward = dnnl::pooling_forward;
using PoolingBackward = dnnl::pooling_backward;

/// Returns the descriptor of a primitive from the arguments that oneDNN documents, without the
/// engine and the attributes. Throws dnnl::error with dnnl_unimplemented if oneDNN has no kernel.
template <class Primitive, class... Arguments>
typename Primitive::primitive_desc describe(const Arguments&... arguments) {
  return typename Primitive::primitive_desc(engine(), arguments..., attributes());
}

/// The same for a backward primitive, which oneDNN chooses to suit the `forward` descriptor.
template <class Primitive, class Forward, class... Arguments>
typename Primitive::primitive_desc describe_backward(const Forward& forward,
                                                     const Arguments&... arguments) {
  return typename Primitive::primitive_desc(engine(), arguments..., forward, attributes());
}

#else

// The first version of pooling in oneDNN 2 has no dilation.
using PoolingForward = dnnl::pooling_v2_forward;
using PoolingBackward = dnnl::pooling_v2_backward;

template <class Primitive, class... Arguments>
typename Primitive::primitive_desc describe(const Arguments&... arguments) {
  const typename Primitive::desc operation(arguments...);
  return typename Primitive::primitive_desc(operation, attributes(), engine());
}

template <class Primitive, class Forward, class... Arguments>
typename Primitive::primitive_desc describe_backward(const Forward& forward,
                                                     const Arguments&... arguments) {
  const typename Primitive::desc operation(arguments...);
  return typename Primitive::primitive_desc(operation, attributes(), engine(), forward);
}

#endif

}  // namespace tutti::kernels::cpu::onednn
