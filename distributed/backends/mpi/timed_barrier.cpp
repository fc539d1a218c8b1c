#include "timed_barrier.h"

#include "transfers.h"

#include <algorithm>
#include <cstring>

namespace tutti::distributed::mpi {
namespace {

using namespace std::chrono_literals;
// Tags that the application is unlikely to use in MPI_COMM_WORLD.
constexpr int arrival_tag = 21837, answer_tag = 21838;

// Cancels a receive. Returns false where the message had come: then the receive is complete.
bool cancel(MPI_Request& receive) {
  MPI_Status status;
  int cancelled = 0;
  MPI_Cancel(&receive);
  MPI_Wait(&receive, &status);
  MPI_Test_cancelled(&status, &cancelled);
  return cancelled != 0;
}

}  // namespace

// Delegates to a constructor, so that the destructor keeps the memory where this one throws.
TimedBarrier::TimedBarrier(Purpose purpose) : TimedBarrier() {
  int size = 1;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  memory_->purpose = purpose;
  if (rank_ == 0) {
    memory_->came.assign(static_cast<std::size_t>(size), purpose);
    requests_.assign(static_cast<std::size_t>(size), MPI_REQUEST_NULL);
    for (int r = 1; r < size; ++r)
      check(MPI_Irecv(&memory_->came[static_cast<std::size_t>(r)], sizeof(Purpose), MPI_BYTE, r,
                      arrival_tag, MPI_COMM_WORLD, &requests_[static_cast<std::size_t>(r)]),
            "MPI_Irecv");
  } else {
    requests_.assign(2, MPI_REQUEST_NULL);
    check(MPI_Isend(&memory_->purpose, sizeof(Purpose), MPI_BYTE, 0, arrival_tag, MPI_COMM_WORLD,
                    &requests_[0]),
          "MPI_Isend");
    check(MPI_Irecv(&memory_->answer, sizeof(Memory::Answer), MPI_BYTE, 0, answer_tag,
                    MPI_COMM_WORLD, &requests_[1]),
          "MPI_Irecv");
  }
}

TimedBarrier::~TimedBarrier() {
  if (std::ranges::any_of(requests_, [](MPI_Request r) { return r != MPI_REQUEST_NULL; }))
    never_free(memory_);
}

bool TimedBarrier::poll() {
  if (decided_) return true;
  const bool all_came = all_done(requests_);
  if (rank_ == 0) {
    collect(all_came);
  } else if (requests_[1] == MPI_REQUEST_NULL) {
    read_answer();
  }
  return decided_;
}

void TimedBarrier::read_answer() {
  absent_ = memory_->answer.text;
  timed_out_ = memory_->answer.timed_out != 0;
  decided_ = true;
}

void TimedBarrier::collect(bool all_came) {
  std::vector<int> others, gone;
  for (std::size_t r = 1; r < requests_.size(); ++r) {
    if (requests_[r] != MPI_REQUEST_NULL) continue;
    const auto rank = static_cast<int>(r);
    Purpose& came = memory_->came[r];
    for (int more = 0;;) {
      check(MPI_Iprobe(rank, arrival_tag, MPI_COMM_WORLD, &more, MPI_STATUS_IGNORE), "MPI_Iprobe");
      if (!more) break;
      check(MPI_Recv(&came, sizeof(Purpose), MPI_BYTE, rank, arrival_tag, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE),
            "MPI_Recv");
    }
    if (came == Purpose::gave_up) gone.push_back(rank);
    else if (came != memory_->purpose) others.push_back(rank);
  }
  const bool starting = memory_->purpose == Purpose::start;
  if (!others.empty())
    decide(starting
               ? fmt::format("{} {} exiting instead", ranks_to_string(others),
                             others.size() == 1 ? "is" : "are")
               : fmt::format("rank 0 is exiting, {} in from_environment", ranks_to_string(others)),
           false);
  else if (!gone.empty())
    decide(
        ranks_to_string(gone) + (gone.size() == 1 ? " has" : " have") + " given up waiting before",
        false);
  else if (all_came) decide({}, false);
}

std::vector<int> TimedBarrier::missing() const {
  if (rank_ != 0) return {0};
  std::vector<int> missing;
  for (std::size_t r = 1; r < requests_.size(); ++r)
    if (requests_[r] != MPI_REQUEST_NULL) missing.push_back(static_cast<int>(r));
  return missing;
}

void TimedBarrier::give_up() {
  if (poll()) return;
  if (rank_ != 0) {
    if (!cancel(requests_[1])) return read_answer();  // it came at the last moment
    check(MPI_Isend(&memory_->gave_up, sizeof(Purpose), MPI_BYTE, 0, arrival_tag, MPI_COMM_WORLD,
                    &requests_.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Isend");
    absent_ =
        "there is no answer from rank 0, which collects the others: it did not come, or waits for "
        "one that did not";
    timed_out_ = decided_ = true;
    return;
  }
  decide(ranks_to_string(missing()) + " did not come", true);
}

// On rank 0: answers all ranks that have come.
void TimedBarrier::decide(std::string absent, bool timed_out) {
  absent_ = std::move(absent);
  timed_out_ = timed_out;
  decided_ = true;
  memory_->answer.timed_out = timed_out;
  std::memcpy(memory_->answer.text, absent_.data(),
              std::min(absent_.size(), sizeof(memory_->answer.text) - 1));
  std::vector<MPI_Request> answers;
  for (std::size_t r = 1; r < requests_.size(); ++r) {
    // What a rank sends later is for a later barrier.
    if (requests_[r] != MPI_REQUEST_NULL && cancel(requests_[r])) continue;
    if (memory_->came[r] == Purpose::gave_up) continue;
    check(MPI_Isend(&memory_->answer, sizeof(Memory::Answer), MPI_BYTE, static_cast<int>(r),
                    answer_tag, MPI_COMM_WORLD, &answers.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Isend");
  }
  const auto deadline = deadline_after(1s);
  bool sent = false;
  for (std::int64_t spins = 0; !(sent = all_done(answers)) && Clock::now() < deadline; ++spins)
    pause(spins, true);
  if (!sent) never_free(memory_);
}

void TimedBarrier::wait(Deadline deadline, const std::function<void()>& in_between,
                        const std::function<bool(std::span<const int> ranks)>& lives) {
  if (rank_ != 0) deadline.at += 1s;
  for (std::int64_t spins = 0; !poll(); ++spins) {
    pause(spins, true);
    if (in_between) in_between();
    if (Clock::now() < deadline.at) continue;
    if (!poll() && lives && lives(missing())) deadline = Deadline::after(deadline.timeout);
    else give_up();
  }
}

}  // namespace tutti::distributed::mpi
