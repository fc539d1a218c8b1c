// The part of a group that is the same for every backend: arguments are checked before anything
// happens, calls are numbered and counted, tensors that are not dense (or not on a device of the
// backend) are copied in and out, and a group of one rank returns at once.
#include "process_group.h"

#include "../core/trace.h"
#include "backend.h"
#include "diagnostics/fault_injection.h"
#include "reduce.h"

#include <algorithm>
#include <numeric>
#include <thread>

namespace tutti::distributed {
namespace {

class Single : public Backend {
 public:
  using Backend::Backend;
  bool accepts(Device) const override { return true; }
  std::shared_ptr<Work::State> submit(const Collective&) override { return nullptr; }
  std::shared_ptr<Backend> subgroup(const std::vector<int>&, const std::string& name) override {
    Place one = place();
    one.group = name;
    return std::make_shared<Single>(one);
  }
  void abort(const std::string&) override {}
};

// What a rank holds that split() put into no group.
class NoMember : public Backend {
 public:
  explicit NoMember(std::string group)
      : Backend(
            {.rank = -1, .size = 0, .local_rank = -1, .group = std::move(group), .kind = "none"}) {}
  bool accepts(Device) const override { return true; }
  std::shared_ptr<Work::State> submit(const Collective& call) override {
    fail<DistributedError>(
        "{}: this rank is no member of group '{}' (it was split off with a negative colour)",
        to_string(call.operation), place().group);
  }
  std::shared_ptr<Backend> subgroup(const std::vector<int>&, const std::string&) override {
    return nullptr;
  }
  void abort(const std::string&) override {}
};

const std::shared_ptr<Backend>& single() {
  static const std::shared_ptr<Backend> backend = std::make_shared<Single>(Backend::Place{});
  return backend;
}

// Finishes a collective whose result has to be copied to where the caller wants it.
class CopyBack : public Work::State {
 public:
  CopyBack(std::shared_ptr<Work::State> work, Tensor from, Tensor to)
      : work_(std::move(work)), from_(std::move(from)), to_(std::move(to)) {}
  void wait() override {
    work_->wait();
    if (!from_.defined()) return;
    to_.copy_(from_);
    // A copy from a device to the host waited for the device, which goes on when a collective is
    // aborted.
    if (from_.device() != to_.device()) work_->wait();
    from_ = {};
  }
  bool is_done() override { return work_->is_done(); }

 private:
  std::shared_ptr<Work::State> work_;
  Tensor from_, to_;
};

// A call that was dropped on purpose (fault.h): fails as soon as the group does, which is to be at
// the others' deadline.
class Dropped : public Work::State {
 public:
  Dropped(std::shared_ptr<Backend> backend, Collective call)
      : backend_(std::move(backend)),
        call_(std::move(call)),
        deadline_(deadline_after(call_.timeout) + std::chrono::seconds(5)) {}
  void wait() override {
    while (!is_done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Failure late{.at = describe(call_, backend_->place()),
                       .what = "this rank's call was dropped by an injected fault",
                       .timeout = true};
    raise(backend_->failure().value_or(late), call_, backend_->place());
  }
  bool is_done() override {
    return backend_->failure() || std::chrono::steady_clock::now() >= deadline_;
  }

 private:
  std::shared_ptr<Backend> backend_;
  Collective call_;
  std::chrono::steady_clock::time_point deadline_;
};

// Takes the times of a collective, for the trace and for who observes the group.
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
    if (trace::is_recording())
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

void check_defined(const Tensor& tensor, Operation operation, const char* which) {
  if (!tensor.defined()) fail<Error>("{}: the {} tensor is undefined", to_string(operation), which);
}

void check_pair(const Tensor& input, const Tensor& output, Operation operation) {
  check_defined(input, operation, "input");
  check_defined(output, operation, "output");
  if (input.dtype() != output.dtype())
    fail<DTypeError>("{}: input and output must have one dtype, got {} and {}",
                     to_string(operation), tutti::to_string(input.dtype()),
                     tutti::to_string(output.dtype()));
  if (input.device() != output.device())
    fail<DeviceError>("{}: input and output must be on one device, got {} and {}",
                      to_string(operation), tutti::to_string(input.device()),
                      tutti::to_string(output.device()));
}

// `whole` must be `part` with the ranks in front.
void check_stacked(const Shape& whole, const Shape& part, int ranks, Operation operation,
                   const char* whole_name, const char* part_name) {
  Shape expected = part;
  expected.insert(0, ranks);
  if (!(whole == expected))
    fail<ShapeError>(
        "{}: expected {} of shape {} (the number of ranks, then the shape of {}), got {}",
        to_string(operation), whole_name, tutti::to_string(expected), part_name,
        tutti::to_string(whole));
}

void check_member(Backend& backend, Operation operation) {
  if (backend.place().size == 0) backend.submit({.operation = operation});  // throws
}

// `call` has the caller's tensors; they are made dense here and the result is brought back.
Work start(const std::shared_ptr<Backend>& group, Collective call, CallOptions options) {
  Backend& backend = *group;
  if (backend.is_inherited())
    fail<DistributedError>(
        "{}: group '{}' belongs to the process that this one was forked from; make groups after a "
        "fork, or start the child with exec",
        to_string(call.operation), backend.place().group);
  const bool in_place = call.operation == Operation::all_reduce ||
                        call.operation == Operation::broadcast;
  Tensor target = call.output;
  if (target.defined()) target.storage()->bump_version();
  const auto dense = [&](const Tensor& tensor, bool needs_values) {
    const bool accepted = backend.accepts(tensor.device());
    if (accepted && tensor.is_contiguous()) return tensor;
    const Device device = accepted ? tensor.device() : backend.staging_device();
    if (!needs_values) return empty(tensor.shape(), {tensor.dtype(), device});
    return tensor.to(device).contiguous();
  };
  if (call.input.defined()) call.input = dense(call.input, true);
  if (call.output.defined()) call.output = in_place ? call.input : dense(call.output, false);
  call.name = std::move(options.name);
  call.timeout = options.timeout.count() > 0 ? options.timeout : backend.place().timeout;
  call.sequence = ++backend.calls;
  backend.bytes += call.bytes();
  const bool dropped = faults::inject(Fault::Moment::call, backend.place().rank,
                                      backend.place().group, call.sequence);
  const bool timed = backend.observer || trace::is_recording();
  const auto launched = timed ? trace::Clock::now() : trace::Clock::time_point{};
  std::shared_ptr<Work::State> state = dropped ? std::make_shared<Dropped>(group, call)
                                               : backend.submit(call);
  if (timed && state)
    state = std::make_shared<Timed>(std::move(state), call, backend.observer, launched);
  if (target.defined() && target.raw() != call.output.raw())
    state = std::make_shared<CopyBack>(std::move(state), call.output, target);
  return Work(std::move(state));
}

}  // namespace

Work::Work(std::shared_ptr<State> state)
    : state_(std::move(state)), process_(process_generation()) {}

void Work::wait() {
  if (!state_) return;
  if (process_ != process_generation())
    fail<DistributedError>(
        "Work::wait: this collective belongs to the process that this one was forked from, which "
        "alone can wait for it; wait before a fork, or start the child with exec");
  state_->wait();
}

bool Work::is_done() const {
  return !state_ || process_ != process_generation() || state_->is_done();
}

ProcessGroup::ProcessGroup() : backend_(single()) {}

ProcessGroup::ProcessGroup(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {
  if (!communicates()) return;
  faults::read_environment();
  std::vector<int> everybody(static_cast<std::size_t>(size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  normalization_ = std::make_shared<ProcessGroup>();
  normalization_->backend_ = backend_->subgroup(everybody, name() + "/normalization");
}

int ProcessGroup::rank() const { return backend_->place().rank; }
int ProcessGroup::size() const { return backend_->place().size; }
int ProcessGroup::local_rank() const { return backend_->place().local_rank; }
bool ProcessGroup::communicates() const {
  return size() > 1 || (size() == 1 && backend_->issues_alone());
}
const std::string& ProcessGroup::name() const { return backend_->place().group; }
const std::string& ProcessGroup::backend() const { return backend_->place().kind; }
std::chrono::milliseconds ProcessGroup::timeout() const { return backend_->place().timeout; }
Traffic ProcessGroup::traffic() const { return {backend_->calls, backend_->bytes}; }
const ProcessGroup& ProcessGroup::for_normalization() const {
  return normalization_ ? *normalization_ : *this;
}
Tensor ProcessGroup::empty(const Shape& shape, TensorOptions options) const {
  return backend_->is_inherited() ? tutti::empty(shape, options) : backend_->empty(shape, options);
}
void ProcessGroup::abort(const std::string& cause) const {
  if (!backend_->is_inherited()) backend_->abort(cause);
}

Work ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op, CallOptions options) const {
  check_member(*backend_, Operation::all_reduce);
  check_defined(tensor, Operation::all_reduce, "only");
  check_reducible(tensor.dtype(), op, "all_reduce");
  if (!communicates()) return {};
  const Tensor values = tensor.detach();
  return start(backend_,
               {.operation = Operation::all_reduce, .op = op, .input = values, .output = values},
               std::move(options));
}

Work ProcessGroup::all_gather(const Tensor& input, const Tensor& output,
                              CallOptions options) const {
  check_member(*backend_, Operation::all_gather);
  check_pair(input, output, Operation::all_gather);
  check_stacked(output.shape(), input.shape(), size(), Operation::all_gather, "an output",
                "the input");
  if (!communicates()) {
    output.detach().copy_(input.detach().unsqueeze(0));
    return {};
  }
  return start(
      backend_,
      {.operation = Operation::all_gather, .input = input.detach(), .output = output.detach()},
      std::move(options));
}

Work ProcessGroup::broadcast(const Tensor& tensor, int root, CallOptions options) const {
  check_member(*backend_, Operation::broadcast);
  check_defined(tensor, Operation::broadcast, "only");
  if (root < 0 || root >= size())
    fail<ValueError>("broadcast: root must be in [0, {}), got {}", size(), root);
  if (!communicates()) return {};
  const Tensor values = tensor.detach();
  return start(backend_,
               {.operation = Operation::broadcast, .root = root, .input = values, .output = values},
               std::move(options));
}

Work ProcessGroup::reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op,
                                  CallOptions options) const {
  check_member(*backend_, Operation::reduce_scatter);
  check_pair(input, output, Operation::reduce_scatter);
  check_stacked(input.shape(), output.shape(), size(), Operation::reduce_scatter, "an input",
                "the output");
  check_reducible(input.dtype(), op, "reduce_scatter");
  if (!communicates()) {
    output.detach().copy_(input.detach().select(0, 0));
    return {};
  }
  return start(backend_,
               {.operation = Operation::reduce_scatter,
                .op = op,
                .input = input.detach(),
                .output = output.detach()},
               std::move(options));
}

void ProcessGroup::barrier(CallOptions options) const {
  check_member(*backend_, Operation::barrier);
  if (!communicates()) return;
  start(backend_, {.operation = Operation::barrier}, std::move(options)).wait();
}

ProcessGroup ProcessGroup::split(int color, int key) const {
  check_member(*backend_, Operation::all_gather);
  const Tensor mine =
      tensor({static_cast<double>(color), static_cast<double>(key)}, {.dtype = int64});
  const Tensor all = tutti::empty({size(), 2}, {.dtype = int64});
  all_gather(mine, all, {.name = "split"}).wait();
  const std::string group = fmt::format("{}/split{}", name(), color);
  if (color < 0) {
    backend_->stay_out();
    return ProcessGroup(std::make_shared<NoMember>(group));
  }
  const std::int64_t* colors_and_keys = all.data<std::int64_t>();
  std::vector<int> members;
  for (int r = 0; r < size(); ++r)
    if (colors_and_keys[2 * r] == color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return colors_and_keys[2 * a + 1] < colors_and_keys[2 * b + 1];
  });
  return ProcessGroup(backend_->subgroup(members, group));
}

}  // namespace tutti::distributed
