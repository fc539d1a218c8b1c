#include "submit.h"

#include "../core/trace.h"
#include "diagnostics/fault_injection.h"

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

// Measures the times of a collective, for the trace and for the observer of the group.
class Timed : public Work::State {
 public:
  Timed(std::shared_ptr<Work::State> work, Collective call,
        std::function<void(const Timing&)> observer, trace::Clock::time_point launched)
      : work_(std::move(work)),
        call_(std::move(call)),
        observer_(std::move(observer)),
        launched_(launched) {}
  void wait() override {
    if (reported_) return work_->wait();
    const auto began = trace::Clock::now();
    {
      const trace::Span span([&] { return "wait: " + title(); });
      work_->wait();
    }
    reported_ = true;
    report(began, trace::Clock::now());
  }
  bool is_done() override { return work_->is_done(); }
  trace::Clock::time_point done_at() const override { return work_->done_at(); }

 private:
  std::string title() const { return call_.name.empty() ? to_string(call_.operation) : call_.name; }
  void report(trace::Clock::time_point began, trace::Clock::time_point ended) {
    const auto known = work_->done_at();
    const double waited = std::chrono::duration<double>(ended - began).count();
    const Timing timing{call_, launched_, known == trace::Clock::time_point{} ? ended : known,
                        waited};
    if (observer_) observer_(timing);
    if (trace::is_profiling())
      trace::add_async(
          title(), launched_, timing.done,
          fmt::format(R"("operation":"{}","sequence":{},"bytes":{},"wait_us":{:.3f})",
                      to_string(call_.operation), call_.sequence, call_.bytes(), 1e6 * waited));
  }

  std::shared_ptr<Work::State> work_;
  Collective call_;
  std::function<void(const Timing&)> observer_;
  trace::Clock::time_point launched_;
  bool reported_ = false;
};

// Returns `tensor` itself where the backend takes it, else a tensor of the same shape without gaps
// on a device of the backend, which holds the same values where `with_values`.
Tensor for_backend(const Backend& backend, const Tensor& tensor, bool with_values) {
  const bool accepted = backend.accepts(tensor.device());
  if (accepted && tensor.is_contiguous()) return tensor;
  const Device device = accepted ? tensor.device() : backend.staging_device();
  if (!with_values) return empty(tensor.shape(), {tensor.dtype(), device});
  return tensor.to(device).contiguous();
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
  if (options.timeout.count() != 0) check_timeout("CallOptions", options.timeout);
  const GroupInfo& info = backend->info();
  const bool in_place = call.operation == Operation::all_reduce ||
                        call.operation == Operation::broadcast;
  const Tensor target = call.output;
  if (target.defined()) count_change(target.storage());
  if (call.input.defined()) call.input = for_backend(*backend, call.input, true);
  if (call.output.defined())
    call.output = in_place ? call.input : for_backend(*backend, call.output, false);
  call.name = std::move(options.name);
  call.detail = std::move(options.detail);
  call.step = std::move(options.step);
  call.of_model = options.of_model;
  call.timeout = options.timeout.count() != 0 ? options.timeout : info.timeout;
  call.sequence = ++backend->calls;
  backend->bytes += call.bytes();

  const bool dropped = faults::inject(Fault::Moment::call, info.rank, info.group, call.sequence);
  const bool timed = backend->observer || trace::is_profiling();
  const auto launched = timed ? trace::Clock::now() : trace::Clock::time_point{};
  take_recorded_call();
  std::shared_ptr<Work::State> state = dropped ? std::make_shared<Dropped>(backend, call)
                                               : backend->submit(call);
  RecordedCall recorded = take_recorded_call();
  if (timed && state)
    state = std::make_shared<Timed>(std::move(state), call, backend->observer, launched);
  Work work(std::move(state), std::move(recorded));
  // The tensor of the caller may have gaps or be on another device.
  if (target.defined() && target.raw() != call.output.raw())
    return copy_after(std::move(work), call.output, target);
  return work;
}

Work copy_after(Work work, const Tensor& from, const Tensor& to) {
  return Work(std::make_shared<CopyBack>(std::move(work), from, to));
}

}  // namespace tutti::distributed
