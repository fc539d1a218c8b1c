// Streams and events: the order in which a device works. Each device has one default stream that
// all threads share, so that what one thread enqueued before it handed a tensor over is ordered
// before what the next one does with it; StreamScope gives the calling thread another. Every wait
// of the host goes through here and is counted.
#pragma once

#include <memory>

struct CUstream_st;  // cudaStream_t is a pointer to it
struct CUevent_st;

namespace tutti::cuda {

class Event;

/// A handle on a stream; copies share it.
class Stream {
 public:
  /// A new stream beside the default one, which neither waits for the other.
  static Stream create(int device, bool high_priority = false);

  int device() const;
  CUstream_st* get() const;
  /// What comes later on this stream waits for the event; the host does not.
  void wait(const Event& event) const;
  /// What comes later on this stream waits for everything so far on `earlier`.
  void wait(const Stream& earlier) const;
  /// The host waits (counted); `op` names who, for errors. DeviceError while the stream is captured
  /// into a graph.
  void synchronize(const char* op) const;
  bool is_capturing() const;
  bool operator==(const Stream&) const = default;

 private:
  struct State;
  explicit Stream(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  friend const Stream& default_stream(int device);
  std::shared_ptr<const State> state_;
};

/// A point on a stream. Copies share it; not recorded yet, it has always passed.
class Event {
 public:
  enum class Kind { ordering, timing };
  explicit Event(Kind kind = Kind::ordering) : kind_(kind) {}
  void record(const Stream& stream);
  bool recorded() const { return state_ != nullptr; }
  bool passed() const;                     ///< asks, without waiting
  void synchronize(const char* op) const;  ///< the host waits (counted)
  /// Of two Kind::timing events that both passed.
  double milliseconds_since(const Event& earlier) const;
  CUevent_st* get() const;  ///< null before record()

 private:
  struct State;
  Kind kind_;
  std::shared_ptr<const State> state_;
};

/// The device's own stream, made on first use. Not CUDA's legacy stream: that could not be captured
/// into a graph.
const Stream& default_stream(int device);
/// Where the calling thread's work on a device goes.
const Stream& current_stream(int device);
/// The same on the calling thread's current device.
const Stream& current_stream();

/// Makes a device the calling thread's current one, which launch() uses. Every function that takes
/// tensors to kernels begins with one.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_;
};

/// Makes a stream, and its device, the calling thread's current one.
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  DeviceScope device_;
  Stream previous_;
};

}  // namespace tutti::cuda
