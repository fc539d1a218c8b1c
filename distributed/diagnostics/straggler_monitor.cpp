#include "straggler_monitor.h"

#include "../../core/create.h"
#include "../backend.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace tutti::distributed {

// The collectives of one backend from `first_` on.
class Arrivals::Log {
 public:
  explicit Log(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {
    if (backend_->observer)
      fail<Error>("Arrivals: group '{}' is observed already", backend_->place().group);
    clear();
  }
  ~Log() { backend_->observer = {}; }
  // Work that is waited for after the log has gone finds nobody to tell.
  static std::shared_ptr<Log> of(const ProcessGroup& group) {
    const auto log = std::make_shared<Log>(group.implementation());
    log->backend_->observer = [weak = std::weak_ptr(log)](const Timing& timing) {
      if (const auto alive = weak.lock()) alive->add(timing);
    };
    return log;
  }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // Seconds from launch to completion; -1 where it was not waited for.
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
  double waited() const {
    const std::lock_guard lock(mutex_);
    return waited_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    first_ = backend_->calls;
    seconds_.clear();
    names_.clear();
    waited_ = 0;
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
    waited_ += timing.waited;
  }

  std::shared_ptr<Backend> backend_;
  mutable std::mutex mutex_;  // a Work may be waited for on another thread
  std::int64_t first_ = 0;
  std::vector<float> seconds_;
  std::vector<std::string> names_;
  double waited_ = 0;
};

namespace {

Tensor to_tensor(const std::vector<float>& values) {
  const Tensor result = empty({static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), result.data<float>());
  return result;
}

}  // namespace

Arrivals::Arrivals(ProcessGroup group) : group_(std::move(group)) {
  if (group_.size() == 1) return;
  main_ = Log::of(group_);
  normalization_ = Log::of(group_.for_normalization());
}

Arrivals::~Arrivals() = default;

int Arrivals::Report::straggler() const {
  return static_cast<int>(std::max_element(held_up.begin(), held_up.end()) - held_up.begin());
}

Arrivals::Report Arrivals::report() {
  const auto ranks = static_cast<std::size_t>(group_.size());
  Report report{.waited = std::vector<double>(ranks),
                .held_up = std::vector<double>(ranks),
                .came_last = std::vector<std::int64_t>(ranks),
                .skews = {}};
  if (!main_) return report;
  std::vector<float> mine = main_->seconds();
  const std::size_t own_calls = mine.size();
  const std::vector<float> statistics = normalization_->seconds();
  mine.insert(mine.end(), statistics.begin(), statistics.end());
  const Tensor minima = to_tensor(mine), maxima = to_tensor(mine);
  group_.all_reduce(minima, ReduceOp::min, {.name = "arrivals: last"}).wait();
  group_.all_reduce(maxima, ReduceOp::max, {.name = "arrivals: first"}).wait();
  const float *shortest = minima.data<float>(), *longest = maxima.data<float>();

  double sums[3] = {main_->waited() + normalization_->waited(), 0,
                    0};  // waited, held up, came last
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (shortest[i] < 0) continue;
    const double skew = longest[i] - shortest[i];
    ++report.collectives;
    if (mine[i] == shortest[i]) {
      sums[1] += skew;
      sums[2] += 1;
    }
    if (i >= own_calls) continue;
    const auto [at, is_new] = index.try_emplace(main_->name(i), report.skews.size());
    if (is_new) report.skews.push_back({.name = main_->name(i)});
    Skew& of = report.skews[at->second];
    of.mean += skew;
    of.largest = std::max(of.largest, skew);
    ++of.calls;
  }
  for (Skew& skew : report.skews) skew.mean /= static_cast<double>(skew.calls);
  std::vector<double> all(3 * ranks);
  group_
      .all_gather(from_blob(sums, {3}, float64), from_blob(all.data(), {group_.size(), 3}, float64),
                  {.name = "arrivals: by rank"})
      .wait();
  for (std::size_t r = 0; r < ranks; ++r) {
    report.waited[r] = all[3 * r];
    report.held_up[r] = all[3 * r + 1];
    report.came_last[r] = static_cast<std::int64_t>(all[3 * r + 2]);
  }
  main_->clear();
  normalization_->clear();
  return report;
}

}  // namespace tutti::distributed
