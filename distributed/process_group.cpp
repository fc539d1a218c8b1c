// What users call: checks the arguments of a collective and submits it (submit.h), or returns at
// once in a group of one rank. It moves no data between ranks.
#include "process_group.h"

#include "backend.h"
#include "broadcast_text.h"
#include "diagnostics/fault_injection.h"
#include "host_layout.h"
#include "lane.h"
#include "reduce.h"
#include "submit.h"

#include <algorithm>

namespace tutti::distributed {
namespace {

// The group of one rank, or of none: that of a rank that split() put into no group.
class Single : public Backend {
 public:
  using Backend::Backend;
  bool accepts(Device) const override { return true; }
  std::shared_ptr<Work::State> submit(const Collective&) override { return nullptr; }
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

// The shape of `whole` must be that of `part` after the number of ranks.
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

// Refuses a part in the memory of the whole, unless it is the part of this rank.
void check_apart(const Tensor& whole, const Tensor& part, int rank, Operation operation) {
  const auto bytes = part.numel() * static_cast<std::int64_t>(size_of(part.dtype())),
             at = reinterpret_cast<std::intptr_t>(part.raw()) -
                  reinterpret_cast<std::intptr_t>(whole.raw());
  if (whole.is_contiguous() && part.is_contiguous() && at > -bytes && at < bytes * whole.size(0) &&
      at != bytes * rank)
    fail<ValueError>(
        "{}: input and output share memory, which only this rank's part, number {} of {}, may do; "
        "pass a clone()",
        to_string(operation), rank, whole.size(0));
}

void check_arguments(const Collective& call, int rank, int ranks) {
  const Tensor &input = call.input, &output = call.output;
  const std::string name = to_string(call.operation);
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
  if (call.operation == Operation::all_gather) {
    check_stacked(output.shape(), input.shape(), ranks, call.operation, "an output", "the input");
    check_apart(output, input, rank, call.operation);
  }
  if (call.operation == Operation::reduce_scatter) {
    check_stacked(input.shape(), output.shape(), ranks, call.operation, "an input", "the output");
    check_apart(input, output, rank, call.operation);
  }
  if (call.operation == Operation::all_reduce || call.operation == Operation::reduce_scatter)
    check_reducible(input.dtype(), call.op, name.c_str());
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

// A rank's lane is that of its device. From others its tensors would be copied there, and ranks as
// threads, which share the streams of a device, would wait for each other on it.
void check_device(const Backend& backend, const Tensor& tensor, Operation operation) {
  const GroupInfo& info = backend.info();
  if (info.size == 1 || !tensor.device().is_cuda() || !backend.world() ||
      !backend.capabilities(tensor.device()).device_waits)
    return;
  const int own = backend.world()->device_of(info.world_rank());
  if (own >= 0 && tensor.device().index() != own)
    fail<DeviceError>(
        "{}: expected a tensor on cuda:{}, the device of rank {} of group '{}', got one on {}; "
        "move it there, or set `nccl` to false in the options of the launch, so that CUDA tensors "
        "pass through the host",
        to_string(operation), own, info.rank, info.group, to_string(tensor.device()));
}

void check_timeout_of(const CallOptions& options) {
  if (options.timeout.count() != 0) check_timeout("CallOptions", options.timeout);
}

Work start(const ProcessGroup& group, Collective call, CallOptions options) {
  check_member(*group.implementation(), call.operation);
  check_together(group, to_string(call.operation), [&] {
    check_arguments(call, group.rank(), group.size());
    check_device(*group.implementation(), call.output, call.operation);
    check_timeout_of(options);
  });
  call.input = call.input.detach();
  call.output = call.output.detach();
  if (group.communicates())
    return submit(group.implementation(), std::move(call), std::move(options));
  if (call.operation == Operation::all_gather) call.output.copy_(call.input.unsqueeze(0));
  if (call.operation == Operation::reduce_scatter) call.output.copy_(call.input.select(0, 0));
  return {};
}

}  // namespace

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
  check_member(*backend_, Operation::barrier);
  check_together(*this, "barrier", [&] { check_timeout_of(options); });
  if (!communicates()) return;
  // The devices have done the calls of normalization layers, too, which no other call waits for.
  if (normalization_ && !backend_->belongs_to_parent())
    if (const Lane* lane = normalization_->backend_->made_lane()) lane->wait_for_device();
  submit(backend_, {.operation = Operation::barrier}, std::move(options)).wait();
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
