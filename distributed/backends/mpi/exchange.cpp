#include "exchange.h"

#include "library.h"

#include <algorithm>
#include <cstring>

namespace tutti::distributed::mpi {
namespace {

constexpr std::size_t header_bytes = 256;
static_assert(sizeof(Fingerprint) == header_bytes && std::is_trivially_copyable_v<Fingerprint>);

}  // namespace

Exchange::Exchange(std::shared_ptr<const HostCommunicators> comms, const Collective& call)
    : comms_(std::move(comms)),
      call_(call),
      flow_(call, group().size),
      deadline_(Deadline::after(call.options.timeout)),
      rank_(static_cast<int>(comms_->layout().index)),
      size_(static_cast<int>(comms_->layout().own_host().size())),
      requests_(2 * static_cast<std::size_t>(size_), MPI_REQUEST_NULL) {
  const std::int64_t elements = comms_->layout().is_one_host() ? flow_.part() : flow_.count();
  has_data_ = flow_.bytes(elements) <= comms_->inline_bytes();
}

void Exchange::post() {
  const HostLayout& layout = comms_->layout();
  const auto size = static_cast<std::size_t>(size_);
  const bool is_one_host = layout.is_one_host();
  slot_bytes_ = header_bytes + (is_one_host || layout.is_leader() ? comms_->inline_bytes() : 0);
  // In a reduce-scatter on one host each rank gets another part of the input, else the same data.
  const std::int64_t given = flow_.gives(group().rank).count();
  const std::size_t data =
      has_data_ ? flow_.bytes(is_one_host ? std::min(given, flow_.part()) : given) : 0;
  const std::size_t messages = data > 0 && is_one_host && flow_.part() < given ? size : 1;
  // Most of the memory to receive is never touched.
  memory_ = message_memory(slot_bytes_ * size + messages * (header_bytes + data));
  for (int r = 0; r < size_; ++r)
    if (r != rank_)
      check(MPI_Irecv(slot_of(r), static_cast<int>(slot_bytes_), MPI_BYTE, r, 0, comms_->host(),
                      &requests_[static_cast<std::size_t>(r)]),
            "MPI_Irecv");
  char* const sending = slot_of(size_);
  for (std::size_t i = 0; i < messages; ++i) {
    char* const to = sending + i * (header_bytes + data);
    std::memcpy(to, &call_.fingerprint, sizeof(call_.fingerprint));
    if (data > 0)
      std::memcpy(to + header_bytes, static_cast<const char*>(call_.input.raw()) + i * data, data);
  }
  for (int step = 1; step < size_; ++step) {
    const int r = (rank_ + step) % size_;  // so that not all ranks send to rank 0 first
    const std::size_t message = messages == 1 ? 0 : static_cast<std::size_t>(r);
    const std::size_t bytes = header_bytes + (is_one_host || r == 0 ? data : 0);
    check(MPI_Isend(sending + message * (header_bytes + data), static_cast<int>(bytes), MPI_BYTE, r,
                    0, comms_->host(), &requests_[static_cast<std::size_t>(size_ + r)]),
          "MPI_Isend");
  }
}

Exchange::~Exchange() {
  if (complete_) return;
  // In a failed world the receives can be cancelled. In any other, nobody has waited for this
  // collective; then they must stay, or the next collective would receive these messages.
  try {
    if (is_usable() && comms_->world().poll()) {
      for (int r = 0; r < size_; ++r) {
        MPI_Request& receive = requests_[static_cast<std::size_t>(r)];
        if (receive != MPI_REQUEST_NULL) MPI_Cancel(&receive);
      }
      if (poll()) return;
    }
  } catch (const std::exception&) {
    // MPI reports an error: the requests have not been cancelled.
  }
  // MPI may still read and write this memory.
  never_free(std::move(memory_));
}

bool Exchange::poll() {
  if (complete_) return true;
  if (!is_usable()) return false;  // World::poll() says why
  return complete_ = all_done(requests_);
}

PendingState Exchange::pending_state() const {
  PendingState state{.last_completed = comms_->last_agreed()};
  for (std::size_t r = 0; r < static_cast<std::size_t>(size_); ++r)
    if (requests_[r] != MPI_REQUEST_NULL) state.missing.push_back(comms_->layout().own_host()[r]);
  return state;
}

void Exchange::wait_for_agreement(bool patient) {
  mpi::wait(*this, comms_->world(), patient);
  std::vector<Fingerprint> fingerprints(static_cast<std::size_t>(size_), call_.fingerprint);
  for (int r = 0; r < size_; ++r)
    if (r != rank_)
      std::memcpy(&fingerprints[static_cast<std::size_t>(r)], slot_of(r), sizeof(Fingerprint));
  if (std::string why = disagreement(fingerprints, comms_->layout().own_host()); !why.empty()) {
    comms_->world().fail({.at = describe(call_, group()), .what = std::move(why)});
    comms_->world().throw_if_failed(call_, group());
  }
  if (comms_->layout().is_one_host()) comms_->note_agreement(call_);
}

const char* Exchange::data_of(int index) const {
  return index == rank_ ? static_cast<const char*>(call_.input.raw())
                        : slot_of(index) + header_bytes;
}

void Exchange::compute() const {
  if (flow_.takes(rank_).count() == 0) return;
  flow_.compute(comms_->layout().hosts, rank_, call_.output.raw(),
                [&](int r, std::size_t offset) { return data_of(r) + (r == rank_ ? offset : 0); });
}

}  // namespace tutti::distributed::mpi
