// State that a thread keeps for each device: the handle of an NVIDIA library, which one thread at a
// time may use, and the plans made with it.
#pragma once

#include "../../core/cuda/stream.h"
#include "../../core/error.h"
#include "../../core/thread_owned.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::kernels::cuda {

/// Returns the calling thread's own State for a device. The first call constructs it with
/// State(device) while that device is current. When a thread ends, another thread may reuse its
/// State, so that short-lived threads do not construct new ones. No State is ever destroyed,
/// because CUDA may shut down earlier at the end of a process. Throws a DeviceError where it would
/// have to construct one while a graph is captured.
template <class State>
State& thread_state(int device) {
  struct Pool {
    std::mutex mutex;
    std::map<int, std::vector<std::unique_ptr<State>>> idle;
  };
  static Pool& pool = *new Pool;
  struct OwnStates {
    std::map<int, std::unique_ptr<State>> of_device;
    ~OwnStates() {
      const std::lock_guard lock(pool.mutex);
      for (auto& [index, state] : of_device) pool.idle[index].push_back(std::move(state));
    }
  };
  std::unique_ptr<State>& state = tutti::detail::of_thread<OwnStates>().of_device[device];
  if (!state) {
    const std::lock_guard lock(pool.mutex);
    auto& idle = pool.idle[device];
    if (!idle.empty()) {
      state = std::move(idle.back());
      idle.pop_back();
    }
  }
  if (!state) {
    if (tutti::cuda::current_stream(device).is_capturing())
      fail<DeviceError>(
          "cuda::Graph: the captured step uses cuDNN or cuBLASLt, which the capturing thread has "
          "not used on cuda:{} before: run the step once before the capture, on the same thread",
          device);
    state = std::make_unique<State>(device);
  }
  return *state;
}

}  // namespace tutti::kernels::cuda
