// Softmax and cross-entropy on the CPU: a slice of classes at a time, or for cross-entropy of few
// classes many positions side by side, with sums in float64.
#include "../softmax_functions.h"

#include "dim_slices.h"
#include "softmax_tile.h"
#include "tensor_iterator.h"
#include "vector_math.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

// The logits of all classes at one position.
template <class T>
struct Slice {
  const T* data;
  std::int64_t length, stride;

  const T& operator[](std::int64_t i) const { return data[i * stride]; }
};

// Calls body(values, first, count) for dense pieces of a slice in the compute type.
template <class C, class T, class Body>
void for_each_piece(const Slice<T>& slice, const Body& body) {
  BlockBuffer<C> buffer;
  for (std::int64_t first = 0; first < slice.length; first += Block::max_count) {
    const std::int64_t count = std::min(Block::max_count, slice.length - first);
    if constexpr (std::is_same_v<C, T>) {
      if (slice.stride == 1) {
        body(slice.data + first, first, count);
        continue;
      }
    }
    load_elements(&slice[first], slice.stride, buffer.data(), count);
    body(std::as_const(buffer).data(), first, count);
  }
}

// The loops over dense pieces are separate functions, because loops in lambdas do not vectorise.
template <class C>
C largest_in(const C* values, std::int64_t count, C largest) {
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < count; ++i) largest = larger_logit(values[i], largest);
  return largest;
}

template <class C>
double sum_exp(const C* values, std::int64_t count, C reference) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i)
    sum += static_cast<double>(Math::exp(values[i] - reference));
  return sum;
}

template <class C>
C reference_of(const auto& slice) {
  C largest = -std::numeric_limits<C>::infinity();
  for_each_piece<C>(slice, [&](const C* values, std::int64_t, std::int64_t count) {
    largest = largest_in(values, count, largest);
  });
  return reference_logit(largest);
}

// Returns log sum exp(x - reference).
template <class C>
double log_sum_of(const auto& slice, C reference) {
  double total = 0;
  for_each_piece<C>(slice, [&](const C* values, std::int64_t, std::int64_t count) {
    total += sum_exp(values, count, reference);
  });
  return std::log(total);
}

// Computes factor * (probability - subtracted) in a dense array.
template <class C>
struct ScaledProbabilities {
  C reference, log_sum;
  C factor = C(1), subtracted = C(0);

  void compute(const C* values, std::int64_t count, C* out) const {
    for (std::int64_t i = 0; i < count; ++i)
      out[i] = factor * (Math::exp(log_probability(values[i], reference, log_sum)) - subtracted);
  }
};

void forward(const Tensor& in, int dim, bool log, const Tensor& out) {
  if (in.numel() == 0) return;
  dispatch(RealTypes{}, in.dtype(), "softmax", [&]<class T>() {
    using C = ComputeType<T>;
    const T* from = in.data<T>();
    T* to = out.data<T>();
    const std::int64_t length = in.shape()[dim], in_stride = in.strides()[dim],
                       out_stride = out.strides()[dim];
    const DimSlices<2> slices(without_dim(in.shape(), dim),
                              {without_dim(in.strides(), dim), without_dim(out.strides(), dim)});
    slices.for_each(length, [=](const auto& offsets) {
      const Slice<T> x{from + offsets[0], length, in_stride};
      T* y = to + offsets[1];
      const C reference = reference_of<C>(x);
      const C log_sum = static_cast<C>(log_sum_of<C>(x, reference));
      for_each_piece<C>(x, [&](const C* values, std::int64_t first, std::int64_t count) {
        BlockBuffer<C> result;
        if (log)
          for (std::int64_t i = 0; i < count; ++i)
            result[static_cast<std::size_t>(i)] = log_probability(values[i], reference, log_sum);
        else ScaledProbabilities<C>{reference, log_sum}.compute(values, count, result.data());
        store_elements(result.data(), y + first * out_stride, out_stride, count);
      });
    });
  });
}

void backward(const Tensor& g, const Tensor& y, int dim, bool log, const Tensor& out) {
  if (y.numel() == 0) return;
  dispatch(RealTypes{}, y.dtype(), "softmax", [&]<class T>() {
    using C = ComputeType<T>;
    const T* gradient = g.data<T>();
    const T* output = y.data<T>();
    T* to = out.data<T>();
    const std::int64_t n = y.shape()[dim], g_stride = g.strides()[dim], y_stride = y.strides()[dim],
                       out_stride = out.strides()[dim];
    const DimSlices<3> slices(without_dim(y.shape(), dim),
                              {without_dim(g.strides(), dim), without_dim(y.strides(), dim),
                               without_dim(out.strides(), dim)});
    slices.for_each(n, [=](const auto& offsets) {
      const T* dy = gradient + offsets[0];
      const T* value = output + offsets[1];
      T* dx = to + offsets[2];
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t i = 0; i < n; ++i) {
        const double term = static_cast<double>(convert<C>(dy[i * g_stride]));
        sum += log ? term : term * static_cast<double>(convert<C>(value[i * y_stride]));
      }
      const C total = static_cast<C>(sum);
      if (log)
        for (std::int64_t i = 0; i < n; ++i)
          dx[i * out_stride] = convert<T>(log_softmax_grad<Math>(
              convert<C>(dy[i * g_stride]), convert<C>(value[i * y_stride]), total));
      else
        for (std::int64_t i = 0; i < n; ++i)
          dx[i * out_stride] = convert<T>(
              softmax_grad(convert<C>(dy[i * g_stride]), convert<C>(value[i * y_stride]), total));
    });
  });
}

// The logits of the first class, which have the shape of the targets.
Tensor first_class(const Tensor& x) {
  return x.alias(without_dim(x.shape(), 1), without_dim(x.strides(), 1), x.offset());
}

// Calls of_tile(tile, block), or of_slice(block, i, slice) where there are many classes, for all
// positions, from several threads. Tensor 0 of `positions` is first_class(logits).
template <class C, class T>
void for_each_position(const TensorIterator& positions, const Tensor& logits, const auto& of_tile,
                       const auto& of_slice) {
  const std::int64_t classes = logits.shape()[1], stride = logits.strides()[1],
                     cost = 4 * classes;  // of an exponential for each class
  const T* from = logits.data<T>();
  if (Tile<C>::suits(classes, stride))
    return positions.for_each_block(
        [&](const Block& block) { for_each_tile<C>(block, from, classes, stride, of_tile); }, cost);
  positions.for_each_block(
      [&](const Block& block) {
        for (std::int64_t i = 0; i < block.count; ++i)
          of_slice(block, i, Slice<T>{from + block.at(0, i), classes, stride});
      },
      cost);
}

void cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyRule& rule,
                   const Tensor& losses, const Tensor& normalizers) {
  check_indices("cross_entropy", targets, logits.shape()[1], rule.ignore_index);
  dispatch(RealTypes{}, logits.dtype(), "cross_entropy", [&]<class T>() {
    using C = ComputeType<T>;
    const T* from = logits.data<T>();
    const std::int64_t* target = targets.data<std::int64_t>();
    C* loss = losses.data<C>();
    C* normalizer = normalizers.data<C>();
    const std::int64_t classes = logits.shape()[1], stride = logits.strides()[1];
    const auto finish = [=](const Block& block, std::int64_t at, C reference, double log_sum) {
      const Slice<T> x{from + block.at(0, at), classes, stride};
      const std::int64_t t = target[block.at(1, at)];
      normalizer[block.at(3, at)] = static_cast<C>(log_sum);
      double value = 0;
      if (t != rule.ignore_index) {
        const auto loss_of = [&](std::int64_t i) {
          return negative_log_likelihood(static_cast<double>(convert<C>(x[i])),
                                         static_cast<double>(reference), log_sum);
        };
        double sum = 0;
        if (rule.label_smoothing != 0)
          for (std::int64_t i = 0; i < classes; ++i) sum += loss_of(i);
        value = smoothed_loss(rule, loss_of(t), sum, classes);
      }
      loss[block.at(2, at)] = static_cast<C>(value);
    };
    const Tensor first = first_class(logits);
    for_each_position<C, T>(
        TensorIterator({&first, &targets, &losses, &normalizers}), logits,
        [=](Tile<C>& tile, const Block& block) {
          tile.sum_exponentials();
          for (std::int64_t i = 0; i < block.count; ++i) {
            const auto lane = static_cast<std::size_t>(i);
            finish(block, i, tile.reference(lane), std::log(tile.sum(lane)));
          }
        },
        [=](const Block& block, std::int64_t i, const Slice<T>& x) {
          const C reference = reference_of<C>(x);
          finish(block, i, reference, log_sum_of<C>(x, reference));
        });
  });
}

// The gradient of the losses with respect to the logits. The tensors of a block are the logits,
// targets, gradients of the losses, normalizers and the result.
template <class C, class T>
struct CrossEntropyGradient {
  const std::int64_t* target;
  const C* loss_gradient;
  const C* normalizer;
  T* out;
  std::int64_t out_stride, ignore_index;
  TargetDistribution<C> wanted;

  C of_target(C factor, C probability) const {
    return factor * (probability - wanted.each - wanted.target);
  }

  void compute(const Block& block, std::int64_t at, const Slice<T>& x) const {
    const std::int64_t t = target[block.at(1, at)];
    T* dx = out + block.at(4, at);
    if (t == ignore_index) {  // The gradient is 0, even if the logits are NaN.
      for (std::int64_t i = 0; i < x.length; ++i) dx[i * out_stride] = convert<T>(C(0));
      return;
    }
    const ScaledProbabilities<C> gradient{.reference = reference_of<C>(x),
                                          .log_sum = normalizer[block.at(3, at)],
                                          .factor = loss_gradient[block.at(2, at)],
                                          .subtracted = wanted.each};
    for_each_piece<C>(x, [&](const C* values, std::int64_t first, std::int64_t count) {
      BlockBuffer<C> result;
      gradient.compute(values, count, result.data());
      if (t >= first && t < first + count)
        result[static_cast<std::size_t>(t - first)] = of_target(
            gradient.factor,
            Math::exp(log_probability(values[t - first], gradient.reference, gradient.log_sum)));
      store_elements(result.data(), dx + first * out_stride, out_stride, count);
    });
  }

  void compute_tile(Tile<C>& tile, const Block& block) const {
    std::array<C, Tile<C>::lanes> log_sums{}, factors{}, of_targets{};
    for (std::size_t i = 0; i < static_cast<std::size_t>(block.count); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t t = target[block.at(1, at)];
      log_sums[i] = normalizer[block.at(3, at)];
      factors[i] = loss_gradient[block.at(2, at)];
      if (t != ignore_index)
        of_targets[i] = of_target(
            factors[i], Math::exp(log_probability(tile.at(t, i), tile.reference(i), log_sums[i])));
    }
    tile.scale_probabilities(log_sums.data(), factors.data(), wanted.each);
    for (std::size_t i = 0; i < static_cast<std::size_t>(block.count); ++i) {
      const std::int64_t t = target[block.at(1, static_cast<std::int64_t>(i))];
      if (t != ignore_index) tile.at(t, i) = of_targets[i];
      else tile.fill(i, 0);
    }
    tile.write(block, 4, out, out_stride);
  }
};

void cross_entropy_grad(const Tensor& g, const Tensor& logits, const Tensor& targets,
                        const CrossEntropyRule& rule, const Tensor& normalizers,
                        const Tensor& out) {
  // The targets may have changed since the forward.
  check_indices("cross_entropy", targets, logits.shape()[1], rule.ignore_index);
  dispatch(RealTypes{}, logits.dtype(), "cross_entropy", [&]<class T>() {
    using C = ComputeType<T>;
    const CrossEntropyGradient<C, T> gradient{targets.data<std::int64_t>(),
                                              g.data<C>(),
                                              normalizers.data<C>(),
                                              out.data<T>(),
                                              out.strides()[1],
                                              rule.ignore_index,
                                              {rule, logits.shape()[1]}};
    const Tensor first = first_class(logits), first_out = first_class(out);
    for_each_position<C, T>(
        TensorIterator({&first, &targets, &g, &normalizers, &first_out}), logits,
        [=](Tile<C>& tile, const Block& block) { gradient.compute_tile(tile, block); },
        [=](const Block& block, std::int64_t i, const Slice<T>& x) {
          gradient.compute(block, i, x);
        });
  });
}

}  // namespace

extern const Softmax softmax{.forward = forward,
                             .backward = backward,
                             .cross_entropy = cross_entropy,
                             .cross_entropy_grad = cross_entropy_grad};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
