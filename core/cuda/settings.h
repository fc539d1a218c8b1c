// Settings are switches for how CUDA devices compute, the same for all devices. Any thread may read
// and set them at any time. In a build without CUDA they exist and have no effect.
#pragma once

#include <atomic>

namespace tutti::cuda {

/// The switches; cuda::settings() returns the only instance.
struct Settings {
  /// Matrix products and convolutions in float32 may round their inputs to TF32 (10 bits of
  /// mantissa), which tensor cores multiply several times faster.
  std::atomic<bool> allow_tf32 = false;
  /// Only algorithms that give the same bits in every run are used.
  std::atomic<bool> deterministic = false;
  /// The first convolution of each shape times several algorithms, for which it waits for the
  /// device, and keeps the fastest. Without this switch, and for a shape that first comes up while
  /// a graph is captured, cuDNN's heuristics choose.
  std::atomic<bool> autotune = false;
};

/// Returns the settings of the process: cuda::settings().allow_tf32 = true;
inline Settings& settings() {
  static Settings settings;
  return settings;
}

}  // namespace tutti::cuda
