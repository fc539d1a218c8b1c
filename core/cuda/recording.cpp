#include "recording.h"

#include "check.h"
#include "graph.h"
#include "pinned.h"
#include "runtime.h"

#include <algorithm>

namespace tutti::cuda {
namespace {

thread_local Recording* current_recording = nullptr;

}  // namespace

Recording* Recording::current(int device) {
  return Arena::current(device) ? current_recording : nullptr;
}

void* Recording::written(std::size_t bytes, std::function<void(void*)> write) {
  void* memory = arena_->apart(bytes);
  if (!memory)
    fail<DeviceError>("cuda::Graph: out of memory on cuda:{}: asked for {} bytes", arena_->device(),
                      bytes);
  blocks_.push_back({memory, bytes, std::move(write)});
  return memory;
}

Recording::Draw Recording::draw(const char* op, Generator& generator) {
  const Generator::State now = generator.state();
  auto found = std::ranges::find(draws_, &generator, &Draws::generator);
  if (found == draws_.end()) {
    const auto count = std::make_shared<std::uint64_t>(0);
    const auto write = [&generator, count](void* to) {
      const Generator::State state = generator.state();
      static_cast<std::uint64_t*>(to)[0] = state.seed;
      static_cast<std::uint64_t*>(to)[1] = state.position;
      generator.set_state({state.seed, state.position + *count});
    };
    const void* base = written(2 * sizeof(std::uint64_t), write);
    found = draws_.insert(draws_.end(),
                          {&generator, now, static_cast<const std::uint64_t*>(base), count});
  }
  if (now.seed != found->begin.seed || now.position < found->begin.position)
    fail<DeviceError>(
        "{}: the random generator was given another state while a graph is captured; seed it "
        "before",
        op);
  return {found->base, now.position - found->begin.position};
}

void Recording::write(const Stream& stream) const {
  for (const Block& block : blocks_) {
    Pinned staging(block.bytes);
    block.write(staging.data());
    check(cudaMemcpyAsync(block.memory, staging.data(), block.bytes, cudaMemcpyHostToDevice,
                          stream.get()),
          "cudaMemcpyAsync", "cuda::Graph");
    staging.used_on(stream);
  }
}

Recording::Scope::Scope(Recording& recording) { current_recording = &recording; }

Recording::Scope::~Scope() {
  for (const Draws& each : current_recording->draws_) {
    *each.count = each.generator->state().position - each.begin.position;
    each.generator->set_state(each.begin);
  }
  current_recording = nullptr;
}

bool is_capturing(Device device) {
  return device.is_cuda() && device_count() > 0 && current_stream(device.index()).is_capturing();
}

void* written_before_replay(Device device, std::size_t bytes, std::function<void(void*)> write) {
  Recording* const recording = device.is_cuda() ? Recording::current(device.index()) : nullptr;
  if (!recording)
    fail<DeviceError>(
        "written_before_replay: {} is not captured by a cuda::Graph of this thread; a capture by "
        "other means has no replay() that could write",
        to_string(device));
  return recording->written(bytes, std::move(write));
}

}  // namespace tutti::cuda
