#include "exchange.h"

#include "../../reduce.h"
#include "mpi.h"

#include <algorithm>
#include <cstring>

namespace tutti::distributed::mpi {
namespace {

constexpr std::size_t header = 128;
static_assert(sizeof(Fingerprint) <= header && std::is_trivially_copyable_v<Fingerprint>);

// What this rank sends to each other one: everything, its slice, or (broadcast) nothing but for the
// root.
std::size_t bytes_to_each(const Collective& call, int size) {
  const auto bytes = static_cast<std::size_t>(call.bytes());
  return call.operation == Operation::reduce_scatter ? bytes / static_cast<std::size_t>(size)
                                                     : bytes;
}

}  // namespace

Exchange::Exchange(std::shared_ptr<const GroupCommunicator> comm, const Collective& call,
                   const Backend::Place& place)
    : comm_(std::move(comm)),
      rank_(place.rank),
      size_(place.size),
      has_data_(bytes_to_each(call, place.size) <= inline_limit(place.size)),
      mine_(fingerprint(call)) {
  const std::size_t bytes = bytes_to_each(call, size_);
  const bool sliced = call.operation == Operation::reduce_scatter;
  const bool sends = has_data_ && bytes > 0 &&
                     (call.operation != Operation::broadcast || call.root == rank_);
  const std::size_t message = header + (sends ? bytes : 0);
  slot_ = header + inline_limit(size_);
  received_.reset(new char[slot_ * static_cast<std::size_t>(
                                       size_)]);  // uninitialised: most of it is never touched
  sending_.reset(new char[sends && sliced ? message * static_cast<std::size_t>(size_) : message]);
  requests_.assign(2 * static_cast<std::size_t>(size_), MPI_REQUEST_NULL);
  finished_.resize(requests_.size());
  for (int r = 0; r < size_; ++r)
    if (r != rank_)
      check(
          MPI_Irecv(received_.get() + slot_ * static_cast<std::size_t>(r), static_cast<int>(slot_),
                    MPI_BYTE, r, 0, comm_->get(), &requests_[static_cast<std::size_t>(r)]),
          "MPI_Irecv");
  const auto fill = [&](char* to, std::size_t from) {
    std::memcpy(to, &mine_, sizeof(mine_));
    std::memset(to + sizeof(mine_), 0, header - sizeof(mine_));
    if (sends) std::memcpy(to + header, static_cast<const char*>(call.input.raw()) + from, bytes);
  };
  if (!(sends && sliced)) fill(sending_.get(), 0);
  for (int step = 1; step < size_; ++step) {
    const int r = (rank_ + step) % size_;  // not everybody to rank 0 first
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
  // In a group that has failed nothing is received any more; where only nobody waited, the next
  // call would get this one's.
  try {
    if (!is_gone() && comm_->domain().failure()) {
      for (int r = 0; r < size_; ++r) {
        MPI_Request& receive = requests_[static_cast<std::size_t>(r)];
        if (receive != MPI_REQUEST_NULL) MPI_Cancel(&receive);
      }
      if (poll()) return;
    }
  } catch (const std::exception&) {
    // Of MPI, which then did not take them back.
  }
  // MPI may still read and write what it was given.
  keep_for_ever(std::shared_ptr<char[]>(std::move(received_)));
  keep_for_ever(std::shared_ptr<char[]>(std::move(sending_)));
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

std::vector<int> Exchange::missing() const {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r)
    if (requests_[static_cast<std::size_t>(r)] != MPI_REQUEST_NULL) ranks.push_back(r);
  return ranks;
}

const char* Exchange::from(int rank) const {
  return received_.get() + slot_ * static_cast<std::size_t>(rank);
}

std::string Exchange::disagreement() const {
  std::vector<Fingerprint> prints(static_cast<std::size_t>(size_), mine_);
  for (int r = 0; r < size_; ++r)
    if (r != rank_) std::memcpy(&prints[static_cast<std::size_t>(r)], from(r), sizeof(Fingerprint));
  return distributed::disagreement(prints);
}

void Exchange::compute(const Collective& call) const {
  const auto bytes = bytes_to_each(call, size_);
  if (bytes == 0) return;
  const auto slice =
      call.operation == Operation::reduce_scatter ? bytes * static_cast<std::size_t>(rank_) : 0;
  const char* own = static_cast<const char*>(call.input.raw()) + slice;
  char* output = static_cast<char*>(call.output.raw());
  const auto data = [&](int r) { return r == rank_ ? own : from(r) + header; };
  switch (call.operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter: {
      std::vector<const void*> inputs;
      for (int r = 0; r < size_; ++r) inputs.push_back(data(r));
      void* const outputs[] = {output};
      return reduce_in_rank_order(call.input.dtype(), call.op, inputs, outputs,
                                  static_cast<std::int64_t>(bytes / size_of(call.input.dtype())));
    }
    case Operation::all_gather:
      for (int r = 0; r < size_; ++r)
        std::memcpy(output + bytes * static_cast<std::size_t>(r), data(r), bytes);
      return;
    case Operation::broadcast:
      if (call.root != rank_) std::memcpy(output, data(call.root), bytes);
      return;
    case Operation::barrier: return;
  }
}

namespace {

auto explain(const Collective& call, const std::atomic<std::int64_t>& met) {
  return [&](const std::vector<int>& ranks, bool left) {
    return left ? departure(
                      ranks,
                      ranks.size() == 1 ? "process is at its exit" : "processes are at their exit",
                      met)
                : absence(ranks, call.timeout, met);
  };
}

}  // namespace

bool give_up(const Exchange& exchange, const Collective& call, const Backend::Place& place,
             const std::atomic<std::int64_t>& met, std::chrono::steady_clock::time_point deadline) {
  return give_up(
      exchange.comm().domain(), exchange.comm().get(), call, place, deadline,
      [&] { return exchange.missing(); }, explain(call, met));
}

void meet(Exchange& exchange, const Collective& call, const Backend::Place& place,
          std::atomic<std::int64_t>& met, bool patient,
          std::chrono::steady_clock::time_point deadline) {
  Domain& domain = exchange.comm().domain();
  wait_until(
      domain, exchange.comm().get(), call, place, patient, deadline,
      [&] { return exchange.poll(); }, [&] { return exchange.missing(); }, explain(call, met));
  if (std::string why = exchange.disagreement(); !why.empty()) {
    const Failure failure{.at = describe(call, place), .what = std::move(why)};
    domain.fail(failure);
    raise(failure, call, place);
  }
  if (met < call.sequence) met = call.sequence;
}

}  // namespace tutti::distributed::mpi
