// Stopping a run before its end: signals ask this process to stop, and StopAgreement lets all ranks
// stop after the same step, although only some of them were asked. What is saved then is
// TrainingRun's business.
#pragma once

#include <tutti/distributed/process_group.h>

#include <atomic>
#include <optional>

namespace tutti::examples {

/// The number of the signal that asked this process to stop training; 0 for none.
using StopRequest = std::atomic<int>;

/// From now on SIGTERM, SIGINT, SIGUSR1 and SIGHUP do not end this process but are noted in the
/// result; the first of them prints a line on standard error if `announce`. A second signal ends
/// the process at once, as it does by default, unless it is SIGHUP, which a closing terminal sends
/// several times. Where SIGHUP was ignored (nohup), it stays so. SIGPIPE is ignored from now on:
/// the write gives an error.
const StopRequest& catch_stop_signals(bool announce);
/// From now on these signals have no effect, because the process is about to end by itself.
void ignore_stop_signals();

/// Returns "SIGTERM" and the like.
std::string signal_name(int signal);

/// Decides after every step whether all ranks stop. Where ranks are several, each step starts an
/// all-reduce of 8 bytes, which travels while the step computes. Where waiting for a collective
/// makes the device wait (NCCL), one step in ten does, after it has computed.
class StopAgreement {
 public:
  /// Never stops where `request` is null, which it must be on all ranks or on none.
  StopAgreement(ProcessGroup group, const StopRequest* request);

  /// Returns whether the ranks agree after every step, so that one of them may look ahead.
  bool can_agree() const { return request_ && !group_.capabilities().device_waits; }
  /// Begins a step, after which the ranks stop if one of them cannot go on. This call is
  /// collective, and so is end_step().
  void begin_step(bool can_go_on = true);
  void end_step();
  /// Returns the signal that stops all ranks after the step that has ended; 0 for none. Once it is
  /// not 0 it stays.
  int signal() const { return agreed_; }
  /// Returns whether the ranks stop because one of them could not go on.
  bool is_load_error() const { return agreed_ == load_error; }

 private:
  static constexpr int load_error = 1000;  // larger than the number of any signal

  void start(int wish);
  void finish();

  ProcessGroup group_;
  const StopRequest* request_;
  std::int64_t steps_ = 0;
  Tensor largest_;  // int64: the largest number of a signal of all ranks
  distributed::Work work_;
  int agreed_ = 0;
};

}  // namespace tutti::examples
