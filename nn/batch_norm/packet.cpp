#include "packet.h"

#include "../../core/create.h"
#include "../../core/cuda/stream.h"
#include "../../core/hash.h"
#include "../../distributed/broadcast_text.h"
#include "../../kernels/batch_norm_math.h"

#include <cstddef>
#include <utility>

namespace tutti::nn {
namespace {

using kernels::HeaderReport;
using kernels::PacketHeader;

static_assert(offsetof(HeaderReport, arrived) == sizeof(PacketHeader) &&
                  sizeof(HeaderReport) == sizeof(PacketHeader) + sizeof(std::uint64_t),
              "the flag of a Readback follows its bytes");

// Returns "SyncBatchNorm 'layer1.bn1' backward #41".
std::string describe(const CallId& id, Phase phase) {
  return fmt::format("{} {} #{}", id.name, phase == Phase::backward ? "backward" : "forward",
                     id.number);
}

std::string rank_of(const CallId& id) {
  return fmt::format("rank {} of {}", id.group->rank(), id.group->size());
}

[[noreturn]] void fail_collective(const CallId& id, Phase phase, const std::string& text) {
  throw DistributedError(
      text, {id.group->rank(), id.group->size(), "all_reduce", id.number, describe(id, phase)});
}

// `ranks` says which ranks will run a backward and which will not.
[[noreturn]] void fail_without_backward(const CallId& id, const std::string& ranks) {
  fail_collective(id, Phase::forward,
                  fmt::format("{} ({}): {} (NoGrad, or nothing requires grad there), so the "
                              "backward would wait until its deadline; run the forward in the same "
                              "grad mode on every rank",
                              describe(id, Phase::forward), rank_of(id), ranks));
}

// Returns "ranks 0 and 2 will run a backward, rank 1 will not". All ranks get here or none, because
// they have read the same summed header.
std::string gather_who_runs_backward(const CallId& id, bool runs_backward) {
  std::vector<int> with, without;
  const auto answers =
      distributed::all_gather_numbers(id.group->for_normalization(), {runs_backward},
                                      {.name = "SyncBatchNorm: who runs a backward"});
  for (std::size_t r = 0; r < answers.size(); ++r)
    (answers[r] ? with : without).push_back(static_cast<int>(r));
  return fmt::format("{} will run a backward, {} will not", distributed::ranks_to_string(with),
                     distributed::ranks_to_string(without));
}

}  // namespace

std::string to_string(const CallId& id) {
  if (!id.group) return id.name;
  return fmt::format("{} on {}", describe(id, Phase::forward), rank_of(id));
}

PacketHeader make_header(const CallId& id, Phase phase, std::int64_t elements) {
  const std::uint64_t hash = Hash64()
                                 .add(id.name)
                                 .add(id.traits.data(), id.traits.size())
                                 .add(static_cast<std::uint64_t>(id.number))
                                 .add(static_cast<std::uint64_t>(phase))
                                 .add(static_cast<std::uint64_t>(elements))
                                 .value();
  // 20 bits, so that the sum of their squares is exact in float64.
  const auto h = static_cast<double>((hash ^ (hash >> 20) ^ (hash >> 40)) & 0xfffffu);
  return {.fingerprint = h, .fingerprint_squared = h * h};
}

void write_header(const Tensor& packet, const PacketHeader& header) {
  copy_bytes(packet.raw(), packet.device(), &header, Device::cpu(), sizeof(header));
}

PacketHeader all_reduce_packet(const Tensor& packet, const CallId& id, Phase phase,
                               bool runs_backward, const std::function<void()>& meanwhile) {
  distributed::Work work = id.group->for_normalization().all_reduce(
      packet, distributed::ReduceOp::sum,
      {.name = describe(id, phase), .step = id.traits, .of_model = true});
  if (meanwhile) meanwhile();
  work.wait();
  if (!packet.device().is_cpu()) return {.input_grad = 1, .backward = 1};
  const PacketHeader& header = kernels::header_of(packet.data<double>());
  if (phase == Phase::forward && header.input_grad > 0 && header.backward < id.group->size())
    fail_without_backward(id, gather_who_runs_backward(id, runs_backward));
  return header;
}

void check_copied_header(const PacketHeader& header, const PacketCall& call) {
  const auto& [id, phase, runs_backward, input] = call;
  const int ranks = id.group->size();
  if (!kernels::fingerprints_agree(header.fingerprint, header.fingerprint_squared, ranks))
    fail_collective(id, phase,
                    fmt::format("{}{} ({}): not every rank was there, as the device found "
                                "meanwhile; every rank must construct and run the same layers in "
                                "the same order, with the same options and input that fits. A rank "
                                "that refused its input has thrown an error that says why; else "
                                "run the step on the CPU, where this error names who was where",
                                describe(id, phase), id.traits, rank_of(id)));
  // With packets on a device every rank that runs a backward takes part in its collective, even if
  // no rank needs the result, because the host does not read the headers in time.
  if (phase == Phase::forward && header.backward > 0 && header.backward < ranks)
    fail_without_backward(
        id, fmt::format("only {} of {} ranks will run a backward, and rank {} will{}; to find out "
                        "what the others do, print the requires_grad() of the output on every "
                        "rank, or run the step on the CPU, where this error names them",
                        header.backward, ranks, id.group->rank(), runs_backward ? "" : " not"));
}

void expect_variance(const PacketHeader& header, const CallId& id, const Shape& input) {
  const double count = header.count + header.count_low;
  if (count > 0 && count <= 1)
    fail<ShapeError>(
        "{}: expected more than 1 value per channel{} when training, got {} (input {} here)",
        to_string(id), id.group ? " over all ranks" : "", count, to_string(input));
}

void announce_refusal(const CallId& id, const std::string& why) {
  try {
    const std::string name = to_string(id) + ": ";  // which the description of the call repeats
    id.group->for_normalization().refuse(
        {.name = describe(id, Phase::forward) + ", whose arguments it refuses", .of_model = true},
        why.starts_with(name) ? why.substr(name.size()) : why);
  } catch (const std::exception&) {
    // The other ranks got this error or never joined the collective. The caller throws its own
    // error.
  }
}

// ---- DeferredErrors

void DeferredErrors::report(Device device, const std::function<PacketCall()>& call,
                            const std::function<void(HeaderReport*)>& launch) {
  if (cuda::current_stream(device.index()).is_capturing()) return launch(nullptr);
  Report report{cuda::Readback(device.index(), sizeof(PacketHeader)), device.index(), call()};
  launch(static_cast<HeaderReport*>(report.header.device_data()));
  reports_.push_back(std::move(report));
}

void DeferredErrors::throw_arrived() {
  if (reports_.empty() || cuda::current_stream(reports_.front().device).is_capturing()) return;
  while (!reports_.empty() && reports_.front().header.arrived()) {
    const Report report = std::move(reports_.front());
    reports_.pop_front();
    try {
      check(report);
    } catch (const Error& error) {
      const std::optional<ProcessGroup>& group = report.call.id.group;
      if (group && group->size() > 1) group->abort(error.what());
      throw;
    }
  }
}

void DeferredErrors::throw_all() {
  // A layer that ran on two streams has reports that no single stream orders.
  for (const Report& report : reports_) report.header.wait("batch norm: headers of packets");
  throw_arrived();
}

void DeferredErrors::check(const Report& report) {
  const PacketCall& call = report.call;
  PacketHeader header = *static_cast<const PacketHeader*>(report.header.data());
  if (call.id.group) check_copied_header(header, call);
  else header = {.count = header.count};  // Only the count is defined in moments.
  if (call.phase == Phase::forward) expect_variance(header, call.id, call.input);
}

}  // namespace tutti::nn
