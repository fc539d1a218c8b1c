// Helpers of the tests of kernels and others: relative errors, poisoned outputs, random tensors and
// small random numbers.
#pragma once

#include <tutti/core/create.h>
#include <tutti/core/parallel.h>

#include <cmath>
#include <limits>

namespace tutti::test {

/// ||a - b|| / ||b||. The result is NaN, which is below no bound, where an element is NaN (no
/// kernel wrote it) or the sizes differ.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::quiet_NaN();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
  return std::sqrt(difference / std::max(norm, 1e-30));
}

/// The relative error of two tensors, in float64.
inline double relative_error(const Tensor& a, const Tensor& b) {
  return relative_error(to_vector(a), to_vector(b));
}

/// A tensor filled with NaN, so that an element that a kernel does not write is found.
inline Tensor poisoned(const Shape& shape, DType dtype,
                       MemoryFormat format = MemoryFormat::contiguous) {
  const Tensor t = empty(shape, {dtype}, format);
  t.fill_(std::numeric_limits<double>::quiet_NaN());
  return t;
}

/// Normally distributed numbers, rounded to `dtype`, in layout `format`.
inline Tensor normal(const Shape& shape, DType dtype,
                     MemoryFormat format = MemoryFormat::contiguous) {
  return randn(shape, {float64}).to(dtype).contiguous(format);
}

/// A small random number in [low, high].
inline std::int64_t pick(std::int64_t low, std::int64_t high) {
  return low + randint(high - low + 1, {1}).item<std::int64_t>();
}

/// Computes with `count` threads while it lives. Most tests of small tensors take one: the suite
/// shares few cores.
class Threads {
 public:
  explicit Threads(int count) : before_(num_threads()) { set_num_threads(count); }
  ~Threads() { set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace tutti::test
