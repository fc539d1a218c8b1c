#include "walk.h"

#include "../../core/parallel.h"

#include <algorithm>

namespace tutti::kernels::cpu {
namespace {

std::int64_t broadcast_stride(const Tensor& x, int d, int rank) {
  const int own = d - (rank - x.rank());
  return own < 0 || x.shape()[own] == 1 ? 0 : x.strides()[own];
}

}  // namespace

Walk::Walk(std::initializer_list<const Tensor*> operands)
    : operands_(static_cast<int>(operands.size())) {
  const Tensor& out = **operands.begin();
  const int rank = out.rank();
  std::array<int, Dims::max_rank> order{};
  for (int i = 0; i < rank; ++i) order[static_cast<std::size_t>(i)] = i;
  std::stable_sort(order.begin(), order.begin() + rank,
                   [&](int a, int b) { return out.strides()[a] > out.strides()[b]; });
  for (int i = 0; i < rank; ++i) {
    const int d = order[static_cast<std::size_t>(i)];
    const std::int64_t size = out.shape()[d];
    if (size == 1) continue;
    std::array<std::int64_t, Block::max_operands> step{};
    bool merges = !shape_.empty();
    std::size_t k = 0;
    for (const Tensor* x : operands) {
      step[k] = broadcast_stride(*x, d, rank);
      merges = merges && strides_[k].back() == step[k] * size;
      ++k;
    }
    const int last = shape_.size() - 1;
    if (merges) shape_[last] *= size;
    else shape_.push_back(size);
    for (k = 0; k < operands.size(); ++k) {
      if (merges) strides_[k][last] = step[k];
      else strides_[k].push_back(step[k]);
    }
  }
  if (shape_.empty()) {
    shape_ = {1};
    strides_.fill({0});
  }
  make_blocks_long();
  tile_transposed();
}

// Blocks run along the innermost dimension. Where that is short (three colours), a longer one
// further out serves better, although its elements are a few apart.
void Walk::make_blocks_long() {
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
  for (int k = 0; k < operands_; ++k) move_to_end(strides_[static_cast<std::size_t>(k)]);
}

// Where an input lies transposed to the output, blocks along the output would touch a new cache
// line of the input with every element. Short blocks along the input instead reuse the lines of
// both.
void Walk::tile_transposed() {
  constexpr std::int64_t apart = 16, longest = 128, shortest = 8;
  const int inner = shape_.size() - 1;
  if (inner + 1 == Dims::max_rank) return;
  for (std::size_t k = 1; k < static_cast<std::size_t>(operands_); ++k) {
    if (strides_[k][inner] < apart) continue;
    for (int d = 0; d < inner; ++d) {
      if (strides_[k][d] != 1 || shape_[d] < shortest) continue;
      std::int64_t tile = std::min(longest, shape_[d]);
      while (shape_[d] % tile != 0) --tile;
      if (tile < shortest) continue;
      shape_[d] /= tile;
      shape_.push_back(tile);
      for (std::size_t j = 0; j < static_cast<std::size_t>(operands_); ++j) {
        strides_[j].push_back(strides_[j][d]);
        strides_[j][d] *= tile;
      }
      return;
    }
  }
}

void Walk::run_erased(Call call, const void* context) const {
  constexpr std::int64_t grain = 16 * Block::max_count;
  parallel_for(product(shape_, 0, shape_.size()), grain,
               [&](std::int64_t begin, std::int64_t end) { run_range(begin, end, call, context); });
}

void Walk::run_range(std::int64_t begin, std::int64_t end, Call call, const void* context) const {
  const auto operands = static_cast<std::size_t>(operands_);
  const int inner = shape_.size() - 1;
  std::array<std::int64_t, Dims::max_rank> index{};
  Block block;
  std::int64_t rest = begin;
  for (int d = inner; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    index[i] = rest % shape_[d];
    rest /= shape_[d];
    for (std::size_t k = 0; k < operands; ++k) block.at[k] += index[i] * strides_[k][d];
  }
  for (std::size_t k = 0; k < operands; ++k) block.step[k] = strides_[k][inner];
  auto& position = index[static_cast<std::size_t>(inner)];
  for (std::int64_t done = begin; done < end;) {
    block.count = std::min({Block::max_count, end - done, shape_[inner] - position});
    call(context, block);
    done += block.count;
    position += block.count;
    for (std::size_t k = 0; k < operands; ++k) block.at[k] += block.count * block.step[k];
    for (int d = inner; d > 0 && index[static_cast<std::size_t>(d)] == shape_[d]; --d) {
      index[static_cast<std::size_t>(d)] = 0;
      ++index[static_cast<std::size_t>(d - 1)];
      for (std::size_t k = 0; k < operands; ++k)
        block.at[k] += strides_[k][d - 1] - shape_[d] * strides_[k][d];
    }
  }
}

}  // namespace tutti::kernels::cpu
