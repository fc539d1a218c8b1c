// The optimizers' kernels on the CPU. Each parameter takes one vectorised pass, which is split over
// the threads where the parameter is large. The formulas stand in ../optimizer.h. The loops
// copy their factors to a local variable, because the compiler reloads what a lambda has captured
// after every store to an element of the same type.
#include "../optimizer.h"

#include "../../core/parallel.h"
#include "../kernels.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <tuple>
#include <utility>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

using Trained = Types<float, double, BFloat16, Float16>;

constexpr std::int64_t grain = 16384;

// Updates the elements of one parameter, which has states K.
template <class T, class Method, std::size_t... K>
void update_elements(const FusedUpdate& u, const Method& method, std::index_sequence<K...>) {
  using C = Accumulate<T>;
  T* p = u.parameter.data<T>();
  const T* g = u.gradient.data<T>();
  [[maybe_unused]] const std::tuple states{u.states[K].template data<C>()...};
  parallel_for(u.parameter.numel(), grain, [=](std::int64_t begin, std::int64_t end) {
    const auto update = method;
    [[maybe_unused]] const auto s = states;
    TUTTI_INDEPENDENT_LOOP
    for (std::int64_t i = begin; i < end; ++i)
      p[i] = T(update.updated(C(p[i]), C(g[i]), std::get<K>(s)[i]...));
  });
}

// Updates the parameters whose step is not skipped. `method_of` returns the factors in type C for
// update k from the number of its step; `counts` are the numbers of states that the method allows.
template <std::size_t... counts, class MethodOf>
void update_all(const char* op, std::span<const FusedUpdate> updates, const MethodOf& method_of) {
  for (std::size_t k = 0; k < updates.size(); ++k) {
    const FusedUpdate& u = updates[k];
    if (u.found_inf.defined() && *u.found_inf.data<float>() != 0) continue;
    const auto step = static_cast<double>(++*u.steps.data<std::int64_t>());
    dispatch(Trained{}, u.parameter.dtype(), op, [&]<class T>() {
      const auto method = method_of.template operator()<Accumulate<T>>(k, step);
      ((u.states.size() == counts
            ? update_elements<T>(u, method, std::make_index_sequence<counts>())
            : void()),
       ...);
    });
  }
}

void sgd(const SgdStep& s, std::span<const FusedUpdate> updates) {
  update_all<0, 1>("sgd", updates,
                   [&]<class C>(std::size_t, double step) { return SgdUpdate<C>::of(s, step); });
}

void adam(const AdamStep& s, std::span<const FusedUpdate> updates) {
  update_all<2>("adam", updates,
                [&]<class C>(std::size_t, double step) { return AdamUpdate<C>::of(s, step); });
}

void lars(const LarsStep& s, std::span<const FusedUpdate> updates, const Tensor& squares) {
  const double* square = squares.data<double>();
  update_all<1>("lars", updates, [&]<class C>(std::size_t k, double) {
    return LarsUpdate<C>::of(s, square[k], square[updates.size() + k]);
  });
}

// Sums chunks of a fixed size in order, so that the number of threads decides only which thread
// computes which chunk.
template <class T>
double sum_of_squares(const T* x, std::int64_t n) {
  const std::int64_t chunks = (n + grain - 1) / grain;
  std::vector<double> partial(static_cast<std::size_t>(chunks));
  parallel_for(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      constexpr std::int64_t lanes = 16;  // Independent sums let the compiler vectorise the loop.
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

void scale_into(std::span<const Tensor> from, std::span<const Tensor> to, double factor) {
  const Elementwise& kernels = cpu::table().elementwise;
  for (std::size_t k = 0; k < to.size(); ++k) {
    const bool same = from[k].dtype() == to[k].dtype();
    if (!same) kernels.copy(from[k], to[k]);
    kernels.binary_scalar(Binary::multiply, same ? from[k] : to[k], factor, false, to[k]);
  }
}

void clip(std::span<const Tensor> tensors, const Tensor& squares, double max_norm,
          const Tensor& norm) {
  const double* square = squares.data<double>();
  double total = 0;
  for (std::size_t k = 0; k < tensors.size(); ++k) total += square[k];
  const double length = std::sqrt(total), factor = clip_factor(max_norm, length);
  norm.data<double>()[0] = length;
  if (factor >= 1) return;
  for (const Tensor& x : tensors)
    dispatch(Trained{}, x.dtype(), "clip", [&]<class T>() {
      using C = Accumulate<T>;
      T* values = x.data<T>();
      parallel_for(x.numel(), grain, [=](std::int64_t begin, std::int64_t end) {
        const C scale = static_cast<C>(factor);
        for (std::int64_t i = begin; i < end; ++i) values[i] = T(static_cast<C>(values[i]) * scale);
      });
    });
}

}  // namespace

extern const Optimizer optimizer{.sgd = sgd,
                                 .adam = adam,
                                 .lars = lars,
                                 .sums_of_squares = sums_of_squares,
                                 .clip = clip,
                                 .unscale = unscale,
                                 .scale_into = scale_into};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
