// Implements streams.h: queues of work, one host thread at a time in each, under one mutex.
#include "streams.h"

#include "census.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace emulator {
namespace {

struct Queues {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<Stream*, StreamPtr> streams;  // the streams that exist or have work left
  std::map<int, StreamPtr> legacy;
  std::set<std::shared_ptr<Capture>> captures;  // those that have begun and not ended
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

void capture_node(Stream& stream, Node node) {
  std::vector<Node>& nodes = stream.capture->graph->nodes;
  node.after = std::exchange(stream.after, {nodes.size()});
  nodes.push_back(std::move(node));
}

// The nodes that come before a point, among all nodes of the graph.
std::vector<bool> ancestors(const Graph& graph, const std::set<std::size_t>& after) {
  std::vector<bool> found(graph.nodes.size());
  std::vector<std::size_t> left(after.begin(), after.end());
  while (!left.empty()) {
    const std::size_t node = left.back();
    left.pop_back();
    if (found[node]) continue;
    found[node] = true;
    left.insert(left.end(), graph.nodes[node].after.begin(), graph.nodes[node].after.end());
  }
  return found;
}

// A random order of a graph's nodes in which each comes after those that it has to come after.
std::vector<std::size_t> random_order(const Graph& graph) {
  const std::size_t count = graph.nodes.size();
  std::vector<std::size_t> waits_for(count), ready, order;
  std::vector<std::vector<std::size_t>> next(count);
  std::optional<std::size_t> last_shared;
  for (std::size_t i = 0; i < count; ++i) {
    std::set<std::size_t> after = graph.nodes[i].after;
    if (graph.nodes[i].begin && last_shared) after.insert(*last_shared);
    if (graph.nodes[i].begin) last_shared = i;
    for (const std::size_t earlier : after) next[earlier].push_back(i);
    waits_for[i] = after.size();
    if (after.empty()) ready.push_back(i);
  }
  const std::lock_guard lock(queues().mutex);
  while (!ready.empty()) {
    std::swap(ready.back(), ready[queues().random.below(ready.size())]);
    order.push_back(ready.back());
    ready.pop_back();
    for (const std::size_t later : next[order.back()])
      if (--waits_for[later] == 0) ready.push_back(later);
  }
  return order;
}

thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

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
  use_context();
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
    capture_node(*stream, {.work = std::move(work), .begin = {}, .after = {}});
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
      capture_node(*stream, {.work = {}, .begin = std::move(begin), .after = {}});
      return cudaSuccess;
    }
  }
  SharedWork shared = begin();
  const cudaError_t status = enqueue(stream, std::move(shared.work));
  return status == cudaSuccess ? wait(stream, shared.done) : status;
}

cudaError_t launch(const std::shared_ptr<Graph>& graph, const StreamPtr& stream) {
  for (const std::size_t i : random_order(*graph)) {
    const Node& node = graph->nodes[i];
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
    signal->after = stream->after;
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
      stream->after.clear();
      signal->capture->joined.push_back(stream);
    } else if (stream->capture != signal->capture) {
      return cudaErrorStreamCaptureMerge;
    }
    stream->after.insert(signal->after.begin(), signal->after.end());
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

cudaError_t begin_capture(const StreamPtr& stream, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(queues().mutex);
  if (stream->capture) return cudaErrorIllegalState;
  if (is_legacy(stream)) return cudaErrorStreamCaptureUnsupported;
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream.get();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  queues().captures.insert(stream->capture);
  stream->after.clear();
  return cudaSuccess;
}

cudaError_t end_capture(const StreamPtr& stream, std::shared_ptr<Graph>& graph) {
  const std::lock_guard lock(queues().mutex);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return cudaErrorIllegalState;
  if (capture->origin != stream.get()) return cudaErrorStreamCaptureUnmatched;
  for (const StreamPtr& other : capture->joined) other->capture = nullptr;
  stream->capture = nullptr;
  queues().captures.erase(capture);
  if (capture->broken) return cudaErrorStreamCaptureInvalidated;
  const std::vector<bool> joined = ancestors(*capture->graph, stream->after);
  if (std::find(joined.begin(), joined.end(), false) != joined.end())
    return cudaErrorStreamCaptureUnjoined;
  graph = capture->graph;
  return cudaSuccess;
}

bool is_capturing(const StreamPtr& stream) {
  const std::lock_guard lock(queues().mutex);
  return stream->capture != nullptr;
}

cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode) {
  return std::exchange(capture_mode, mode);
}

cudaError_t expect_no_capture() {
  const std::lock_guard lock(queues().mutex);
  cudaError_t status = cudaSuccess;
  for (const std::shared_ptr<Capture>& capture : queues().captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool forbids = own ? capture->mode != cudaStreamCaptureModeRelaxed &&
                                   capture_mode != cudaStreamCaptureModeRelaxed
                             : capture->mode == cudaStreamCaptureModeGlobal &&
                                   capture_mode == cudaStreamCaptureModeGlobal;
    if (!forbids) continue;
    capture->broken = true;
    status = cudaErrorStreamCaptureUnsupported;
  }
  return status;
}

cudaError_t expect_not_captured(const StreamPtr& stream) {
  const std::lock_guard lock(queues().mutex);
  return stream->capture ? break_capture(*stream) : cudaSuccess;
}

}  // namespace emulator
