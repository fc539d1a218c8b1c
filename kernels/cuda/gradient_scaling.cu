// Norms, clipping, scaling and unscaling of gradients on CUDA. The host reads nothing back. The
// formulas stand in ../optimizer_math.h.
#include "gradient_scaling.h"

#include "../optimizer_math.h"
#include "tensor_list.h"
#include "workspace.h"

#include <utility>

namespace tutti::kernels::cuda {
namespace {

/// Returns the sum over a block to every thread.
__device__ double sum_of_block(double v) {
  __shared__ double partial[list_threads / 32];
  for (int bits = 16; bits > 0; bits /= 2) v += __shfl_xor_sync(0xffffffffu, v, bits);
  __syncthreads();
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

template <class T>
__global__ __launch_bounds__(list_threads) void clip_kernel(List list, const double* squares,
                                                            std::int64_t all, double max_norm,
                                                            double* norm) {
  using C = Accumulate<T>;
  double total = 0;
  for (std::int64_t i = threadIdx.x; i < all; i += list_threads) total += squares[i];
  const double length = sqrt(sum_of_block(total)), factor = clip_factor(max_norm, length);
  if (blockIdx.x == 0 && threadIdx.x == 0 && list.before == 0) *norm = length;
  if (factor >= 1 || list.count == 0) return;
  const int k = entry_at(list, blockIdx.x);
  const Entry& e = list.entries[k];
  const bool aligned = may_pack(e);
  const std::int64_t begin = (blockIdx.x - list.begin[k]) * piece,
                     end = begin + piece < e.size ? begin + piece : e.size;
#pragma unroll 2
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += list_threads * lanes) {
    const int count = end - at < lanes ? static_cast<int>(end - at) : lanes;
    const Pack<T, lanes> xs = read<T>(e.parameter, at, count, aligned);
    C x[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) x[i] = xs[i] * static_cast<C>(factor);
    write<T>(e.parameter, at, count, aligned, x);
  }
}

template <class T>
__global__ __launch_bounds__(list_threads) void unscale_kernel(List list, const float* scale,
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
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += list_threads * lanes) {
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
__global__ __launch_bounds__(list_threads) void clip_values_kernel(List list, double max_value) {
  using C = Accumulate<T>;
  const int k = entry_at(list, blockIdx.x);
  const Entry& e = list.entries[k];
  const bool aligned = may_pack(e);
  const C bound = static_cast<C>(max_value);
  const std::int64_t begin = (blockIdx.x - list.begin[k]) * piece,
                     end = begin + piece < e.size ? begin + piece : e.size;
#pragma unroll 2
  for (std::int64_t at = begin + threadIdx.x * lanes; at < end; at += list_threads * lanes) {
    const int count = end - at < lanes ? static_cast<int>(end - at) : lanes;
    const Pack<T, lanes> xs = read<T>(e.parameter, at, count, aligned);
    C x[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) x[i] = clipped(xs[i], bound);
    write<T>(e.parameter, at, count, aligned, x);
  }
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

}  // namespace

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
  if (tensors.empty())
    tutti::cuda::launch("clip", clip_kernel<float>, grid_of(List{}), List{}, squares.data<double>(),
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

void scale_into(std::span<const Tensor> from, std::span<const Tensor> to, double factor) {
  if (to.empty()) return;
  const tutti::cuda::DeviceScope scope(to[0].device().index());
  in_lists(ScaledPairs{from, to}, "scale into", FromPair{},
           [&]<class T>(const ListOf<ScaledCopy>& list) {
             tutti::cuda::launch("scale into", scale_into_kernel<T>, grid_of(list), list, factor);
           });
}

}  // namespace tutti::kernels::cuda
