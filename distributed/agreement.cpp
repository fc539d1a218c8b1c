#include "agreement.h"

#include "../core/signal_stack.h"
#include "backend.h"
#include "broadcast_text.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace tutti::distributed {
namespace {

constexpr std::array stop_signals{SIGTERM, SIGINT, SIGUSR1, SIGHUP};
constexpr std::int64_t steps_between_waits = 10;  // where the host waits for the device

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

}  // namespace

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
  ++steps_;
  if (can_agree()) start(can_go_on ? request_->load() : cannot_go_on);
}

void StopAgreement::end_step() {
  if (!request_) return;
  if (!group_.capabilities().device_waits) return finish();
  if (steps_ % steps_between_waits != 0) return;
  if (!stream_) stream_ = cuda::Stream::create(group_.implementation()->staging_device().index());
  const cuda::StreamScope scope(*stream_);
  if (largest_.defined()) finish();
  start(request_->load());
}

void StopAgreement::start(int wish) {
  largest_ = full({}, wish, {.dtype = int64});
  work_ = group_.all_reduce(largest_, ReduceOp::max, {.name = "stop"});
}

void StopAgreement::finish() {
  work_.wait();
  if (agreed_ == 0) agreed_ = largest_.item<int>();
}

}  // namespace tutti::distributed
