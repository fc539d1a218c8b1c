#include "host_values.h"

#include "check.h"
#include "graph.h"
#include "pinned_memory.h"
#include "runtime.h"

#include <algorithm>

namespace tutti::cuda {
namespace {

thread_local HostValues* current_values = nullptr;

}  // namespace

HostValues* HostValues::current(int device) {
  return Arena::current(device) ? current_values : nullptr;
}

void* HostValues::add(std::size_t bytes, std::function<void(void*)> write) {
  void* memory = arena_->allocate_unshared(bytes);
  if (!memory)
    fail<DeviceError>("cuda::Graph: out of memory on cuda:{}: asked for {} bytes", arena_->device(),
                      bytes);
  blocks_.push_back({memory, bytes, std::move(write)});
  return memory;
}

void HostValues::add_call(std::function<void()> prepare) {
  blocks_.push_back({nullptr, 0, [prepare = std::move(prepare)](void*) { prepare(); }});
}

HostValues::RandomOffset HostValues::random_offset(const char* op, Generator& generator) {
  const Generator::State now = generator.state();
  auto found = std::ranges::find(generators_, &generator, &CapturedGenerator::generator);
  if (found == generators_.end()) {
    const auto drawn = std::make_shared<std::uint64_t>(0);
    const auto write = [&generator, drawn](void* to) {
      const Generator::State state = generator.state();
      static_cast<std::uint64_t*>(to)[0] = state.seed;
      static_cast<std::uint64_t*>(to)[1] = state.position;
      generator.set_state({state.seed, state.position + *drawn});
    };
    const void* base = add(2 * sizeof(std::uint64_t), write);
    found = generators_.insert(generators_.end(),
                               {&generator, now, static_cast<const std::uint64_t*>(base), drawn});
  }
  if (now.seed != found->begin.seed || now.position < found->begin.position)
    fail<DeviceError>(
        "{}: the random generator was given another state while a graph is captured; seed it "
        "before",
        op);
  return {found->base, now.position - found->begin.position};
}

void HostValues::refresh(const Stream& stream) const {
  for (const Block& block : blocks_) {
    if (block.bytes == 0) {
      block.write(nullptr);
      continue;
    }
    PinnedBuffer staging(block.bytes);
    block.write(staging.data());
    check(cudaMemcpyAsync(block.memory, staging.data(), block.bytes, cudaMemcpyHostToDevice,
                          stream.get()),
          "cudaMemcpyAsync", "cuda::Graph");
    staging.record_use(stream);
  }
}

HostValues::CaptureScope::CaptureScope(HostValues& values) { current_values = &values; }

HostValues::CaptureScope::~CaptureScope() {
  for (const CapturedGenerator& each : current_values->generators_) {
    *each.drawn = each.generator->state().position - each.begin.position;
    each.generator->set_state(each.begin);
  }
  current_values = nullptr;
}

bool is_capturing(Device device) {
  return device.is_cuda() && device_count() > 0 && current_stream(device.index()).is_capturing();
}

void* refresh_before_replay(Device device, std::size_t bytes, std::function<void(void*)> write) {
  HostValues* const values = device.is_cuda() ? HostValues::current(device.index()) : nullptr;
  if (!values)
    fail<DeviceError>(
        "refresh_before_replay: {} is not captured by a cuda::Graph of this thread; a capture by "
        "other means has no replay() that could refresh the memory",
        to_string(device));
  return values->add(bytes, std::move(write));
}

bool call_before_replay(Device device, std::function<void()> prepare) {
  HostValues* const values = device.is_cuda() ? HostValues::current(device.index()) : nullptr;
  if (values) values->add_call(std::move(prepare));
  return values != nullptr;
}

}  // namespace tutti::cuda
