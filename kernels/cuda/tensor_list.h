// Launches a kernel on many tensors at once: as many as the arguments of a kernel have room for. A
// block computes one piece of one tensor. What is computed is the business of optimizer.cu.
#pragma once

#include "../../core/cuda/stream.h"
#include "../optimizer.h"
#include "vector.h"

#include <algorithm>
#include <vector>

namespace tutti::kernels::cuda {

constexpr int list_threads = 256, lanes = 4;
constexpr std::int64_t piece = 64 * list_threads;  // The number of elements that a block computes.

/// The device addresses of a FusedUpdate. Kernels that take plain tensors set `parameter` and
/// `gradient` to the same address.
struct Entry {
  void *parameter = nullptr, *first = nullptr, *second = nullptr;
  const void* gradient = nullptr;
  std::int64_t size = 0;
  std::int64_t* steps = nullptr;
  const float* found_inf = nullptr;
  void* rounded = nullptr;
  DType rounded_dtype = DType::bfloat16;
};

/// A tensor that is scaled into another one. `dtype` is that of `from`.
struct ScaledCopy {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t size = 0;
  DType dtype = DType::float32;
};

/// The tensors of one launch: as many as fit into the 4 KB that the arguments of a kernel have,
/// beside a few numbers. Blocks [begin[i], begin[i + 1]) compute the pieces of entry i.
template <class E>
struct ListOf {
  static constexpr int most_tensors = 3824 / (sizeof(E) + sizeof(unsigned) + sizeof(int));
  E entries[most_tensors];
  unsigned begin[most_tensors + 1] = {};
  int index[most_tensors] = {};  ///< The position of each entry in the caller's list.
  int count = 0;
  int before = 0;  ///< The number of tensors in the launches before this one.
};
using List = ListOf<Entry>;
static_assert(sizeof(List) <= 3840);

/// Returns the entry that block `at` works on. The list is short, so each thread searches it.
template <class E>
__device__ int entry_at(const ListOf<E>& list, unsigned at) {
  int low = 0, high = list.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (list.begin[middle] <= at ? low : high) = middle;
  }
  return low;
}

/// Loads `count` elements from element `at` on; the others are 0.
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

/// Stores `count` elements.
template <class T>
__device__ void write(void* to, std::int64_t at, int count, bool aligned,
                      const Accumulate<T> (&x)[lanes]) {
  const Pack<T, lanes> pack = Pack<T, lanes>::of(x);
  if (aligned) return store<T, lanes>(static_cast<T*>(to), Span{at, 0, count}, pack);
#pragma unroll
  for (int v = 0; v < lanes; ++v)
    if (v < count) static_cast<T*>(to)[at + v] = pack.values[v];
}

/// Returns whether all arrays of an entry begin where vectors can be loaded.
__device__ inline bool may_pack(const Entry& e) {
  const auto bits = reinterpret_cast<std::uintptr_t>(e.parameter) |
                    reinterpret_cast<std::uintptr_t>(e.gradient) |
                    reinterpret_cast<std::uintptr_t>(e.first) |
                    reinterpret_cast<std::uintptr_t>(e.second) |
                    reinterpret_cast<std::uintptr_t>(e.rounded);
  return bits % (lanes * sizeof(double)) == 0;
}

/// Adds a tensor, which is the `index`-th of the caller's list.
template <class E>
void add(ListOf<E>& list, const E& e, std::size_t index) {
  const std::int64_t pieces = std::max<std::int64_t>(1, (e.size + piece - 1) / piece);
  list.entries[list.count] = e;
  list.index[list.count] = static_cast<int>(index);
  list.begin[list.count + 1] = list.begin[list.count] + static_cast<unsigned>(pieces);
  ++list.count;
}

template <class E>
tutti::cuda::Grid grid_of(const ListOf<E>& list) {
  return {.blocks = list.begin[list.count], .threads = list_threads};
}

/// Calls send.operator()<T>(list) with lists of up to most_tensors entries of one dtype T.
template <class Items, class ToEntry, class Send>
void in_lists(const Items& items, const char* op, const ToEntry& to_entry, const Send& send) {
  int sent = 0;
  std::vector<bool> done(items.size());
  for (std::size_t from = 0; from < items.size(); ++from) {
    if (done[from]) continue;
    ListOf<decltype(to_entry(items[from]))> list;
    list.before = sent;
    const DType dtype = to_entry.dtype(items[from]);
    for (std::size_t i = from; i < items.size() && list.count < list.most_tensors; ++i) {
      if (done[i] || to_entry.dtype(items[i]) != dtype) continue;
      add(list, to_entry(items[i]), i);
      done[i] = true;
    }
    sent += list.count;
    dispatch(TrainTypes{}, dtype, op,
             [&]<class H>() { send.template operator()<DeviceType<H>>(list); });
  }
}

}  // namespace tutti::kernels::cuda
