#include "../optimizer.h"
#include "block_counters.h"
#include "tensor_list.h"
#include "workspace.h"

#include <utility>

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
  __device__ C apply(C p, C g, C& m, C&, int states) const {
    return states > 0 ? this->updated(p, g, m) : this->updated(p, g);
  }
};

template <class C>
struct Adam : AdamUpdate<C> {
  using Arguments = AdamStep;

  static __device__ Adam of(const AdamStep& s, double step, int) {
    return {AdamUpdate<C>::of(s, step)};
  }
  __device__ C apply(C p, C g, C& m, C& v, int) const { return this->updated(p, g, m, v); }
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
  __device__ C apply(C p, C g, C& m, C&, int) const { return this->updated(p, g, m); }
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
    // The last of the parameter's blocks that has read the count writes it.
    __threadfence();
    const unsigned last = list.begin[k + 1] - list.begin[k] - 1;
    if (last == 0 || atomicInc(counters + k, last) == last) {
      __threadfence();
      *e.steps = step;
    }
    made = Method::of(arguments, static_cast<double>(step), list.index[k]);
  }
  __syncthreads();
  const Method method = made;
  const int states = e.second ? 2 : e.first ? 1 : 0;
  const bool aligned = may_pack(e);
  const std::int64_t begin = (blockIdx.x - list.begin[k]) * piece,
                     end = begin + piece < e.size ? begin + piece : e.size;
#pragma unroll 2
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += list_threads * lanes) {
    const int count = end - at < lanes ? static_cast<int>(end - at) : lanes;
    const Pack<T, lanes> ps = read<T>(e.parameter, at, count, aligned),
                         gs = read<T>(e.gradient, at, count, aligned);
    Pack<C, lanes> ms{}, vs{};
    if (e.first) ms = read<C>(e.first, at, count, aligned);
    if (e.second) vs = read<C>(e.second, at, count, aligned);
    C p[lanes], m[lanes], v[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      m[i] = ms.values[i], v[i] = vs.values[i];
      p[i] = method.apply(ps[i], gs[i], m[i], v[i], states);
    }
    write<T>(e.parameter, at, count, aligned, p);
    if constexpr (std::is_same_v<T, float>)
      if (e.rounded) write_rounded(e, at, count, aligned, p);
    if (e.first) write<C>(e.first, at, count, aligned, m);
    if (e.second) write<C>(e.second, at, count, aligned, v);
  }
}

// ---- Norms, clipping, scaling and unscaling of gradients.

/// Returns the sum over a block to every thread. A barrier must lie between two calls.
__device__ double sum_of_block(double v) {
  __shared__ double partial[list_threads / 32];
  for (int bits = 16; bits > 0; bits /= 2) v += __shfl_xor_sync(0xffffffffu, v, bits);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  double total = 0;
  for (int w = 0; w < list_threads / 32; ++w) total += partial[w];
  return total;
}

// Every block sums a piece. The last block of a tensor to finish sums its pieces.
template <class T>
__global__ __launch_bounds__(list_threads) void squares_kernel(List list, double* pieces,
                                                               unsigned* counters, double* out) {
  __shared__ int flag;
  const int k = entry_at(list, blockIdx.x);
  const Entry& e = list.entries[k];
  const bool aligned = may_pack(e);
  const std::int64_t begin = (blockIdx.x - list.begin[k]) * piece,
                     end = begin + piece < e.size ? begin + piece : e.size;
  double sum = 0;
#pragma unroll 4
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += list_threads * lanes) {
    const int count = end - at < lanes ? static_cast<int>(end - at) : lanes;
    const Pack<T, lanes> xs = read<T>(e.gradient, at, count, aligned);
#pragma unroll
    for (int i = 0; i < lanes; ++i) sum += static_cast<double>(xs[i]) * static_cast<double>(xs[i]);
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) pieces[blockIdx.x] = sum;
  const auto mine = list.begin[k + 1] - list.begin[k];
  if (!is_last(counters + k, mine, &flag)) return;
  double total = 0;
  for (std::int64_t i = threadIdx.x; i < mine; i += list_threads)
    total += __ldcg(pieces + list.begin[k] + i);
  total = sum_of_block(total);
  if (threadIdx.x == 0) out[list.index[k]] = total;
}

/// Replaces each element x of the block's piece of its tensor by f(x).
template <class T, class F>
__device__ void replace_elements(const List& list, const F& f) {
  const int k = entry_at(list, blockIdx.x);
  const Entry& e = list.entries[k];
  const bool aligned = may_pack(e);
  const std::int64_t begin = (blockIdx.x - list.begin[k]) * piece,
                     end = begin + piece < e.size ? begin + piece : e.size;
#pragma unroll 2
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += list_threads * lanes) {
    const int count = end - at < lanes ? static_cast<int>(end - at) : lanes;
    const Pack<T, lanes> xs = read<T>(e.parameter, at, count, aligned);
    Accumulate<T> x[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) x[i] = f(xs[i]);
    write<T>(e.parameter, at, count, aligned, x);
  }
}

template <class T>
__global__ __launch_bounds__(list_threads) void clip_kernel(List list, const double* squares,
                                                            std::int64_t all, double max_norm,
                                                            double* norm) {
  using C = Accumulate<T>;
  double total = 0;
  for (std::int64_t i = threadIdx.x; i < all; i += list_threads) total += squares[i];
  const double length = sqrt(sum_of_block(total)), factor = clip_factor(max_norm, length);
  if (blockIdx.x == 0 && threadIdx.x == 0 && list.before == 0) *norm = length;
  if (factor >= 1) return;
  replace_elements<T>(list, [f = static_cast<C>(factor)](C x) { return x * f; });
}

template <class T>
__global__ __launch_bounds__(list_threads) void unscale_kernel(List list, const float* scale,
                                                               float* found_inf) {
  using C = Accumulate<T>;
  const C inverse = static_cast<C>(1 / static_cast<double>(*scale));
  bool finite = true;
  replace_elements<T>(list, [&](C x) {
    finite = finite && x - x == C(0);
    return x * inverse;
  });
  if (!finite) atomicExch(found_inf, 1.0f);  // Several threads may write it.
}

template <class To, class From>
__device__ void scale_piece(const ScaledCopy& e, std::int64_t begin, std::int64_t end,
                            Accumulate<To> factor) {
  const auto bits = reinterpret_cast<std::uintptr_t>(e.from) |
                    reinterpret_cast<std::uintptr_t>(e.to);
  const bool aligned = bits % (lanes * sizeof(double)) == 0;
#pragma unroll 4
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += list_threads * lanes) {
    const int count = end - at < lanes ? static_cast<int>(end - at) : lanes;
    const Pack<From, lanes> xs = read<From>(e.from, at, count, aligned);
    Accumulate<To> x[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) x[i] = xs[i] * factor;
    write<To>(e.to, at, count, aligned, x);
  }
}

template <class To>
__global__ __launch_bounds__(list_threads) void scale_into_kernel(ListOf<ScaledCopy> list,
                                                                  double factor) {
  const auto scale = convert<Accumulate<To>>(factor);
  const int k = entry_at(list, blockIdx.x);
  const ScaledCopy& e = list.entries[k];
  const std::int64_t begin = (blockIdx.x - list.begin[k]) * piece,
                     end = begin + piece < e.size ? begin + piece : e.size;
  if constexpr (std::is_same_v<To, float>) {
    if (e.dtype == DType::bfloat16) return scale_piece<To, __nv_bfloat16>(e, begin, end, scale);
    if (e.dtype == DType::float16) return scale_piece<To, __half>(e, begin, end, scale);
  }
  scale_piece<To, To>(e, begin, end, scale);
}

// ---- Host side.

/// The pairs of tensors of scale_into().
struct ScaledPairs {
  std::span<const Tensor> from, to;

  std::size_t size() const { return to.size(); }
  std::pair<const Tensor&, const Tensor&> operator[](std::size_t i) const {
    return {from[i], to[i]};
  }
};

struct FromPair {
  using Pair = std::pair<const Tensor&, const Tensor&>;
  static DType dtype(const Pair& pair) { return pair.second.dtype(); }
  ScaledCopy operator()(const Pair& pair) const {
    return {pair.first.raw(), pair.second.raw(), pair.second.numel(), pair.first.dtype()};
  }
};

struct FromTensor {
  static DType dtype(const Tensor& t) { return t.dtype(); }
  Entry operator()(const Tensor& t) const {
    return {.parameter = t.raw(), .gradient = t.raw(), .size = t.numel()};
  }
};

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

void sums_of_squares(std::span<const Tensor> tensors, const Tensor& out) {
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  in_lists(tensors, "sum of squares", FromTensor{}, [&]<class T>(const List& list) {
    const Tensor pieces = empty({std::int64_t{list.begin[list.count]}}, {float64, out.device()});
    tutti::cuda::launch("sum of squares", squares_kernel<T>, grid_of(list), list,
                        pieces.data<double>(), block_counters(device), out.data<double>());
  });
}

void clip(std::span<const Tensor> tensors, const Tensor& squares, double max_norm,
          const Tensor& norm) {
  const tutti::cuda::DeviceScope scope(norm.device().index());
  const auto all = static_cast<std::int64_t>(tensors.size());
  in_lists(tensors, "clip", FromTensor{}, [&]<class T>(const List& list) {
    tutti::cuda::launch("clip", clip_kernel<T>, grid_of(list), list, squares.data<double>(), all,
                        max_norm, norm.data<double>());
  });
}

void unscale(std::span<const Tensor> tensors, const Tensor& scale, const Tensor& found_inf) {
  if (tensors.empty()) return;
  const tutti::cuda::DeviceScope scope(found_inf.device().index());
  in_lists(tensors, "unscale", FromTensor{}, [&]<class T>(const List& list) {
    tutti::cuda::launch("unscale", unscale_kernel<T>, grid_of(list), list, scale.data<float>(),
                        found_inf.data<float>());
  });
}

void scale_into(std::span<const Tensor> from, std::span<const Tensor> to, double factor) {
  if (to.empty()) return;
  const tutti::cuda::DeviceScope scope(to[0].device().index());
  in_lists(ScaledPairs{from, to}, "scale into", FromPair{},
           [&]<class T>(const ListOf<ScaledCopy>& list) {
             tutti::cuda::launch("scale into", scale_into_kernel<T>, grid_of(list), list, factor);
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

}  // namespace tutti::kernels::cuda
