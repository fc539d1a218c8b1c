// What a program may choose about how CUDA devices compute, the same for all of them: a few
// switches, safe to read and set from any thread at any time. They are here, and do nothing, also
// where the library is built without CUDA.
#pragma once

#include <atomic>

namespace tutti::cuda {

struct Settings {
  /// Matrix products and convolutions in float32 may round their inputs to TF32 (10 bits of
  /// mantissa), which tensor cores multiply several times faster.
  std::atomic<bool> allow_tf32 = false;
  /// Only algorithms that give the same bits in every run.
  std::atomic<bool> deterministic = false;
  /// The first convolution of each shape times several algorithms and keeps the fastest; the others
  /// follow the library's heuristics. Waits for the device that once; while a graph is being
  /// captured, heuristics decide.
  std::atomic<bool> autotune = false;
};

/// Use: cuda::settings().allow_tf32 = true;
inline Settings& settings() {
  static Settings settings;
  return settings;
}

}  // namespace tutti::cuda
