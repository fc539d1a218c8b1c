#include "packet.h"

#include "../../core/create.h"
#include "../../core/cuda/stream.h"
#include "../../kernels/batch_norm_math.h"
#include "arguments.h"

#include <array>
#include <cstring>
#include <string_view>

namespace tutti::nn {
namespace {

// Where the numbers stand in the header of a packet; the count, of which only exact sums have a low
// part, is the kernels'.
enum Slot : std::size_t {
  count,
  count_low,
  input_grad,
  backward,
  fingerprint,
  fingerprint_squared,
  slots
};
static_assert(slots <= kernels::packet_header_size &&
              input_grad * sizeof(double) == offsetof(kernels::PacketHeader, input_grad));

using Slots = std::array<double, static_cast<std::size_t>(kernels::packet_header_size)>;

const char* text_of(Phase phase) { return phase == Phase::backward ? "backward" : "forward"; }

std::string describe(const StatisticsSync& sync, const std::string& name, Phase phase) {
  return fmt::format("{} {} #{}{}", name, text_of(phase), sync.call,
                     phase == Phase::refused ? ", whose arguments it refuses" : "");
}

double fingerprint_of(const StatisticsSync& sync, const std::string& name, Phase phase,
                      std::int64_t size) {
  std::uint64_t h = 14695981039346656037u ^ static_cast<std::uint64_t>(size);  // FNV-1a
  const auto add = [&h](std::uint64_t value) { h = (h ^ value) * 1099511628211u; };
  for (const char c : name) add(static_cast<unsigned char>(c));
  add(static_cast<std::uint64_t>(sync.call));
  add(static_cast<std::uint64_t>(phase));
  h ^= h >> 32;
  return static_cast<double>((h ^ (h >> 20)) & 0xfffffu);
}

bool agree(const Slots& values, double ranks) {
  return kernels::fingerprints_agree(values[fingerprint], values[fingerprint_squared], ranks);
}

DistributedError disagreement(const std::string& text, const StatisticsSync& sync,
                              const std::string& name, Phase phase) {
  return DistributedError(text, {sync.group.rank(), sync.group.size(), "all_reduce", sync.call,
                                 describe(sync, name, phase)});
}

std::string without_backward(const Slots& values, const StatisticsSync& sync,
                             const std::string& name) {
  return fmt::format(
      "{} (rank {} of {}): {} of the ranks need the gradient of their input, but only {} will run "
      "a backward (NoGrad, or nothing requires grad there), so it would wait for ever; run the "
      "forward in the same grad mode on every rank",
      describe(sync, name, Phase::forward), sync.group.rank(), sync.group.size(),
      values[input_grad], values[backward]);
}

constexpr std::size_t text_size = 192;

// What every rank is at, by one more collective: it happens on every rank or on none.
std::vector<std::string> gather_descriptions(const StatisticsSync& sync, const std::string& mine,
                                             std::int64_t elements) {
  const Tensor text = zeros({static_cast<std::int64_t>(text_size)}, {uint8});
  const Tensor all = zeros({sync.group.size(), static_cast<std::int64_t>(text_size)}, {uint8});
  const std::string line = fmt::format("{} with a packet of {} numbers", mine, elements);
  std::memcpy(text.raw(), line.data(), std::min(line.size(), text_size - 1));
  sync.group.for_normalization()
      .all_gather(text, all, {.name = "SyncBatchNorm: who is where"})
      .wait();
  std::vector<std::string> lines;
  for (int r = 0; r < sync.group.size(); ++r)
    lines.emplace_back(static_cast<const char*>(all.raw()) +
                       static_cast<std::size_t>(r) * text_size);
  return lines;
}

}  // namespace

kernels::PacketHeader message_of(const StatisticsSync& sync, const std::string& name, Phase phase,
                                 Expectation expectation, std::int64_t packet_elements) {
  const double h = fingerprint_of(sync, name, phase, packet_elements);
  return {.input_grad = static_cast<double>(expectation.input_grad),
          .backward = static_cast<double>(expectation.backward),
          .fingerprint = h,
          .fingerprint_squared = h * h};
}

void write_header(const Tensor& packet, const StatisticsSync& sync, const std::string& name,
                  Phase phase, Expectation expectation) {
  const kernels::PacketHeader m = message_of(sync, name, phase, expectation, packet.numel());
  const Slots values{0, 0, m.input_grad, m.backward, m.fingerprint, m.fingerprint_squared};
  copy_bytes(packet.raw(), packet.device(), values.data(), Device::cpu(), sizeof(values));
}

distributed::Work reduce_packet(const Tensor& packet, const StatisticsSync& sync,
                                const std::string& name, Phase phase, std::size_t others) {
  std::string what = describe(sync, name, phase);
  if (others > 0) what += fmt::format(" and {} more", others);
  return sync.group.for_normalization().all_reduce(packet, distributed::ReduceOp::sum,
                                                   {.name = std::move(what)});
}

PacketHeader expect_agreement(const Tensor& packet, const StatisticsSync& sync,
                              const std::string& name, Phase phase) {
  Slots values;
  std::memcpy(values.data(), packet.data<double>(), sizeof(values));
  const double ranks = sync.group.size();
  if (!agree(values, ranks)) {
    const auto lines = gather_descriptions(sync, describe(sync, name, phase), packet.numel());
    const std::string& own = lines[static_cast<std::size_t>(sync.group.rank())];
    std::string others;
    for (std::size_t r = 0; r < lines.size(); ++r)
      if (lines[r] != own)
        others += fmt::format("{}rank {} is at {}", others.empty() ? "" : ", ", r, lines[r]);
    throw disagreement(
        fmt::format("{} (rank {} of {}): {}; every rank must run the same layers in the same order",
                    own, sync.group.rank(), sync.group.size(), others),
        sync, name, phase);
  }
  if (phase == Phase::forward && values[input_grad] > 0 && values[backward] < ranks)
    throw disagreement(without_backward(values, sync, name), sync, name, phase);
  return {values[count] + values[count_low], values[input_grad], values[backward]};
}

void LateHeaders::add(const Tensor& packet, const std::optional<StatisticsSync>& sync,
                      const std::string& name, Phase phase, const Shape& input) {
  const int device = packet.device().index();
  if (cuda::current_stream(device).is_capturing()) return;
  headers_.push_back(
      {cuda::Readback(packet.raw(), device, sizeof(Slots)), device, sync, name, phase, input});
}

void LateHeaders::check(const Header& header) {
  Slots values;
  std::memcpy(values.data(), header.values.data(), sizeof(values));
  if (header.sync) {
    const StatisticsSync& sync = *header.sync;
    if (!agree(values, sync.group.size()))
      throw disagreement(fmt::format("{} (rank {} of {}): not every rank was there, as the device "
                                     "found meanwhile; every rank must run the same layers in the "
                                     "same order (on the CPU this error names who was where)",
                                     describe(sync, header.name, header.phase), sync.group.rank(),
                                     sync.group.size()),
                         sync, header.name, header.phase);
    // Here a rank that has any backward takes part in its collective, whether somebody needs that
    // or not.
    if (header.phase == Phase::forward && values[backward] > 0 &&
        values[backward] < sync.group.size())
      throw disagreement(without_backward(values, sync, header.name), sync, header.name,
                         header.phase);
  }
  const double n = values[count] + (header.sync ? values[count_low] : 0);
  if (header.phase == Phase::forward && n > 0 && n <= 1) {
    BatchNormArgs args;
    args.name = header.name;
    args.sync = header.sync;
    fail<ShapeError>("{}", too_few(args, n, header.input));
  }
}

void LateHeaders::look() {
  if (headers_.empty() || cuda::current_stream(headers_.front().device).is_capturing()) return;
  while (!headers_.empty() && headers_.front().values.arrived()) {
    const Header header = std::move(headers_.front());
    headers_.pop_front();
    try {
      check(header);
    } catch (const Error& error) {
      if (header.sync && header.sync->group.size() > 1) header.sync->group.abort(error.what());
      throw;
    }
  }
}

void LateHeaders::wait() {
  if (!headers_.empty()) headers_.back().values.wait("batch norm: what the ranks had to say");
  look();
}

void announce_refusal(const StatisticsSync& sync, const std::string& name,
                      std::int64_t packet_elements, Device device) {
  try {
    const Tensor packet = zeros({packet_elements}, {float64, device});
    write_header(packet, sync, name, Phase::refused, {});
    reduce_packet(packet, sync, name, Phase::refused).wait();
    if (device.is_cpu()) expect_agreement(packet, sync, name, Phase::refused);
  } catch (const std::exception&) {  // what the others get, or that they did not come
  }
}

}  // namespace tutti::nn
