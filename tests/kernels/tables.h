// The tables of kernels that a suite tests: those of the CPU, or those of another device with every
// tensor copied there and back. So a test is written once, with tensors of the CPU; the kernels of
// any device see the same strides, offsets, aliases and poisoned memory.
#pragma once

#include "../test_device.h"

#include <tutti/core/create.h>
#include <tutti/kernels/kernels.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tutti::test {

/// Copies the tensors of one call to the test's device and back. Every storage is copied once, as a
/// whole.
class Moved {
 public:
  Tensor operator()(const Tensor& t) {
    if (!t.defined()) return {};
    const std::shared_ptr<Storage>& home = t.storage();
    std::shared_ptr<Storage>& there = storages_[home];
    if (!there) {
      there = memory_for(t);
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
  kernels::SavedForward operator()(const kernels::SavedForward& s) {
    return {(*this)(s.normalization), (*this)(s.x), (*this)(s.output), s.weighted};
  }
  kernels::StatisticsUpdate operator()(const kernels::StatisticsUpdate& u) {
    return {u.eps, u.tracking, u.momentum, (*this)(u.running), u.ranks};
  }
  kernels::GradientSums operator()(const kernels::GradientSums& a) {
    return {.dy = (*this)(a.dy),
            .saved = (*this)(a.saved),
            .header = a.header,
            .sums = (*this)(a.sums),
            .masked_dy = (*this)(a.masked_dy),
            .weight_grad = (*this)(a.weight_grad),
            .bias_grad = (*this)(a.bias_grad)};
  }
  kernels::InputGradient operator()(const kernels::InputGradient& a) {
    return {.dy = (*this)(a.dy),
            .saved = (*this)(a.saved),
            .sums = (*this)(a.sums),
            .moments = (*this)(a.moments),
            .position_weights = (*this)(a.position_weights),
            .eps = a.eps,
            .dx = (*this)(a.dx),
            .report = a.report};
  }
  kernels::ForwardFromSums operator()(const kernels::ForwardFromSums& a) {
    return {.x = (*this)(a.x),
            .sums = (*this)(a.sums),
            .moments = (*this)(a.moments),
            .update = (*this)(a.update),
            .normalization = (*this)(a.normalization),
            .y = (*this)(a.y),
            .report = a.report};
  }
  std::vector<Tensor> operator()(std::span<const Tensor> tensors) {
    std::vector<Tensor> moved;
    for (const Tensor& t : tensors) moved.push_back((*this)(t));
    return moved;
  }
  std::vector<kernels::FusedUpdate> operator()(std::span<const kernels::FusedUpdate> updates) {
    std::vector<kernels::FusedUpdate> moved;
    for (const kernels::FusedUpdate& u : updates)
      moved.push_back({(*this)(u.parameter), (*this)(u.gradient),
                       (*this)(std::span<const Tensor>(u.states)), (*this)(u.steps),
                       (*this)(u.found_inf), (*this)(u.rounded)});
    return moved;
  }
  const double* operator()(const double* number) {
    return (*this)(full({}, *number, {float64})).data<double>();
  }
  kernels::SgdStep operator()(const kernels::SgdStep& s) {
    return {(*this)(s.lr), (*this)(s.momentum), (*this)(s.dampening), (*this)(s.weight_decay),
            s.nesterov};
  }
  kernels::AdamStep operator()(const kernels::AdamStep& s) {
    return {(*this)(s.lr),  (*this)(s.beta1),        (*this)(s.beta2),
            (*this)(s.eps), (*this)(s.weight_decay), s.decoupled};
  }
  kernels::LarsStep operator()(const kernels::LarsStep& s) {
    return {(*this)(s.lr),           (*this)(s.momentum),
            (*this)(s.weight_decay), (*this)(s.trust_coefficient),
            (*this)(s.eps),          s.adapt};
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
  // Returns memory of the device for a tensor's storage. Where TUTTI_MISALIGNED_STORAGES is set, it
  // begins that many bytes, or else one element, behind a multiple of 16, as a caller's memory may.
  static std::shared_ptr<Storage> memory_for(const Tensor& t) {
    static const char* const misaligned = std::getenv("TUTTI_MISALIGNED_STORAGES");
    const std::size_t bytes = t.storage()->bytes();
    if (!misaligned) return std::make_shared<Storage>(bytes, test_device());
    const std::size_t skipped = std::max(size_of(t.dtype()), std::stoul(misaligned));
    const auto whole = std::make_shared<Storage>(skipped + bytes, test_device());
    return std::make_shared<Storage>(static_cast<std::byte*>(whole->data()) + skipped, bytes,
                                     test_device(), [whole] {});
  }

  std::map<std::shared_ptr<Storage>, std::shared_ptr<Storage>> storages_;
};

template <auto Family, auto Member, class Type = decltype(Member)>
struct MovedCall;
template <auto Family, auto Member, class Table, class Result, class... Arguments>
struct MovedCall<Family, Member, Result (*Table::*)(Arguments...)> {
  static Result call(Arguments... arguments) {
    const auto& table = kernels::on(test_device()).*Family;
    Moved moved;
    if constexpr (!std::is_void_v<Result>) {
      return (table.*Member)(moved(arguments)...);
    } else {
      (table.*Member)(moved(arguments)...);
      moved.back();
    }
  }
};

template <auto Family, auto... Members>
const auto& table() {
  const auto& own = kernels::cpu::table().*Family;
  using Table = std::remove_cvref_t<decltype(own)>;
  static_assert(sizeof(Table) == sizeof...(Members) * sizeof(void (*)()),
                "every member of the table, in order");
  static const Table moved{MovedCall<Family, Members>::call...};
  return test_device().is_cpu() ? own : moved;
}

inline const kernels::BatchNorm& batch_norm() {
  using T = kernels::BatchNorm;
  constexpr auto of = &kernels::Kernels::batch_norm;
  static constexpr T moved{.moments = MovedCall<of, &T::moments>::call,
                           .moment_sums = MovedCall<of, &T::moment_sums>::call,
                           .finalize_statistics = MovedCall<of, &T::finalize_statistics>::call,
                           .running_statistics = MovedCall<of, &T::running_statistics>::call,
                           .mask_size = MovedCall<of, &T::mask_size>::call,
                           .apply = MovedCall<of, &T::apply>::call,
                           .finalize_and_apply = MovedCall<of, &T::finalize_and_apply>::call,
                           .gradient_sums = MovedCall<of, &T::gradient_sums>::call,
                           .apply_grad = MovedCall<of, &T::apply_grad>::call};
  return test_device().is_cpu() ? kernels::cpu::table().*of : moved;
}
inline const kernels::Convolution& convolution() {
  using T = kernels::Convolution;
  return table<&kernels::Kernels::convolution, &T::forward, &T::backward_input, &T::backward_weight,
               &T::keep_packed>();
}
inline const kernels::Elementwise& elementwise() {
  using T = kernels::Elementwise;
  return table<&kernels::Kernels::elementwise, &T::fill, &T::copy, &T::unary, &T::binary,
               &T::binary_scalar, &T::axpy, &T::where>();
}
inline const kernels::Indexing& indexing() {
  return table<&kernels::Kernels::indexing, &kernels::Indexing::gather,
               &kernels::Indexing::scatter_add>();
}
inline const kernels::Interpolation& interpolation() {
  return table<&kernels::Kernels::interpolation, &kernels::Interpolation::forward,
               &kernels::Interpolation::backward>();
}
inline const kernels::LayerNorm& layer_norm() {
  using T = kernels::LayerNorm;
  return table<&kernels::Kernels::layer_norm, &T::forward, &T::input_grad, &T::parameter_grad>();
}
inline void matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  Moved moved;
  kernels::on(test_device()).matmul(moved(a), moved(b), moved(bias), moved(out));
  moved.back();
}
inline const kernels::Optimizer& optimizer() {
  using T = kernels::Optimizer;
  return table<&kernels::Kernels::optimizer, &T::sgd, &T::adam, &T::lars, &T::sums_of_squares,
               &T::clip, &T::unscale, &T::scale_into>();
}
inline const kernels::Pooling& pooling() {
  using T = kernels::Pooling;
  return table<&kernels::Kernels::pooling, &T::max_forward, &T::max_backward, &T::average_forward,
               &T::average_backward>();
}
inline const kernels::Reduce& reduce() {
  return table<&kernels::Kernels::reduce, &kernels::Reduce::reduce, &kernels::Reduce::topk>();
}
inline const kernels::Softmax& softmax() {
  using T = kernels::Softmax;
  return table<&kernels::Kernels::softmax, &T::forward, &T::backward, &T::cross_entropy,
               &T::cross_entropy_grad>();
}

}  // namespace tutti::test
