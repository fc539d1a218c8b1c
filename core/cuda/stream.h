// Streams and events order the work of a device. Each device has one default stream that all
// threads share: what one thread enqueued before it passed a tensor on comes before what the next
// thread does with it. StreamScope gives the calling thread another stream. Every wait of the host
// goes through this header and is counted (cuda::synchronizations() in runtime.h).
#pragma once

#include <memory>
#include <utility>

struct CUstream_st;  // cudaStream_t is CUstream_st*
struct CUevent_st;   // cudaEvent_t is CUevent_st*

namespace tutti::cuda {

class Event;

/// A Stream is a handle on a CUDA stream; copies share the stream.
class Stream {
 public:
  /// Makes a new stream. It and the default stream do not wait for each other.
  static Stream create(int device, bool high_priority = false);

  int device() const;
  CUstream_st* get() const;
  /// Makes later work of this stream wait for the event. The host does not wait.
  void wait(const Event& event) const;
  /// Makes later work of this stream wait for all work so far on `earlier`.
  void wait(const Stream& earlier) const;
  /// Makes the host wait for the stream, and counts the wait. `op` names the caller for errors.
  /// Throws a DeviceError while the stream is captured into a graph.
  void synchronize(const char* op) const;
  bool is_capturing() const;
  bool operator==(const Stream&) const = default;

 private:
  struct State;
  explicit Stream(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  friend const Stream& default_stream(int device);
  std::shared_ptr<const State> state_;
};

/// An Event marks a point on a stream; copies share it. An event that was never recorded counts as
/// passed.
class Event {
 public:
  enum class Kind { ordering, timing };
  explicit Event(Kind kind = Kind::ordering) : kind_(kind) {}
  void record(const Stream& stream);
  bool recorded() const { return state_ != nullptr; }
  /// Returns whether the device has passed the event, without waiting.
  bool passed() const;
  /// Makes the host wait for the event, and counts the wait. `op` names the caller for errors.
  void synchronize(const char* op) const;
  /// Returns the time between two events of Kind::timing that have both passed.
  double milliseconds_since(const Event& earlier) const;
  /// Returns null before record().
  CUevent_st* get() const;

 private:
  struct State;
  Kind kind_;
  std::shared_ptr<const State> state_;
};

/// Returns the device's default stream, made on first use. It is not CUDA's legacy default stream,
/// which cannot be captured into a graph.
const Stream& default_stream(int device);
/// Returns the stream that the calling thread's work on a device goes to.
const Stream& current_stream(int device);
/// Returns current_stream() of the calling thread's current device.
const Stream& current_stream();

/// A DeviceScope makes a device the calling thread's current one, which launch() uses. Every
/// function that launches kernels on tensors begins with one. The first scope of a thread that has
/// not used CUDA leaves it on the device: going back to device 0 would make a context there, which
/// takes half a gigabyte of that GPU for each process.
class DeviceScope {
 public:
  [[nodiscard]] explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_;
};

/// A StreamScope makes a stream, and its device, the calling thread's current one.
class StreamScope {
 public:
  [[nodiscard]] explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  DeviceScope device_;
  Stream previous_;
};

}  // namespace tutti::cuda
