#include "gradcheck.h"

#include "../core/create.h"
#include "engine.h"
#include "grad_mode.h"

#include <algorithm>
#include <cmath>

namespace tutti::autograd {
namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

// The same values in the same layout, in memory of its own: strides, gaps and overlap (expanded
// inputs) included.
Tensor copy_of(const Tensor& x) {
  std::int64_t reach = x.numel() ? 1 : 0;
  for (int d = 0; d < x.rank() && reach; ++d) reach += (x.shape()[d] - 1) * x.strides()[d];
  const auto storage =
      std::make_shared<Storage>(static_cast<std::size_t>(reach) * size_of(x.dtype()), x.device());
  copy_bytes(storage->data(), x.device(), x.raw(), x.device(), storage->bytes());
  return Tensor(storage, x.shape(), x.strides(), 0, x.dtype());
}

double dot(const Tensor& a, const std::vector<double>& b) {
  const std::vector<double> values = to_vector(a);
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * b[i];
  return sum;
}

// The element of `x` whose row-major index is `i`, as a view of shape ().
Tensor element(const Tensor& x, std::int64_t i) {
  std::int64_t at = x.offset();
  for (int d = x.rank() - 1; d >= 0; --d) {
    at += i % x.shape()[d] * x.strides()[d];
    i /= x.shape()[d];
  }
  return x.alias({}, {}, at);
}

bool overlaps(const Tensor& x) {
  for (int d = 0; d < x.rank(); ++d)
    if (x.strides()[d] == 0 && x.shape()[d] > 1) return true;
  return false;
}

class Check {
 public:
  Check(const Function& function, const std::vector<Tensor>& inputs,
        const GradcheckOptions& options)
      : function_(function), options_(options) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool floating = is_floating(inputs[i].dtype());
      if (floating && inputs[i].dtype() != float64)
        fail<DTypeError>(
            "gradcheck: expected float64 inputs, input {} is {}; convert it with .to(float64)", i,
            to_string(inputs[i].dtype()));
      if (floating && overlaps(inputs[i]))
        fail<ShapeError>(
            "gradcheck: elements of input {} share memory; expand it inside of the function", i);
      leaves_.push_back(copy_of(inputs[i]));
      if (floating) leaves_.back().requires_grad_();
      values_.push_back(to_vector(inputs[i]));
    }
  }

  GradcheckResult run() {
    if (!reported_gradients()) return result_;
    for (std::size_t i = 0; i < leaves_.size(); ++i)
      if (leaves_[i].requires_grad() && !compare(i)) break;
    return result_;
  }

 private:
  bool failed(std::string message) {
    result_.message = "gradcheck: " + std::move(message);
    return false;
  }

  std::vector<std::vector<double>> backward_once() {
    const Tensor out = function_(leaves_);
    if (weights_.empty()) {
      Generator generator(options_.seed);
      weights_.resize(static_cast<std::size_t>(out.numel()));
      for (double& w : weights_) w = generator.normal();
    }
    std::vector<std::vector<double>> gradients(leaves_.size());
    if (out.requires_grad())
      out.backward(tensor(weights_, out.shape(), {out.dtype(), out.device()}));
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      if (!leaves_[i].requires_grad()) continue;
      // A gradient that never came is zero.
      gradients[i] = leaves_[i].grad().defined() ? to_vector(leaves_[i].grad())
                                                 : std::vector<double>(values_[i].size(), 0.0);
      leaves_[i].set_grad({});
    }
    return gradients;
  }

  bool reported_gradients() {
    reported_ = backward_once();
    for (std::size_t i = 0; i < leaves_.size(); ++i)
      if (to_vector(leaves_[i]) != values_[i])
        return failed(fmt::format("the function changed input {} in place", i));
    if (backward_once() != reported_)
      return failed("two runs on the same inputs reported different gradients");
    return true;
  }

  double projected() {
    const NoGrad no_grad;
    return dot(function_(leaves_), weights_);
  }

  bool compare(std::size_t i) {
    const std::vector<double>& reported = reported_[i];
    std::vector<double> numeric(reported.size());
    double norm = 0;
    for (std::size_t k = 0; k < numeric.size(); ++k) {
      const NoGrad no_grad;
      const Tensor x = element(leaves_[i].detach(), static_cast<std::int64_t>(k));
      const double value = values_[i][k], h = options_.step * std::max(1.0, std::abs(value));
      x.fill_(value + h);
      const double above = projected();
      x.fill_(value - h);
      const double below = projected();
      x.fill_(value);
      numeric[k] = (above - below) / ((value + h) - (value - h));
      norm = std::hypot(norm, numeric[k]);
    }
    const double scale = std::max(
        1.0, norm / std::sqrt(static_cast<double>(std::max<std::size_t>(1, numeric.size()))));
    for (std::size_t k = 0; k < numeric.size(); ++k) {
      const double error = std::abs(numeric[k] - reported[k]) / scale;
      result_.worst = std::max(result_.worst, error);
      if (!(error <= options_.tolerance))  // NaN fails too
        return failed(
            fmt::format("input {} of shape {}, element {} (row-major): reported gradient {:.10g}, "
                        "central difference {:.10g} (relative error {:.3g}, tolerance {:.3g})",
                        i, to_string(leaves_[i].shape()), k, reported[k], numeric[k], error,
                        options_.tolerance));
    }
    return true;
  }

  const Function& function_;
  const GradcheckOptions& options_;
  std::vector<Tensor> leaves_;
  std::vector<std::vector<double>> values_, reported_;
  std::vector<double> weights_;  // the random direction
  GradcheckResult result_;
};

}  // namespace

GradcheckResult gradcheck(const Function& function, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options) {
  return Check(function, inputs, options).run();
}

}  // namespace tutti::autograd
