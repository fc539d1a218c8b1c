#include "tensor_iterator.h"

#include "../../core/parallel.h"
#include "../merged_dims.h"

#include <algorithm>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

TensorIterator::TensorIterator(std::initializer_list<const Tensor*> tensors)
    : tensors_(tensors.size()) {
  const Tensor& first = **tensors.begin();
  const auto lies_as_first = [&first](const Tensor* each) {
    return each->strides() == first.strides() && each->shape() == first.shape();
  };
  if (first.numel() == 1 || (first.is_dense() && std::ranges::all_of(tensors, lies_as_first))) {
    shape_ = {first.numel()};
    strides_.fill({1});
    return;
  }
  const MergedDims merged = merge_dims({tensors.begin(), tensors.size()});
  shape_ = merged.shape;
  std::copy_n(merged.strides.begin(), tensors_, strides_.begin());
  if (shape_.size() > 1) {
    make_blocks_long();
    tile_transposed();
  }
}

// Blocks run along the innermost dimension. Where that is short (three colours of an image), this
// moves a longer dimension inwards, although its elements do not lie side by side.
void TensorIterator::make_blocks_long() {
  constexpr std::int64_t enough = 16;
  const int inner = shape_.size() - 1;
  if (shape_[inner] >= enough) return;
  int best = inner;
  for (int d = inner - 1; d >= 0 && shape_[best] < enough; --d)
    if (shape_[d] > shape_[best]) best = d;
  const auto move_to_end = [best](Dims& dims) {
    std::rotate(dims.begin() + best, dims.begin() + best + 1, dims.end());
  };
  move_to_end(shape_);
  for (std::size_t k = 0; k < tensors_; ++k) move_to_end(strides_[k]);
}

// Where an input is transposed relative to the output, blocks along the output's innermost
// dimension would touch a new cache line of the input with every element. This makes blocks short
// and lets them run along the input's innermost dimension, so that the cache lines of both are
// reused.
void TensorIterator::tile_transposed() {
  constexpr std::int64_t apart = 16, longest = 128, shortest = 8;
  const int inner = shape_.size() - 1;
  if (inner + 1 == Dims::max_rank) return;
  for (std::size_t k = 1; k < tensors_; ++k) {
    if (strides_[k][inner] < apart) continue;
    for (int d = 0; d < inner; ++d) {
      if (strides_[k][d] != 1 || shape_[d] < shortest) continue;
      std::int64_t tile = std::min(longest, shape_[d]);
      while (shape_[d] % tile != 0) --tile;
      if (tile < shortest) continue;
      shape_[d] /= tile;
      shape_.push_back(tile);
      for (std::size_t j = 0; j < tensors_; ++j) {
        strides_[j].push_back(strides_[j][d]);
        strides_[j][d] *= tile;
      }
      return;
    }
  }
}

void TensorIterator::visit_in_parallel(Call call, const void* body, std::int64_t cost) const {
  const std::int64_t grain = 16 * Block::max_count / cost;
  parallel_for(product(shape_, 0, shape_.size()), grain,
               [&](std::int64_t begin, std::int64_t end) { visit(begin, end, call, body); });
}

void TensorIterator::visit(std::int64_t begin, std::int64_t end, Call call,
                           const void* body) const {
  if (begin >= end) return;
  const int inner = shape_.size() - 1;
  std::array<std::int64_t, Dims::max_rank> index{};
  Block block;
  std::int64_t rest = begin;
  for (int d = inner; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    index[i] = rest % shape_[d];
    rest /= shape_[d];
    for (std::size_t k = 0; k < tensors_; ++k) block.offset[k] += index[i] * strides_[k][d];
  }
  for (std::size_t k = 0; k < tensors_; ++k) block.stride[k] = strides_[k][inner];
  auto& position = index[static_cast<std::size_t>(inner)];
  for (std::int64_t done = begin; done < end;) {
    block.count = std::min({Block::max_count, end - done, shape_[inner] - position});
    call(body, block);
    done += block.count;
    position += block.count;
    for (std::size_t k = 0; k < tensors_; ++k) block.offset[k] += block.count * block.stride[k];
    for (int d = inner; d > 0 && index[static_cast<std::size_t>(d)] == shape_[d]; --d) {
      index[static_cast<std::size_t>(d)] = 0;
      ++index[static_cast<std::size_t>(d - 1)];
      for (std::size_t k = 0; k < tensors_; ++k)
        block.offset[k] += strides_[k][d - 1] - shape_[d] * strides_[k][d];
    }
  }
}

void check_indices(const char* op, const Tensor& indices, std::int64_t size,
                   std::optional<std::int64_t> ignored) {
  if (indices.numel() == 0) return;
  Shape shape = indices.shape();  // without the repeats of expanded dimensions
  for (int d = 0; d < shape.size(); ++d)
    if (indices.strides()[d] == 0) shape[d] = 1;
  const Tensor once = indices.alias(shape, indices.strides(), indices.offset());
  const std::int64_t* const data = once.data<std::int64_t>();
  TensorIterator({&once}).for_each_block_serially([&](const Block& block) {
    for (std::int64_t i = 0; i < block.count; ++i)
      if (const std::int64_t index = data[block.at(0, i)];
          (index < 0 || index >= size) && index != ignored)
        fail<ValueError>("{}: expected {} from 0 to {}{}, got {}", op,
                         ignored ? "targets" : "indices", size - 1,
                         ignored ? fmt::format(" (or ignore_index {})", *ignored) : "", index);
  });
}

namespace {

template <class T, class C>
void load(const char* base, std::int64_t offset, std::int64_t stride, C* to, std::int64_t count) {
  load_elements(reinterpret_cast<const T*>(base) + offset, stride, to, count);
}

template <class T, class C>
void store(const C* values, char* base, std::int64_t offset, std::int64_t stride,
           std::int64_t count) {
  store_elements(values, reinterpret_cast<T*>(base) + offset, stride, count);
}

}  // namespace

template <class C>
BlockReader<C>::BlockReader(const Tensor& x, int k)
    : base_(static_cast<const char*>(x.raw())),
      k_(static_cast<std::size_t>(k)),
      same_type_(x.dtype() == dtype_of<C>::value) {
  dispatch(AllTypes{}, x.dtype(), "elementwise", [&]<class T>() { load_ = load<T, C>; });
}

template <class C>
BlockWriter<C>::BlockWriter(const Tensor& x)
    : base_(static_cast<char*>(x.raw())), same_type_(x.dtype() == dtype_of<C>::value) {
  dispatch(AllTypes{}, x.dtype(), "elementwise", [&]<class T>() { store_ = store<T, C>; });
}

template class BlockReader<float>;
template class BlockReader<double>;
template class BlockReader<std::int64_t>;
template class BlockWriter<float>;
template class BlockWriter<double>;
template class BlockWriter<std::int64_t>;
template class BlockWriter<bool>;  // comparisons

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
