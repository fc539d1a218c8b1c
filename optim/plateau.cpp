#include "plateau.h"

#include "../core/create.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace tutti::optim {
namespace {

constexpr double largest_count = 0x1p53;  // Above this number, float64 does not count every update.

// Returns the numbers of these names. CheckpointError if one is missing or another tensor is there.
std::map<std::string, double> read_numbers(const StateDict& state,
                                           std::initializer_list<const char*> names) {
  std::map<std::string, double> numbers;
  for (const auto& [key, tensor] : state)
    if (tensor.defined() && tensor.rank() == 0 && tensor.dtype() == float64)
      numbers.emplace(key, tensor.item<double>());
  for (const char* name : names)
    if (!numbers.contains(name))
      fail<CheckpointError>("ReduceOnPlateau state: expected '{}' as a float64 tensor of shape ()",
                            name);
  if (state.size() != names.size())
    fail<CheckpointError>("ReduceOnPlateau state: expected {} tensors, got {}", names.size(),
                          state.size());
  return numbers;
}

}  // namespace

ReduceOnPlateau::ReduceOnPlateau(const Options& o)
    : options_(o),
      best_(o.maximize ? -std::numeric_limits<double>::infinity()
                       : std::numeric_limits<double>::infinity()) {
  if (!(o.gamma >= 0 && o.gamma < 1))
    fail<ValueError>("ReduceOnPlateau: gamma must be at least 0 and below 1, got {}", o.gamma);
  if (o.patience < 0 || o.cooldown < 0)
    fail<ValueError>("ReduceOnPlateau: patience and cooldown must be at least 0, got {} and {}",
                     o.patience, o.cooldown);
  if (!(o.threshold >= 0 && std::isfinite(o.threshold)) ||
      (o.relative && !o.maximize && o.threshold >= 1))
    fail<ValueError>(
        "ReduceOnPlateau: threshold must be finite and at least 0, and below 1 as a share of a "
        "value to be minimised, got {}",
        o.threshold);
  if (!(o.minimum >= 0 && o.minimum <= 1))
    fail<ValueError>("ReduceOnPlateau: minimum must be in [0, 1], got {}", o.minimum);
}

bool ReduceOnPlateau::is_better(double value) const {
  const double sign = options_.maximize ? 1 : -1;
  const double limit = options_.relative ? best_ * (1 + sign * options_.threshold)
                                         : best_ + sign * options_.threshold;
  return options_.maximize ? value > limit : value < limit;
}

bool ReduceOnPlateau::update(double value) {
  if (is_better(value)) {
    best_ = value;
    bad_updates_ = 0;
  } else {
    ++bad_updates_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    bad_updates_ = 0;
  }
  if (bad_updates_ <= options_.patience) return false;
  bad_updates_ = 0;
  cooldown_left_ = options_.cooldown;
  const double before = factor_;
  factor_ = std::min(factor_, std::max(factor_ * options_.gamma, options_.minimum));
  return factor_ != before;
}

StateDict ReduceOnPlateau::state_dict() const {
  const auto number = [](double value) { return scalar(value, {.dtype = float64}); };
  return {{"factor", number(factor_)},
          {"best", number(best_)},
          {"bad_updates", number(static_cast<double>(bad_updates_))},
          {"cooldown_left", number(static_cast<double>(cooldown_left_))}};
}

void ReduceOnPlateau::load_state_dict(const StateDict& state) {
  const auto numbers = read_numbers(state, {"factor", "best", "bad_updates", "cooldown_left"});
  const double factor = numbers.at("factor"), best = numbers.at("best");
  if (!(factor >= 0 && factor <= 1))
    fail<CheckpointError>("ReduceOnPlateau state: factor must be in [0, 1], got {}", factor);
  if (std::isnan(best)) fail<CheckpointError>("ReduceOnPlateau state: best must not be NaN");
  for (const char* name : {"bad_updates", "cooldown_left"})
    if (const double count = numbers.at(name);
        !(count >= 0 && count <= largest_count && count == std::floor(count)))
      fail<CheckpointError>(
          "ReduceOnPlateau state: {} must be a whole number of at least 0, got {}", name, count);
  factor_ = factor;
  best_ = best;
  bad_updates_ = static_cast<std::int64_t>(numbers.at("bad_updates"));
  cooldown_left_ = static_cast<std::int64_t>(numbers.at("cooldown_left"));
}

}  // namespace tutti::optim
