// How the ranks of a training program start and stop together: with the same settings, all with the
// error that one of them has, or all after the same step because a signal has asked one of them to
// stop.
#pragma once

#include "process_group.h"

#include <atomic>
#include <functional>

namespace tutti::distributed {

/// The error of one rank, which all ranks of a group throw with the same text. None of them waits
/// for another any more, so that a program may print it once, on rank().
class ErrorOnAllRanks : public Error {
 public:
  ErrorOnAllRanks(const std::string& text, int rank, int code)
      : Error(text), rank_(rank), code_(code) {}
  /// Returns the lowest rank that has an error, which is the one of the text.
  int rank() const { return rank_; }
  /// Returns what `code_of` made of the error, such as the exit code of a program.
  int code() const { return code_; }

 private:
  int rank_, code_;
};

/// Calls `call` on every rank, and throws ErrorOnAllRanks on all of them where it throws a
/// std::exception on any. `code_of` turns an error into a number of 0 to 255 for the other ranks.
/// This call is collective: one all-reduce of 8 bytes, and two broadcasts where there is an error.
/// `call` itself must not leave the ranks at different collectives of the group.
void call_on_all_ranks(const ProcessGroup& group, const std::string& name,
                       const std::function<void()>& call,
                       const std::function<int(const std::exception&)>& code_of);

/// Throws a ValueError, with the same text on every rank, unless all ranks pass the same `text`.
/// Its lines are the settings on which the numbers of a run depend, such as "lr = 0.1"; `what`
/// names them in the error, which shows the lines in which the first rank that differs does. Ranks
/// with other settings would train on in silence:
///
///   distributed::check_same_on_ranks(group, "settings", fmt::format("lr = {}\nseed = {}", lr,
///   seed));
///
/// This call is collective (compare_texts()).
void check_same_on_ranks(const ProcessGroup& group, const std::string& what,
                         const std::string& text);

/// The number of the signal that asked this process to stop; 0 for none.
using StopRequest = std::atomic<int>;

/// From now on SIGTERM, SIGINT, SIGUSR1 and SIGHUP do not end this process but are noted in the
/// result; the first of them prints `message` on standard error, unless it is null. A second signal
/// ends the process at once, as it does by default, unless it is SIGHUP, which a closing terminal
/// sends several times. Where SIGHUP was ignored (nohup), it stays so. SIGPIPE is ignored from now
/// on: the write gives an error. `message` must live as long as the process.
const StopRequest& catch_stop_signals(const char* message = nullptr);
/// From now on these signals have no effect, because the process is about to end by itself.
void ignore_stop_signals();

/// Returns "SIGTERM" and the like.
std::string signal_name(int signal);

/// Decides after every step whether all ranks stop, although only some of them were asked to:
///
///   const StopRequest& request = distributed::catch_stop_signals();
///   distributed::StopAgreement stop(group, &request);
///   while (stop.signal() == 0) {
///     stop.begin_step();
///     train_step();
///     stop.end_step();
///   }
///
/// Where ranks are several, each step starts an all-reduce of 8 bytes, which travels through the
/// hosts while the step computes: no host waits for what its device has still to compute.
class StopAgreement {
 public:
  /// Never stops where `request` is null, which it must be on all ranks or on none.
  StopAgreement(ProcessGroup group, const StopRequest* request);

  /// Returns whether the ranks agree after every step.
  bool can_agree() const { return request_ != nullptr; }
  /// Begins a step, after which the ranks stop if one of them cannot go on. This call is
  /// collective, and so is end_step().
  void begin_step(bool can_go_on = true);
  void end_step();
  /// Returns the signal that stops all ranks after the step that has ended; 0 for none. Once it is
  /// not 0 it stays.
  int signal() const { return agreed_; }
  /// Returns whether the ranks stop because one of them could not go on.
  bool is_error() const { return agreed_ == cannot_go_on; }

 private:
  static constexpr int cannot_go_on = 1000;  // larger than the number of any signal

  ProcessGroup group_;
  const StopRequest* request_;
  Tensor largest_;  // int64: the largest number of a signal of all ranks
  Work work_;
  int agreed_ = 0;
};

}  // namespace tutti::distributed
