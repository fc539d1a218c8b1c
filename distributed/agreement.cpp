#include "agreement.h"

#include "../core/excerpt.h"
#include "../core/signal_stack.h"
#include "backend.h"
#include "broadcast_text.h"

#include <signal.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace tutti::distributed {
namespace {

constexpr std::array stop_signals{SIGTERM, SIGINT, SIGUSR1, SIGHUP};

// What the signal handler reads and writes. It may do so because atomics without a lock are safe
// in a handler.
StopRequest stop_request{0};
std::atomic<const char*> stop_message{nullptr};
static_assert(StopRequest::is_always_lock_free && std::atomic<const char*>::is_always_lock_free);

void set_handlers(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (const int signal : stop_signals) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if (signal != SIGHUP || before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

// Calls only functions that are safe in a signal handler.
void note_signal(int number) {
  const int saved_errno = errno;
  if (number == SIGHUP && stop_request != 0) return;
  if (stop_request.exchange(number) != 0) {
    ::signal(number, SIG_DFL);
    ::raise(number);  // takes effect when this handler returns
  } else if (const char* const text = stop_message) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
  }
  errno = saved_errno;
}

// Shows the first of the `lines` that `others` does not have.
std::string own_lines(const std::vector<std::string>& lines,
                      const std::vector<std::string>& others) {
  constexpr std::size_t most = 8;
  std::vector<std::string> own;
  for (const std::string& line : lines)
    if (std::ranges::count(others, line) == 0) own.push_back(excerpt(line));
  if (own.size() > most) own.resize(most), own.emplace_back("...");
  return own.empty() ? "none of these" : fmt::format("{}", fmt::join(own, ", "));
}

}  // namespace

void check_same_on_ranks(const ProcessGroup& group, const std::string& what,
                         const std::string& text) {
  compare_texts(group, text, what, [&](const auto& of_rank_0, const auto& of_other, int other) {
    fail<ValueError>("expected the same {} on every rank; rank 0 has {}, rank {} has {}", what,
                     own_lines(of_rank_0, of_other), other, own_lines(of_other, of_rank_0));
  });
}

void call_on_all_ranks(const ProcessGroup& group, const std::string& name,
                       const std::function<void()>& call,
                       const std::function<int(const std::exception&)>& code_of) {
  std::string report;  // a code, and the text
  int mine = group.size();
  try {
    call();
  } catch (const std::exception& error) {
    mine = group.rank();
    report = static_cast<char>(code_of(error)) + std::string(error.what());
  }
  const Tensor first = full({}, mine, {.dtype = int64});
  group.all_reduce(first, ReduceOp::min, {.name = name}).wait();
  const int rank = first.item<int>();
  if (rank == group.size()) return;
  report = broadcast_text(group, report, name, rank);
  throw ErrorOnAllRanks(report.substr(1), rank, static_cast<unsigned char>(report[0]));
}

const StopRequest& catch_stop_signals(const char* message) {
  stop_request = 0;
  stop_message = message;
  SignalStack::of_thread();
  set_handlers(note_signal);
  ::signal(SIGPIPE, SIG_IGN);
  return stop_request;
}

void ignore_stop_signals() { set_handlers(SIG_IGN); }

std::string signal_name(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

StopAgreement::StopAgreement(ProcessGroup group, const StopRequest* request)
    : group_(std::move(group)), request_(request) {}

void StopAgreement::begin_step(bool can_go_on) {
  if (!can_agree()) return;
  largest_ = full({}, can_go_on ? request_->load() : cannot_go_on, {.dtype = int64});
  work_ = group_.all_reduce(largest_, ReduceOp::max, {.name = "stop"});
}

void StopAgreement::end_step() {
  if (!can_agree()) return;
  work_.wait();
  if (agreed_ == 0) agreed_ = largest_.item<int>();
}

}  // namespace tutti::distributed
