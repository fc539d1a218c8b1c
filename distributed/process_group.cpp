// What users call: checks the arguments of a collective, makes its tensors dense on a device of the
// backend, numbers it and hands it over, or returns at once in a group of one rank. It moves no
// data between ranks.
#include "process_group.h"

#include "../core/ticks.h"
#include "../core/trace.h"
#include "backend.h"
#include "broadcast_text.h"
#include "data_flow.h"
#include "diagnostics/fault_injection.h"
#include "lane.h"

#include <algorithm>
#include <thread>
#include <tuple>

namespace tutti::distributed {
namespace {

// The group of one rank, or of none: that of a rank that split() put into no group.
class Single : public Backend {
 public:
  using Backend::Backend;
  bool accepts(Device) const override { return true; }
  std::shared_ptr<WorkState> submit(const Collective&) override { return nullptr; }
  std::shared_ptr<Backend> subgroup(const std::vector<int>&, const std::string& name) override {
    GroupInfo alone = info();
    alone.group = name;
    return std::make_shared<Single>(alone);
  }
};

const std::shared_ptr<Backend>& single() {
  static const auto& backend = *new std::shared_ptr<Backend>(  // threads may outlive static objects
      std::make_shared<Single>(GroupInfo{.capabilities = {.graph_capture = true}}));
  return backend;
}

// Compares the tensor that holds the parts of all ranks with that of one part, and refuses a part
// in the memory of the whole, unless it is the part of this rank.
void check_parts(const Collective& call, int rank, int ranks) {
  const bool gathers = call.operation == Operation::all_gather;
  const auto& [whole, part] = gathers ? std::tie(call.output, call.input)
                                      : std::tie(call.input, call.output);
  Shape expected = part.shape();
  expected.insert(0, ranks);
  if (!(whole.shape() == expected))
    fail<ShapeError>(
        "{}: expected {} of shape {} (the number of ranks, then the shape of {}), got {}",
        to_string(call.operation), gathers ? "an output" : "an input", to_string(expected),
        gathers ? "the input" : "the output", to_string(whole.shape()));
  const auto bytes = part.numel() * static_cast<std::int64_t>(size_of(part.dtype())),
             at = reinterpret_cast<std::intptr_t>(part.raw()) -
                  reinterpret_cast<std::intptr_t>(whole.raw());
  if (whole.is_contiguous() && part.is_contiguous() && at > -bytes && at < bytes * ranks &&
      at != bytes * rank)
    fail<ValueError>(
        "{}: input and output share memory, which only this rank's part, number {} of {}, may do; "
        "pass a clone()",
        to_string(call.operation), rank, ranks);
}

void check_arguments(const Collective& call, int rank, int ranks) {
  const Tensor &input = call.input, &output = call.output;
  const char* const name = to_string(call.operation);
  if (!input.defined() || !output.defined())
    fail<Error>("{}: the {} tensor is undefined", name,
                input.is_same(output) ? "only"
                : output.defined()    ? "input"
                                      : "output");
  if (input.dtype() != output.dtype())
    fail<DTypeError>("{}: input and output must have one dtype, got {} and {}", name,
                     tutti::to_string(input.dtype()), tutti::to_string(output.dtype()));
  if (input.device() != output.device())
    fail<DeviceError>("{}: input and output must be on one device, got {} and {}", name,
                      tutti::to_string(input.device()), tutti::to_string(output.device()));
  if (call.operation == Operation::all_gather || call.operation == Operation::reduce_scatter)
    check_parts(call, rank, ranks);
  if (call.operation == Operation::all_reduce || call.operation == Operation::reduce_scatter)
    check_reducible(input.dtype(), call.op, name);
  if (call.root < 0 || call.root >= ranks)
    fail<ValueError>("{}: root must be in [0, {}), got {}", name, ranks, call.root);
  // On the root of a broadcast too, which only reads it: the ranks must be refused together.
  if (output.has_overlapping_elements())
    fail<ShapeError>(
        "{}: elements of the {} tensor share memory, as those of an expanded tensor do; pass a "
        "clone()",
        name, input.is_same(output) ? "only" : "output");
}

// Returns a number that is the same for ranks that share a host.
std::int64_t host_number(const GroupInfo& info) {
  const auto rank = static_cast<std::size_t>(info.rank);
  if (const int emulated = emulated_ranks_per_host(); emulated > 0)
    return info.world_ranks[rank] / emulated;
  return info.hosts.empty() ? 0 : info.hosts[rank];
}

void check_member(const Backend& backend, Operation operation) {
  if (backend.info().size == 0)
    fail<DistributedError>(
        "{}: this rank is no member of group '{}' (it was split off with a negative color)",
        to_string(operation), backend.info().group);
}

class CopyBack : public WorkState {
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
class Dropped : public WorkState {
 public:
  Dropped(std::shared_ptr<Backend> backend, Collective call)
      : backend_(std::move(backend)),
        call_(std::move(call)),
        deadline_(deadline_after(call_.options.timeout) + std::chrono::seconds(5)) {}
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

// Starts a checked call on the data path of its tensor, whatever strides and device that has.
Work submit(const std::shared_ptr<Backend>& backend, Collective call, CallOptions options) {
  const GroupInfo& info = backend->info();
  if (backend->belongs_to_parent())
    fail<DistributedError>(
        "{}: group '{}' belongs to the process that this one was forked from; make groups after a "
        "fork, or start the child with exec",
        to_string(call.operation), info.group);
  backend->check_thread(to_string(call.operation));
  const bool on_lane = backend->takes_lane(call.operation, call.output);
  const Tensor target = call.output.defined() ? call.output.detach() : Tensor();
  if (target.defined()) {
    const Device device = on_lane ? Device::cuda(backend->device_of_lane())
                          : backend->accepts(target.device()) ? target.device()
                                                              : Device::cpu();
    const bool in_place = call.input.is_same(call.output);
    count_change(target.storage());
    call.input = without_gaps(in_place ? target : call.input.detach(), device, true);
    call.output = in_place ? call.input : without_gaps(target, device, false);
  } else if (backend->made_lane()) {
    backend->made_lane()->wait_for_device();
  }
  call.options = std::move(options);
  if (call.options.timeout.count() == 0) call.options.timeout = info.timeout;
  call.sequence = ++backend->calls;
  call.fingerprint = fingerprint(call, on_lane ? Path::nccl : Path::host);
  backend->bytes += call.bytes();
  if (faults::inject(Fault::Moment::call, info.rank, info.group, call.sequence))
    return Work(std::make_shared<Dropped>(backend, call));
  RecordedCall recorded = backend->record(call);
  Work work(on_lane ? backend->submit_on_lane(call) : backend->submit(call), std::move(recorded));
  // The tensor of the caller may have gaps or be on another device.
  if (target.defined() && target.raw() != call.output.raw())
    return copy_after(std::move(work), call.output, target);
  return work;
}

Work start(const ProcessGroup& group, Collective call, CallOptions options) {
  const std::shared_ptr<Backend>& backend = group.implementation();
  check_member(*backend, call.operation);
  group.check_together(to_string(call.operation), [&] {
    if (call.operation != Operation::barrier) {
      check_arguments(call, group.rank(), group.size());
      backend->check_device(call.operation, call.output);
    }
    if (options.timeout.count() != 0) check_timeout("CallOptions", options.timeout);
  });
  if (group.communicates()) return submit(backend, std::move(call), std::move(options));
  if (call.operation == Operation::all_gather)
    call.output.detach().copy_(call.input.detach().unsqueeze(0));
  if (call.operation == Operation::reduce_scatter)
    call.output.detach().copy_(call.input.detach().select(0, 0));
  return {};
}

}  // namespace

Work::Work(std::shared_ptr<WorkState> state, RecordedCall recorded)
    : state_(std::move(state)), recorded_(std::move(recorded)) {}

void Work::wait() {
  if (!state_) return;
  if (process_.is_of_parent())
    fail<DistributedError>(
        "Work::wait: this collective belongs to the process that this one was forked from, which "
        "alone can wait for it; wait before a fork, or start the child with exec");
  const std::int64_t began = ticks_now();
  {
    std::optional<trace::Span> span;
    if (!recorded_.title.empty()) span.emplace([&] { return "wait: " + recorded_.title; });
    state_->wait();
  }
  if (!recorded_.recorder) return;
  const Clock::time_point done = state_->done_at();
  const auto before = done == Clock::time_point{} ? Clock::duration{} : Clock::now() - done;
  const CallTimes times = recorded_.recorder->finish(recorded_, began, before);
  if (!recorded_.title.empty())
    trace::add_async(recorded_.title, time_of_ticks(times.issued), time_of_ticks(times.done),
                     fmt::format(R"({},"wait_us":{:.3f})", recorded_.details,
                                 1e6 * ticks_to_seconds(times.waited)));
  recorded_ = {};
}

bool Work::is_done() {
  if (!state_ || process_.is_of_parent()) return true;
  if (!state_->is_done()) return false;
  try {
    wait();  // takes the last steps, such as the copy to a tensor with gaps
  } catch (const std::exception&) {}  // the next wait() throws it again
  return true;
}

Work copy_after(Work work, const Tensor& from, const Tensor& to) {
  return Work(std::make_shared<CopyBack>(std::move(work), from, to));
}

ProcessGroup::ProcessGroup() : backend_(single()) {}

ProcessGroup::ProcessGroup(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {
  if (!communicates()) return;
  faults::read_environment();
  add_normalization(*backend_, all_ranks(size()));
}

void ProcessGroup::add_normalization(Backend& parent, const std::vector<int>& members) {
  normalization_ = std::make_shared<ProcessGroup>();
  normalization_->backend_ = parent.subgroup(members, name() + std::string(normalization_suffix));
}

int ProcessGroup::rank() const { return backend_->info().rank; }
int ProcessGroup::size() const { return backend_->info().size; }
int ProcessGroup::local_rank() const { return backend_->info().local_rank; }
bool ProcessGroup::communicates() const {
  return size() > 1 || backend_->info().communicates_alone;
}
const std::string& ProcessGroup::name() const { return backend_->info().group; }
const std::string& ProcessGroup::backend() const { return backend_->info().backend; }
Capabilities ProcessGroup::capabilities(Device device) const {
  return backend_->capabilities(device);
}
std::string ProcessGroup::why_staged() const {
  return backend_->world() ? backend_->world()->why_staged() : "";
}
std::chrono::milliseconds ProcessGroup::timeout() const { return backend_->info().timeout; }
Traffic ProcessGroup::traffic() const { return {backend_->calls, backend_->bytes}; }
const ProcessGroup& ProcessGroup::for_normalization() const {
  return normalization_ ? *normalization_ : *this;
}
void ProcessGroup::abort(const std::string& cause) const {
  if (!backend_->belongs_to_parent()) backend_->abort(cause);
}

Work ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op, CallOptions options) const {
  return start(*this,
               {.operation = Operation::all_reduce, .op = op, .input = tensor, .output = tensor},
               std::move(options));
}

Work ProcessGroup::all_gather(const Tensor& input, const Tensor& output,
                              CallOptions options) const {
  return start(*this, {.operation = Operation::all_gather, .input = input, .output = output},
               std::move(options));
}

Work ProcessGroup::broadcast(const Tensor& tensor, int root, CallOptions options) const {
  return start(*this,
               {.operation = Operation::broadcast, .root = root, .input = tensor, .output = tensor},
               std::move(options));
}

Work ProcessGroup::reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op,
                                  CallOptions options) const {
  return start(*this,
               {.operation = Operation::reduce_scatter, .op = op, .input = input, .output = output},
               std::move(options));
}

void ProcessGroup::barrier(CallOptions options) const {
  // The devices have done the calls of normalization layers, too, which no other call waits for.
  if (normalization_ && !backend_->belongs_to_parent())
    if (const Lane* lane = normalization_->backend_->made_lane()) lane->wait_for_device();
  start(*this, {.operation = Operation::barrier}, std::move(options)).wait();
}

void ProcessGroup::refuse(CallOptions call, const std::string& why) const {
  call.detail = ": " + why;
  barrier(std::move(call));
}

ProcessGroup ProcessGroup::split(int color, int key) const { return split_as("split", color, key); }

ProcessGroup ProcessGroup::split_by_host() const {
  check_member(*backend_, Operation::all_gather);
  const std::int64_t mine = host_number(backend_->info());
  std::vector<std::int64_t> hosts;  // in the order of their first ranks
  for (const std::int64_t host : all_gather_numbers(*this, {mine}, {.name = "split_by_host"}))
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  const auto number = std::find(hosts.begin(), hosts.end(), mine) - hosts.begin();
  return split_as("host", static_cast<int>(number), 0);
}

ProcessGroup ProcessGroup::split_by_size(int ranks) const {
  if (ranks < 1) fail<ValueError>("split_by_size: expected at least 1 rank, got {}", ranks);
  return split_as("part", rank() / ranks, 0);
}

// Groups of the color c are named KINDc.
ProcessGroup ProcessGroup::split_as(const char* kind, int color, int key) const {
  check_member(*backend_, Operation::all_gather);
  const auto numbers = all_gather_numbers(*this, {color, key}, {.name = "split"});
  const std::int64_t* const color_and_key = numbers.data();  // of rank 0, of rank 1, ...
  const std::string group = fmt::format("{}/{}{}", name(), kind, color);
  if (color < 0) {
    return ProcessGroup(std::make_shared<Single>(GroupInfo{.rank = -1,
                                                           .size = 0,
                                                           .local_rank = -1,
                                                           .group = group,
                                                           .backend = "none",
                                                           .world_ranks = {}}));
  }
  std::vector<int> members;
  for (int r = 0; r < size(); ++r)
    if (color_and_key[2 * r] == color) members.push_back(r);
  std::ranges::stable_sort(members, {}, [&](int r) { return color_and_key[2 * r + 1]; });
  ProcessGroup part;
  part.backend_ = backend_->subgroup(members, group);
  if (part.communicates()) part.add_normalization(*backend_, members);
  return part;
}

}  // namespace tutti::distributed
