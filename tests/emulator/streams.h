// Streams, events and graphs of the emulator. What is enqueued waits in its stream's queue and runs
// as late as a synchronisation allows, or earlier by chance: what no stream order and no event puts
// in order runs in any order.
#pragma once

#include "emulator.h"

#include <chrono>
#include <deque>
#include <map>
#include <memory>

namespace emulator {

struct Capture;
struct Stream;

/// The point at which an event was recorded.
struct Moment {
  std::shared_ptr<Stream> stream;  ///< null for a gate
  bool passed = false;
  std::chrono::steady_clock::time_point time;
  std::shared_ptr<Capture> capture;  ///< not null: a point in a graph to be, which never passes
  std::map<const Stream*, std::size_t>
      captured_before;  ///< of each stream, how much of the graph comes before
};

struct Entry {
  std::function<void()> work;            ///< or
  std::shared_ptr<Moment> wait, record;  ///< one of these
};

struct Stream {
  int device = 0;
  bool blocking = false;
  std::deque<Entry> entries;
  bool busy = false;  ///< some thread runs its first entry
  bool destroyed = false;
  std::shared_ptr<Capture> capture;
  std::map<const Stream*, std::size_t> captured_before;
};

/// Work that is done when others have done theirs.
struct Shared {
  std::function<void()> work;
  std::shared_ptr<Moment> done;  ///< a gate
};

struct Node {
  std::function<void()> work;     ///< or
  std::function<Shared()> begin;  ///< at each replay
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<void*> memory;  ///< allocated by its nodes
  ~Graph();
};

/// While a graph is captured: which stream began it.
struct Capture {
  Stream* origin = nullptr;
  std::vector<std::shared_ptr<Stream>> joined;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  bool broken = false;  ///< by a call that cannot be captured
};

using StreamPtr = std::shared_ptr<Stream>;

StreamPtr make_stream(int device, bool blocking);
/// The stream of a handle; the current device's legacy stream for null.
StreamPtr stream_of(cudaStream_t handle);
cudaStream_t handle_of(const StreamPtr& stream);
void destroy_stream(cudaStream_t handle);

cudaError_t enqueue(const StreamPtr& stream, std::function<void()> work);
std::shared_ptr<Moment> record(const StreamPtr& stream);
cudaError_t wait(const StreamPtr& stream, const std::shared_ptr<Moment>& moment);
/// Runs what has to run first. cudaErrorStreamCaptureUnsupported while captured.
cudaError_t finish(const StreamPtr& stream);
cudaError_t finish(const std::shared_ptr<Moment>& moment);
cudaError_t finish_device(int device);
/// What freeing memory does to the host: likewise, but beside captures of other threads.
void wait_until_idle(int device);
/// Does some of the work, by chance, and says whether all is done.
bool has_finished(const StreamPtr& stream);
bool has_passed(const std::shared_ptr<Moment>& moment);

/// What ranks do together: `begin` says what this stream is to do and for what it is to wait then;
/// now, or, where it is captured, at each replay.
cudaError_t enqueue_shared(const StreamPtr& stream, std::function<Shared()> begin);
/// Every node after the one before.
cudaError_t launch(const std::shared_ptr<Graph>& graph, const StreamPtr& stream);

/// A moment that no stream comes to: streams wait for it until somebody opens it.
std::shared_ptr<Moment> make_gate();
void open_gate(const std::shared_ptr<Moment>& gate);

cudaError_t begin_capture(const StreamPtr& stream);
cudaError_t end_capture(const StreamPtr& stream, std::shared_ptr<Graph>& graph);
bool is_capturing(const StreamPtr& stream);

}  // namespace emulator
