// Graph: everything that a function enqueues on a device, recorded once and replayed with one
// launch. What a training step costs the host, a launch for every kernel, is so paid once.
#pragma once

#include "../device.h"

#include <cstddef>
#include <functional>
#include <memory>

namespace tutti::cuda {

/// Records `step` on construction; nothing of it runs before replay(). A replay repeats the same
/// work on the same memory: tensors that the step reads are read anew, tensors that it made hold
/// the latest replay's values and may be kept. What the host does in the step is not repeated, but
/// for this: an optimizer's step counts and takes the learning rate and other options that it has
/// at the replay, and random numbers are the generator's next ones. So optimizers and generators
/// that the step uses must outlive the graph, and a thread's default generator is that of the
/// capturing thread.
///
/// Run the step a few times first, so that what is made on first use is there, and drop old
/// gradients. All memory that the step takes belongs to the graph until the graph and the tensors
/// in it are gone; so does what it gives back. Shapes are fixed. Work on further streams is
/// recorded where events tie it to the current one, at both ends. Destroy graphs before the process
/// groups whose collectives they hold: the end of a world waits for them, for seconds.
class Graph {
 public:
  /// DeviceError that names what cannot be captured: a copy to or from the host, any other wait of
  /// the host, an optimizer's first step, a stream that was not waited for. What the step throws is
  /// passed on. Both leave the device usable.
  Graph(Device device, const std::function<void()>& step);
  ~Graph();
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;

  /// Enqueues the recorded work on the current stream of the device; does not wait. Replays on
  /// several streams must be ordered by the caller. Error, and nothing runs, where an optimizer's
  /// state is no longer where it was.
  void replay();
  std::size_t size() const;  ///< how many kernels, copies and other nodes were recorded

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether the calling thread's work on a device is captured now. False for the CPU.
bool is_capturing(Device device);

/// For what runs in a captured step: memory on the device that the graph's kernels may read, and
/// that `write` (given as much of the host's) fills on every replay, before the recorded work; in
/// the order of these calls. Belongs to the graph. What `write` throws, replay() throws.
/// DeviceError where the calling thread does not capture through cuda::Graph.
void* written_before_replay(Device device, std::size_t bytes, std::function<void(void*)> write);

}  // namespace tutti::cuda
