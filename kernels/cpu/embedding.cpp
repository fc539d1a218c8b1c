// Embedding look-up on the CPU.
#include "../embedding.h"

#include "lines.h"

#include <cstring>

namespace tutti::kernels::cpu {
namespace {

// Throws before anything is written.
void check_indices(const Tensor& indices, std::int64_t rows) {
  const std::int64_t* data = indices.data<std::int64_t>();
  Lines<1>(indices.shape(), {indices.strides()}).run_range(0, indices.numel(), [&](const auto& at) {
    if (data[at[0]] < 0 || data[at[0]] >= rows)
      fail<ValueError>("embedding: expected indices from 0 to {}, got {}", rows - 1, data[at[0]]);
  });
}

void gather(const Tensor& weight, const Tensor& indices, const Tensor& out) {
  check_indices(indices, weight.shape()[0]);
  const std::int64_t width = weight.shape()[1], row = weight.strides()[0],
                     column = weight.strides()[1];
  const std::int64_t* index = indices.data<std::int64_t>();
  const Strides rows = Dims(out.strides().begin(), out.strides().end() - 1);
  const Lines<2> lines(indices.shape(), {indices.strides(), rows});
  dispatch(AllTypes{}, weight.dtype(), "embedding", [&]<class T>() {
    const T* from = weight.data<T>();
    T* to = out.data<T>();
    lines.run(width, [=](const auto& at) {
      const T* source = from + index[at[0]] * row;
      T* target = to + at[1];
      if (column == 1) std::memcpy(target, source, static_cast<std::size_t>(width) * sizeof(T));
      else
        for (std::int64_t i = 0; i < width; ++i) target[i] = source[i * column];
    });
  });
}

void scatter_add(const Tensor& g, const Tensor& indices, const Tensor& weight_grad) {
  const std::int64_t width = weight_grad.shape()[1], row = weight_grad.strides()[0],
                     column = weight_grad.strides()[1];
  const std::int64_t step = g.strides()[g.rank() - 1];
  const std::int64_t* index = indices.data<std::int64_t>();
  const Strides rows = Dims(g.strides().begin(), g.strides().end() - 1);
  const Lines<2> lines(indices.shape(), {indices.strides(), rows});
  dispatch(RealTypes{}, g.dtype(), "embedding", [&]<class T>() {
    using A = Accumulate<T>;
    const T* from = g.data<T>();
    A* to = weight_grad.data<A>();
    // Two positions may name one row, so threads share the columns, not the positions.
    parallel_for(width,
                 std::max<std::int64_t>(16, 16384 / std::max<std::int64_t>(lines.count(), 1)),
                 [&](std::int64_t begin, std::int64_t end) {
                   lines.run_range(0, lines.count(), [&](const auto& at) {
                     const T* source = from + at[1];
                     A* target = to + index[at[0]] * row;
                     for (std::int64_t i = begin; i < end; ++i)
                       target[i * column] += static_cast<A>(source[i * step]);
                   });
                 });
  });
}

}  // namespace

const Embedding& embedding() {
  static constexpr Embedding table{gather, scatter_add};
  return table;
}

}  // namespace tutti::kernels::cpu
