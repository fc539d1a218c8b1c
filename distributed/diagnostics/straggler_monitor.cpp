#include "straggler_monitor.h"

#include "../../core/create.h"
#include "../backend.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace tutti::distributed {

// The times of the collectives that one backend has completed since `first_`.
class StragglerMonitor::Log {
 public:
  explicit Log(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {
    if (backend_->observer)
      fail<Error>("StragglerMonitor: group '{}' has a monitor already; destroy that one first",
                  backend_->info().group);
    clear();
  }
  ~Log() { backend_->observer = {}; }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // The observer holds a weak pointer, because a Work may be waited for after the monitor is gone.
  static std::shared_ptr<Log> of(const ProcessGroup& group) {
    const auto log = std::make_shared<Log>(group.implementation());
    log->backend_->observer = [weak = std::weak_ptr(log)](const Timing& timing) {
      if (const auto alive = weak.lock()) alive->add(timing);
    };
    return log;
  }

  // The seconds from launch to completion of every collective; -1 where nobody waited for it.
  std::vector<float> seconds() const {
    const std::lock_guard lock(mutex_);
    std::vector<float> all = seconds_;
    all.resize(static_cast<std::size_t>(backend_->calls - first_), -1.0f);
    return all;
  }
  std::string name(std::size_t i) const {
    const std::lock_guard lock(mutex_);
    return i < names_.size() ? names_[i] : std::string();
  }
  double waited_seconds() const {
    const std::lock_guard lock(mutex_);
    return waited_seconds_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    first_ = backend_->calls;
    seconds_.clear();
    names_.clear();
    waited_seconds_ = 0;
  }

 private:
  void add(const Timing& timing) {
    const std::lock_guard lock(mutex_);
    if (timing.call.sequence <= first_) return;
    const auto at = static_cast<std::size_t>(timing.call.sequence - first_ - 1);
    if (seconds_.size() <= at) {
      seconds_.resize(at + 1, -1.0f);
      names_.resize(at + 1);
    }
    seconds_[at] = std::chrono::duration<float>(timing.done - timing.launched).count();
    names_[at] = timing.call.name;
    waited_seconds_ += timing.waited;
  }

  std::shared_ptr<Backend> backend_;
  mutable std::mutex mutex_;  // a Work may be waited for on another thread
  std::int64_t first_ = 0;    // collectives that came before the log was cleared last
  std::vector<float> seconds_;
  std::vector<std::string> names_;
  double waited_seconds_ = 0;
};

namespace {

using Report = StragglerMonitor::Report;

// Replaces the values by the reduction over the ranks.
void reduce(std::vector<float>& values, const ProcessGroup& group, ReduceOp op, const char* name) {
  group
      .all_reduce(from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, float32), op,
                  {.name = name})
      .wait();
}

// What one rank contributes to a report, as it travels in the all-gather.
struct RankTotals {
  double waited_seconds = 0, held_up_seconds = 0, came_last = 0;
};

void gather_totals(const RankTotals& mine, const ProcessGroup& group, Report& report) {
  std::vector<RankTotals> all(static_cast<std::size_t>(group.size()));
  RankTotals own = mine;
  group
      .all_gather(from_blob(&own, {3}, float64), from_blob(all.data(), {group.size(), 3}, float64),
                  {.name = "StragglerMonitor: totals of each rank"})
      .wait();
  for (const RankTotals& totals : all) {
    report.waited_seconds.push_back(totals.waited_seconds);
    report.held_up_seconds.push_back(totals.held_up_seconds);
    report.came_last.push_back(static_cast<std::int64_t>(totals.came_last));
  }
}

}  // namespace

StragglerMonitor::StragglerMonitor(ProcessGroup group) : group_(std::move(group)) {
  if (group_.size() == 1) return;
  main_ = Log::of(group_);
  normalization_ = Log::of(group_.for_normalization());
}

StragglerMonitor::~StragglerMonitor() = default;

int StragglerMonitor::Report::straggler() const {
  return static_cast<int>(std::max_element(held_up_seconds.begin(), held_up_seconds.end()) -
                          held_up_seconds.begin());
}

double StragglerMonitor::waited_seconds() const {
  return main_ ? main_->waited_seconds() + normalization_->waited_seconds() : 0;
}

StragglerMonitor::Report StragglerMonitor::report() {
  if (!main_) return {.waited_seconds = {0}, .held_up_seconds = {0}, .came_last = {0}, .skews = {}};
  std::vector<float> mine = main_->seconds();
  const std::size_t group_calls = mine.size();
  const std::vector<float> statistics = normalization_->seconds();
  mine.insert(mine.end(), statistics.begin(), statistics.end());
  std::vector<float> shortest = mine, longest = mine;
  reduce(shortest, group_, ReduceOp::min, "StragglerMonitor: shortest times");
  reduce(longest, group_, ReduceOp::max, "StragglerMonitor: longest times");

  Report report;
  std::map<std::string, std::size_t> index;  // in the skews
  RankTotals totals{.waited_seconds = waited_seconds()};
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (shortest[i] < 0) continue;  // a rank has not waited for it
    const double skew = longest[i] - shortest[i];
    ++report.collectives;
    if (mine[i] == shortest[i]) {
      totals.held_up_seconds += skew;
      totals.came_last += 1;
    }
    if (i >= group_calls) continue;
    const auto [at, is_new] = index.try_emplace(main_->name(i), report.skews.size());
    if (is_new) report.skews.push_back({.name = at->first});
    Skew& of_name = report.skews[at->second];
    of_name.mean_seconds += skew;
    of_name.largest_seconds = std::max(of_name.largest_seconds, skew);
    ++of_name.calls;
  }
  for (Skew& skew : report.skews) skew.mean_seconds /= static_cast<double>(skew.calls);
  gather_totals(totals, group_, report);
  main_->clear();
  normalization_->clear();
  return report;
}

}  // namespace tutti::distributed
