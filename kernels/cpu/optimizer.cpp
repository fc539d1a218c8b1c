// Optimizer steps on the CPU: every parameter in one vectorised pass, split over the threads where
// it is large.
#include "../optimizer.h"

#include "../../core/parallel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

namespace tutti::kernels::cpu {
namespace {

using Trained = Types<float, double, BFloat16, Float16>;

constexpr std::int64_t grain = 16384;

// Which update of its parameter this is, skipped ones not counted, from 1; 0 where it is to be
// skipped itself.
std::int64_t counted_step(const ParameterUpdate& u) {
  if (!u.skipped.defined()) return u.step;
  float& skipped = *u.skipped.data<float>();
  if (u.found_inf.defined() && *u.found_inf.data<float>() != 0) {
    skipped += 1;
    return 0;
  }
  return u.step - static_cast<std::int64_t>(skipped);
}

void sgd(const SgdStep& s, std::span<const ParameterUpdate> updates, ReplayScalars) {
  for (const ParameterUpdate& u : updates) {
    const std::int64_t step = counted_step(u);
    if (step == 0) continue;
    dispatch(Trained{}, u.parameter.dtype(), "sgd", [&]<class T>() {
      using C = Accumulate<T>;
      const C lr = C(s.lr), decay = C(s.weight_decay);
      T* p = u.parameter.data<T>();
      const T* g = u.gradient.data<T>();
      if (!u.first.defined()) {
        parallel_for(u.parameter.numel(), grain, [=](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i)
            p[i] = T(C(p[i]) - lr * (C(g[i]) + decay * C(p[i])));
        });
        return;
      }
      C* m = u.first.data<C>();
      // A first buffer is zero and takes the gradient whole; Nesterov steps along gradient +
      // momentum * buffer.
      const C keep = step == 1 ? C(0) : C(s.momentum), take = step == 1 ? C(1) : C(1 - s.dampening);
      const C along_gradient = s.nesterov ? C(1) : C(0),
              along_buffer = s.nesterov ? C(s.momentum) : C(1);
      parallel_for(u.parameter.numel(), grain, [=](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
        for (std::int64_t i = begin; i < end; ++i) {
          const C gradient = C(g[i]) + decay * C(p[i]);
          const C buffer = keep * m[i] + take * gradient;
          m[i] = buffer;
          p[i] = T(C(p[i]) - lr * (along_gradient * gradient + along_buffer * buffer));
        }
      });
    });
  }
}

void adam(const AdamStep& s, std::span<const ParameterUpdate> updates, ReplayScalars) {
  for (const ParameterUpdate& u : updates) {
    const auto step = static_cast<double>(counted_step(u));
    if (step == 0) continue;
    dispatch(Trained{}, u.parameter.dtype(), "adam", [&]<class T>() {
      using C = Accumulate<T>;
      const double correction1 = 1 - std::pow(s.beta1, step);
      const double correction2 = 1 - std::pow(s.beta2, step);
      const C rate = C(s.lr / correction1), root = C(1 / std::sqrt(correction2)), eps = C(s.eps);
      const C beta1 = C(s.beta1), take1 = C(1 - s.beta1), beta2 = C(s.beta2),
              take2 = C(1 - s.beta2);
      const C decay = s.decoupled ? C(0) : C(s.weight_decay);
      const C shrink = s.decoupled ? C(1 - s.lr * s.weight_decay) : C(1);
      T* p = u.parameter.data<T>();
      const T* g = u.gradient.data<T>();
      C* m = u.first.data<C>();
      C* v = u.second.data<C>();
      parallel_for(u.parameter.numel(), grain, [=](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
        for (std::int64_t i = begin; i < end; ++i) {
          const C gradient = C(g[i]) + decay * C(p[i]);
          m[i] = beta1 * m[i] + take1 * gradient;
          v[i] = beta2 * v[i] + take2 * gradient * gradient;
          p[i] = T(shrink * C(p[i]) - rate * m[i] / (std::sqrt(v[i]) * root + eps));
        }
      });
    });
  }
}

void lars(const LarsStep& s, std::span<const ParameterUpdate> updates, const Tensor& squares,
          ReplayScalars) {
  const double* square = squares.data<double>();
  for (std::size_t k = 0; k < updates.size(); ++k) {
    const ParameterUpdate& u = updates[k];
    if (counted_step(u) == 0) continue;
    const double weight = std::sqrt(square[k]), slope = std::sqrt(square[updates.size() + k]);
    const bool adapts = s.adapt && weight > 0 && slope > 0;
    const double local =
        adapts ? s.trust_coefficient * weight / (slope + s.weight_decay * weight + s.eps) : 1;
    dispatch(Trained{}, u.parameter.dtype(), "lars", [&]<class T>() {
      using C = Accumulate<T>;
      const C rate = C(s.lr * local), momentum = C(s.momentum), decay = C(s.weight_decay);
      T* p = u.parameter.data<T>();
      const T* g = u.gradient.data<T>();
      C* m = u.first.data<C>();
      parallel_for(u.parameter.numel(), grain, [=](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
        for (std::int64_t i = begin; i < end; ++i) {
          m[i] = momentum * m[i] + rate * (C(g[i]) + decay * C(p[i]));
          p[i] = T(C(p[i]) - m[i]);
        }
      });
    });
  }
}

// Chunks of fixed size, summed in order: the thread count decides only who computes which.
template <class T>
double sum_of_squares(const T* x, std::int64_t n) {
  const std::int64_t chunks = (n + grain - 1) / grain;
  std::vector<double> partial(static_cast<std::size_t>(chunks));
  parallel_for(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      constexpr std::int64_t lanes =
          16;  // independent sums, so that the loop vectorises as written
      std::array<double, lanes> sum{};
      std::int64_t i = c * grain;
      const std::int64_t stop = std::min(n, i + grain);
      for (; i + lanes <= stop; i += lanes)
        for (std::int64_t k = 0; k < lanes; ++k) {
          const double value = static_cast<double>(static_cast<Accumulate<T>>(x[i + k]));
          sum[static_cast<std::size_t>(k)] += value * value;
        }
      for (; i < stop; ++i) {
        const double value = static_cast<double>(static_cast<Accumulate<T>>(x[i]));
        sum[0] += value * value;
      }
      double total = 0;
      for (const double value : sum) total += value;
      partial[static_cast<std::size_t>(c)] = total;
    }
  });
  double total = 0;
  for (const double value : partial) total += value;
  return total;
}

void sums_of_squares(std::span<const Tensor> tensors, const Tensor& out) {
  double* to = out.data<double>();
  for (std::size_t k = 0; k < tensors.size(); ++k)
    dispatch(Trained{}, tensors[k].dtype(), "sum of squares",
             [&]<class T>() { to[k] = sum_of_squares(tensors[k].data<T>(), tensors[k].numel()); });
}

void clip(std::span<const Tensor> tensors, const Tensor& squares, double max_norm,
          const Tensor& norm) {
  const double* square = squares.data<double>();
  double total = 0;
  for (std::size_t k = 0; k < tensors.size(); ++k) total += square[k];
  const double length = std::sqrt(total), factor = max_norm / (length + 1e-6);
  norm.data<double>()[0] = length;
  if (factor >= 1) return;
  for (const Tensor& x : tensors)
    dispatch(Trained{}, x.dtype(), "clip", [&]<class T>() {
      using C = Accumulate<T>;
      T* values = x.data<T>();
      const C f = C(factor);
      parallel_for(x.numel(), grain, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) values[i] = T(C(values[i]) * f);
      });
    });
}

void unscale(std::span<const Tensor> tensors, const Tensor& scale, const Tensor& found_inf) {
  std::atomic<bool> all_finite = true;
  for (const Tensor& x : tensors)
    dispatch(Trained{}, x.dtype(), "unscale", [&]<class T>() {
      using C = Accumulate<T>;
      T* values = x.data<T>();
      const C inverse = C(1 / static_cast<double>(*scale.data<float>()));
      parallel_for(x.numel(), grain, [&, inverse](std::int64_t begin, std::int64_t end) {
        bool finite = true;
        for (std::int64_t i = begin; i < end; ++i) {
          const C value = C(values[i]);
          finite &= std::abs(value) <= std::numeric_limits<C>::max();
          values[i] = T(value * inverse);
        }
        if (!finite) all_finite.store(false, std::memory_order_relaxed);
      });
    });
  if (!all_finite) *found_inf.data<float>() = 1;
}

}  // namespace

const OptimizerSteps& optimizer() {
  static constexpr OptimizerSteps table{sgd, adam, lars, sums_of_squares, clip, unscale};
  return table;
}

}  // namespace tutti::kernels::cpu
