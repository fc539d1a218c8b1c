// The way in which benchmarks/compare/compare.py talks to a contender, a process that measures one
// workload: the contender prepares it, prints "ready" and the numbers that must agree between all
// contenders, and then answers each line with a count by that many times in seconds.
#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <vector>

namespace compare {

/// A workload that is ready to be measured.
struct Workload {
  std::vector<double> outputs;                  ///< losses of first steps, or some logits
  std::function<std::vector<double>(int)> run;  ///< returns the seconds of each of n iterations
};

/// Times `count` calls of `iteration`, each of which makes `repeats` iterations. `prepare` runs
/// before each of them and is not timed.
inline std::vector<double> times_of(
    int count, int repeats, const std::function<void()>& iteration,
    const std::function<void()>& prepare = [] {}) {
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    prepare();
    const auto start = std::chrono::steady_clock::now();
    iteration();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    seconds.push_back(passed.count() / repeats);
  }
  return seconds;
}

/// Answers on standard output until standard input ends.
inline void serve(const Workload& workload) {
  std::printf("ready");
  for (const double value : workload.outputs) std::printf(" %.9g", value);
  std::printf("\n");
  std::fflush(stdout);
  for (int count = 0; std::cin >> count;) {
    for (const double seconds : workload.run(count)) std::printf("%.9g ", seconds);
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace compare
