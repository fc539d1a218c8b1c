#include "reference.h"

#include <algorithm>
#include <cmath>

namespace tutti::test::reference {
namespace {

bool is_defined(const Array& x) { return !x.shape.empty() || !x.values.empty(); }

// The spatial position of an index (n, c, ...), and the index of a position.
Dims spatial(const Dims& index) { return Dims(index.begin() + 2, index.end()); }
Dims with_spatial(std::int64_t n, std::int64_t c, const Dims& position) {
  Dims index{n, c};
  for (const std::int64_t p : position) index.push_back(p);
  return index;
}

bool is_inside(const Dims& position, const Shape& x) {
  for (int d = 0; d < position.size(); ++d)
    if (position[d] < 0 || position[d] >= x[d + 2]) return false;
  return true;
}

// Returns where the element `offset` of the window of output `out` lies in the input.
Dims source(const Dims& out, const Dims& offset, const Dims& stride, const Dims& padding,
            const Dims& dilation) {
  Dims position = out;
  for (int d = 0; d < out.size(); ++d)
    position[d] = out[d] * stride[d] - padding[d] +
                  offset[d] * (dilation.empty() ? 1 : dilation[d]);
  return position;
}

Shape output_shape(const Shape& x, std::int64_t channels, const Dims& kernel, const Dims& stride,
                   const Dims& padding, const Dims& dilation) {
  Shape shape{x[0], channels};
  for (int d = 0; d < kernel.size(); ++d) {
    const std::int64_t reach = (dilation.empty() ? 1 : dilation[d]) * (kernel[d] - 1) + 1;
    shape.push_back((x[d + 2] + 2 * padding[d] - reach) / stride[d] + 1);
  }
  return shape;
}

// Returns x with the index of its channel, for a value of each channel.
Array per_channel(const Array& x, const Array& channels,
                  const std::function<Number(const Number&, const Number&)>& f) {
  Array result = x;
  for_each_index(x.shape, [&](const Dims& index) {
    result.at(index) = f(x.at(index), channels.values[static_cast<std::size_t>(index[1])]);
  });
  return result;
}

Number multiply(const Number& a, const Number& b) { return a * b; }
Number add(const Number& a, const Number& b) { return a + b; }
Number subtract(const Number& a, const Number& b) { return a - b; }

Number inverse_deviation(const Number& var, double eps, bool is_floor) {
  // A NaN is no variance below the floor.
  if (is_floor && var.value() <= eps) return Number(1 / std::sqrt(Real(eps)));
  if (is_floor) return Number(1) / sqrt(var);
  return Number(1) / sqrt(var + eps);
}

}  // namespace

Array relu(const Array& x) {
  return map(x, [](const Number& v) { return test::relu(v); });
}

Array softmax(const Array& x, std::int64_t dim, bool log) {
  const Dims dims = x.rank() > 0 ? Dims{dim} : Dims();
  const Array largest = reduce(x, dims, true, [](const std::vector<Number>& row) {
    Real best = row.front().value();
    for (const Number& v : row)
      best = std::isnan(v.value()) ? Real(NAN) : std::max(best, v.value());
    return Number(best);
  });
  const Array shifted = zip(x, largest, subtract);
  const Array powers = map(shifted, [](const Number& v) { return exp(v); });
  const Array sums = reduce(powers, dims, true, sum_of);
  if (log) return zip(shifted, map(sums, [](const Number& v) { return test::log(v); }), subtract);
  return zip(powers, sums, [](const Number& a, const Number& b) { return a / b; });
}

Array matmul(const Array& a_given, const Array& b_given) {
  Array a = a_given, b = b_given;
  if (a.rank() == 1) a.shape.insert(0, 1);
  if (b.rank() == 1) b.shape.insert(1, 1);
  const auto batch_of = [](const Array& x) { return Shape(x.shape.begin(), x.shape.end() - 2); };
  const Shape batch = broadcast_shapes(batch_of(a), batch_of(b), "reference");
  const auto full = [&](const Array& x) {
    Shape shape = batch;
    for (int d = x.rank() - 2; d < x.rank(); ++d) shape.push_back(x.size(d));
    return broadcast_to(x, shape);
  };
  a = full(a);
  b = full(b);
  Shape shape = a.shape;
  const int row = shape.size() - 2, column = shape.size() - 1;
  shape[column] = b.shape[column];
  Array result(shape);
  for_each_index(shape, [&](const Dims& index) {
    Dims left = index, right = index;
    Number total;
    for (std::int64_t k = 0; k < a.shape[column]; ++k) {
      left[column] = right[row] = k;
      total = total + a.at(left) * b.at(right);
    }
    result.at(index) = total;
  });
  if (b_given.rank() == 1) result.shape.erase(column);
  if (a_given.rank() == 1) result.shape.erase(row);
  return result;
}

Array linear(const Array& x, const Array& w, const Array& bias) {
  const Array transposed = gather(w, {w.size(1), w.size(0)}, [](const Dims& index) {
    return Dims{index[1], index[0]};
  });
  const Array product = matmul(x, transposed);
  return is_defined(bias) ? zip(product, bias, add) : product;
}

Array convolution(const Array& x, const Array& w, const Array& bias,
                  const kernels::ConvOptions& options) {
  const Dims kernel = spatial(w.shape);
  Array y(
      output_shape(x.shape, w.size(0), kernel, options.stride, options.padding, options.dilation));
  const std::int64_t ins = w.size(1), outs_per_group = w.size(0) / options.groups;
  for_each_index(y.shape, [&](const Dims& index) {
    Number total = is_defined(bias) ? bias.values[static_cast<std::size_t>(index[1])] : Number();
    const std::int64_t first = index[1] / outs_per_group * ins;
    for_each_index(kernel, [&](const Dims& offset) {
      const Dims position =
          source(spatial(index), offset, options.stride, options.padding, options.dilation);
      if (!is_inside(position, x.shape)) return;
      for (std::int64_t c = 0; c < ins; ++c)
        total = total + x.at(with_spatial(index[0], first + c, position)) *
                            w.at(with_spatial(index[1], c, offset));
    });
    y.at(index) = total;
  });
  return y;
}

Array conv_transpose(const Array& x, const Array& w, const Array& bias,
                     const kernels::ConvOptions& options, const Dims& output) {
  const Dims kernel = spatial(w.shape);
  const std::int64_t outs = w.size(1), ins_per_group = w.size(0) / options.groups;
  Array y(with_spatial(x.size(0), outs * options.groups, output));
  if (is_defined(bias))
    for_each_index(y.shape, [&](const Dims& index) {
      y.at(index) = bias.values[static_cast<std::size_t>(index[1])];
    });
  for_each_index(x.shape, [&](const Dims& index) {
    const std::int64_t first = index[1] / ins_per_group * outs;
    for_each_index(kernel, [&](const Dims& offset) {
      const Dims position =
          source(spatial(index), offset, options.stride, options.padding, options.dilation);
      if (!is_inside(position, y.shape)) return;
      for (std::int64_t c = 0; c < outs; ++c) {
        Number& total = y.at(with_spatial(index[0], first + c, position));
        total = total + x.at(index) * w.at(with_spatial(index[1], c, offset));
      }
    });
  });
  return y;
}

Array interpolate(const Array& x, const Interpolation& arguments) {
  // Returns the weight of input i for output o; below 0 if the output does not touch the input.
  const auto weight = [&](std::size_t d, std::int64_t o, std::int64_t i) -> Real {
    const std::int64_t last = x.size(static_cast<int>(d) + 2) - 1;
    const Real scale = arguments.scales[d], position = static_cast<Real>(o);
    if (!arguments.linear) {
      const auto at = static_cast<std::int64_t>(static_cast<float>(o) * static_cast<float>(scale));
      return std::min(at, last) == i ? 1 : -1;
    }
    const Real at = arguments.align_corners ? position * scale
                                            : (position + Real(0.5)) * scale - Real(0.5);
    const Real distance =
        std::abs(std::clamp<Real>(at, 0, static_cast<Real>(last)) - static_cast<Real>(i));
    return distance > Real(1.0001) ? -1 : std::max<Real>(0, 1 - distance);
  };
  Array y(with_spatial(x.size(0), x.size(1), arguments.output));
  for_each_index(y.shape, [&](const Dims& out) {
    for_each_index(spatial(x.shape), [&](const Dims& in) {
      Real product = 1;
      bool touches = true;
      for (int d = 0; d < in.size(); ++d) {
        const Real factor = weight(static_cast<std::size_t>(d), out[d + 2], in[d]);
        touches = touches && factor >= 0;
        product *= factor;
      }
      // Positions are rounded, so that a weight of 0 has a rounding error, too.
      const Number& value = x.at(with_spatial(out[0], out[1], in));
      if (touches && (product > 0 || std::isfinite(value.value())))
        y.at(out) = y.at(out) +
                    value * (arguments.linear ? Number(1 + product) - Number(1) : Number(1));
    });
  });
  return y;
}

namespace {

// Returns the shape of a pooling's output. With ceil_mode there are as many windows as begin before
// the padding on the right, until one ends at or beyond the end of the padding.
Shape pooled_shape(const Array& x, const kernels::PoolOptions& options) {
  Shape shape =
      output_shape(x.shape, x.size(1), options.kernel, options.stride, options.padding, {});
  if (!options.ceil_mode) return shape;
  for (int d = 0; d < options.kernel.size(); ++d) {
    const std::int64_t size = x.size(d + 2), padding = options.padding[d];
    std::int64_t count = 0;
    for (std::int64_t begin = -padding; begin < size; begin += options.stride[d]) {
      ++count;
      if (begin + options.kernel[d] >= size + padding) break;
    }
    shape[d + 2] = count;
  }
  return shape;
}

}  // namespace

Array max_pool(const Array& x, const kernels::PoolOptions& options) {
  Array y(pooled_shape(x, options));
  for_each_index(y.shape, [&](const Dims& index) {
    const Number* best = nullptr;
    for_each_index(options.kernel, [&](const Dims& offset) {
      const Dims position = source(spatial(index), offset, options.stride, options.padding, {});
      if (!is_inside(position, x.shape)) return;
      const Number& v = x.at(with_spatial(index[0], index[1], position));
      // NaN is larger than every number, and the first of equal elements is the largest.
      const bool is_nan = std::isnan(v.value());
      if (!best || v.value() > best->value() || (is_nan && !std::isnan(best->value()))) best = &v;
    });
    y.at(index) = *best;
  });
  return y;
}

Array avg_pool(const Array& x, const kernels::PoolOptions& options) {
  Array y(pooled_shape(x, options));
  for_each_index(y.shape, [&](const Dims& index) {
    std::vector<Number> inside;
    double padded = 0;  // The number of positions of the window in the input and its padding.
    for_each_index(options.kernel, [&](const Dims& offset) {
      const Dims position = source(spatial(index), offset, options.stride, options.padding, {});
      bool counts = true;
      for (int d = 0; d < position.size(); ++d)
        counts &= position[d] < x.size(d + 2) + options.padding[d];
      padded += counts;
      if (is_inside(position, x.shape))
        inside.push_back(x.at(with_spatial(index[0], index[1], position)));
    });
    y.at(index) = sum_of(inside) /
                  (options.count_include_pad ? padded : static_cast<double>(inside.size()));
  });
  return y;
}

Array adaptive_avg_pool(const Array& x, const Dims& output) {
  Array y(with_spatial(x.size(0), x.size(1), output));
  for_each_index(y.shape, [&](const Dims& index) {
    Dims first = spatial(index), sizes = first;
    for (int d = 0; d < output.size(); ++d) {
      const std::int64_t in = x.size(d + 2), o = index[d + 2];
      first[d] = o * in / output[d];
      sizes[d] = ((o + 1) * in + output[d] - 1) / output[d] - first[d];
    }
    std::vector<Number> inside;
    for_each_index(sizes, [&](Dims position) {
      for (int d = 0; d < output.size(); ++d) position[d] += first[d];
      inside.push_back(x.at(with_spatial(index[0], index[1], position)));
    });
    y.at(index) = sum_of(inside) / static_cast<double>(inside.size());
  });
  return y;
}

namespace {

// The mean and the biased variance of every channel, weighted by position.
std::pair<Array, Array> moments(const Array& x, const Array& position_weights) {
  const auto weight_of = [&](const Dims& index) {
    if (!is_defined(position_weights)) return Real(1);
    Dims position = index;
    position.erase(1);
    if (position_weights.rank() == 1) position = {index[0]};
    return position_weights.at(position).value();
  };
  Array mean(Shape{x.size(1)}), var = mean;
  std::vector<Real> count(mean.values.size());
  const auto channel = [](const Dims& index) { return static_cast<std::size_t>(index[1]); };
  // A weight of 0 masks its position out, whatever the value is.
  const auto add_weighted = [&](Array& sums, const auto& value) {
    for_each_index(x.shape, [&](const Dims& index) {
      const Real weight = weight_of(index);
      Number& sum = sums.values[channel(index)];
      if (weight != 0) sum = sum + value(index) * weight;
    });
    for (std::size_t c = 0; c < count.size(); ++c) sums.values[c] = sums.values[c] / count[c];
  };
  for_each_index(x.shape, [&](const Dims& index) { count[channel(index)] += weight_of(index); });
  add_weighted(mean, [&](const Dims& index) { return x.at(index); });
  add_weighted(var, [&](const Dims& index) {
    const Number distance = x.at(index) - mean.values[channel(index)];
    return distance * distance;
  });
  return {mean, var};
}

}  // namespace

Array batch_norm(const Array& x, const BatchNorm& arguments) {
  const bool is_running = is_defined(arguments.running_mean);
  const auto [mean, var] = is_running ? std::pair(arguments.running_mean, arguments.running_var)
                                      : moments(x, arguments.position_weights);
  const Array rstd = map(var, [&](const Number& v) {
    return inverse_deviation(v, arguments.eps, arguments.eps_is_floor);
  });
  Array y = per_channel(per_channel(x, mean, subtract), rstd, multiply);
  if (is_defined(arguments.weight)) y = per_channel(y, arguments.weight, multiply);
  if (is_defined(arguments.bias)) y = per_channel(y, arguments.bias, add);
  if (is_defined(arguments.residual)) y = zip(y, arguments.residual, add);
  return arguments.relu ? relu(y) : y;
}

Array group_norm(const Array& x, std::int64_t groups, const Array& weight, const Array& bias,
                 double eps) {
  Array rows = x;
  rows.shape = {x.size(0), groups, product(x.shape, 1, x.rank()) / groups};
  Array y = layer_norm(rows, 1, {}, {}, eps);
  y.shape = x.shape;
  const auto per_channel = [&](Array values) {
    Shape shape = Dims::filled(x.rank(), 1);
    shape[1] = x.size(1);
    values.shape = shape;
    return values;
  };
  if (is_defined(weight)) y = zip(y, per_channel(weight), multiply);
  return is_defined(bias) ? zip(y, per_channel(bias), add) : y;
}

Array layer_norm(const Array& x, int dims, const Array& weight, const Array& bias, double eps) {
  Dims last;
  for (int d = x.rank() - dims; d < x.rank(); ++d) last.push_back(d);
  const auto mean_of = [](const std::vector<Number>& row) {
    return sum_of(row) / static_cast<double>(row.size());
  };
  const Array centred = zip(x, reduce(x, last, true, mean_of), subtract);
  const Array var = reduce(zip(centred, centred, multiply), last, true, mean_of);
  Array y = zip(centred,
                map(var, [=](const Number& v) { return inverse_deviation(v, eps, false); }),
                multiply);
  if (is_defined(weight)) y = zip(y, weight, multiply);
  return is_defined(bias) ? zip(y, bias, add) : y;
}

Array dropout(const Array& x, const std::vector<bool>& is_kept, double factor) {
  Array y = x;
  for (std::size_t i = 0; i < is_kept.size(); ++i)
    y.values[i] = x.values[i] * (is_kept[i] ? factor : 0);
  return y;
}

Array total(const Array& losses, Total total, double count) {
  if (total == Total::none) return losses;
  const Array sum = reduce(losses, all_dims(losses.rank()), false, sum_of);
  return total == Total::sum ? sum : map(sum, [=](const Number& v) { return v / count; });
}

namespace {

// The weighted cross-entropy of the target distribution of each position.
Array soft_cross_entropy(const Array& logs, const Array& probabilities,
                         const CrossEntropy& arguments) {
  const auto classes = static_cast<Real>(logs.size(1));
  Shape positions = logs.shape;
  positions.erase(1);
  Array losses(positions);
  for_each_index(logs.shape, [&](const Dims& at) {
    Dims index = at;
    index.erase(1);
    const Number smoothed = probabilities.at(at) * (1 - Real(arguments.smoothing)) +
                            arguments.smoothing / classes;
    const Number target = arguments.smoothing > 0 ? smoothed : probabilities.at(at);
    const Real weight =
        arguments.weight.empty() ? 1 : arguments.weight[static_cast<std::size_t>(at[1])];
    losses.at(index) = losses.at(index) - logs.at(at) * (target * weight);
  });
  return total(losses, arguments.reduction, static_cast<double>(numel(positions)));
}

}  // namespace

Array nll(const Array& logs, const Array& targets, const CrossEntropy& arguments) {
  const auto classes = static_cast<double>(logs.size(1));
  const auto weight_of = [&](std::int64_t c) {
    return arguments.weight.empty() ? Real(1) : arguments.weight[static_cast<std::size_t>(c)];
  };
  Array losses(targets.shape);
  Real count = 0;
  for_each_index(targets.shape, [&](const Dims& index) {
    const auto target = static_cast<std::int64_t>(targets.at(index).value());
    if (target == arguments.ignored) return;
    count += weight_of(target);
    Dims at = index;
    at.insert(1, target);
    Number loss = -logs.at(at) * (weight_of(target) * (1 - arguments.smoothing));
    if (arguments.smoothing > 0)
      for (at[1] = 0; at[1] < logs.size(1); ++at[1])
        loss = loss - logs.at(at) * (weight_of(at[1]) * arguments.smoothing / classes);
    losses.at(index) = loss;
  });
  return total(losses, arguments.reduction, static_cast<double>(count));
}

Array cross_entropy(const Array& logits, const Array& targets, const CrossEntropy& arguments) {
  const Array logs = softmax(logits, 1, true);
  return targets.shape == logits.shape ? soft_cross_entropy(logs, targets, arguments)
                                       : nll(logs, targets, arguments);
}

Array mse(const Array& input, const Array& target, Total reduction) {
  const Array difference = zip(input, target, subtract);
  return total(zip(difference, difference, multiply), reduction,
               static_cast<double>(input.values.size()));
}

Array binary_cross_entropy_with_logits(const Array& logits, const Array& target,
                                       const Array& pos_weight, Total reduction) {
  const auto softplus = [](const Number& x) {
    const Real value = std::max(x.value(), Real(0)) + std::log1p(std::exp(-std::abs(x.value())));
    return Number::of(x, value, Number::Slope(1 / (1 + std::exp(-x.value())), 1));
  };
  Array weighted = target;
  if (is_defined(pos_weight)) weighted = zip(target, pos_weight, multiply);
  const Array positive = zip(weighted, map(logits, [&](const Number&x) { return softplus(-x); }),
                             multiply),
              negative = zip(target, map(logits, softplus),
                             [](const Number&t, const Number&l) { return (Number(1) - t) * l; });
  return total(zip(positive, negative, add), reduction, static_cast<double>(logits.values.size()));
}

}  // namespace tutti::test::reference
