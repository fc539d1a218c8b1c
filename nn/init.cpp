#include "init.h"

#include "../autograd/grad_mode.h"
#include "../core/parallel.h"

#include <cmath>
#include <numbers>

namespace tutti::nn::init {
namespace {

// Maps a 32-bit random number to (0, 1).
double to_unit(std::uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

// Fills `tensor` with pairs of values. pair(u, v) makes each pair from two 32-bit random numbers,
// which are scaled to (0, 1).
template <class Pair>
void fill_pairs(const Tensor& tensor, Generator& generator, const Pair& pair) {
  if (!is_floating(tensor.dtype()))
    fail<DTypeError>("init: expected a floating dtype, got {}", to_string(tensor.dtype()));
  const Tensor host = empty(tensor.shape(), {.dtype = accumulate_dtype(tensor.dtype())});
  const std::int64_t count = host.numel(), pairs = (count + 1) / 2;
  const Generator::State start = generator.state();
  dispatch(FloatTypes{}, host.dtype(), "init", [&]<class T>() {
    T* const out = host.data<T>();
    parallel_for(pairs, 1 << 13, [&](std::int64_t begin, std::int64_t end) {
      Generator part(start.seed);
      part.set_state({start.seed, start.position + 2 * static_cast<std::uint64_t>(begin)});
      for (std::int64_t i = begin; i < end; ++i) {
        const double u = to_unit(part.next()), v = to_unit(part.next());
        const auto [first, second] = pair(u, v);
        out[2 * i] = static_cast<T>(first);
        if (2 * i + 1 < count) out[2 * i + 1] = static_cast<T>(second);
      }
    });
  });
  generator.set_state({start.seed, start.position + 2 * static_cast<std::uint64_t>(pairs)});
  const NoGrad no_grad;
  tensor.copy_(host);
}

}  // namespace

std::int64_t fan_of(const Tensor& weight, Fan fan) {
  if (weight.rank() < 2)
    fail<ShapeError>("init: expected a weight of rank 2 or more, got shape {}",
                     to_string(weight.shape()));
  return weight.size(fan == Fan::in ? 1 : 0) * product(weight.shape(), 2, weight.rank());
}

void constant_(const Tensor& tensor, double value) {
  const NoGrad no_grad;
  tensor.fill_(value);
}

void uniform_(const Tensor& tensor, double low, double high, Generator& generator) {
  if (!(low <= high) || !std::isfinite(low) || !std::isfinite(high))
    fail<ValueError>("init::uniform_: expected finite bounds with low <= high, got {} and {}", low,
                     high);
  fill_pairs(tensor, generator, [=](double u, double v) {
    return std::pair(low + (high - low) * u, low + (high - low) * v);
  });
}

void normal_(const Tensor& tensor, double mean, double std, Generator& generator) {
  if (!(std >= 0) || !std::isfinite(std) || !std::isfinite(mean))
    fail<ValueError>("init::normal_: expected a finite mean and a finite std >= 0, got {} and {}",
                     mean, std);
  // Box and Muller's method. float32 is exact enough for initial values and twice as fast.
  fill_pairs(tensor, generator, [=](double u, double v) {
    const float radius = std::sqrt(-2 * std::log(static_cast<float>(u)));
    const float angle = 2 * std::numbers::pi_v<float> * static_cast<float>(v);
    return std::pair(mean + std * radius * std::cos(angle), mean + std * radius * std::sin(angle));
  });
}

void kaiming_normal_(const Tensor& weight, Kaiming options, Generator& generator) {
  const double fan = static_cast<double>(fan_of(weight, options.fan));
  normal_(weight, 0, std::sqrt(2 / ((1 + options.slope * options.slope) * fan)), generator);
}

void default_(const Tensor& weight, const Tensor& bias, Generator& generator) {
  const double bound = 1 / std::sqrt(static_cast<double>(fan_of(weight, Fan::in)));
  uniform_(weight, -bound, bound,
           generator);  // The same as PyTorch's kaiming_uniform(a = sqrt(5)).
  if (bias.defined()) uniform_(bias, -bound, bound, generator);
}

}  // namespace tutti::nn::init
