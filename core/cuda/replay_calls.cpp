#include "replay_calls.h"

#include "../error.h"
#include "graph.h"
#include "runtime.h"
#include "stream.h"

#include <algorithm>

namespace tutti::cuda {
namespace {

thread_local ReplayCalls* current_calls = nullptr;

}  // namespace

ReplayCalls* ReplayCalls::current(int device) {
  return Arena::current(device) ? current_calls : nullptr;
}

ReplayCalls::RandomOffset ReplayCalls::random_offset(const char* op, Generator& generator) {
  const Generator::State now = generator.state();
  auto found = std::ranges::find(generators_, &generator, &CapturedGenerator::generator);
  if (found == generators_.end()) {
    constexpr std::size_t bytes = 2 * sizeof(std::uint64_t);
    const Device device = Device::cuda(arena_->device());
    auto* const base = static_cast<std::uint64_t*>(arena_->allocate_unshared(bytes));
    if (!base)
      fail<DeviceError>("{}: out of memory on {}: asked for {} bytes", op, to_string(device),
                        bytes);
    const auto drawn = std::make_shared<std::uint64_t>(0);
    add([&generator, drawn, base, device] {
      const Generator::State state = generator.state();
      const std::uint64_t numbers[2] = {state.seed, state.position};
      cuda::copy_bytes(base, device, numbers, Device::cpu(), bytes);
      generator.set_state({state.seed, state.position + *drawn});
    });
    found = generators_.insert(generators_.end(), {&generator, now, base, drawn});
  }
  if (now.seed != found->begin.seed || now.position < found->begin.position)
    fail<DeviceError>(
        "{}: the random generator was given another state while a graph is captured; seed it "
        "before",
        op);
  return {found->base, now.position - found->begin.position};
}

void ReplayCalls::run() const {
  for (const auto& call : calls_) call();
}

ReplayCalls::CaptureScope::CaptureScope(ReplayCalls& calls) { current_calls = &calls; }

ReplayCalls::CaptureScope::~CaptureScope() {
  for (const CapturedGenerator& each : current_calls->generators_) {
    *each.drawn = each.generator->state().position - each.begin.position;
    each.generator->set_state(each.begin);
  }
  current_calls = nullptr;
}

bool is_capturing(Device device) {
  return device.is_cuda() && device_count() > 0 && current_stream(device.index()).is_capturing();
}

bool call_before_replay(Device device, std::function<void()> call) {
  ReplayCalls* const calls = device.is_cuda() ? ReplayCalls::current(device.index()) : nullptr;
  if (calls) calls->add(std::move(call));
  return calls != nullptr;
}

}  // namespace tutti::cuda
