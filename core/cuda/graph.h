// Graph: everything that a function enqueues on a device, recorded once and replayed with one launch. What a training
// step costs the host, a launch for every kernel, is so paid once.
#pragma once

#include "../device.h"

#include <cstddef>
#include <functional>
#include <memory>

namespace tutti::cuda {

/// Records `step` on construction; nothing of it runs before replay(). A replay repeats the same work on the same
/// memory: tensors that the step reads are read anew, tensors that it made hold the latest replay's values and may be
/// kept. What the host does in the step (counters, learning rates, random numbers) is not repeated.
///
/// Run the step a few times first, so that what is made on first use is there, and drop old gradients. All memory
/// that the step takes belongs to the graph until the graph and the tensors in it are gone; so does what it gives back.
/// Shapes are fixed. Work on further streams is recorded where events tie it to the current one, at both ends.
/// Destroy graphs before the process groups whose collectives they hold: the end of a world waits for them, for seconds.
class Graph {
 public:
  /// DeviceError that names what cannot be captured: a copy to or from the host, any other wait of the host, random
  /// numbers, a stream that was not waited for. What the step throws is passed on. Both leave the device usable.
  Graph(Device device, const std::function<void()>& step);
  ~Graph();
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;

  /// Enqueues the recorded work on the current stream of the device; does not wait.
  void replay();
  std::size_t size() const;  ///< how many kernels, copies and other nodes were recorded

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti::cuda
