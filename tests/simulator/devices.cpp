#include "devices.h"

#include <mpi.h>

#include <tutti/core/create.h>
#include <tutti/core/error.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/data_flow.h>
#include <tutti/distributed/lane.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <thread>

namespace tutti::simulator {
namespace {

using namespace std::chrono_literals;
using distributed::Collective;

class DeviceCall;

// What the devices of one group share.
struct Devices {
  int joined = 0;
  bool is_broken = false;  // no collective ends any more
  // The launches that have not ended, by their number on each rank, and by rank.
  std::map<int, std::map<int, DeviceCall*>> launches;
};

class DeviceLane : public distributed::Lane {
 public:
  using Lane::Lane;
  Tensor make_id() const override {
    static int next = 0;
    return full({1}, info().rank == 0 ? ++next : 0, {.dtype = int64});
  }
  void launch(DeviceCall& call);

 private:
  void set_up(const Tensor& id, const Collective&, const std::function<void()>& poll) override {
    static auto& all = *new std::map<std::int64_t, Devices>;
    devices_ = &all[id.item<std::int64_t>()];
    for (++devices_->joined; devices_->joined < info().size; std::this_thread::sleep_for(1ms))
      poll();
  }
  std::shared_ptr<distributed::IssuedCall> issue(const Collective& call) override;
  std::string asynchronous_error() override { return error_; }
  bool has_ended_work() override { return true; }
  void begin_abort() override;
  bool is_aborting() const override { return now() < abort_ends_; }

  Devices* devices_ = nullptr;
  int launched_ = 0;
  std::string error_;
  Time abort_ends_ = -1;
};

class DeviceCall : public distributed::IssuedCall {
 public:
  DeviceCall(std::shared_ptr<DeviceLane> lane, const Collective& of)
      : IssuedCall(lane, of, true), lane_(*lane) {}
  void launch() override { lane_.launch(*this); }
  bool has_inputs() const override { return true; }
  bool has_ended() const override { return is_over; }
  bool is_over = false;

 private:
  void order_current_stream() const override {}
  DeviceLane& lane_;
};

std::shared_ptr<distributed::IssuedCall> DeviceLane::issue(const Collective& call) {
  return std::make_shared<DeviceCall>(std::static_pointer_cast<DeviceLane>(shared_from_this()),
                                      call);
}

// Copies the inputs first, because calls work in place.
void compute(const std::map<int, DeviceCall*>& calls) {
  const int ranks = static_cast<int>(calls.size());
  std::vector<std::vector<char>> inputs;
  for (const auto& [rank, each] : calls) {
    const char* const data = static_cast<const char*>(each->call().input.raw());
    inputs.emplace_back(data, data + each->call().bytes());
  }
  for (const auto& [rank, each] : calls) {
    distributed::DataFlow(each->call(), ranks)
        .compute({distributed::all_ranks(ranks)}, rank, each->call().output.raw(),
                 [&](int from, std::size_t offset) {
                   return inputs[static_cast<std::size_t>(from)].data() + offset;
                 });
    each->is_over = true;
    wake_pollers(each->group().world_rank());
  }
}

void DeviceLane::launch(DeviceCall& call) {
  if (enter("launches a collective", Fault::at_launch) != MPI_SUCCESS) {
    const Fault::Kind kind = layout().fault.kind;
    if (kind == Fault::Kind::error) fail<DistributedError>("the launch failed");
    devices_->is_broken = true;
    if (kind == Fault::Kind::broken_device) error_ = "the device is broken";
    while (kind == Fault::Kind::hang && abort_ends_ < 0) std::this_thread::sleep_for(1ms);
  }
  if (abort_ends_ >= 0) fail<DistributedError>("the lane has been aborted");
  const int number = launched_++;
  auto& calls = devices_->launches[number];
  calls[info().rank] = &call;
  const auto agrees = [&](const auto& each) {
    return each.second->call().fingerprint == call.call().fingerprint;
  };
  if (std::ssize(calls) == info().size && std::ranges::all_of(calls, agrees))
    at(now() + 20 * microsecond, [devices = devices_, number] {
      if (devices->is_broken) return;
      compute(devices->launches[number]);
      devices->launches.erase(number);
    });
}

// Cuts off the ranks that still receive, which only a failure may do.
void DeviceLane::begin_abort() {
  if (abort_ends_ >= 0) return;
  abort_ends_ = now() + 2 * millisecond;
  if (!devices_) return;
  if (!devices_->launches.empty() && !world().failure()) std::fputs("a rank was cut off\n", stderr);
  devices_->is_broken = true;
  devices_->launches.clear();
}

}  // namespace

void use_device(const ProcessGroup& world) {
  world.implementation()->world()->set_devices(
      std::vector(static_cast<std::size_t>(world.size()), 0),
      [](auto of, auto info, int device) -> std::shared_ptr<distributed::Lane> {
        return std::make_shared<DeviceLane>(std::move(of), std::move(info), device);
      });
}

Tensor on_device(const Tensor& host) {
  return from_blob(
      host.raw(), host.shape(), host.dtype(), [host] {}, Device::cuda(0));
}

void wait_for_result(distributed::Work work) {
  while (!work.is_done()) std::this_thread::sleep_for(1ms);
  work.wait();
}

}  // namespace tutti::simulator
