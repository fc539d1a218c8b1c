#include "sampler.h"

#include "../core/error.h"
#include "transforms/transform.h"

#include <algorithm>
#include <numeric>

namespace tutti::data {
namespace {

std::int64_t order_length(std::int64_t size, const DistributedSampler::Options& options) {
  if (options.remainder == Remainder::drop) return size / options.batch_size * options.batch_size;
  if (options.remainder == Remainder::keep) return size;
  return (size + options.ranks - 1) / options.ranks * options.ranks;
}

void check(std::int64_t size, const DistributedSampler::Options& options) {
  if (size < 0) fail<ValueError>("DistributedSampler: expected a size of at least 0, got {}", size);
  if (options.batch_size < 1)
    fail<ValueError>("DistributedSampler: expected a batch size of at least 1, got {}",
                     options.batch_size);
  if (options.rank < 0 || options.rank >= options.ranks)
    fail<ValueError>("DistributedSampler: expected a rank from 0 to {}, got {}", options.ranks - 1,
                     options.rank);
  if (options.remainder == Remainder::pad && options.batch_size % options.ranks != 0)
    fail<ValueError>(
        "DistributedSampler: a batch of {} samples cannot be split evenly over {} ranks; choose a "
        "multiple, or another Remainder",
        options.batch_size, options.ranks);
  if (options.remainder == Remainder::drop && size < options.batch_size)
    fail<ValueError>(
        "DistributedSampler: {} samples do not fill a batch of {}, and Remainder::drop leaves "
        "none; "
        "choose a smaller batch or Remainder::keep",
        size, options.batch_size);
}

}  // namespace

DistributedSampler::DistributedSampler(std::int64_t size, Options options)
    : size_(size), length_(0), options_(options) {
  check(size, options);
  length_ = order_length(size, options);
}

std::int64_t DistributedSampler::batches() const {
  return length_ / options_.batch_size + (length_ % options_.batch_size != 0);
}

std::vector<std::int64_t> DistributedSampler::order(std::int64_t epoch) const {
  // Transforms draw with the indices of samples, so -1 stands for the order.
  const RandomKey key{.seed = options_.seed, .epoch = epoch, .sample = -1};
  std::vector<std::int64_t> order(static_cast<std::size_t>(size_));
  if (options_.shuffle) order = key.generator(0).permutation(size_);
  else std::iota(order.begin(), order.end(), std::int64_t{0});
  order.resize(static_cast<std::size_t>(length_));
  for (std::int64_t i = size_; i < length_; ++i)
    order[static_cast<std::size_t>(i)] = order[static_cast<std::size_t>(i - size_)];
  return order;
}

DistributedSampler::Range DistributedSampler::global_range(std::int64_t batch) const {
  if (batch < 0 || batch >= batches())
    fail<ValueError>("DistributedSampler: expected a batch from 0 to {}, got {}", batches() - 1,
                     batch);
  const std::int64_t begin = batch * options_.batch_size;
  return {begin, begin + std::min(options_.batch_size, length_ - begin)};
}

DistributedSampler::Range DistributedSampler::rank_range(std::int64_t batch) const {
  const Range all = global_range(batch);
  const std::int64_t n = all.end - all.begin;
  return {all.begin + n * options_.rank / options_.ranks,
          all.begin + n * (options_.rank + 1) / options_.ranks};
}

}  // namespace tutti::data
