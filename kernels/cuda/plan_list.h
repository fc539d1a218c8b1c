// PlanList chooses among the ways in which a library can compute one problem. It knows neither the
// library nor a device: the caller says how a plan is found, executed and timed.
#pragma once

#include "../../core/error.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

namespace tutti::kernels::cuda {

/// The plans for one problem, in the order in which they are tried. `Search` has a type Plan, and a
/// function next() that returns the next best plan or none. Plans are searched for when they are
/// needed, and kept: kernels of one may still be running when another is chosen.
template <class Search>
class PlanList {
 public:
  using Plan = typename Search::Plan;

  explicit PlanList(Search search) : search_(std::move(search)) {}

  /// Calls `execute` with the plan that worked last, or with the first one. While it throws a
  /// DeviceError, the other plans follow; the one that works is remembered. Throws the first error
  /// if no plan works. Returns false if there is no plan at all.
  template <class Execute>
  bool run(const Execute& execute) {
    std::exception_ptr first_error;
    const auto succeeds = [&](const auto& attempt) {
      try {
        return attempt();
      } catch (const DeviceError&) {
        if (!first_error) first_error = std::current_exception();
        return false;
      }
    };
    const auto works = [&](std::size_t index) {
      return succeeds([&] {
        execute(std::as_const(plans_[index]));
        chosen_ = index;
        return true;
      });
    };
    // A search that fails, as it may without memory, ends the list.
    const auto exists = [&](std::size_t index) { return succeeds([&] { return has(index); }); };
    const std::size_t before = chosen_;
    for (std::size_t i = before; exists(i); ++i)
      if (works(i)) return true;
    // An earlier plan may have failed for want of memory that is free now.
    for (std::size_t i = 0; i < before; ++i)
      if (works(i)) return true;
    if (first_error) std::rethrow_exception(first_error);
    return false;
  }

  /// Sorts the first `count` plans by `time(plan)`. A plan for which `time` throws a DeviceError
  /// comes after them. Throws the DeviceError of a search that has found no plan.
  template <class Time>
  void sort_by_time(std::size_t count, const Time& time) {
    try {
      while (plans_.size() < count && find_next()) {}
    } catch (const DeviceError&) {
      if (plans_.empty()) throw;
    }
    const auto timed = std::min(count, plans_.size());
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t i = 0; i < timed; ++i) try {
        order.emplace_back(time(std::as_const(plans_[i])), i);
      } catch (const DeviceError&) {
        order.emplace_back(std::numeric_limits<double>::infinity(), i);
      }
    std::sort(order.begin(), order.end());
    std::vector<Plan> sorted;
    for (const auto& [least, index] : order) sorted.push_back(std::move(plans_[index]));
    std::move(sorted.begin(), sorted.end(), plans_.begin());
    chosen_ = 0;
  }

 private:
  // Finds one more plan, if there is one, and returns whether it did.
  bool find_next() {
    auto plan = search_.next();
    if (!plan) return false;
    plans_.push_back(std::move(*plan));
    return true;
  }

  // Returns whether there is a plan of this index, and finds it first where necessary.
  bool has(std::size_t index) {
    while (plans_.size() <= index && find_next()) {}
    return index < plans_.size();
  }

  Search search_;
  std::vector<Plan> plans_;
  std::size_t chosen_ = 0;
};

}  // namespace tutti::kernels::cuda
