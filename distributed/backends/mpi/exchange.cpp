#include "exchange.h"

#include "library.h"
#include "mpi.h"

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
      deadline_(Deadline::after(call.timeout)),
      rank_(static_cast<int>(comms_->layout().index)),
      size_(static_cast<int>(comms_->layout().own_host().size())),
      requests_(2 * static_cast<std::size_t>(size_), MPI_REQUEST_NULL) {
  // All ranks of the group must come to the same answer, whatever the number of ranks on their
  // hosts.
  const HostLayout& layout = comms_->layout();
  limit_ = inline_limit(static_cast<int>(layout.most_ranks()));
  has_data_ = flow_.bytes(layout.is_one_host() ? flow_.part() : flow_.count()) <= limit_;
}

// Returns how much data this rank sends to another one of its host.
std::size_t Exchange::bytes_to_send(int to) const {
  if (!has_data_) return 0;
  const Elements given = flow_.gives(group().rank);
  if (!comms_->layout().is_one_host()) return to == 0 ? flow_.bytes(given.count()) : 0;
  return flow_.bytes((given & flow_.takes(to)).count());
}

void Exchange::post() {
  post_receives();
  // In a reduce-scatter on one host each rank gets another part of the input, else the same data.
  const bool sliced = call_.operation == Operation::reduce_scatter &&
                      comms_->layout().is_one_host();
  std::size_t most = 0;
  for (int r = 0; r < size_; ++r)
    if (r != rank_) most = std::max(most, bytes_to_send(r));
  const bool in_slices = sliced && most > 0;
  const std::size_t message = header_bytes + most;
  sending_ = message_memory(in_slices ? message * static_cast<std::size_t>(size_) : message);
  const auto fill = [&](char* to, std::size_t from) {
    std::memcpy(to, &call_.fingerprint, sizeof(call_.fingerprint));
    if (most > 0)
      std::memcpy(to + header_bytes, static_cast<const char*>(call_.input.raw()) + from, most);
  };
  if (!in_slices) fill(sending_.get(), 0);
  for (int step = 1; step < size_; ++step) {
    const int r = (rank_ + step) % size_;  // so that not all ranks send to rank 0 first
    char* from = sending_.get();
    if (in_slices)
      fill(from += message * static_cast<std::size_t>(r), most * static_cast<std::size_t>(r));
    check(MPI_Isend(from, static_cast<int>(header_bytes + bytes_to_send(r)), MPI_BYTE, r, 0,
                    comms_->host(), &requests_[static_cast<std::size_t>(size_ + r)]),
          "MPI_Isend");
  }
}

void Exchange::post_receives() {
  const bool with_data = comms_->layout().is_one_host() || comms_->layout().is_leader();
  const auto size = static_cast<std::size_t>(size_);
  slot_bytes_ = header_bytes + (with_data ? limit_ : 0);
  received_ = message_memory(slot_bytes_ * size);  // most of it is never touched
  for (int r = 0; r < size_; ++r)
    if (r != rank_)
      check(MPI_Irecv(received_.get() + slot_bytes_ * static_cast<std::size_t>(r),
                      static_cast<int>(slot_bytes_), MPI_BYTE, r, 0, comms_->host(),
                      &requests_[static_cast<std::size_t>(r)]),
            "MPI_Irecv");
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
  never_free(std::move(received_));
  never_free(std::move(sending_));
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
  if (std::string why = disagreement(); !why.empty()) {
    comms_->world().fail({.at = describe(call_, group()), .what = std::move(why)});
    comms_->world().throw_if_failed(call_, group());
  }
  if (comms_->layout().is_one_host()) comms_->note_agreement(call_);
}

std::string Exchange::disagreement() const {
  std::vector<Fingerprint> fingerprints(static_cast<std::size_t>(size_), call_.fingerprint);
  for (int r = 0; r < size_; ++r)
    if (r != rank_)
      std::memcpy(&fingerprints[static_cast<std::size_t>(r)], message_from(r), sizeof(Fingerprint));
  return distributed::disagreement(fingerprints, comms_->layout().own_host());
}

const char* Exchange::message_from(int rank) const {
  return received_.get() + slot_bytes_ * static_cast<std::size_t>(rank);
}

const char* Exchange::data_of(std::size_t index) const {
  return index == static_cast<std::size_t>(rank_)
             ? static_cast<const char*>(call_.input.raw())
             : message_from(static_cast<int>(index)) + header_bytes;
}

void Exchange::compute() const {
  if (flow_.takes(rank_).count() == 0) return;
  flow_.compute(comms_->layout().hosts, rank_, call_.output.raw(), [&](int r, std::size_t offset) {
    return r == rank_ ? static_cast<const char*>(call_.input.raw()) + offset
                      : message_from(r) + header_bytes;
  });
}

}  // namespace tutti::distributed::mpi
