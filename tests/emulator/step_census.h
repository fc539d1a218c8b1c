// The census of a training step of ResNet-50, and the tables and budgets that it is held against.
#pragma once

#include "census.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace emulator::census {

/// Returns whether the device executes such a call, collectives aside.
inline bool is_launch(Kind kind) { return kind != Kind::collective && kind != Kind::runtime; }

/// What is counted: the step of the first of `ranks` ranks, each with `images` images.
struct Question {
  const DeviceModel* device = &h100;
  std::int64_t images = 32;
  int ranks = 2;
  bool recompute_output = false;  ///< of every batch norm
};

/// All calls of one name.
struct Row {
  Kind kind = Kind::runtime;
  std::string name;
  std::int64_t calls = 0;
  double bytes = 0, flops = 0;
  /// The sum over the calls of the time in which the device's memory moves the bytes, or its tensor
  /// cores make the products, whichever is longer.
  double seconds = 0;
  unsigned fewest_blocks = ~0u, most_blocks = 0, threads = 0;
  std::size_t shared_bytes = 0;  ///< the most of a block
};

/// The launches of all layers of a kind, or of what belongs to no layer.
struct LayerLaunches {
  std::int64_t forward = 0, backward = 0;
};

struct StepCensus {
  std::vector<Row> rows;
  std::map<std::string, LayerLaunches> by_layer;
  std::size_t peak_bytes = 0;   ///< that the allocator had handed out at a time
  double torch_norm_bytes = 0;  ///< what PyTorch's kernels would move for the same layers
  std::int64_t norm_layers = 0;
};

/// Makes the step in this process, which then can count nothing else.
std::vector<Call> record_step(const Question& question, std::size_t& peak_bytes);
/// Sums up the calls. Kernels are told apart by their names without template arguments.
StepCensus sum_up(const std::vector<Call>& calls, const DeviceModel& device);
/// Makes the step in a child process.
StepCensus count_step(const Question& question);

/// Returns what benchmarks/results/step_census.md shows of all questions.
std::string tables();

/// The most that a step may ask of the device.
struct Budget {
  const char* what;
  std::int64_t most, counted;
};
std::vector<Budget> budgets(const StepCensus& census);

}  // namespace emulator::census
