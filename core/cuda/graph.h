// Graph captures everything that a function enqueues on a device and replays it with one launch. A
// training step launches hundreds of kernels; a graph pays for their launches once.
#pragma once

#include "../device.h"

#include <cstddef>
#include <functional>
#include <memory>

namespace tutti::cuda {

/// A Graph captures `step` when it is constructed; none of the work runs before replay(). A replay
/// repeats the same work on the same memory: it reads the current values of the tensors that the
/// step reads, and tensors that the step made hold the values of the latest replay and may be kept.
///
/// A replay does not repeat what the host does in the step, with two exceptions: optimizers count
/// their steps and use the learning rate and other options that they have at the replay, and
/// random numbers are the generator's next ones. Optimizers and generators that the step uses must
/// therefore outlive the graph; the default generator is that of the capturing thread.
///
/// Before the capture, run the step a few times on the thread that captures, so that what it makes
/// on first use exists (handles and plans of NVIDIA's libraries belong to a thread), and drop old
/// gradients. Shapes are fixed. All memory that the step allocates belongs to the graph
/// until the graph and the tensors in it are gone, memory that the step releases included. Work on
/// further streams is captured if events tie it to the current stream at its beginning and its end.
/// Destroy graphs that hold collectives before their world ends: the end of run_ranks(), or the
/// exit of a process of MPI, waits up to ten seconds for them.
class Graph {
 public:
  /// Throws a DeviceError that names what cannot be captured: a copy to or from the host, any other
  /// wait of the host, an optimizer's first step, a library that this thread has not used, a stream
  /// that was not waited for. An exception of the step is passed on. The device stays usable in
  /// either case.
  [[nodiscard]] Graph(Device device, const std::function<void()>& step);
  ~Graph();
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;

  /// Enqueues the captured work on the current stream of the device and does not wait. The caller
  /// must order replays on several streams. If an optimizer's state has moved to other memory since
  /// the capture, replay() throws an Error and nothing runs.
  void replay();
  /// Returns how many kernels, copies and other nodes were captured.
  std::size_t size() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns whether the calling thread's work on a device is being captured. False for the CPU.
bool is_capturing(Device device);

/// Lets each replay() of the graph that the calling thread captures first make this call, in the
/// order in which such calls were added; an exception of the call leaves replay(), and nothing
/// runs. The call may enqueue work on the current stream, such as a copy of new values into a
/// tensor that the captured kernels read. Returns false, and does nothing, unless a cuda::Graph of
/// this thread is capturing.
bool call_before_replay(Device device, std::function<void()> call);

}  // namespace tutti::cuda
