// World's part about the lanes of devices: it makes them, lets its watcher check them, ends them
// and notes who has released their groups.
#include "world.h"

#include "../core/error.h"
#include "lane.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace tutti::distributed {

void World::check_watched() {
  // The end of a lane may release the last group of this world, on this thread.
  const auto self = weak_from_this().lock();
  const auto guard = [this](const std::function<void()>& check) {
    if (options_.transport) options_.transport->guard(check);
    else check();
  };
  try {
    const auto all = lanes();
    for (const auto& lane : all)
      if (lane->check_device()) {
        const std::lock_guard here(lanes_mutex_);
        std::erase(lanes_, lane);
      }
    guard([this] { watcher_.check(); });
  } catch (const std::exception& error) {
    const std::string why = fmt::format("the watcher thread failed: {}", error.what());
    guard([&] { fail({.what = why}); });
  }
}

void World::set_devices(std::vector<int> devices, MakeLane* maker) {
  devices_ = std::move(devices);
  make_lane_ = maker;
}

int World::device_of(int world_rank) const {
  return devices_.empty() ? -1 : devices_[static_cast<std::size_t>(world_rank)];
}

std::shared_ptr<Lane> World::make_lane(const std::shared_ptr<const GroupInfo>& info, int device) {
  const auto lane = make_lane_(shared_from_this(), info, device);
  {
    const std::lock_guard here(lanes_mutex_);
    lanes_.push_back(lane);
    // CUDA has been used, so this comes before its own handler.
    if (auto* const at_exit = std::exchange(options_.at_exit, nullptr)) std::atexit(at_exit);
  }
  watcher_.watch(lane);
  return lane;
}

std::vector<std::shared_ptr<Lane>> World::lanes() const {
  const std::lock_guard here(lanes_mutex_);
  return lanes_;
}

void World::wait_for_devices(std::chrono::milliseconds patience) const {
  const auto deadline = deadline_after(patience);
  try {
    while (Clock::now() < deadline && !failure() &&
           !std::ranges::all_of(lanes(), [](const auto& lane) { return lane->is_idle(); }))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } catch (const std::exception&) {}  // of a device, whose lane tells the watcher
}

void World::end_lanes(std::chrono::milliseconds patience) {
  const auto deadline = deadline_after(patience);
  const auto have_ended = [](const auto& lanes) {
    for (const auto& lane : lanes) lane->abort();
    return std::ranges::all_of(lanes, [](const auto& lane) { return lane->check_device(); });
  };
  auto all = lanes();
  while (!have_ended(all) && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (const auto& lane : all)
    if (!lane->check_device()) new auto(lane);  // its graph may outlive the world
  {
    const std::lock_guard here(lanes_mutex_);
    lanes_.clear();
  }
  for (const auto& lane : all) watcher_.unwatch(*lane);
}

void World::send_release(int from, int to, std::uint64_t group_id) {
  const Lock here = lock();
  if (options_.transport && to != from) options_.transport->send(to, Release{from, group_id});
  else releases_[{to, group_id}].insert(from);
}

std::set<int> World::releases(int rank, std::uint64_t group_id) const {
  const std::lock_guard here(mutex_);
  const auto found = releases_.find({rank, group_id});
  return found == releases_.end() ? std::set<int>() : found->second;
}

}  // namespace tutti::distributed
