#include "submit.h"

#include "../core/create.h"
#include "../core/cuda/graph.h"
#include "../core/trace.h"
#include "diagnostics/fault_injection.h"
#include "lane.h"

#include <thread>

namespace tutti::distributed {
namespace {

class CopyBack : public Work::State {
 public:
  CopyBack(Work work, Tensor from, Tensor to)
      : work_(std::move(work)), from_(std::move(from)), to_(std::move(to)) {}
  void wait() override {
    work_.wait();
    if (!from_.defined()) return;
    to_.copy_(from_);
    // A copy from a device to the host waits for the device, which goes on when a collective is
    // aborted: then the copy is garbage, and this call throws.
    if (from_.device() != to_.device()) work_.wait();
    from_ = {};
  }
  bool is_done() override { return work_.is_done(); }

 private:
  Work work_;
  Tensor from_, to_;
};

// A call that an injected fault has dropped (diagnostics/fault_injection.h). It fails when the
// group does, which should be at the deadline of the other ranks.
class Dropped : public Work::State {
 public:
  Dropped(std::shared_ptr<Backend> backend, Collective call)
      : backend_(std::move(backend)),
        call_(std::move(call)),
        deadline_(deadline_after(call_.timeout) + std::chrono::seconds(5)) {}
  void wait() override {
    while (!is_done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Failure late{.at = describe(call_, backend_->info()),
                       .what = "this rank's call was dropped by an injected fault",
                       .timeout = true};
    throw_failure(backend_->failure().value_or(late), call_, backend_->info());
  }
  bool is_done() override {
    return backend_->failure() || std::chrono::steady_clock::now() >= deadline_;
  }

 private:
  std::shared_ptr<Backend> backend_;
  Collective call_;
  std::chrono::steady_clock::time_point deadline_;
};

// Returns `tensor` itself where it lies on `device` without gaps, else such a tensor of the same
// shape, which holds the same values where `with_values`.
Tensor without_gaps(const Tensor& tensor, Device device, bool with_values) {
  if (tensor.device() == device && tensor.is_contiguous()) return tensor;
  if (!with_values) return empty(tensor.shape(), {tensor.dtype(), device});
  return tensor.to(device).contiguous();
}

// Sets up a lane with the first call that takes it. NCCL's id travels through the hosts in the
// place of that call, so that ranks which are at another call are found.
void connect(Backend& backend, Lane& lane, const Collective& call) {
  Collective exchange = call;
  exchange.operation = Operation::broadcast;
  exchange.root = 0;
  exchange.input = exchange.output = lane.make_id();
  backend.submit(exchange)->wait();
  lane.connect(exchange.output, call);
}

// Returns whether a tensor takes the lane of the group; else it goes through the hosts.
bool takes_lane(const Backend& backend, Operation operation, const Tensor& tensor) {
  const Lane* const made = backend.made_lane();
  const bool is_taken = tensor.defined() && tensor.device().is_cuda() &&
                        backend.capabilities(tensor.device()).device_waits;
  if (made && !is_taken && cuda::is_capturing(made->device()))
    fail<DeviceError>(
        "{}: it goes through the hosts, which no replay of a CUDA graph repeats; keep collectives "
        "of CPU tensors and barriers outside of the captured step",
        to_string(operation));
  if (is_taken && !(made && made->is_connected()) && cuda::is_capturing(tensor.device()))
    fail<DeviceError>(
        "{}: the first collective of CUDA tensors in group '{}' sets up NCCL, which a CUDA graph "
        "cannot hold; run the step once before it is captured",
        to_string(operation), backend.info().group);
  return is_taken;
}

// Starts a call on the lane of the group, which the first one makes.
std::shared_ptr<Work::State> start_on_lane(Backend& backend, const Collective& call) {
  const GroupInfo& info = backend.info();
  backend.world()->throw_if_failed(call, info);
  try {
    if (Lane& lane = *backend.lane(); !lane.is_connected()) connect(backend, lane, call);
  } catch (const std::exception& error) {  // the other ranks need not wait for their deadline
    backend.world()->fail(
        {.at = describe(call, info), .what = fmt::format("rank {}: {}", info.rank, error.what())});
    backend.world()->throw_if_failed(call, info);
  }
  return backend.lane()->submit(call);
}

void check_process(const Backend& backend, Operation operation) {
  if (backend.belongs_to_parent())
    fail<DistributedError>(
        "{}: group '{}' belongs to the process that this one was forked from; make groups after a "
        "fork, or start the child with exec",
        to_string(operation), backend.info().group);
  backend.check_thread(to_string(operation));
}

}  // namespace

Work submit(const std::shared_ptr<Backend>& backend, Collective call, CallOptions options) {
  check_process(*backend, call.operation);
  const GroupInfo& info = backend->info();
  const bool in_place = call.operation == Operation::all_reduce ||
                        call.operation == Operation::broadcast;
  const Tensor target = call.output;
  const bool on_lane = takes_lane(*backend, call.operation, target);
  if (call.operation == Operation::barrier && backend->made_lane())
    backend->made_lane()->wait_for_device();
  if (target.defined()) {
    const Device device = on_lane ? Device::cuda(backend->world()->device_of(info.world_rank()))
                          : backend->accepts(target.device()) ? target.device()
                                                              : Device::cpu();
    count_change(target.storage());
    call.input = without_gaps(call.input, device, true);
    call.output = in_place ? call.input : without_gaps(target, device, false);
  }
  call.name = std::move(options.name);
  call.detail = std::move(options.detail);
  call.step = std::move(options.step);
  call.of_model = options.of_model;
  call.timeout = options.timeout.count() != 0 ? options.timeout : info.timeout;
  call.sequence = ++backend->calls;
  call.fingerprint = fingerprint(call, on_lane ? Path::nccl : Path::host);
  backend->bytes += call.bytes();

  if (faults::inject(Fault::Moment::call, info.rank, info.group, call.sequence))
    return Work(std::make_shared<Dropped>(backend, call));
  RecordedCall recorded = backend->record(call);
  if (trace::is_profiling()) {
    recorded.title = call.name.empty() ? to_string(call.operation) : call.name;
    recorded.details = fmt::format(R"("operation":"{}","sequence":{},"bytes":{})",
                                   to_string(call.operation), call.sequence, call.bytes());
  }
  Work work(on_lane ? start_on_lane(*backend, call) : backend->submit(call), std::move(recorded));
  // The tensor of the caller may have gaps or be on another device.
  if (target.defined() && target.raw() != call.output.raw())
    return copy_after(std::move(work), call.output, target);
  return work;
}

Work copy_after(Work work, const Tensor& from, const Tensor& to) {
  return Work(std::make_shared<CopyBack>(std::move(work), from, to));
}

}  // namespace tutti::distributed
