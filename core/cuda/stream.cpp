#include "stream.h"

#include "../thread_owned.h"
#include "check.h"
#include "runtime.h"

#include <cuda.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <optional>

namespace tutti::cuda {
namespace {

std::atomic<std::int64_t> waits{0};  // how often a host thread has waited for a device

void expect_device(int device) {
  const int count = device_count();
  if (device >= 0 && device < count) return;
  if (count == 0) fail<DeviceError>("cuda:{}: {}", device, why_unavailable());
  fail<DeviceError>("cuda:{}: expected a device below {}, the number found", device, count);
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice", "cuda");
  return device;
}

// Returns whether the calling thread has a context. The first call that needs one makes it.
bool has_context() {
  static const auto get_current = [] {
    void* function = nullptr;
#if CUDART_VERSION >= 12050
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, 12000, cudaEnableDefault);
#else
    const cudaError_t status =
        cudaGetDriverEntryPoint("cuCtxGetCurrent", &function, cudaEnableDefault);
#endif
    check(status, "cudaGetDriverEntryPoint", "cuda");
    return reinterpret_cast<CUresult (*)(CUcontext*)>(function);
  }();
  CUcontext context = nullptr;
  return get_current(&context) == CUDA_SUCCESS && context;
}

// Returns the calling thread's stream on a device; empty for the device's default stream.
std::optional<Stream>& own_stream(int device) {
  auto& streams = detail::of_thread<std::deque<std::optional<Stream>>>();  // references stay valid
  const auto i = static_cast<std::size_t>(device);
  while (streams.size() <= i) streams.emplace_back();
  return streams[i];
}

}  // namespace

struct Stream::State {
  int device;
  cudaStream_t handle = nullptr;
  State(int index, int priority) : device(index) {
    const DeviceScope scope(index);
    check(cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, priority),
          "cudaStreamCreateWithPriority", "Stream");
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { cudaStreamDestroy(handle); }  // enqueued work still runs
};

Stream Stream::create(int device, bool high_priority) {
  expect_device(device);
  const DeviceScope scope(device);
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange",
        "Stream");
  return Stream(std::make_shared<const State>(device, high_priority ? greatest : least));
}

int Stream::device() const { return state_->device; }
CUstream_st* Stream::get() const { return state_->handle; }

void Stream::wait(const Event& event) const {
  if (event.recorded())
    check(cudaStreamWaitEvent(get(), event.get(), 0), "cudaStreamWaitEvent", "Stream::wait");
}

void Stream::wait(const Stream& earlier) const {
  if (earlier == *this) return;
  Event event;
  event.record(earlier);
  wait(event);
}

bool Stream::is_capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(get(), &status), "cudaStreamIsCapturing", "Stream");
  return status != cudaStreamCaptureStatusNone;
}

void Stream::synchronize(const char* op) const {
  if (is_capturing())
    fail<DeviceError>(
        "{}: the host would wait for the device, which cannot be captured into a graph: do it "
        "before or after cuda::Graph's function",
        op);
  waits.fetch_add(1, std::memory_order_relaxed);
  check(cudaStreamSynchronize(get()), "cudaStreamSynchronize", op);
}

struct Event::State {
  cudaEvent_t handle = nullptr;
  explicit State(Kind kind) {
    check(cudaEventCreateWithFlags(
              &handle, kind == Kind::timing ? cudaEventDefault : cudaEventDisableTiming),
          "cudaEventCreateWithFlags", "Event");
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { cudaEventDestroy(handle); }  // a pending wait for it stays valid
};

void Event::record(const Stream& stream) {
  const DeviceScope scope(stream.device());  // an event is made on its stream's device
  if (!state_) state_ = std::make_shared<const State>(kind_);
  check(cudaEventRecord(state_->handle, stream.get()), "cudaEventRecord", "Event::record");
}

bool Event::passed() const {
  if (!state_) return true;
  const cudaError_t status = cudaEventQuery(state_->handle);
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaEventQuery", "Event::passed");
  return true;
}

void Event::synchronize(const char* op) const {
  if (!state_) return;
  waits.fetch_add(1, std::memory_order_relaxed);
  check(cudaEventSynchronize(state_->handle), "cudaEventSynchronize", op);
}

double Event::milliseconds_since(const Event& earlier) const {
  float elapsed = 0;
  check(cudaEventElapsedTime(&elapsed, earlier.get(), get()), "cudaEventElapsedTime",
        "Event::milliseconds_since");
  return static_cast<double>(elapsed);
}

CUevent_st* Event::get() const { return state_ ? state_->handle : nullptr; }

const Stream& default_stream(int device) {
  expect_device(device);
  // The streams are never destroyed: tensors of static storage duration are released on them.
  static auto* mutex = new std::mutex;
  static auto* streams = new std::deque<std::optional<Stream>>;  // a deque: references stay valid
  const std::lock_guard lock(*mutex);
  const auto i = static_cast<std::size_t>(device);
  while (streams->size() <= i) streams->emplace_back();
  auto& stream = (*streams)[i];
  if (!stream) stream = Stream(std::make_shared<const Stream::State>(device, 0));
  return *stream;
}

const Stream& current_stream(int device) {
  if (device < 0) expect_device(device);
  const auto& own = own_stream(device);
  return own ? *own : default_stream(device);
}

const Stream& current_stream() { return current_stream(current_device()); }

DeviceScope::DeviceScope(int device) : previous_(device) {
  expect_device(device);
  const int before = current_device();
  if (before == device) return;
  if (has_context()) previous_ = before;
  check(cudaSetDevice(device), "cudaSetDevice", "DeviceScope");
}

DeviceScope::~DeviceScope() {
  int device = previous_;
  if (cudaGetDevice(&device) == cudaSuccess && device != previous_) cudaSetDevice(previous_);
}

StreamScope::StreamScope(const Stream& stream)
    : device_(stream.device()), previous_(current_stream(stream.device())) {
  own_stream(stream.device()) = stream;
}

StreamScope::~StreamScope() { own_stream(previous_.device()) = previous_; }

std::int64_t synchronizations() { return waits.load(std::memory_order_relaxed); }

void synchronize(int device) {
  const DeviceScope scope(device);
  waits.fetch_add(1, std::memory_order_relaxed);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", "cuda::synchronize");
}

}  // namespace tutti::cuda
