// What a library of NVIDIA's wants to have once for each thread and device: its handle, and the
// plans made with it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::kernels::cuda {

/// The calling thread's own T for a device, made by T(device) at its first use, with that device
/// current. What a thread leaves behind at its end serves the next that asks, so that ranks that
/// come and go make nothing new. Nothing is ever destroyed: at the end of a process CUDA may be
/// gone before us.
template <class T>
T& per_thread(int device) {
  struct Pool {
    std::mutex mutex;
    std::map<int, std::vector<std::unique_ptr<T>>> idle;
  };
  static Pool& pool = *new Pool;
  struct Mine {
    std::map<int, std::unique_ptr<T>> of;
    ~Mine() {
      const std::lock_guard lock(pool.mutex);
      for (auto& [index, state] : of) pool.idle[index].push_back(std::move(state));
    }
  };
  thread_local Mine mine;
  std::unique_ptr<T>& state = mine.of[device];
  if (!state) {
    const std::lock_guard lock(pool.mutex);
    auto& idle = pool.idle[device];
    if (!idle.empty()) {
      state = std::move(idle.back());
      idle.pop_back();
    }
  }
  if (!state) state = std::make_unique<T>(device);
  return *state;
}

}  // namespace tutti::kernels::cuda
