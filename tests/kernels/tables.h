// The tables of kernels that a suite tests: those of the CPU, or those of another device with every
// tensor copied there and back. So a test is written once, with tensors of the CPU; the kernels of
// any device see the same strides, offsets, aliases and poisoned memory.
#pragma once

#include "../test_device.h"

#include <tutti/kernels/batch_norm.h>
#include <tutti/kernels/convolution.h>
#include <tutti/kernels/elementwise.h>
#include <tutti/kernels/embedding.h>
#include <tutti/kernels/layer_norm.h>
#include <tutti/kernels/matmul.h>
#include <tutti/kernels/pooling.h>
#include <tutti/kernels/reduce.h>
#include <tutti/kernels/softmax.h>

#include <map>

namespace tutti::testing {

/// Copies the tensors of one call to the test's device and back. Every storage is copied once, as a
/// whole.
class Moved {
 public:
  Tensor operator()(const Tensor& t) {
    if (!t.defined()) return {};
    const std::shared_ptr<Storage>& home = t.storage();
    std::shared_ptr<Storage>& there = storages_[home];
    if (!there) {
      there = std::make_shared<Storage>(home->bytes(), test_device());
      copy_bytes(there->data(), test_device(), home->data(), Device::cpu(), home->bytes());
    }
    return Tensor(there, t.shape(), t.strides(), t.offset(), t.dtype());
  }
  kernels::RunningStatistics operator()(const kernels::RunningStatistics& r) {
    return {(*this)(r.mean), (*this)(r.var), (*this)(r.batches), (*this)(r.elements)};
  }
  kernels::Normalization operator()(const kernels::Normalization& n) {
    return {(*this)(n.mean),     (*this)(n.rstd), (*this)(n.weight), (*this)(n.bias),
            (*this)(n.residual), n.relu,          (*this)(n.mask)};
  }
  kernels::NormalizationGrad operator()(const kernels::NormalizationGrad& g) {
    return {(*this)(g.forward), (*this)(g.x), (*this)(g.output), g.weighted};
  }
  kernels::Settlement operator()(const kernels::Settlement& s) {
    return {s.eps, s.tracking, s.momentum, (*this)(s.running), s.ranks};
  }
  kernels::Epilogue operator()(const kernels::Epilogue& e) {
    return {(*this)(e.bias), e.activation};
  }
  template <class Option>
  const Option& operator()(const Option& option) {
    return option;
  }
  void back() {
    for (const auto& [home, there] : storages_)
      copy_bytes(home->data(), Device::cpu(), there->data(), test_device(), home->bytes());
  }

 private:
  std::map<std::shared_ptr<Storage>, std::shared_ptr<Storage>> storages_;
};

template <auto Of, auto Member, class Type = decltype(Member)>
struct MovedCall;
template <auto Of, auto Member, class Table, class Result, class... Arguments>
struct MovedCall<Of, Member, Result (*Table::*)(Arguments...)> {
  static Result call(Arguments... arguments) {
    Moved moved;
    if constexpr (!std::is_void_v<Result>) {
      return (Of(test_device()).*Member)(moved(arguments)...);
    } else {
      (Of(test_device()).*Member)(moved(arguments)...);
      moved.back();
    }
  }
};

template <class Table, auto Of, auto... Members>
const Table& table() {
  static_assert(sizeof(Table) == sizeof...(Members) * sizeof(void (*)()),
                "every member of the table, in order");
  static const Table moved{MovedCall<Of, Members>::call...};
  return test_device().is_cpu() ? Of(Device::cpu()) : moved;
}

inline const kernels::BatchNorm& batch_norm() {
  using T = kernels::BatchNorm;
  return table<T, kernels::batch_norm, &T::moments, &T::to_sums, &T::from_sums, &T::finish,
               &T::finish_running, &T::update, &T::mask_size, &T::apply, &T::reduce_grad,
               &T::parameter_grad, &T::apply_grad, &T::moment_sums, &T::settle, &T::forward,
               &T::gradient_sums, &T::backward>();
}
inline const kernels::Convolution& convolution() {
  using T = kernels::Convolution;
  return table<T, kernels::convolution, &T::forward, &T::backward_input, &T::backward_weight>();
}
inline const kernels::Elementwise& elementwise() {
  using T = kernels::Elementwise;
  return table<T, kernels::elementwise, &T::fill, &T::copy, &T::unary, &T::binary,
               &T::binary_scalar, &T::axpy, &T::where>();
}
inline const kernels::Embedding& embedding() {
  return table<kernels::Embedding, kernels::embedding, &kernels::Embedding::gather,
               &kernels::Embedding::scatter_add>();
}
inline const kernels::LayerNorm& layer_norm() {
  using T = kernels::LayerNorm;
  return table<T, kernels::layer_norm, &T::forward, &T::input_grad, &T::parameter_grad>();
}
inline const kernels::Matmul& matmul() {
  return table<kernels::Matmul, kernels::matmul, &kernels::Matmul::matmul>();
}
inline const kernels::Pooling& pooling() {
  using T = kernels::Pooling;
  return table<T, kernels::pooling, &T::max_forward, &T::max_backward, &T::average_forward,
               &T::average_backward, &T::adaptive_average_forward, &T::adaptive_average_backward>();
}
inline const kernels::Reduce& reduce() {
  return table<kernels::Reduce, kernels::reduce, &kernels::Reduce::reduce,
               &kernels::Reduce::argmax>();
}
inline const kernels::Softmax& softmax() {
  using T = kernels::Softmax;
  return table<T, kernels::softmax, &T::forward, &T::backward, &T::cross_entropy,
               &T::cross_entropy_grad>();
}

}  // namespace tutti::testing
