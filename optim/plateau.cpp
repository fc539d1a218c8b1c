#include "plateau.h"

#include "common.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tutti::optim {

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
  return number_state({{"factor", factor_},
                       {"best", best_},
                       {"bad_updates", static_cast<double>(bad_updates_)},
                       {"cooldown_left", static_cast<double>(cooldown_left_)}});
}

void ReduceOnPlateau::load_state_dict(const StateDict& state) {
  constexpr double most = 0x1p53;  // Above this number, float64 does not count every update.
  const auto numbers = read_numbers("ReduceOnPlateau", state,
                                    {{.name = "factor", .low = 0, .high = 1},
                                     {.name = "best"},
                                     {"bad_updates", 0, most, true},
                                     {"cooldown_left", 0, most, true}});
  factor_ = numbers.at("factor");
  best_ = numbers.at("best");
  bad_updates_ = static_cast<std::int64_t>(numbers.at("bad_updates"));
  cooldown_left_ = static_cast<std::int64_t>(numbers.at("cooldown_left"));
}

}  // namespace tutti::optim
