// The optimizers' kernels on CUDA. One launch takes as many tensors as the arguments of a kernel
// have room for, and a block computes one piece of one tensor. The host reads nothing back. The
// formulas stand in ../optimizer_math.h.
#include "../optimizer_math.h"
#include "vector.h"
#include "workspace.h"

#include <vector>

namespace tutti::kernels::cuda {
namespace {

constexpr int threads = 256, lanes = 4;
constexpr int most_tensors = 44;              // The arguments of a kernel have 4 KB.
constexpr std::int64_t piece = 64 * threads;  // The number of elements that a block computes.

/// The device addresses of a FusedUpdate. Kernels that take plain tensors set `parameter` and
/// `gradient` to the same address.
struct Entry {
  void *parameter = nullptr, *first = nullptr, *second = nullptr, *third = nullptr;
  const void* gradient = nullptr;
  std::int64_t size = 0;
  double step = 0;
  const float* found_inf = nullptr;
  float* skipped = nullptr;
};

/// The tensors of one launch. Blocks [begin[i], begin[i + 1]) compute the pieces of entry i.
struct List {
  Entry entries[most_tensors];
  std::int64_t begin[most_tensors + 1] = {};
  int index[most_tensors] = {};  ///< The position of each entry in the caller's list.
  int count = 0;
  int before = 0;  ///< The number of tensors in the launches before this one.
};
static_assert(sizeof(List) <= 3840);

/// Returns the entry that block `at` works on. The list is short, so each thread searches it.
__device__ int entry_at(const List& list, std::int64_t at) {
  int low = 0, high = list.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (list.begin[middle] <= at ? low : high) = middle;
  }
  return low;
}

template <class T>
__device__ Pack<T, lanes> read(const void* from, std::int64_t at, int count, bool aligned) {
  if (aligned && count == lanes)
    return load<T, lanes>(static_cast<const T*>(from), Span{at, 0, lanes});
  Pack<T, lanes> pack;
#pragma unroll
  for (int v = 0; v < lanes; ++v)
    pack.values[v] = v < count ? static_cast<const T*>(from)[at + v] : convert<T>(Accumulate<T>(0));
  return pack;
}

template <class T>
__device__ void write(void* to, std::int64_t at, int count, bool aligned,
                      const Accumulate<T> (&x)[lanes]) {
  const Pack<T, lanes> pack = Pack<T, lanes>::of(x);
  if (aligned) return store<T, lanes>(static_cast<T*>(to), Span{at, 0, count}, pack);
#pragma unroll
  for (int v = 0; v < lanes; ++v)
    if (v < count) static_cast<T*>(to)[at + v] = pack.values[v];
}

__device__ bool may_pack(const Entry& e) {
  const auto bits = reinterpret_cast<std::uintptr_t>(e.parameter) |
                    reinterpret_cast<std::uintptr_t>(e.gradient) |
                    reinterpret_cast<std::uintptr_t>(e.first) |
                    reinterpret_cast<std::uintptr_t>(e.second) |
                    reinterpret_cast<std::uintptr_t>(e.third);
  return bits % (lanes * sizeof(double)) == 0;
}

// ---- The methods. `Arguments` is what the host passes to the kernel. `from_replay` reads the
// options of a replay, of which there are `options`; the step numbers follow them. `of` computes
// the factors of update `k`, once in each block. `apply` updates one element, whose parameter has
// this number of state tensors.

template <class C>
struct Sgd : SgdUpdate<C> {
  using Arguments = SgdStep;
  static constexpr int options = 5;

  static __device__ SgdStep from_replay(const SgdStep&, ReplayScalars n) {
    return {n[0], n[1], n[2], n[3], n[4] != 0};
  }
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
  static constexpr int options = 6;

  static __device__ AdamStep from_replay(const AdamStep& s, ReplayScalars n) {
    return {n[0], n[1], n[2], n[3], n[4], n[5] != 0, s.decoupled};
  }
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
  static constexpr int options = 6;

  static __device__ LarsArguments from_replay(const LarsArguments& g, ReplayScalars n) {
    return {{n[0], n[1], n[2], n[3], n[4], n[5] != 0}, g.squares, g.count};
  }
  static __device__ Lars of(const LarsArguments& g, double, int k) {
    return {LarsUpdate<C>::of(g.step, g.squares[k], g.squares[g.count + k])};
  }
  __device__ C apply(C p, C g, C& m, C&, C&, int) const { return this->updated(p, g, m); }
};

template <class T, class Method>
__global__ __launch_bounds__(threads) void step_kernel(List list,
                                                       typename Method::Arguments arguments,
                                                       ReplayScalars scalars) {
  using C = Accumulate<T>;
  __shared__ Method made;
  const int k = entry_at(list, blockIdx.x);
  const Entry& e = list.entries[k];
  if (e.skipped && e.found_inf && *e.found_inf != 0) {  // No other block reads `skipped` now.
    if (threadIdx.x == 0 && blockIdx.x == list.begin[k]) *e.skipped += 1;
    return;
  }
  if (threadIdx.x == 0) {
    const double step = scalars ? scalars[Method::options + list.index[k]] : e.step;
    const double skipped = e.skipped ? static_cast<double>(*e.skipped) : 0;
    made = Method::of(scalars ? Method::from_replay(arguments, scalars) : arguments, step - skipped,
                      list.index[k]);
  }
  __syncthreads();
  const Method method = made;
  const int states = e.third ? 3 : e.second ? 2 : e.first ? 1 : 0;
  const bool aligned = may_pack(e);
  const std::int64_t begin = (blockIdx.x - list.begin[k]) * piece,
                     end = begin + piece < e.size ? begin + piece : e.size;
#pragma unroll 2
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += threads * lanes) {
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
    if (e.first) write<C>(e.first, at, count, aligned, m);
    if (e.second) write<C>(e.second, at, count, aligned, v);
    if (e.third) write<C>(e.third, at, count, aligned, l);
  }
}

// ---- Norms.

/// Returns the sum over a block to every thread.
__device__ double sum_of_block(double v) {
  __shared__ double partial[threads / 32];
  for (int bits = 16; bits > 0; bits /= 2) v += __shfl_xor_sync(0xffffffffu, v, bits);
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  double total = 0;
  for (int w = 0; w < threads / 32; ++w) total += partial[w];
  return total;
}

// Every block sums a piece. The last block of a tensor to finish sums its pieces.
template <class T>
__global__ __launch_bounds__(threads) void squares_kernel(List list, double* pieces,
                                                          unsigned* counters, double* out) {
  __shared__ int flag;
  const int k = entry_at(list, blockIdx.x);
  const Entry& e = list.entries[k];
  const bool aligned = may_pack(e);
  const std::int64_t begin = (blockIdx.x - list.begin[k]) * piece,
                     end = begin + piece < e.size ? begin + piece : e.size;
  double sum = 0;
#pragma unroll 4
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += threads * lanes) {
    const int count = end - at < lanes ? static_cast<int>(end - at) : lanes;
    const Pack<T, lanes> xs = read<T>(e.gradient, at, count, aligned);
#pragma unroll
    for (int i = 0; i < lanes; ++i) sum += static_cast<double>(xs[i]) * static_cast<double>(xs[i]);
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) pieces[blockIdx.x] = sum;
  const auto mine = list.begin[k + 1] - list.begin[k];
  if (!is_last(counters + k, static_cast<unsigned>(mine), &flag)) return;
  double total = 0;
  for (std::int64_t i = threadIdx.x; i < mine; i += threads)
    total += __ldcg(pieces + list.begin[k] + i);
  total = sum_of_block(total);
  if (threadIdx.x == 0) out[list.index[k]] = total;
}

template <class T>
__global__ __launch_bounds__(threads) void clip_kernel(List list, const double* squares,
                                                       std::int64_t all, double max_norm,
                                                       double* norm) {
  using C = Accumulate<T>;
  double total = 0;
  for (std::int64_t i = threadIdx.x; i < all; i += threads) total += squares[i];
  const double length = sqrt(sum_of_block(total)), factor = clip_factor(max_norm, length);
  if (blockIdx.x == 0 && threadIdx.x == 0 && list.before == 0) *norm = length;
  if (factor >= 1 || list.count == 0) return;
  const int k = entry_at(list, blockIdx.x);
  const Entry& e = list.entries[k];
  const bool aligned = may_pack(e);
  const std::int64_t begin = (blockIdx.x - list.begin[k]) * piece,
                     end = begin + piece < e.size ? begin + piece : e.size;
#pragma unroll 2
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += threads * lanes) {
    const int count = end - at < lanes ? static_cast<int>(end - at) : lanes;
    const Pack<T, lanes> xs = read<T>(e.parameter, at, count, aligned);
    C x[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) x[i] = xs[i] * static_cast<C>(factor);
    write<T>(e.parameter, at, count, aligned, x);
  }
}

template <class T>
__global__ __launch_bounds__(threads) void unscale_kernel(List list, const float* scale,
                                                          float* found_inf) {
  using C = Accumulate<T>;
  const int k = entry_at(list, blockIdx.x);
  const Entry& e = list.entries[k];
  const bool aligned = may_pack(e);
  const C inverse = static_cast<C>(1 / static_cast<double>(*scale));
  const std::int64_t begin = (blockIdx.x - list.begin[k]) * piece,
                     end = begin + piece < e.size ? begin + piece : e.size;
  bool finite = true;
#pragma unroll 2
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += threads * lanes) {
    const int count = end - at < lanes ? static_cast<int>(end - at) : lanes;
    const Pack<T, lanes> xs = read<T>(e.parameter, at, count, aligned);
    C x[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      finite = finite && xs[i] - xs[i] == C(0);
      x[i] = xs[i] * inverse;
    }
    write<T>(e.parameter, at, count, aligned, x);
  }
  if (!finite) *found_inf = 1;  // All threads that write it write the same value.
}

template <class T>
__global__ __launch_bounds__(threads) void clip_values_kernel(List list, double max_value) {
  using C = Accumulate<T>;
  const int k = entry_at(list, blockIdx.x);
  const Entry& e = list.entries[k];
  const bool aligned = may_pack(e);
  const C bound = static_cast<C>(max_value);
  const std::int64_t begin = (blockIdx.x - list.begin[k]) * piece,
                     end = begin + piece < e.size ? begin + piece : e.size;
#pragma unroll 2
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += threads * lanes) {
    const int count = end - at < lanes ? static_cast<int>(end - at) : lanes;
    const Pack<T, lanes> xs = read<T>(e.parameter, at, count, aligned);
    C x[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) x[i] = clipped(xs[i], bound);
    write<T>(e.parameter, at, count, aligned, x);
  }
}

// ---- Host side.

void add(List& list, const Entry& e, std::size_t index) {
  const std::int64_t pieces = std::max<std::int64_t>(1, (e.size + piece - 1) / piece);
  list.entries[list.count] = e;
  list.index[list.count] = static_cast<int>(index);
  list.begin[list.count + 1] = list.begin[list.count] + pieces;
  ++list.count;
}

tutti::cuda::Grid grid_of(const List& list) {
  return {.blocks = static_cast<unsigned>(std::max<std::int64_t>(1, list.begin[list.count])),
          .threads = threads};
}

// Calls send.operator()<T>(list) with lists of up to most_tensors entries of one dtype T.
template <class Items, class ToEntry, class Send>
void in_lists(const Items& items, const char* op, const ToEntry& to_entry, const Send& send) {
  int sent = 0;
  std::vector<bool> done(items.size());
  for (std::size_t from = 0; from < items.size(); ++from) {
    if (done[from]) continue;
    List list;
    list.before = sent;
    const DType dtype = to_entry.dtype(items[from]);
    for (std::size_t i = from; i < items.size() && list.count < most_tensors; ++i) {
      if (done[i] || to_entry.dtype(items[i]) != dtype) continue;
      add(list, to_entry(items[i]), i);
      done[i] = true;
    }
    sent += list.count;
    dispatch(TrainTypes{}, dtype, op,
             [&]<class H>() { send.template operator()<DeviceType<H>>(list); });
  }
}

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
            static_cast<double>(u.step),
            static_cast<const float*>(at(u.found_inf)),
            static_cast<float*>(at(u.skipped))};
  }
};

struct FromTensor {
  static DType dtype(const Tensor& t) { return t.dtype(); }
  Entry operator()(const Tensor& t) const {
    return {.parameter = t.raw(), .gradient = t.raw(), .size = t.numel()};
  }
};

template <template <class> class Method, class Arguments>
void run(const char* op, std::span<const FusedUpdate> updates, const Arguments& arguments,
         ReplayScalars scalars) {
  if (updates.empty()) return;
  const tutti::cuda::DeviceScope scope(updates[0].parameter.device().index());
  in_lists(updates, op, FromUpdate{}, [&]<class T>(const List& list) {
    tutti::cuda::launch(op, step_kernel<T, Method<Accumulate<T>>>, grid_of(list), list, arguments,
                        scalars);
  });
}

void sgd(const SgdStep& s, std::span<const FusedUpdate> updates, ReplayScalars scalars) {
  run<Sgd>("sgd", updates, s, scalars);
}

void adam(const AdamStep& s, std::span<const FusedUpdate> updates, ReplayScalars scalars) {
  run<Adam>("adam", updates, s, scalars);
}

void lars(const LarsStep& s, std::span<const FusedUpdate> updates, const Tensor& squares,
          ReplayScalars scalars) {
  run<Lars>("lars", updates,
            LarsArguments{s, squares.data<double>(), static_cast<int>(updates.size())}, scalars);
}

void sums_of_squares(std::span<const Tensor> tensors, const Tensor& out) {
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  in_lists(tensors, "sum of squares", FromTensor{}, [&]<class T>(const List& list) {
    const Tensor pieces = empty({list.begin[list.count]}, {float64, out.device()});
    tutti::cuda::launch("sum of squares", squares_kernel<T>, grid_of(list), list,
                        pieces.data<double>(), block_counters(device), out.data<double>());
  });
}

void clip(std::span<const Tensor> tensors, const Tensor& squares, double max_norm,
          const Tensor& norm) {
  const tutti::cuda::DeviceScope scope(norm.device().index());
  const auto all = static_cast<std::int64_t>(tensors.size());
  if (tensors.empty())
    tutti::cuda::launch("clip", clip_kernel<float>, grid_of({}), List{}, squares.data<double>(),
                        all, max_norm, norm.data<double>());
  in_lists(tensors, "clip", FromTensor{}, [&]<class T>(const List& list) {
    tutti::cuda::launch("clip", clip_kernel<T>, grid_of(list), list, squares.data<double>(), all,
                        max_norm, norm.data<double>());
  });
}

void clip_values(std::span<const Tensor> tensors, double max_value) {
  if (tensors.empty()) return;
  const tutti::cuda::DeviceScope scope(tensors[0].device().index());
  in_lists(tensors, "clip_values", FromTensor{}, [&]<class T>(const List& list) {
    tutti::cuda::launch("clip_values", clip_values_kernel<T>, grid_of(list), list, max_value);
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

}  // namespace

const Optimizer& optimizer() {
  static constexpr Optimizer table{.sgd = sgd,
                                   .adam = adam,
                                   .lars = lars,
                                   .sums_of_squares = sums_of_squares,
                                   .clip = clip,
                                   .clip_values = clip_values,
                                   .unscale = unscale};
  return table;
}

}  // namespace tutti::kernels::cuda
