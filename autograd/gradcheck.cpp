#include "gradcheck.h"

#include "../core/create.h"
#include "engine.h"
#include "grad_mode.h"

#include <algorithm>
#include <cmath>

namespace tutti::autograd {
namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

// Copies a tensor with all the memory that it spans, so that the copy has the same strides, gaps
// and overlap.
Tensor copy_of(const Tensor& x) {
  const auto spanned = static_cast<std::size_t>(spanned_elements(x.shape(), x.strides()));
  const auto storage = std::make_shared<Storage>(spanned * size_of(x.dtype()), x.device());
  copy_bytes(storage->data(), x.device(), x.raw(), x.device(), storage->bytes());
  return Tensor(storage, x.shape(), x.strides(), 0, x.dtype());
}

double dot(const Tensor& a, const std::vector<double>& b) {
  const std::vector<double> values = to_vector(a);
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * b[i];
  return sum;
}

// Returns the element of `x` with the row-major index `i`, as a view of shape ().
Tensor element(const Tensor& x, std::int64_t i) {
  std::int64_t position = x.offset();
  for (int d = x.rank() - 1; d >= 0; --d) {
    position += i % x.shape()[d] * x.strides()[d];
    i /= x.shape()[d];
  }
  return x.alias({}, {}, position);
}

constexpr const char* not_recorded =
    "; the output does not require a gradient: was record() called under NoGrad, or was an input "
    "detached?";

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
      if (floating && inputs[i].has_overlapping_elements())
        fail<ShapeError>(
            "gradcheck: elements of input {} share memory; expand it inside the function", i);
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
  // Sets the message of a failed check and returns false.
  bool failed(std::string message) {
    result_.message = "gradcheck: " + std::move(message);
    return false;
  }

  // Runs forward and backward and returns the reported gradients, which it clears.
  std::vector<std::vector<double>> backward_once() {
    const Tensor out = function_(leaves_);
    if (weights_.empty()) {
      Generator generator(options_.seed);
      weights_.resize(static_cast<std::size_t>(out.numel()));
      for (double& w : weights_) w = generator.normal();
    }
    std::vector<std::vector<double>> gradients(leaves_.size());
    is_recorded_ = out.requires_grad();
    if (is_recorded_) out.backward(tensor(weights_, out.shape(), {out.dtype(), out.device()}));
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      if (!leaves_[i].requires_grad()) continue;
      // A leaf that backward did not reach has a zero gradient.
      gradients[i] = leaves_[i].grad().defined() ? to_vector(leaves_[i].grad())
                                                 : std::vector<double>(values_[i].size(), 0.0);
      leaves_[i].set_grad({});
    }
    return gradients;
  }

  // Sets reported_; returns false if the function changes its inputs or is not deterministic.
  bool reported_gradients() {
    reported_ = backward_once();
    for (std::size_t i = 0; i < leaves_.size(); ++i)
      if (to_vector(leaves_[i]) != values_[i])
        return failed(fmt::format("the function changed input {} in place", i));
    if (backward_once() != reported_)
      return failed("two runs on the same inputs reported different gradients");
    return true;
  }

  // Returns the weighted sum of the outputs.
  double weighted_sum() {
    const NoGrad no_grad;
    return dot(function_(leaves_), weights_);
  }

  // Compares the gradient of input i with central differences; returns false if they differ.
  bool compare(std::size_t i) {
    const std::vector<double>& reported = reported_[i];
    std::vector<double> numeric(reported.size());
    double norm = 0;
    for (std::size_t k = 0; k < numeric.size(); ++k) {
      const NoGrad no_grad;
      const Tensor x = element(leaves_[i].detach(), static_cast<std::int64_t>(k));
      const double value = values_[i][k], h = options_.step * std::max(1.0, std::abs(value));
      x.fill_(value + h);
      const double above = weighted_sum();
      x.fill_(value - h);
      const double below = weighted_sum();
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
                        "central difference {:.10g} (relative error {:.3g}, tolerance {:.3g}){}",
                        i, to_string(leaves_[i].shape()), k, reported[k], numeric[k], error,
                        options_.tolerance, is_recorded_ ? "" : not_recorded));
    }
    return true;
  }

  const Function& function_;
  const GradcheckOptions& options_;
  std::vector<Tensor> leaves_;
  std::vector<std::vector<double>> values_, reported_;
  std::vector<double> weights_;  // the random weights of the outputs
  bool is_recorded_ = false;     // whether the output requires a gradient
  GradcheckResult result_;
};

}  // namespace

GradcheckResult gradcheck(const Function& function, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options) {
  return Check(function, inputs, options).run();
}

}  // namespace tutti::autograd
