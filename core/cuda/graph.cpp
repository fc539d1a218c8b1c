#include "graph.h"

#include "../scoped_value.h"
#include "arena.h"
#include "check.h"
#include "replay_calls.h"

namespace tutti::cuda {

struct Graph::State {
  int device;
  Stream stream;  // the captured stream; replays go to the current one
  std::shared_ptr<Arena> arena;
  ReplayCalls replay_calls;
  cudaGraphExec_t executable = nullptr;
  std::size_t size = 0;

  explicit State(int index)
      : device(index),
        stream(Stream::create(index)),
        arena(std::make_shared<Arena>(index)),
        replay_calls(arena) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (executable) cudaGraphExecDestroy(executable);  // a running replay still completes
    arena->graph_is_gone();
  }

  void capture(const std::function<void()>& step);
  void instantiate(cudaGraph_t graph);
};

namespace {

const char* reason(cudaError_t status) {
  switch (status) {
    case cudaErrorStreamCaptureUnjoined:
      return "the step left work on another stream that the current one does not wait for";
    case cudaErrorStreamCaptureIsolation:
      return "the step waits for an event that was recorded before the capture";
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
      return "the step called what cannot be captured: a wait of the host, a copy to or from it, "
             "an allocation from the system, or a plan that does not exist yet; run the step once "
             "before the capture, on the same thread";
    default: return "CUDA refused the captured work";
  }
}

}  // namespace

void Graph::State::capture(const std::function<void()>& step) {
  const DeviceScope scope(device);
  stream.wait(current_stream(device));
  const StreamScope captured(stream);
  cudaGraph_t graph = nullptr;
  cudaError_t status = cudaSuccess;
  {
    const ScopedValue memory(Arena::of_thread(), arena);
    const ReplayCalls::CaptureScope calls(replay_calls);
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture", "cuda::Graph");
    try {
      step();
    } catch (...) {
      if (cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    status = cudaStreamEndCapture(stream.get(), &graph);
  }
  if (status != cudaSuccess) {
    cudaGetLastError();
    fail<DeviceError>("cuda::Graph: {} ({})", reason(status), cudaGetErrorName(status));
  }
  instantiate(graph);
  arena->wait_until_allocated();
}

void Graph::State::instantiate(cudaGraph_t graph) {
  cudaError_t status = cudaGraphGetNodes(graph, nullptr, &size);
  if (status == cudaSuccess) status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate", "cuda::Graph");
}

Graph::Graph(Device device, const std::function<void()>& step) {
  if (!device.is_cuda())
    fail<DeviceError>("cuda::Graph: expected a CUDA device, got {}", to_string(device));
  if (Arena::current(device.index()))
    fail<DeviceError>("cuda::Graph: this thread is capturing a graph already");
  state_ = std::make_unique<State>(device.index());
  state_->capture(step);
}

Graph::~Graph() = default;
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;

void Graph::replay() {
  const DeviceScope scope(state_->device);
  const Stream& stream = current_stream(state_->device);
  state_->replay_calls.run();
  check(cudaGraphLaunch(state_->executable, stream.get()), "cudaGraphLaunch", "cuda::Graph");
  state_->arena->record_use(stream);
}

std::size_t Graph::size() const { return state_->size; }

}  // namespace tutti::cuda
