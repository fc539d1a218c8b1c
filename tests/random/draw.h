// Draw makes the random inputs of one trial: sizes, dtypes, memory layouts and values. All numbers
// come from the thread's default generator, which the seed of the trial restarts.
#pragma once

#include <tutti/core/create.h>

#include <cmath>
#include <string>
#include <vector>

namespace tutti::test {

/// The values of a random tensor.
enum class Values {
  normal,    ///< from the standard normal distribution
  positive,  ///< at least 0.1
  steps,     ///< multiples of 1/2, so that equal elements are frequent
};

class Draw {
 public:
  struct Options {
    DType dtype = float32;
    bool empty_batch = false;  ///< the first dimension of every shape() and batch() is 0
    bool nan = false;          ///< some elements are NaN or zero
    bool infinite = false;     ///< some elements are infinite
  };
  explicit Draw(const Options& options) : options_(options) {}

  /// The dtype of the trial.
  DType dtype() const { return options_.dtype; }
  bool empty_batch() const { return options_.empty_batch; }

  bool chance(double probability) const { return default_generator().uniform() < probability; }
  /// Returns an integer in [low, high].
  std::int64_t pick(std::int64_t low, std::int64_t high) const;
  /// Returns a number with few digits, which every dtype holds exactly.
  double number() const { return 0.25 * static_cast<double>(pick(-12, 12)); }
  /// Returns a number of samples from 1 to `most`, or 0.
  std::int64_t batch(std::int64_t most) const;
  /// Returns a shape of `min_rank` to `max_rank` dimensions with small sizes: some are 1, few are 0
  /// or long.
  Shape shape(int min_rank = 0, int max_rank = 4) const;
  /// Returns a shape that broadcasts to `shape`.
  Shape broadcastable(const Shape& shape) const;
  /// Returns a dimension of a tensor of this rank, sometimes counted from the end.
  std::int64_t dim(int rank) const;
  /// Returns some of the dimensions of a tensor of this rank.
  Dims dims(int rank) const;

  /// Returns a tensor of the trial's dtype in a random memory layout: row-major, channels_last,
  /// transposed, with gaps and steps, or expanded.
  Tensor tensor(const Shape& shape, Values values = Values::normal) const;
  /// @overload
  Tensor tensor(const Shape& shape, Values values, DType dtype) const;
  /// Returns integers from 0 to bound - 1 in a random memory layout.
  Tensor indices(const Shape& shape, std::int64_t bound) const;
  /// Returns the values of `x` in a random memory layout.
  Tensor layout(const Tensor& x) const;

 private:
  Tensor with_nonfinite(const Tensor& x) const;

  Options options_;
};

}  // namespace tutti::test
