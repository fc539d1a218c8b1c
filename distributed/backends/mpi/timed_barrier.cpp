#include "timed_barrier.h"

#include "library.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace tutti::distributed::mpi {
namespace {

using namespace std::chrono_literals;
constexpr int barrier_tag = 21837;  // that the application is unlikely to use in MPI_COMM_WORLD

// How long rank 0 waits for answers to its questions.
constexpr std::chrono::milliseconds answer_time = 1s;

// The parent of a rank in the binomial tree is the rank without its lowest bit, and the ranks below
// it are the next ones, as many as that bit says.
int parent_of(int rank) { return rank & (rank - 1); }
int count_from(int rank) { return rank & -rank; }

}  // namespace

TimedBarrier::TimedBarrier(Purpose purpose)
    : channel_(MPI_COMM_WORLD, barrier_tag), purpose_(purpose) {
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  for (int step = 1; rank_ + step < size_ && parent_of(rank_ + step) == rank_; step *= 2)
    children_.push_back(rank_ + step);
  came_.resize(static_cast<std::size_t>(size_));
  came_[static_cast<std::size_t>(rank_)] = purpose;
  // The reports of a barrier that has failed do not count any more.
  if (rank_ != 0 && process().barrier_has_failed) tell(0, {.kind = Kind::came, .purpose = purpose});
  report_if_complete();
}

void TimedBarrier::tell(int rank, const Message& message) {
  const auto sent = std::make_shared<Message>(message);
  sent->number = process().barriers_passed;
  check(channel_.send(rank, sent, offsetof(Message, text) + std::strlen(sent->text) + 1),
        "MPI_Isend");
}

// What belongs to an earlier barrier is dropped; ranks that are in different ones do not meet.
bool TimedBarrier::poll() {
  Message message;
  while (!decided_) {
    const std::optional<int> from = channel_.receive(&message, sizeof(message));
    if (!from) break;
    if (message.number != process().barriers_passed) continue;
    if (message.kind == Kind::question) tell(0, {.kind = Kind::came, .purpose = purpose_});
    else if (message.kind == Kind::decision)
      finish(message, message.text[0] ? std::vector<int>() : children_);
    else receive_report(*from, message);
  }
  if (rank_ == 0 && !decided_ && missing().empty()) decide(conflict(), false);
  return decided_;
}

// The latest message of a rank itself counts more than the report of the ranks from it on.
void TimedBarrier::receive_report(int from, const Message& message) {
  if (message.kind != Kind::report || message.purpose != purpose_) {
    came_[static_cast<std::size_t>(from)] = message.purpose;
    if (rank_ != 0) return tell(0, {.kind = Kind::came, .purpose = purpose_});  // which asks
    ask_unknown();
    conflict_until_ = conflict().empty() ? (Clock::time_point::max)()
                                         : std::min(conflict_until_, Clock::now() + answer_time);
    return;
  }
  for (int r = from; r < std::min(size_, from + count_from(from)); ++r)
    if (auto& came = came_[static_cast<std::size_t>(r)]; !came) came = purpose_;
  report_if_complete();
}

void TimedBarrier::report_if_complete() {
  const auto has_come = [&](int r) { return came_[static_cast<std::size_t>(r)] == purpose_; };
  if (rank_ == 0 || !std::ranges::all_of(children_, has_come)) return;
  tell(parent_of(rank_), {.kind = Kind::report, .purpose = purpose_});
}

void TimedBarrier::ask_unknown() {
  if (rank_ != 0 || std::exchange(has_asked_, true)) return;
  for (const int rank : missing()) tell(rank, {.kind = Kind::question});
}

// On rank 0: returns the text for ranks that have come for another purpose or have given up.
std::string TimedBarrier::conflict() const {
  std::vector<int> others, gone;
  for (int r = 0; rank_ == 0 && r < size_; ++r) {
    const auto& came = came_[static_cast<std::size_t>(r)];
    if (came == Purpose::gave_up) gone.push_back(r);
    else if (came && came != purpose_) others.push_back(r);
  }
  if (!others.empty() && purpose_ == Purpose::start)
    return fmt::format("{} {} exiting instead", ranks_to_string(others),
                       others.size() == 1 ? "is" : "are");
  if (!others.empty())
    return fmt::format("rank 0 is exiting{}, {} in from_environment", process().failed_start,
                       ranks_to_string(others));
  if (gone.empty()) return {};
  return ranks_to_string(gone) + (gone.size() == 1 ? " has" : " have") + " given up waiting before";
}

std::vector<int> TimedBarrier::missing() const {
  if (rank_ != 0) return {0};
  std::vector<int> missing;
  for (int r = 0; r < size_; ++r)
    if (!came_[static_cast<std::size_t>(r)]) missing.push_back(r);
  return missing;
}

void TimedBarrier::give_up() {
  if (poll()) return;
  if (rank_ == 0 && !conflict().empty()) return decide(conflict(), false);
  if (rank_ == 0) return decide(ranks_to_string(missing()) + " did not come", true);
  tell(0, {.kind = Kind::came, .purpose = Purpose::gave_up});
  absent_ =
      "there is no answer from rank 0, which collects the others: it did not come, or waits for "
      "one that did not";
  process().barrier_has_failed = timed_out_ = decided_ = true;
}

// On rank 0. Where all have come, the answer goes down the tree, else to those that have.
void TimedBarrier::decide(const std::string& absent, bool timed_out) {
  Message decision{.kind = Kind::decision, .timed_out = timed_out};
  absent.copy(decision.text, sizeof(decision.text) - 1);
  std::vector<int> ranks = children_;
  if (!absent.empty()) {
    ranks.clear();
    for (int r = 1; r < size_; ++r)
      if (const auto& came = came_[static_cast<std::size_t>(r)]; came && came != Purpose::gave_up)
        ranks.push_back(r);
  }
  finish(decision, ranks);
  absent_ = absent;
}

// Passes the decision of rank 0 on, and keeps it.
void TimedBarrier::finish(const Message& decision, std::span<const int> ranks) {
  for (const int rank : ranks) tell(rank, decision);
  absent_ = decision.text;
  timed_out_ = decision.timed_out != 0;
  decided_ = true;
  process().barrier_has_failed = !absent_.empty();
  if (absent_.empty()) ++process().barriers_passed;
  const auto deadline = deadline_after(1s);
  for (std::int64_t polls = 0; !channel_.is_sent() && Clock::now() < deadline; ++polls)
    pause(polls, true);
}

void TimedBarrier::wait(Deadline deadline, const std::function<void()>& in_between,
                        const std::function<bool(std::span<const int> ranks)>& lives) {
  if (rank_ != 0) deadline.at += 1s;
  const auto ask_at = deadline.at -
                      std::min<std::chrono::milliseconds>(answer_time, deadline.timeout / 2);
  for (std::int64_t spins = 0; !poll(); ++spins) {
    pause(spins, true);
    if (in_between) in_between();
    const auto now = Clock::now();
    if (now >= ask_at) ask_unknown();
    if (now < std::min(deadline.at, conflict_until_) || poll()) continue;
    const bool is_conflict = !conflict().empty();
    if (now < deadline.at && !is_conflict) continue;  // a rank that had given up has come again
    if (!is_conflict && lives && lives(missing())) deadline = Deadline::after(deadline.timeout);
    else give_up();
  }
}

}  // namespace tutti::distributed::mpi
