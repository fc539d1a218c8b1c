// Implements streams.h: queues of work, one host thread at a time in each, under one mutex.
#include "streams.h"

#include "census.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace emulator {
namespace {

struct Queues {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<Stream*, StreamPtr> streams;  // the streams that exist or have work left
  std::map<int, StreamPtr> legacy;
  Random random{~std::uint64_t{0}};
};

Queues& queues() {
  static auto* q = new Queues;
  return *q;
}

void erase_if_finished(const StreamPtr& stream) {
  if (stream->destroyed && stream->entries.empty() && !stream->busy)
    queues().streams.erase(stream.get());
}

// Runs the stream's first entry if it can run now. The lock is released while the entry runs.
bool step(std::unique_lock<std::mutex>& lock, const StreamPtr& stream) {
  if (stream->busy || stream->entries.empty()) return false;
  Entry& first = stream->entries.front();
  if (first.wait && !first.wait->raised) return false;
  const Entry entry = std::move(first);
  stream->entries.pop_front();
  if (entry.work) {
    stream->busy = true;
    lock.unlock();
    {
      const DeviceAccess access;
      entry.work();
    }
    lock.lock();
    stream->busy = false;
  }
  if (entry.record) {
    entry.record->time = std::chrono::steady_clock::now();
    entry.record->raised = true;
  }
  erase_if_finished(stream);
  queues().changed.notify_all();
  return true;
}

// Runs the stream, and the streams that it waits for, until done() is true. Returns false if it
// would have to wait for another host thread.
bool try_advance(std::unique_lock<std::mutex>& lock, const StreamPtr& stream,
                 const std::function<bool()>& done) {
  while (!done()) {
    if (step(lock, stream)) continue;
    if (stream->busy) return false;
    if (stream->entries.empty()) fatal("the host waits for an event that no stream will record");
    const std::shared_ptr<Signal> signal = stream->entries.front().wait;
    if (!signal->stream || !try_advance(lock, signal->stream, [&] { return signal->raised; }))
      return false;
  }
  return true;
}

void advance(std::unique_lock<std::mutex>& lock, const StreamPtr& stream,
             const std::function<bool()>& done) {
  while (!try_advance(lock, stream, done)) {
    // Any stream may raise the signal that this one waits for.
    std::vector<StreamPtr> all;
    for (const auto& [_, s] : queues().streams) all.push_back(s);
    if (std::none_of(all.begin(), all.end(), [&](const StreamPtr& s) { return step(lock, s); }))
      queues().changed.wait_for(lock, std::chrono::milliseconds(1));
  }
}

void advance_all(std::unique_lock<std::mutex>& lock, const StreamPtr& stream) {
  advance(lock, stream, [&] { return stream->entries.empty() && !stream->busy; });
}

// Runs a random number of entries of random streams, as a GPU works while the host goes on.
void run_some(std::unique_lock<std::mutex>& lock) {
  Queues& q = queues();
  if (q.random.below(2) == 0) return;
  std::vector<StreamPtr> all;
  for (const auto& [_, s] : q.streams)
    if (!s->entries.empty()) all.push_back(s);
  if (all.empty()) return;
  for (std::uint64_t steps = q.random.below(8); steps > 0; --steps)
    step(lock, all[q.random.below(all.size())]);
}

// CUDA's legacy stream runs after everything that was enqueued on blocking streams before.
void finish_blocking_streams(std::unique_lock<std::mutex>& lock, int device) {
  std::vector<StreamPtr> all;
  for (const auto& [_, s] : queues().streams)
    if (s->blocking && s->device == device) all.push_back(s);
  for (const StreamPtr& s : all) advance_all(lock, s);
}

bool is_legacy(const StreamPtr& stream) {
  const auto found = queues().legacy.find(stream->device);
  return found != queues().legacy.end() && found->second == stream;
}

// A host that waits for a captured stream breaks the capture, as on a GPU.
cudaError_t break_capture(Stream& stream) {
  stream.capture->broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

}  // namespace

Graph::~Graph() {
  for (void* block : memory) release(block);
}

StreamPtr make_stream(int device, bool blocking) {
  auto stream = std::make_shared<Stream>();
  stream->device = device;
  stream->blocking = blocking;
  const std::lock_guard lock(queues().mutex);
  queues().streams[stream.get()] = stream;
  return stream;
}

cudaStream_t handle_of(const StreamPtr& stream) {
  return reinterpret_cast<cudaStream_t>(stream.get());
}

StreamPtr stream_of(cudaStream_t handle) {
  Queues& q = queues();
  if (handle == nullptr || handle == cudaStreamLegacy) {
    int device = 0;
    cudaGetDevice(&device);
    const std::lock_guard lock(q.mutex);
    auto& legacy = q.legacy[device];
    if (!legacy) legacy = std::make_shared<Stream>(), legacy->device = device;
    return legacy;
  }
  const std::lock_guard lock(q.mutex);
  const auto found = q.streams.find(reinterpret_cast<Stream*>(handle));
  if (found == q.streams.end() || found->second->destroyed)
    fatal("a stream handle was used that is not valid (any more)");
  return found->second;
}

void destroy_stream(cudaStream_t handle) {
  const StreamPtr stream = stream_of(handle);
  const std::lock_guard lock(queues().mutex);
  stream->destroyed = true;  // work that is enqueued still runs
  erase_if_finished(stream);
}

cudaError_t enqueue(const StreamPtr& stream, std::function<void()> work) {
  std::unique_lock lock(queues().mutex);
  if (stream->capture) {
    stream->capture->graph->nodes.push_back({.work = std::move(work), .begin = {}});
    ++stream->captured_before[stream.get()];
    return cudaSuccess;
  }
  if (census::device()) return cudaSuccess;  // No work runs.
  const bool legacy = is_legacy(stream);
  if (legacy) finish_blocking_streams(lock, stream->device);
  stream->entries.push_back({.work = std::move(work), .wait = {}, .record = {}});
  if (legacy) advance_all(lock, stream);
  else run_some(lock);
  return cudaSuccess;
}

cudaError_t enqueue_shared(const StreamPtr& stream, std::function<SharedWork()> begin) {
  {
    const std::lock_guard lock(queues().mutex);
    if (stream->capture) {
      stream->capture->graph->nodes.push_back({.work = {}, .begin = std::move(begin)});
      ++stream->captured_before[stream.get()];
      return cudaSuccess;
    }
  }
  SharedWork shared = begin();
  const cudaError_t status = enqueue(stream, std::move(shared.work));
  return status == cudaSuccess ? wait(stream, shared.done) : status;
}

cudaError_t launch(const std::shared_ptr<Graph>& graph, const StreamPtr& stream) {
  for (const Node& node : graph->nodes) {
    const cudaError_t status = node.begin ? enqueue_shared(stream, node.begin)
                                          : enqueue(stream, [graph, &node] { node.work(); });
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  enqueue(stream_of(stream), std::move(work));
}

std::shared_ptr<Signal> record(const StreamPtr& stream) {
  auto signal = std::make_shared<Signal>();
  signal->stream = stream;
  std::unique_lock lock(queues().mutex);
  if (stream->capture) {
    signal->capture = stream->capture;
    signal->captured_before = stream->captured_before;
    return signal;
  }
  if (census::device()) {
    signal->time = std::chrono::steady_clock::now();
    signal->raised = true;
    return signal;
  }
  if (is_legacy(stream)) finish_blocking_streams(lock, stream->device);
  stream->entries.push_back({.work = {}, .wait = {}, .record = signal});
  run_some(lock);
  return signal;
}

cudaError_t wait(const StreamPtr& stream, const std::shared_ptr<Signal>& signal) {
  if (!signal) return cudaSuccess;  // never recorded
  std::unique_lock lock(queues().mutex);
  if (signal->capture) {
    if (!stream->capture) {
      stream->capture = signal->capture;
      stream->captured_before.clear();
      signal->capture->joined.push_back(stream);
    } else if (stream->capture != signal->capture) {
      return cudaErrorStreamCaptureMerge;
    }
    for (const auto& [s, count] : signal->captured_before) {
      std::size_t& known = stream->captured_before[s];
      known = std::max(known, count);
    }
    return cudaSuccess;
  }
  if (stream->capture) return stream->capture->broken = true, cudaErrorStreamCaptureIsolation;
  if (census::device()) return cudaSuccess;  // Every event has passed.
  stream->entries.push_back({.work = {}, .wait = signal, .record = {}});
  run_some(lock);
  return cudaSuccess;
}

cudaError_t finish(const StreamPtr& stream) {
  std::unique_lock lock(queues().mutex);
  if (stream->capture) return break_capture(*stream);
  if (is_legacy(stream)) finish_blocking_streams(lock, stream->device);
  advance_all(lock, stream);
  return cudaSuccess;
}

cudaError_t finish(const std::shared_ptr<Signal>& signal) {
  if (!signal) return cudaSuccess;
  std::unique_lock lock(queues().mutex);
  if (signal->capture) return signal->capture->broken = true, cudaErrorCapturedEvent;
  advance(lock, signal->stream, [&] { return signal->raised; });
  return cudaSuccess;
}

cudaError_t finish_device(int device) {
  std::unique_lock lock(queues().mutex);
  std::vector<StreamPtr> all;
  for (const auto& [_, s] : queues().streams)
    if (s->device == device) {
      if (s->capture) return break_capture(*s);
      all.push_back(s);
    }
  for (const StreamPtr& s : all) advance_all(lock, s);
  return cudaSuccess;
}

void wait_until_idle(int device) {
  std::unique_lock lock(queues().mutex);
  std::vector<StreamPtr> all;
  for (const auto& [_, s] : queues().streams)
    if (s->device == device && !s->capture) all.push_back(s);
  for (const StreamPtr& s : all) advance_all(lock, s);
}

bool has_finished(const StreamPtr& stream) {
  std::unique_lock lock(queues().mutex);
  if (queues().random.below(3) == 0)
    try_advance(lock, stream, [&] { return stream->entries.empty() && !stream->busy; });
  return stream->entries.empty() && !stream->busy;
}

bool is_raised(const std::shared_ptr<Signal>& signal) {
  if (!signal) return true;
  std::unique_lock lock(queues().mutex);
  if (!signal->capture && signal->stream && queues().random.below(3) == 0)
    try_advance(lock, signal->stream, [&] { return signal->raised; });
  return signal->raised;
}

std::shared_ptr<Signal> make_signal() { return std::make_shared<Signal>(); }

void raise(const std::shared_ptr<Signal>& signal) {
  const std::lock_guard lock(queues().mutex);
  signal->raised = true;
  queues().changed.notify_all();
}

cudaError_t begin_capture(const StreamPtr& stream) {
  const std::lock_guard lock(queues().mutex);
  if (stream->capture) return cudaErrorIllegalState;
  if (is_legacy(stream)) return cudaErrorStreamCaptureUnsupported;
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream.get();
  stream->captured_before.clear();
  return cudaSuccess;
}

cudaError_t end_capture(const StreamPtr& stream, std::shared_ptr<Graph>& graph) {
  const std::lock_guard lock(queues().mutex);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return cudaErrorIllegalState;
  if (capture->origin != stream.get()) return cudaErrorStreamCaptureUnmatched;
  bool unjoined = false;
  for (const StreamPtr& other : capture->joined) {
    unjoined |= other->captured_before[other.get()] > stream->captured_before[other.get()];
    other->capture = nullptr;
  }
  stream->capture = nullptr;
  if (capture->broken) return cudaErrorStreamCaptureInvalidated;
  if (unjoined) return cudaErrorStreamCaptureUnjoined;
  graph = capture->graph;
  return cudaSuccess;
}

bool is_capturing(const StreamPtr& stream) {
  const std::lock_guard lock(queues().mutex);
  return stream->capture != nullptr;
}

}  // namespace emulator
