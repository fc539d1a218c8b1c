// The elements of a result of pooling: how threads divide them, and how they are loaded and stored.
// A row of threads iterates along the dimension that is dense in memory: channels in channels_last
// (several at once if alignment allows), else positions. What is computed is in pooling.cu.
#pragma once

#include "../../core/cuda/stream.h"
#include "../pooling_windows.h"
#include "element.h"

#include <algorithm>

namespace tutti::kernels::cuda {

constexpr int pooling_threads = 256;

// A position in the three spatial dimensions; one and two dimensions are three with sizes of 1.
struct Position {
  int p[3];

  __device__ int& operator[](int d) { return p[d]; }
  __device__ int operator[](int d) const { return p[d]; }
};

// The unit that one thread computes at a time: V channels from `channel` on of sample n, at `at`.
struct Element {
  std::int64_t n, channel;
  Position at;
};

// A tensor (N, C, D, H, W) in memory.
struct SpatialView {
  void* base = nullptr;
  std::int64_t batch_stride = 0, channel_stride = 0, stride[3] = {};

  SpatialView() = default;
  explicit SpatialView(const Tensor& t)
      : base(t.raw()), batch_stride(t.strides()[0]), channel_stride(t.strides()[1]) {
    for (int d = 2; d < t.rank(); ++d) stride[3 - t.rank() + d] = t.strides()[d];
  }
  // The offset of position `p` in the element's sample and channel, and that of the element itself.
  __device__ std::int64_t offset(const Element& e, const Position& p) const {
    return e.n * batch_stride + e.channel * channel_stride + p[0] * stride[0] + p[1] * stride[1] +
           p[2] * stride[2];
  }
  __device__ std::int64_t offset(const Element& e) const { return offset(e, e.at); }
};

// How the elements of a result are given to threads: `rows` rows of `length` pieces of work. In
// channels_last a row is all channels, V at once, of all positions along W; else it is all
// positions along W of one channel.
struct Rows {
  std::int64_t rows, length, channels;
  int size[3];
  bool channels_inside;
};

// Returns the quotient i / by and writes the remainder to `remainder`. It divides in 32 bits if
// they suffice, which is several times faster.
__device__ inline std::int64_t divide(std::int64_t i, std::int64_t by, int& remainder) {
  if (i < (std::int64_t{1} << 31) && by < (std::int64_t{1} << 31)) {
    const auto quotient = static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(by);
    remainder =
        static_cast<int>(static_cast<std::uint32_t>(i) - quotient * static_cast<std::uint32_t>(by));
    return quotient;
  }
  const std::int64_t quotient = i / by;
  remainder = static_cast<int>(i - quotient * by);
  return quotient;
}

// Calls body(const Element&) for the calling thread's elements of a result.
template <int V, class Body>
__device__ void for_each_element(const Rows& r, const Body& body) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  for (std::int64_t row = first; row < r.rows;
       row += static_cast<std::int64_t>(gridDim.x) * blockDim.y) {
    Element e;
    std::int64_t rest = divide(row, r.size[1], e.at[1]);
    rest = divide(rest, r.size[0], e.at[0]);
    int channel = 0;
    e.n = r.channels_inside ? rest : divide(rest, r.channels, channel);
    e.channel = channel;
    for (std::int64_t i = threadIdx.x; i < r.length; i += blockDim.x) {
      if (r.channels_inside) {
        int group = 0;
        e.at[2] = static_cast<int>(divide(i, r.channels / V, group));
        e.channel = static_cast<std::int64_t>(group) * V;
      } else {
        e.at[2] = static_cast<int>(i);
      }
      body(e);
    }
  }
}

template <class T, int V>
__device__ AlignedVector<T, V> load(const SpatialView& view, std::int64_t offset) {
  return *reinterpret_cast<const AlignedVector<T, V>*>(static_cast<const T*>(view.base) + offset);
}
template <class T, int V>
__device__ void store(const SpatialView& view, std::int64_t offset,
                      const AlignedVector<T, V>& vector) {
  *reinterpret_cast<AlignedVector<T, V>*>(static_cast<T*>(view.base) + offset) = vector;
}

template <class T, int V>
__device__ void store_sums(const SpatialView& view, const Element& to,
                           const Accumulate<T> (&sums)[V]) {
  AlignedVector<T, V> vector;
#pragma unroll
  for (int v = 0; v < V; ++v) vector.elements[v] = convert<T>(sums[v]);
  store<T, V>(view, view.offset(to), vector);
}

using Range = PositionRange<int>;

// Calls body(p) for the positions of three ranges, in row-major order.
template <class Body>
__device__ void for_each_position(const Range& d, const Range& h, const Range& w,
                                  const Body& body) {
  Position p;
  for (p[0] = d.begin; p[0] < d.end; ++p[0])
    for (p[1] = h.begin; p[1] < h.end; ++p[1])
      for (p[2] = w.begin; p[2] < w.end; ++p[2]) body(p);
}

// Whether `width` neighbouring channels of every tensor (undefined ones do not count) can be loaded
// at once.
inline bool can_load_channels(std::initializer_list<const Tensor*> tensors, int width) {
  for (const Tensor* t : tensors) {
    if (!t->defined()) continue;
    const std::size_t bytes = static_cast<std::size_t>(width) * size_of(t->dtype());
    if (t->strides()[1] != 1 || reinterpret_cast<std::uintptr_t>(t->raw()) % bytes != 0)
      return false;
    for (int d = 0; d < t->rank(); ++d)
      if (t->shape()[d] > 1 && (d == 1 ? t->shape()[d] : t->strides()[d]) % width != 0)
        return false;
  }
  return true;
}

// Calls body.operator()<T, V>(rows, grid), which launches a kernel over the elements of `to`.
template <class Body>
void dispatch_elements(const char* op, const Tensor& to,
                       std::initializer_list<const Tensor*> tensors, const Body& body) {
  dispatch(TrainTypes{}, to.dtype(), op, [&]<class Host>() {
    using T = DeviceType<Host>;
    constexpr int full = 16 / static_cast<int>(sizeof(T));
    int size[3] = {1, 1, 1};
    for (int d = 2; d < to.rank(); ++d) size[3 - to.rank() + d] = static_cast<int>(to.shape()[d]);
    const std::int64_t batch = to.shape()[0], channels = to.shape()[1];
    const bool inside = to.strides()[1] == 1 && channels > 1,
               several = inside && can_load_channels(tensors, full);
    const std::int64_t of_row = !inside ? 1 : several ? channels / full : channels;
    const Rows rows{batch * (inside ? 1 : channels) * size[0] * size[1],
                    size[2] * of_row,
                    channels,
                    {size[0], size[1], size[2]},
                    inside};
    unsigned along = 32;
    while (along < pooling_threads && along < rows.length) along *= 2;
    const std::int64_t per_block = pooling_threads / along,
                       blocks = (rows.rows + per_block - 1) / per_block;
    const tutti::cuda::Grid grid{
        .blocks = static_cast<unsigned>(std::min<std::int64_t>(blocks, 1 << 20)),
        .threads = dim3(along, static_cast<unsigned>(per_block))};
    if (several) body.template operator()<T, full>(rows, grid);
    else body.template operator()<T, 1>(rows, grid);
  });
}

}  // namespace tutti::kernels::cuda
