#include "stop.h"

#include <tutti/core/create.h>

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace tutti::examples {
namespace {

constexpr std::array stop_signals{SIGTERM, SIGINT, SIGUSR1, SIGHUP};
constexpr std::int64_t steps_between_waits = 10;  // where the host waits for the device

// What the signal handler reads and writes. It may do so because atomics without a lock are safe
// in a handler.
StopRequest request{0};
std::atomic<bool> announces{false};
static_assert(StopRequest::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void set_handlers(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
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
  if (number == SIGHUP && request != 0) return;
  if (request.exchange(number) != 0) {
    ::signal(number, SIG_DFL);
    ::raise(number);  // takes effect when this handler returns
  } else if (announces) {
    constexpr char text[] =
        "train_resnet: stops soon, with a checkpoint; a second signal ends it at once\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, sizeof text - 1);
  }
  errno = saved_errno;
}

}  // namespace

const StopRequest& catch_stop_signals(bool announce) {
  request = 0;
  announces = announce;
  set_handlers(note_signal);
  ::signal(SIGPIPE, SIG_IGN);
  return request;
}

void ignore_stop_signals() { set_handlers(SIG_IGN); }

std::string signal_name(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

StopAgreement::StopAgreement(ProcessGroup group, const StopRequest* stop_request)
    : group_(std::move(group)), request_(stop_request) {}

void StopAgreement::begin_step(bool can_go_on) {
  ++steps_;
  if (can_agree()) start(can_go_on ? request_->load() : load_error);
}

void StopAgreement::end_step() {
  if (!request_) return;
  if (group_.capabilities().device_waits) {
    if (steps_ % steps_between_waits != 0) return;
    start(request_->load());
  }
  finish();
}

void StopAgreement::start(int wish) {
  largest_ = full({}, wish, {.dtype = int64});
  work_ = group_.all_reduce(largest_, distributed::ReduceOp::max, {.name = "stop"});
}

void StopAgreement::finish() {
  work_.wait();
  if (agreed_ == 0) agreed_ = largest_.item<int>();
}

}  // namespace tutti::examples
