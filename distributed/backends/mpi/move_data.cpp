#include "move_data.h"

#include "../../reduce.h"
#include "library.h"
#include "wait.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tutti::distributed::mpi {
namespace {

// An all-reduce goes through the tensor in blocks, so that one block travels while another is
// reduced, and so that the parts that wait for their reduction stay in the cache.
constexpr std::int64_t part_bytes = 1 << 20;
constexpr std::size_t largest_message = std::size_t{1} << 30;  // MPI counts in int

enum Tag { scatter_tag = 1, gather_tag = 2 };

// Messages in flight and the memory that they use.
class Transfers : public PendingMessages {
 public:
  Transfers(const GroupCommunicator& comm, const Collective& call) : comm_(comm), call_(call) {}
  ~Transfers() override {
    if (requests_.empty()) return;
    never_free(std::make_shared<Collective>(call_));
    never_free(scratch_);
  }
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  char* scratch(std::size_t bytes) {
    if (!scratch_ || scratch_->size() < bytes)
      scratch_ = std::make_shared<std::vector<char>>(bytes);
    return scratch_->data();
  }
  void receive(char* to, std::size_t bytes, int rank, int tag) {
    for (std::size_t at = 0; at < bytes; at += largest_message)
      check(MPI_Irecv(to + at, static_cast<int>(std::min(largest_message, bytes - at)), MPI_BYTE,
                      rank, tag, comm_.get(), &add(rank)),
            "MPI_Irecv");
  }
  void send(const char* from, std::size_t bytes, int rank, int tag) {
    for (std::size_t at = 0; at < bytes; at += largest_message)
      check(MPI_Isend(from + at, static_cast<int>(std::min(largest_message, bytes - at)), MPI_BYTE,
                      rank, tag, comm_.get(), &add(rank)),
            "MPI_Isend");
  }
  // Every wait has the whole timeout.
  void wait() {
    deadline_ = Deadline::after(call_.timeout);
    mpi::wait(*this, comm_.world(), false);
    requests_.clear();
    peers_.clear();
  }

  bool poll() override {
    int done = 0;
    if (!requests_.empty())
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                        MPI_STATUSES_IGNORE),
            "MPI_Testall");
    return requests_.empty() || done != 0;
  }
  const Collective& call() const override { return call_; }
  const GroupInfo& group() const override { return comm_.info(); }
  Deadline deadline() const override { return deadline_; }
  Stall stall() const override {
    Stall stall{.in_transfer = true};
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL &&
          std::find(stall.missing.begin(), stall.missing.end(), peers_[i]) == stall.missing.end())
        stall.missing.push_back(peers_[i]);
    return stall;
  }

 private:
  MPI_Request& add(int rank) {
    peers_.push_back(rank);
    return requests_.emplace_back(MPI_REQUEST_NULL);
  }

  const GroupCommunicator& comm_;
  const Collective& call_;
  Deadline deadline_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;  // by request: the rank on the other side
  std::shared_ptr<std::vector<char>> scratch_;
};

// One step of a reduction: part p of the input goes to rank p, which reduces it. Both are counted
// in elements, `begin` from the start of the input.
struct Parts {
  std::vector<std::int64_t> begin, count;
};

class Reduction {
 public:
  Reduction(const GroupCommunicator& comm, const Collective& call)
      : call_(call),
        rank_(comm.info().rank),
        size_(comm.info().size),
        element_(size_of(call.input.dtype())),
        input_(static_cast<char*>(call.input.raw())),
        scatters_{{{comm, call}, {comm, call}}},
        gathers_{{{comm, call}, {comm, call}}} {}

  // Step i sends its parts while step i - 1 is reduced and its results are gathered.
  void all_reduce() {
    const std::int64_t size = size_, count = call_.input.numel();
    const std::int64_t block = size * (part_bytes / static_cast<std::int64_t>(element_));
    std::vector<Parts> steps;
    for (std::int64_t begin = 0; begin < count; begin += block) {
      const std::int64_t n = std::min(block, count - begin);
      Parts& parts = steps.emplace_back();
      for (std::int64_t p = 0; p < size; ++p) {
        parts.begin.push_back(begin + n * p / size);
        parts.count.push_back(n * (p + 1) / size - n * p / size);
      }
    }
    run(
        steps, [&](const Parts& parts) { return input_ + bytes(parts.begin[mine()]); }, true);
  }

  void reduce_scatter() {
    const std::int64_t size = size_, slice = call_.input.numel() / size;
    const std::int64_t most = part_bytes / static_cast<std::int64_t>(element_);
    std::vector<Parts> steps;
    for (std::int64_t begin = 0; begin < slice; begin += most) {
      Parts& parts = steps.emplace_back();
      for (std::int64_t p = 0; p < size; ++p) {
        parts.begin.push_back(p * slice + begin);
        parts.count.push_back(std::min(most, slice - begin));
      }
    }
    char* output = static_cast<char*>(call_.output.raw());
    run(
        steps,
        [&](const Parts& parts) { return output + bytes(parts.begin[mine()] - rank_ * slice); },
        false);
  }

 private:
  std::size_t mine() const { return static_cast<std::size_t>(rank_); }
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * element_;
  }

  template <class Target>
  void run(const std::vector<Parts>& steps, const Target& target, bool gathers) {
    for (std::size_t i = 0; i <= steps.size(); ++i) {
      if (i < steps.size()) scatter(steps[i], scatters_[i % 2]);
      if (i == 0) continue;
      const Parts& parts = steps[i - 1];
      scatters_[(i - 1) % 2].wait();
      reduce(parts, scatters_[(i - 1) % 2], target(parts));
      if (gathers) {
        gathers_[(i - 1) % 2].wait();
        gather(parts, gathers_[(i - 1) % 2]);
      }
    }
    for (Transfers& each : gathers_) each.wait();
  }

  void scatter(const Parts& parts, Transfers& transfers) {
    const std::size_t room = bytes(parts.count[mine()]);
    char* scratch = transfers.scratch(room * parts.count.size());
    for (int p = 0; p < size_; ++p)
      if (p != rank_)
        transfers.receive(scratch + room * static_cast<std::size_t>(p), room, p, scatter_tag);
    for (int step = 1; step < size_; ++step) {
      const int p = (rank_ + step) % size_;
      const auto at = static_cast<std::size_t>(p);
      transfers.send(input_ + bytes(parts.begin[at]), bytes(parts.count[at]), p, scatter_tag);
    }
  }

  void reduce(const Parts& parts, Transfers& transfers, char* output) {
    const std::size_t room = bytes(parts.count[mine()]);
    const char* scratch = transfers.scratch(0);
    std::vector<const void*> inputs;
    for (std::size_t p = 0; p < parts.count.size(); ++p)
      inputs.push_back(p == mine() ? input_ + bytes(parts.begin[p]) : scratch + room * p);
    void* const outputs[] = {output};
    reduce_in_rank_order(call_.input.dtype(), call_.op, inputs, outputs, parts.count[mine()]);
  }

  // Sends the reduced part of this rank to all others, and receives theirs.
  void gather(const Parts& parts, Transfers& transfers) {
    for (int step = 1; step < size_; ++step) {
      const int to = (rank_ + step) % size_, from = (rank_ + size_ - step) % size_;
      const auto at = static_cast<std::size_t>(from);
      transfers.receive(input_ + bytes(parts.begin[at]), bytes(parts.count[at]), from, gather_tag);
      transfers.send(input_ + bytes(parts.begin[mine()]), bytes(parts.count[mine()]), to,
                     gather_tag);
    }
  }

  const Collective& call_;
  int rank_, size_;
  std::size_t element_;  // bytes
  char* input_;
  std::array<Transfers, 2> scatters_, gathers_;
};

void all_gather(Transfers& transfers, const Collective& call, const GroupInfo& group) {
  const auto bytes = static_cast<std::size_t>(call.bytes());
  char* output = static_cast<char*>(call.output.raw());
  const char* input = static_cast<const char*>(call.input.raw());
  for (int step = 1; step < group.size; ++step) {
    const int to = (group.rank + step) % group.size,
              from = (group.rank + group.size - step) % group.size;
    transfers.receive(output + bytes * static_cast<std::size_t>(from), bytes, from, gather_tag);
    transfers.send(input, bytes, to, gather_tag);
  }
  std::memcpy(output + bytes * static_cast<std::size_t>(group.rank), input, bytes);
  transfers.wait();
}

// Sends the data down a binomial tree below the root. In the step of a `distance`, the ranks that
// have the data send it to the ranks that far behind them.
void broadcast(Transfers& transfers, const Collective& call, const GroupInfo& group) {
  const auto bytes = static_cast<std::size_t>(call.bytes());
  char* data = static_cast<char*>(call.output.raw());
  const int rank = (group.rank - call.root + group.size) % group.size;
  for (int distance = 1; distance < group.size; distance *= 2) {
    if (rank < distance && rank + distance < group.size) {
      transfers.send(data, bytes, (rank + distance + call.root) % group.size, gather_tag);
    } else if (rank >= distance && rank < 2 * distance) {
      transfers.receive(data, bytes, (rank - distance + call.root) % group.size, gather_tag);
      transfers.wait();
    }
  }
  transfers.wait();
}

}  // namespace

void move_data(const GroupCommunicator& comm, const Collective& call) {
  Transfers transfers(comm, call);
  switch (call.operation) {
    case Operation::all_reduce: return Reduction(comm, call).all_reduce();
    case Operation::reduce_scatter: return Reduction(comm, call).reduce_scatter();
    case Operation::all_gather: return all_gather(transfers, call, comm.info());
    case Operation::broadcast: return broadcast(transfers, call, comm.info());
    case Operation::barrier: return;
  }
}

}  // namespace tutti::distributed::mpi
