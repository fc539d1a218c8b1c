// A ScopedValue gives a variable, mostly one of the thread, another value for a scope.
#pragma once

#include <type_traits>
#include <utility>

namespace tutti {

/// Sets a variable to a value, and to the value before when the scope ends.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T& variable, std::type_identity_t<T> value)
      : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~ScopedValue() { variable_ = std::move(before_); }
  ScopedValue(const ScopedValue&) = delete;

 private:
  T& variable_;
  T before_;
};

}  // namespace tutti
