#include "timed_barrier.h"

#include "library.h"

namespace tutti::distributed::mpi {
namespace {

using namespace std::chrono_literals;
constexpr int barrier_tag = 21837;  // that the application is unlikely to use in MPI_COMM_WORLD

}  // namespace

TimedBarrier::TimedBarrier(Purpose purpose)
    : channel_(MPI_COMM_WORLD, barrier_tag), purpose_(purpose) {
  int size = 1;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  came_.resize(static_cast<std::size_t>(size));
  if (rank_ != 0) tell(0, {.purpose = purpose, .timed_out = 0, .text = {}});
}

void TimedBarrier::tell(int rank, const Message& message) {
  check(channel_.send(rank, std::make_shared<Message>(message), sizeof(message)), "MPI_Isend");
}

// The latest message of a rank counts. What a rank sends after the decision is for a later barrier.
bool TimedBarrier::poll() {
  Message message;
  while (!decided_) {
    const std::optional<int> from = channel_.receive(&message, sizeof(message));
    if (!from) break;
    if (rank_ == 0) {
      came_[static_cast<std::size_t>(*from)] = message.purpose;
    } else {
      absent_ = message.text;
      timed_out_ = message.timed_out != 0;
      decided_ = true;
    }
  }
  if (rank_ == 0 && !decided_) collect();
  return decided_;
}

void TimedBarrier::collect() {
  std::vector<int> others, gone;
  for (std::size_t r = 1; r < came_.size(); ++r) {
    const auto rank = static_cast<int>(r);
    if (came_[r] == Purpose::gave_up) gone.push_back(rank);
    else if (came_[r] && came_[r] != purpose_) others.push_back(rank);
  }
  if (!others.empty())
    decide(purpose_ == Purpose::start
               ? fmt::format("{} {} exiting instead", ranks_to_string(others),
                             others.size() == 1 ? "is" : "are")
               : fmt::format("rank 0 is exiting{}, {} in from_environment", process().failed_start,
                             ranks_to_string(others)),
           false);
  else if (!gone.empty())
    decide(
        ranks_to_string(gone) + (gone.size() == 1 ? " has" : " have") + " given up waiting before",
        false);
  else if (missing().empty()) decide({}, false);
}

std::vector<int> TimedBarrier::missing() const {
  if (rank_ != 0) return {0};
  std::vector<int> missing;
  for (std::size_t r = 1; r < came_.size(); ++r)
    if (!came_[r]) missing.push_back(static_cast<int>(r));
  return missing;
}

void TimedBarrier::give_up() {
  if (poll()) return;
  if (rank_ == 0) return decide(distributed::to_string(Absence{missing(), "did not come"}), true);
  tell(0, {.purpose = Purpose::gave_up, .timed_out = 0, .text = {}});
  absent_ =
      "there is no answer from rank 0, which collects the others: it did not come, or waits for "
      "one that did not";
  timed_out_ = decided_ = true;
}

// On rank 0: answers all ranks that have come.
void TimedBarrier::decide(const std::string& absent, bool timed_out) {
  absent_ = absent;
  timed_out_ = timed_out;
  decided_ = true;
  Message answer{.purpose = purpose_, .timed_out = timed_out, .text = {}};
  absent.copy(answer.text, sizeof(answer.text) - 1);
  for (std::size_t r = 1; r < came_.size(); ++r)
    if (came_[r] && came_[r] != Purpose::gave_up) tell(static_cast<int>(r), answer);
  const auto deadline = deadline_after(1s);
  for (std::int64_t polls = 0; !channel_.is_sent() && Clock::now() < deadline; ++polls)
    pause(polls, true);
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
