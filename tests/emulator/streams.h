// Streams, events and graphs of the emulator. Work waits in its stream's queue and runs when a
// synchronisation needs it, or earlier at random. Work that neither a stream nor an event orders
// thus runs in any order.
#pragma once

#include "emulator.h"

#include <chrono>
#include <deque>
#include <memory>
#include <set>
#include <thread>

namespace emulator {

struct Capture;
struct Stream;

/// A point that streams wait for: an event that a stream records, or a signal that raise() raises.
struct Signal {
  std::shared_ptr<Stream> stream;  ///< the stream that records it; null if raise() raises it
  bool raised = false;
  std::chrono::steady_clock::time_point time;
  std::shared_ptr<Capture> capture;  ///< not null for a point in a captured graph
  std::set<std::size_t> after;       ///< the nodes of the graph that this point comes after
};

struct Entry {
  std::function<void()> work;  ///< exactly one of the three is set
  std::shared_ptr<Signal> wait, record;
};

struct Stream {
  int device = 0;
  bool blocking = false;
  std::deque<Entry> entries;
  bool busy = false;  ///< a host thread runs its first entry
  bool destroyed = false;
  std::shared_ptr<Capture> capture;
  std::set<std::size_t> after;  ///< the nodes that the next captured node comes after
};

/// One rank's part of work that several ranks do together. The stream goes on when `done` is
/// raised.
struct SharedWork {
  std::function<void()> work;
  std::shared_ptr<Signal> done;
};

struct Node {
  std::function<void()> work;         ///< exactly one of the two is set
  std::function<SharedWork()> begin;  ///< is called at each replay
  std::set<std::size_t> after;        ///< the nodes that come before this one
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<void*> memory;  ///< allocated by its nodes
  ~Graph();
};

/// A capture of a graph that has begun and not ended.
struct Capture {
  Stream* origin = nullptr;
  std::vector<std::shared_ptr<Stream>> joined;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  bool broken = false;  ///< there was a call that cannot be captured
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;  ///< that began it
};

using StreamPtr = std::shared_ptr<Stream>;

/// Makes the context of the current device that of the calling thread, as CUDA does in each call
/// that needs memory, a stream or an event.
void use_context();
StreamPtr make_stream(int device, bool blocking);
/// The stream of a handle; the current device's legacy stream for null.
StreamPtr stream_of(cudaStream_t handle);
cudaStream_t handle_of(const StreamPtr& stream);
void destroy_stream(cudaStream_t handle);

cudaError_t enqueue(const StreamPtr& stream, std::function<void()> work);
std::shared_ptr<Signal> record(const StreamPtr& stream);
cudaError_t wait(const StreamPtr& stream, const std::shared_ptr<Signal>& signal);
/// Runs everything that was enqueued before. cudaErrorStreamCaptureUnsupported during a capture.
cudaError_t finish(const StreamPtr& stream);
cudaError_t finish(const std::shared_ptr<Signal>& signal);
cudaError_t finish_device(int device);
/// Waits for a device as freeing memory does: like finish_device, but it leaves out the streams
/// that are being captured.
void wait_until_idle(int device);
/// Runs some of the work at random, and returns whether all of it is done.
bool has_finished(const StreamPtr& stream);
bool is_raised(const std::shared_ptr<Signal>& signal);

/// Enqueues one rank's part of work that ranks do together, which `begin` returns. `begin` is
/// called at once or, in a capture, at each replay.
cudaError_t enqueue_shared(const StreamPtr& stream, std::function<SharedWork()> begin);
/// Enqueues the nodes of a graph in a random order that its edges allow. Work that ranks do
/// together keeps the order of its capture, because all ranks must begin it in the same order.
cudaError_t launch(const std::shared_ptr<Graph>& graph, const StreamPtr& stream);

/// A signal that no stream records; streams wait for it until raise().
std::shared_ptr<Signal> make_signal();
void raise(const std::shared_ptr<Signal>& signal);

cudaError_t begin_capture(const StreamPtr& stream, cudaStreamCaptureMode mode);
cudaError_t end_capture(const StreamPtr& stream, std::shared_ptr<Graph>& graph);
bool is_capturing(const StreamPtr& stream);
/// Makes `mode` the calling thread's, and returns the one that it had. A thread begins with
/// cudaStreamCaptureModeGlobal.
cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode);
/// Refuses a call that may wait for, or disturb, a capture. Under the thread's mode "global", the
/// captures of the thread and those of other threads that began in this mode forbid the call; under
/// "thread-local", those of the thread; a relaxed thread or capture forbids nothing. A call that is
/// refused breaks these captures.
cudaError_t expect_no_capture();
/// Refuses a call that cannot be captured, if the stream is captured, and breaks the capture.
cudaError_t expect_not_captured(const StreamPtr& stream);

}  // namespace emulator
