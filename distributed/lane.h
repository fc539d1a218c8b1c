// Lane: the path of a group's CUDA tensors, on which devices exchange data without the host. The
// group's backend carries everything else. A lane belongs to one rank of one group, and controls
// its calls: it keeps their deadlines, asks where the other ranks are, and ends once all members
// have released the group. It knows no CUDA: what the device does is up to backends/nccl, and in
// tests/simulator to a device that is simulated.
//
// The host waits for nothing, so an error that comes later is thrown by the group's next call. What
// the device computes from an aborted collective is garbage, but the failure is known to the host
// before the device goes on.
#pragma once

#include "world.h"

#include <deque>

namespace tutti::distributed {

/// A collective that this rank has issued and the device has not finished. It keeps its tensors
/// alive. Its time counts from when this rank's inputs are ready, because what its own device has
/// still to do is no fault of another rank.
class IssuedCall : public WorkState, public PendingCollective {
 public:
  /// Where `watched` is false, nobody keeps the deadline of the call.
  IssuedCall(std::shared_ptr<Lane> lane, Collective call, bool watched)
      : is_watched(watched), lane_(std::move(lane)), call_(std::move(call)) {}

  /// Lets the caller's current stream wait for the collective.
  void wait() override;
  bool is_done() override;

  const Collective& call() const override { return call_; }
  const GroupInfo& group() const override;
  Deadline deadline() const override;
  Clock::time_point patient_until() const override;
  PendingState pending_state() const override;

  /// Starts the collective on the device once that has the inputs.
  virtual void launch() = 0;
  virtual bool has_inputs() const = 0;
  /// Returns whether the device has finished the collective, which has been launched.
  virtual bool has_ended() const = 0;
  bool is_under_way() const { return is_launched && !has_ended(); }

  const bool is_watched;
  std::atomic<bool> is_launched = false;
  /// Since when the collective has waited for nothing but the other ranks.
  std::optional<Clock::time_point> waiting_since = {};

 private:
  virtual void order_current_stream() const = 0;

  const std::shared_ptr<Lane> lane_;
  const Collective call_;
};

/// A lane lives until all members of the group have released it and nothing of the device holds it.
/// Watched::check() keeps deadlines and may use the World's transport; check_device() must not.
class Lane : public Watched, public std::enable_shared_from_this<Lane> {
 public:
  Lane(std::shared_ptr<World> world, std::shared_ptr<const GroupInfo> info, int device)
      : world_(std::move(world)), info_(std::move(info)), device_(device) {}

  /// The device of this rank, on which all tensors of the lane lie.
  Device device() const { return Device::cuda(device_); }
  const GroupInfo& info() const { return *info_; }
  World& world() const { return *world_; }
  /// Returns whether connect() has been called.
  bool is_connected() const { return is_connected_; }
  /// Makes what rank 0 has to send to all ranks before they connect: a uint8 tensor on the CPU.
  virtual Tensor make_id() const = 0;
  /// Sets the lane up with the other ranks, which have the same id. `call` is the group's first
  /// call of CUDA tensors, whose deadline counts.
  void connect(const Tensor& id, const Collective& call);
  /// Starts a collective on the device, after the work of the caller's current stream.
  std::shared_ptr<WorkState> submit(const Collective& call);
  /// Waits on the host until the device has finished all calls of this rank in the group. Throws
  /// the failure of the world. A barrier of the group calls it, also on the lane of its group for
  /// normalization.
  void wait_for_device() const;
  /// No handle of the group is left on this rank.
  void release() { is_released_ = true; }

  bool check() noexcept override;
  /// Called on the watcher's thread, also while the World's transport must not be used: releases
  /// what the device has finished with, and aborts the lane where the world has failed. Returns
  /// true when nothing is left on the device.
  bool check_device() noexcept;
  /// Returns whether the device has finished all calls of this rank.
  bool is_idle() const;
  /// Stops the lane on this rank's device, and waits for no other rank. check_device() tells when
  /// it has ended.
  void abort();

 protected:
  /// Keeps a call and its tensors until the device has finished it.
  void keep(std::shared_ptr<IssuedCall> call);

 private:
  // ---- what the device does

  virtual void set_up(const Tensor& id, const Collective& call,
                      const std::function<void()>& poll) = 0;
  // Notes where the inputs are ready on the caller's current stream.
  virtual std::shared_ptr<IssuedCall> issue(const Collective& call) = 0;
  // Returns an error that the device has found outside of any call, or an empty text.
  virtual std::string asynchronous_error() = 0;
  // Returns whether the device has done the group's work, so that nothing of it is left.
  virtual bool has_ended_work() = 0;
  virtual void begin_abort() = 0;
  virtual bool is_aborting() const = 0;
  // Makes a check on the watcher's thread, which may ask the device.
  virtual void guard(const std::function<void()>& check) { check(); }

  // ---- what the lane makes of that

  std::vector<std::shared_ptr<IssuedCall>> take_finished();
  void check_calls();
  void check_error();
  void check_release();

  const std::shared_ptr<World> world_;
  const std::shared_ptr<const GroupInfo> info_;
  const int device_;
  std::atomic<bool> is_connected_ = false, is_released_ = false;
  std::atomic<bool> is_ending_ = false, is_ended_ = false;  // abort() was called, is over

  mutable std::mutex mutex_;  // guards what follows
  std::deque<std::shared_ptr<IssuedCall>> calls_;
  std::vector<std::shared_ptr<IssuedCall>> kept_;
  std::string device_error_;  // which check() has to tell

  // Used by the watcher's thread only.
  std::optional<Clock::time_point> error_since_ = {};
  bool has_told_release_ = false;
};

}  // namespace tutti::distributed
