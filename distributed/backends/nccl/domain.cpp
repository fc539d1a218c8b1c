#include "domain.h"

#include "../../../core/cuda/check.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tutti::distributed::nccl {
namespace {

using namespace std::chrono_literals;

constexpr auto slow = 1s;       // a collective that takes longer is compared with the other ranks'
constexpr auto farewell = 10s;  // how long the end waits for the others', and for graphs
constexpr std::size_t most_prints = 4;

// What a rank tells of one group. In the store: all of them after each other, as plain bytes.
struct Report {
  std::int64_t issued = 0, pending = 0;
  Fingerprint prints[most_prints];  // of the oldest that are under way
};

using Reports = std::map<std::string, Report>;  // by the key of the group

std::string encode(const Reports& reports) {
  std::string text;
  for (const auto& [key, report] : reports) {
    text += key;
    text += '\0';
    text.append(reinterpret_cast<const char*>(&report), sizeof(report));
  }
  return text;
}

Reports decode(const std::string& text) {
  Reports reports;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\0', at);
    if (end == std::string::npos || text.size() - end - 1 < sizeof(Report)) break;
    std::memcpy(static_cast<void*>(&reports[text.substr(at, end - at)]), text.data() + end + 1,
                sizeof(Report));
    at = end + 1 + sizeof(Report);
  }
  return reports;
}

struct Domains {
  std::mutex mutex;
  std::vector<std::weak_ptr<Domain>> all;
};
Domains& domains() {
  static auto* all = new Domains;
  return *all;
}

void close_all() {
  std::vector<std::weak_ptr<Domain>> all;
  {
    const std::lock_guard lock(domains().mutex);
    all.swap(domains().all);
  }
  for (const auto& each : all)
    if (const auto domain = each.lock()) domain->close();
}

std::string retired_key(const Channel& channel) { return fmt::format("retired/{}/", channel.key); }
std::string state_key(int rank) { return fmt::format("state/{}", rank); }

}  // namespace

Domain::Domain(std::shared_ptr<rendezvous::Store> store, int device)
    : store_(std::move(store)), device_(device) {
  watcher_.emplace([this] { watch(); });
}

Domain::~Domain() { close(); }

void Domain::add(std::shared_ptr<Channel> channel) {
  const std::lock_guard lock(mutex_);
  channels_.push_back(std::move(channel));
}

void Domain::retire(Channel& channel) {
  const std::lock_guard lock(channel.mutex);
  channel.retired = true;
}

void Domain::close() {
  if (process_ !=
      process_generation()) {  // all of it belongs to the parent, NCCL's communicators too
    new std::vector(std::move(channels_));
    return;
  }
  const auto patience = std::min<Clock::duration>(farewell, member().timeout);
  {
    std::unique_lock lock(mutex_);
    if (!watcher_) return;
    for (const auto& channel : channels_) retire(*channel);
    changed_.wait_for(lock, patience, [&] { return failed_ || channels_.empty(); });
  }
  watcher_.reset();
  for (const auto deadline = Clock::now() + patience;
       abort_all(), !channels_.empty() && Clock::now() < deadline;)
    std::this_thread::sleep_for(1ms);
  if (!channels_.empty())
    new std::vector(std::move(channels_));  // they end with the graphs that hold them, if ever
}

void Domain::note(const Failure& why) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = why;
  failed_ = true;
  changed_.notify_all();
}

void Domain::fail(const Failure& why) {
  if (failed_) return;
  Failure first = why;
  try {
    first = store_->fail(why);
  } catch (const Error&) {  // nobody else can be told
  }
  note(first);
}

std::optional<Failure> Domain::failure() const {
  if (!failed_) return {};
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Domain::check(const Collective& call, const Backend::Place& place) const {
  if (const auto why = failure()) raise(*why, call, place);
}

Poll Domain::until(Clock::time_point deadline, const std::string& what,
                   const Backend::Place& place) {
  return [this, deadline, what, place] {
    if (Clock::now() >= deadline)
      fail({.at = what,
            .what = fmt::format("not all ranks were there within {}",
                                distributed::to_string(place.timeout)),
            .timeout = true});
    const auto why = failure();
    if (!why) return;
    const std::string text = fmt::format("{}: {}{}{} [rank {} of {}]", what, why->at,
                                         why->at.empty() ? "" : ": ", why->what, place.rank,
                                         place.size);
    CollectiveInfo info{
        .rank = place.rank, .world_size = place.size, .operation = what, .name = {}};
    if (why->timeout) throw TimeoutError(text, info);
    throw DistributedError(text, info);
  };
}

void Domain::watch() {
  try {
    // What this thread asks of CUDA does not disturb a graph that another thread captures.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (looks_ == 0) {
      cuda::check(cudaSetDevice(device_), "cudaSetDevice", "nccl");
      cuda::check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode",
                  "nccl");
    }
    // The more ranks, the less often each of them asks rank 0.
    if (!failed_ && looks_++ % (1 + member().size / 256) == 0) look();
  } catch (const std::exception& error) {
    fail({.what = fmt::format("rank {}: {}", member().rank, error.what())});
  }
  if (failed_) abort_all();
  changed_.notify_all();
}

void Domain::look() {
  if (const auto why = store_->failure()) return note(*why);
  std::vector<std::shared_ptr<Channel>> channels;
  {
    const std::lock_guard lock(mutex_);
    channels = channels_;
  }
  publish();
  for (const auto& channel : channels) {
    look_at(*channel);
    if (failed_) return;
    bury(*channel);
  }
}

// Ends what is under way on this rank's device: of all groups at once, because the end of one waits
// for the device, and may wait for a graph that the program destroys when it has got its error.
void Domain::abort_all() {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    const std::lock_guard lock(mutex_);
    channels = channels_;
  }
  for (const auto& channel : channels) channel->communicator.abort();
  std::erase_if(channels, [](const auto& channel) { return channel->communicator.ending(); });
  for (const auto& channel : channels) drop(*channel);
}

// Its communicator is free.
void Domain::drop(Channel& channel) {
  {
    const std::lock_guard lock(channel.mutex);
    channel.pending.clear();
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(channels_, [&](const auto& other) { return other.get() == &channel; });
}

// Drops what is done and keeps the deadline of what is not.
void Domain::look_at(Channel& channel) {
  std::shared_ptr<Pending> first;
  {
    const std::lock_guard lock(channel.mutex);
    while (!channel.pending.empty() && channel.pending.front()->launched &&
           channel.pending.front()->done.passed())
      channel.pending.pop_front();
    if (!channel.pending.empty()) first = channel.pending.front();
  }
  if (const std::string error = channel.communicator.asynchronous_error(); !error.empty()) {
    // When a rank dies NCCL often knows before the store does, but not whose fault it is.
    if (!channel.error_since) channel.error_since = Clock::now();
    if (Clock::now() - *channel.error_since > slow)
      return fail({.at = first ? describe(first->call, channel.place) : "", .what = error});
  }
  if (!first) return;
  if (!first->since) {
    // Time counts from when this rank's inputs are there: what its own device still has to do is
    // nobody's fault.
    const std::lock_guard lock(channel.mutex);
    if (!first->launched || first->ready.passed()) first->since = Clock::now();
    return;
  }
  const auto waited = Clock::now() - *first->since;
  const bool late = waited >= first->call.timeout;
  if (!late && waited < std::min<Clock::duration>(slow, first->call.timeout / 2)) return;
  std::string why = explain(channel, *first, late);
  if (!why.empty())
    fail({.at = describe(first->call, channel.place), .what = std::move(why), .timeout = late});
}

// Empty where the ranks that have come agree and it is not yet too late.
std::string Domain::explain(const Channel& channel, const Pending& pending, bool late) {
  const rendezvous::Values states = store_->list("state/");
  std::vector<Fingerprint> prints;
  std::vector<int> missing;
  std::int64_t completed = pending.print.sequence - 1;  // by all: what comes before is done here
  for (std::size_t r = 0; r < channel.world_ranks.size(); ++r) {
    prints.push_back(pending.print);
    if (static_cast<int>(r) == channel.place.rank) continue;
    const auto found = states.find(state_key(channel.world_ranks[r]));
    const Report report = found == states.end() ? Report{} : decode(found->second)[channel.key];
    if (report.issued < pending.print.sequence) {
      missing.push_back(static_cast<int>(r));
      completed = std::min(completed, report.issued);
    }
    for (std::int64_t i = 0; i < std::min<std::int64_t>(report.pending, most_prints); ++i)
      if (report.prints[i].sequence == pending.print.sequence) prints.back() = report.prints[i];
  }
  if (std::string why = disagreement(prints); !why.empty()) return why;
  // A rank that has let go of the group comes no more.
  std::vector<int> left;
  const rendezvous::Values retired = store_->list(retired_key(channel));
  for (const int r : missing)
    if (retired.contains(retired_key(channel) + std::to_string(r))) left.push_back(r);
  if (!left.empty())
    return departure(left,
                     left.size() == 1 ? "group has been destroyed" : "groups have been destroyed",
                     completed);
  if (!late) return {};
  if (missing.empty())
    return fmt::format(
        "all ranks have issued it, but it did not end within {}: a device or the network hangs",
        distributed::to_string(pending.call.timeout));
  return absence(missing, pending.call.timeout, completed);
}

void Domain::publish() {
  Reports reports;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& channel : channels_) {
      const std::lock_guard inner(channel->mutex);
      Report& report = reports[channel->key];
      report.issued = channel->issued;
      report.pending = static_cast<std::int64_t>(channel->pending.size());
      for (std::size_t i = 0; i < std::min(channel->pending.size(), most_prints); ++i)
        report.prints[i] = channel->pending[i]->print;
    }
  }
  std::string text = encode(reports);
  if (text == published_) return;
  store_->set(state_key(member().rank), text);
  published_ = std::move(text);
}

void Domain::bury(Channel& channel) {
  {
    const std::lock_guard lock(channel.mutex);
    if (!channel.retired || !channel.pending.empty() || channel.recorded > 0) return;
    if (!channel.last.recorded()) channel.last.record(channel.stream);
  }
  if (!channel.last.passed()) return;
  const std::string prefix = retired_key(channel);
  if (!channel.announced) store_->set(prefix + std::to_string(channel.place.rank), "");
  channel.announced = true;
  if (store_->list(prefix).size() < channel.world_ranks.size()) return;
  channel.communicator
      .abort();  // nobody uses it, and unlike ncclCommDestroy this waits for no other rank
  if (!channel.communicator.ending()) drop(channel);
}

void close_at_exit(const std::shared_ptr<Domain>& domain) {
  const std::lock_guard lock(domains().mutex);
  static const int registered = std::atexit(close_all);
  (void)registered;
  std::erase_if(domains().all, [](const auto& each) { return each.expired(); });
  domains().all.push_back(domain);
}

}  // namespace tutti::distributed::nccl
