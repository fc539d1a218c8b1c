#include "exchange.h"

#include "../../reduce.h"
#include "library.h"
#include "mpi.h"

#include <algorithm>
#include <cstring>

namespace tutti::distributed::mpi {
namespace {

constexpr std::size_t header_bytes = 256;
static_assert(sizeof(Fingerprint) <= header_bytes && std::is_trivially_copyable_v<Fingerprint>);

// How much data this rank has for each other one: its slice in a reduce-scatter, else all of it.
std::size_t bytes_to_each(const Collective& call, int size) {
  const auto bytes = static_cast<std::size_t>(call.bytes());
  return call.operation == Operation::reduce_scatter ? bytes / static_cast<std::size_t>(size)
                                                     : bytes;
}

}  // namespace

Exchange::Exchange(std::shared_ptr<const GroupCommunicator> comm, const Collective& call)
    : comm_(std::move(comm)),
      call_(call),
      deadline_(Deadline::after(call.timeout)),
      rank_(group().rank),
      size_(group().size),
      has_data_(bytes_to_each(call, size_) <= inline_limit(size_)),
      own_fingerprint_(fingerprint(call)) {
  post();
}

void Exchange::post() {
  const std::size_t bytes = bytes_to_each(call_, size_);
  const bool sliced = call_.operation == Operation::reduce_scatter;
  const bool sends = has_data_ && bytes > 0 &&
                     (call_.operation != Operation::broadcast || call_.root == rank_);
  const std::size_t message = header_bytes + (sends ? bytes : 0);
  const auto size = static_cast<std::size_t>(size_);
  slot_bytes_ = header_bytes + inline_limit(size_);
  received_.reset(new char[slot_bytes_ * size]);  // uninitialised: most of it is never touched
  sending_.reset(new char[sends && sliced ? message * size : message]);
  requests_.assign(2 * size, MPI_REQUEST_NULL);
  finished_.resize(requests_.size());
  for (int r = 0; r < size_; ++r)
    if (r != rank_)
      check(MPI_Irecv(received_.get() + slot_bytes_ * static_cast<std::size_t>(r),
                      static_cast<int>(slot_bytes_), MPI_BYTE, r, 0, comm_->get(),
                      &requests_[static_cast<std::size_t>(r)]),
            "MPI_Irecv");
  const auto fill = [&](char* to, std::size_t from) {
    std::memcpy(to, &own_fingerprint_, sizeof(own_fingerprint_));
    std::memset(to + sizeof(own_fingerprint_), 0, header_bytes - sizeof(own_fingerprint_));
    if (sends)
      std::memcpy(to + header_bytes, static_cast<const char*>(call_.input.raw()) + from, bytes);
  };
  if (!(sends && sliced)) fill(sending_.get(), 0);
  for (int step = 1; step < size_; ++step) {
    const int r = (rank_ + step) % size_;  // so that not all ranks send to rank 0 first
    char* from = sending_.get();
    if (sends && sliced)
      fill(from += message * static_cast<std::size_t>(r), bytes * static_cast<std::size_t>(r));
    check(MPI_Isend(from, static_cast<int>(message), MPI_BYTE, r, 0, comm_->get(),
                    &requests_[static_cast<std::size_t>(size_ + r)]),
          "MPI_Isend");
  }
}

Exchange::~Exchange() {
  if (complete_) return;
  // In a failed world the receives can be cancelled. In any other, nobody has waited for this
  // collective; then they must stay, or the next collective would receive these messages.
  try {
    if (is_usable() && comm_->world().poll()) {
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
  never_free(std::shared_ptr<char[]>(std::move(received_)));
  never_free(std::shared_ptr<char[]>(std::move(sending_)));
}

bool Exchange::poll() {
  if (complete_) return true;
  int count = 0;
  check(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, finished_.data(),
                     MPI_STATUSES_IGNORE),
        "MPI_Testsome");
  return complete_ = count == MPI_UNDEFINED ||
                     std::all_of(requests_.begin(), requests_.end(),
                                 [](MPI_Request r) { return r == MPI_REQUEST_NULL; });
}

Stall Exchange::stall() const {
  Stall stall{.last_completed = comm_->group().last_agreed};
  for (int r = 0; r < size_; ++r)
    if (requests_[static_cast<std::size_t>(r)] != MPI_REQUEST_NULL) stall.missing.push_back(r);
  return stall;
}

void Exchange::wait_for_agreement(bool patient) {
  mpi::wait(*this, comm_->world(), patient);
  if (std::string why = disagreement(); !why.empty()) {
    const Failure failure{.at = describe(call_, group()), .what = std::move(why)};
    comm_->world().fail(failure);
    throw_failure(failure, call_, group());
  }
  std::atomic<std::int64_t>& last_agreed = comm_->group().last_agreed;
  if (last_agreed < call_.sequence) last_agreed = call_.sequence;
}

std::string Exchange::disagreement() const {
  std::vector<Fingerprint> fingerprints(static_cast<std::size_t>(size_), own_fingerprint_);
  for (int r = 0; r < size_; ++r)
    if (r != rank_)
      std::memcpy(&fingerprints[static_cast<std::size_t>(r)], message_from(r), sizeof(Fingerprint));
  return distributed::disagreement(fingerprints);
}

const char* Exchange::message_from(int rank) const {
  return received_.get() + slot_bytes_ * static_cast<std::size_t>(rank);
}

void Exchange::compute() const {
  const auto bytes = bytes_to_each(call_, size_);
  if (bytes == 0) return;
  const auto slice =
      call_.operation == Operation::reduce_scatter ? bytes * static_cast<std::size_t>(rank_) : 0;
  const char* own = static_cast<const char*>(call_.input.raw()) + slice;
  char* output = static_cast<char*>(call_.output.raw());
  const auto data = [&](int r) { return r == rank_ ? own : message_from(r) + header_bytes; };
  switch (call_.operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter: {
      std::vector<const void*> inputs;
      for (int r = 0; r < size_; ++r) inputs.push_back(data(r));
      void* const outputs[] = {output};
      return reduce_in_rank_order(call_.input.dtype(), call_.op, inputs, outputs,
                                  static_cast<std::int64_t>(bytes / size_of(call_.input.dtype())));
    }
    case Operation::all_gather:
      for (int r = 0; r < size_; ++r)
        std::memcpy(output + bytes * static_cast<std::size_t>(r), data(r), bytes);
      return;
    case Operation::broadcast:
      if (call_.root != rank_) std::memcpy(output, data(call_.root), bytes);
      return;
    case Operation::barrier: return;
  }
}

}  // namespace tutti::distributed::mpi
