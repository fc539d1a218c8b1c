// The optimizers' steps on CUDA, and their table. The host reads nothing back. The formulas stand
// in
// ../optimizer_math.h.
#include "../optimizer_math.h"
#include "block_counters.h"
#include "gradient_scaling.h"
#include "tensor_list.h"

namespace tutti::kernels::cuda {
namespace {

// ---- The methods. `Arguments` is what the host passes to the kernel. `of` computes the factors of
// update `k`, once in each block. `apply` updates one element, whose parameter has this number of
// state tensors.

template <class C>
struct Sgd : SgdUpdate<C> {
  using Arguments = SgdStep;

  static __device__ Sgd of(const SgdStep& s, double step, int) {
    return {SgdUpdate<C>::of(s, step)};
  }
  __device__ C apply(C p, C g, C& m, C&, C&, int states) const {
    return states > 0 ? this->updated(p, g, m) : this->updated(p, g);
  }
};

template <class C>
struct Adam : AdamUpdate<C> {
  using Arguments = AdamStep;

  static __device__ Adam of(const AdamStep& s, double step, int) {
    return {AdamUpdate<C>::of(s, step)};
  }
  __device__ C apply(C p, C g, C& m, C& v, C& largest, int states) const {
    return states > 2 ? this->updated(p, g, m, v, largest) : this->updated(p, g, m, v);
  }
};

/// The arguments of LARS: its options, and the sums of squares of all `count` parameters and then
/// of all gradients.
struct LarsArguments {
  LarsStep step;
  const double* squares;
  int count;
};

template <class C>
struct Lars : LarsUpdate<C> {
  using Arguments = LarsArguments;

  static __device__ Lars of(const LarsArguments& g, double, int k) {
    return {LarsUpdate<C>::of(g.step, g.squares[k], g.squares[g.count + k])};
  }
  __device__ C apply(C p, C g, C& m, C&, C&, int) const { return this->updated(p, g, m); }
};

/// Stores the new values of a float32 parameter in its 16-bit copy.
__device__ inline void write_rounded(const Entry& e, std::int64_t at, int count, bool aligned,
                                     const float (&p)[lanes]) {
  if (e.rounded_dtype == DType::float16) write<__half>(e.rounded, at, count, aligned, p);
  else write<__nv_bfloat16>(e.rounded, at, count, aligned, p);
}

template <class T, class Method>
__global__ __launch_bounds__(list_threads) void step_kernel(List list,
                                                            typename Method::Arguments arguments,
                                                            unsigned* counters) {
  using C = Accumulate<T>;
  __shared__ Method made;
  const int k = entry_at(list, blockIdx.x);
  const Entry& e = list.entries[k];
  if (e.found_inf && *e.found_inf != 0) return;
  if (threadIdx.x == 0) {
    const std::int64_t step = *e.steps + 1;
    made = Method::of(arguments, static_cast<double>(step), list.index[k]);
    // The last of the parameter's blocks that has read the count writes it.
    __threadfence();
    const unsigned last = list.begin[k + 1] - list.begin[k] - 1;
    if (last == 0 || atomicInc(counters + k, last) == last) *e.steps = step;
  }
  __syncthreads();
  const Method method = made;
  const int states = e.third ? 3 : e.second ? 2 : e.first ? 1 : 0;
  const bool aligned = may_pack(e);
  const std::int64_t begin = (blockIdx.x - list.begin[k]) * piece,
                     end = begin + piece < e.size ? begin + piece : e.size;
#pragma unroll 2
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += list_threads * lanes) {
    const int count = end - at < lanes ? static_cast<int>(end - at) : lanes;
    const Pack<T, lanes> ps = read<T>(e.parameter, at, count, aligned),
                         gs = read<T>(e.gradient, at, count, aligned);
    Pack<C, lanes> ms{}, vs{}, largest{};
    if (e.first) ms = read<C>(e.first, at, count, aligned);
    if (e.second) vs = read<C>(e.second, at, count, aligned);
    if (e.third) largest = read<C>(e.third, at, count, aligned);
    C p[lanes], m[lanes], v[lanes], l[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      m[i] = ms.values[i], v[i] = vs.values[i], l[i] = largest.values[i];
      p[i] = method.apply(ps[i], gs[i], m[i], v[i], l[i], states);
    }
    write<T>(e.parameter, at, count, aligned, p);
    if constexpr (std::is_same_v<T, float>)
      if (e.rounded) write_rounded(e, at, count, aligned, p);
    if (e.first) write<C>(e.first, at, count, aligned, m);
    if (e.second) write<C>(e.second, at, count, aligned, v);
    if (e.third) write<C>(e.third, at, count, aligned, l);
  }
}

// ---- Host side.

struct FromUpdate {
  static DType dtype(const FusedUpdate& u) { return u.parameter.dtype(); }
  Entry operator()(const FusedUpdate& u) const {
    const auto at = [](const Tensor& t) { return t.defined() ? t.raw() : nullptr; };
    const auto state = [&](std::size_t k) {
      return k < u.states.size() ? at(u.states[k]) : nullptr;
    };
    return {at(u.parameter),
            state(0),
            state(1),
            state(2),
            at(u.gradient),
            u.parameter.numel(),
            static_cast<std::int64_t*>(at(u.steps)),
            static_cast<const float*>(at(u.found_inf)),
            at(u.rounded),
            u.rounded.defined() ? u.rounded.dtype() : bfloat16};
  }
};

template <template <class> class Method, class Arguments>
void run(const char* op, std::span<const FusedUpdate> updates, const Arguments& arguments) {
  if (updates.empty()) return;
  const int device = updates[0].parameter.device().index();
  const tutti::cuda::DeviceScope scope(device);
  in_lists(updates, op, FromUpdate{}, [&]<class T>(const List& list) {
    tutti::cuda::launch(op, step_kernel<T, Method<Accumulate<T>>>, grid_of(list), list, arguments,
                        block_counters(device));
  });
}

void sgd(const SgdStep& s, std::span<const FusedUpdate> updates) { run<Sgd>("sgd", updates, s); }

void adam(const AdamStep& s, std::span<const FusedUpdate> updates) {
  run<Adam>("adam", updates, s);
}

void lars(const LarsStep& s, std::span<const FusedUpdate> updates, const Tensor& squares) {
  run<Lars>("lars", updates,
            LarsArguments{s, squares.data<double>(), static_cast<int>(updates.size())});
}

}  // namespace

extern const Optimizer optimizer{.sgd = sgd,
                                 .adam = adam,
                                 .lars = lars,
                                 .sums_of_squares = sums_of_squares,
                                 .clip = clip,
                                 .clip_values = clip_values,
                                 .unscale = unscale,
                                 .scale_into = scale_into};

}  // namespace tutti::kernels::cuda
