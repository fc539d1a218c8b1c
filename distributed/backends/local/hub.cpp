#include "hub.h"

#include "../../reduce.h"

#include <algorithm>
#include <cstring>

namespace tutti::distributed::local {
namespace {

// Everybody's call is here and they agree: compute every rank's result.
void compute(const std::vector<std::optional<Collective>>& calls) {
  const Collective& first = *calls.front();
  if (first.operation == Operation::barrier) return;
  const std::size_t ranks = calls.size();
  const std::int64_t count = first.input.numel();
  const auto bytes = static_cast<std::size_t>(first.bytes());
  const DType dtype = first.input.dtype();
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (const auto& call : calls) {
    inputs.push_back(call->input.raw());
    outputs.push_back(call->output.raw());
  }
  switch (first.operation) {
    case Operation::all_reduce:
      return reduce_in_rank_order(dtype, first.op, inputs, outputs, count);
    case Operation::all_gather:
      for (void* output : outputs)
        for (std::size_t r = 0; r < ranks; ++r)
          if (bytes > 0) std::memcpy(static_cast<char*>(output) + r * bytes, inputs[r], bytes);
      return;
    case Operation::broadcast:
      for (std::size_t r = 0; r < ranks; ++r)
        if (bytes > 0 && r != static_cast<std::size_t>(first.root))
          std::memcpy(outputs[r], inputs[static_cast<std::size_t>(first.root)], bytes);
      return;
    case Operation::reduce_scatter: {
      const std::size_t slice = bytes / ranks;
      for (std::size_t r = 0; r < ranks; ++r) {
        std::vector<const void*> slices;
        for (const void* input : inputs)
          slices.push_back(static_cast<const char*>(input) + r * slice);
        reduce_in_rank_order(dtype, first.op, slices, {&outputs[r], 1},
                             count / static_cast<std::int64_t>(ranks));
      }
      return;
    }
    case Operation::barrier: return;
  }
}

class LocalWork : public Work::State {
 public:
  LocalWork(std::shared_ptr<Hub> hub, std::shared_ptr<Meeting> meeting, const Collective& call,
            const Backend::Place& place)
      : hub_(std::move(hub)), meeting_(std::move(meeting)), call_(call), place_(place) {}
  void wait() override { hub_->wait(*meeting_, call_, place_); }
  bool is_done() override { return hub_->is_done(*meeting_); }
  std::chrono::steady_clock::time_point done_at() const override { return meeting_->done_at; }

 private:
  std::shared_ptr<Hub> hub_;
  std::shared_ptr<Meeting> meeting_;
  Collective call_;
  Backend::Place place_;
};

}  // namespace

void Domain::fail(Failure why) {
  const std::lock_guard lock(mutex);
  if (!failure) failure = std::move(why);
  changed.notify_all();
}

void Domain::leave(int rank) {
  const std::lock_guard lock(mutex);
  left[static_cast<std::size_t>(rank)] = true;
  changed.notify_all();
}

void Domain::look() {
  const std::lock_guard lock(mutex);
  if (failure) return;
  for (Hub* const hub : hubs)
    for (const auto& [sequence, meeting] : hub->meetings_)
      if (hub->is_hopeless(*meeting)) return;
}

Hub::Hub(std::shared_ptr<Domain> domain, std::vector<int> world_ranks, std::string name)
    : domain_(std::move(domain)),
      world_ranks_(std::move(world_ranks)),
      name_(std::move(name)),
      last_(world_ranks_.size(), 0) {
  domain_->hubs.push_back(this);
}

Hub::~Hub() {
  const std::lock_guard lock(domain_->mutex);
  std::erase(domain_->hubs, this);
}

std::shared_ptr<Meeting> Hub::arrive(int rank, const Collective& call,
                                     const Backend::Place& place) {
  std::unique_lock lock(domain_->mutex);
  if (domain_->failure) raise(*domain_->failure, call, place);
  std::shared_ptr<Meeting>& slot = meetings_[call.sequence];
  if (!slot) {
    slot = std::make_shared<Meeting>();
    slot->calls.resize(world_ranks_.size());
  }
  const std::shared_ptr<Meeting> meeting = slot;
  meeting->calls[static_cast<std::size_t>(rank)] = call;
  last_[static_cast<std::size_t>(rank)] = call.sequence;
  if (const auto deadline = deadline_after(call.timeout); deadline < meeting->deadline) {
    meeting->deadline = deadline;
    meeting->timeout = call.timeout;
  }
  if (++meeting->present < static_cast<int>(world_ranks_.size())) return meeting;

  meetings_.erase(call.sequence);
  std::vector<Fingerprint> prints;
  for (const auto& each : meeting->calls) prints.push_back(fingerprint(*each));
  if (std::string why = disagreement(prints); !why.empty()) {
    domain_->failure = Failure{.at = describe(call, place), .what = std::move(why)};
    domain_->changed.notify_all();
    raise(*domain_->failure, call, place);
  }
  meeting->stage = Meeting::Stage::computing;
  lock.unlock();
  try {
    compute(meeting->calls);
  } catch (const std::exception& error) {
    lock.lock();
    // First what needs no memory: there may be none, and the others wait without a deadline.
    meeting->stage = Meeting::Stage::failed;
    meeting->calls.clear();
    domain_->changed.notify_all();
    if (!domain_->failure) {
      Failure& why = domain_->failure.emplace();
      why.what = fmt::format("rank {} could not compute the result: {}", place.rank, error.what());
      why.at = describe(call, place);
    }
    raise(*domain_->failure, call, place);
  }
  lock.lock();
  meeting->stage = Meeting::Stage::done;
  meeting->done_at = std::chrono::steady_clock::now();
  meeting->calls.clear();  // let go of the tensors
  domain_->changed.notify_all();
  return meeting;
}

void Hub::wait(const Meeting& meeting, const Collective& call, const Backend::Place& place) {
  std::unique_lock lock(domain_->mutex);
  while (meeting.stage != Meeting::Stage::done) {
    if (meeting.stage == Meeting::Stage::computing) {
      domain_->changed.wait(lock);  // another rank's thread is computing the result at this moment
    } else {
      if (domain_->failure || is_hopeless(meeting)) raise(*domain_->failure, call, place);
      domain_->changed.wait_until(lock, meeting.deadline);
    }
  }
}

bool Hub::is_hopeless(const Meeting& meeting) {
  if (meeting.stage != Meeting::Stage::gathering) return false;
  const std::vector<int> missing = missing_from(meeting);
  std::vector<int> left = missing;
  std::erase_if(left, [&](int r) {
    return !domain_->left[static_cast<std::size_t>(world_ranks_[static_cast<std::size_t>(r)])];
  });
  const bool late = std::chrono::steady_clock::now() >= meeting.deadline;
  if (left.empty() && !late) return false;
  // All who are here have completed what the slowest of the others has come to.
  const std::int64_t completed = *std::min_element(last_.begin(), last_.end());
  const auto here = std::find_if(meeting.calls.begin(), meeting.calls.end(),
                                 [](const auto& call) { return call.has_value(); });
  const char* how = left.size() == 1 ? "function has returned" : "functions have returned";
  domain_->failure = Failure{.at = describe(**here, {.group = name_}),
                             .what = left.empty() ? absence(missing, meeting.timeout, completed)
                                                  : departure(left, how, completed),
                             .timeout = left.empty()};
  domain_->changed.notify_all();
  return true;
}

bool Hub::is_done(const Meeting& meeting) {
  const std::lock_guard lock(domain_->mutex);
  return meeting.stage == Meeting::Stage::done ||
         (meeting.stage != Meeting::Stage::computing && domain_->failure);
}

std::shared_ptr<Hub> Hub::child(const std::vector<int>& members, int number,
                                const std::string& name) {
  const std::lock_guard lock(domain_->mutex);
  const auto key = std::pair(members, number);
  Child& entry = children_[key];
  if (!entry.hub) {
    std::vector<int> world_ranks;
    for (const int member : members)
      world_ranks.push_back(world_ranks_[static_cast<std::size_t>(member)]);
    entry.hub = std::make_shared<Hub>(domain_, std::move(world_ranks), name);
  }
  const std::shared_ptr<Hub> hub = entry.hub;
  if (++entry.taken == members.size()) children_.erase(key);
  return hub;
}

std::vector<int> Hub::missing_from(const Meeting& meeting) const {
  std::vector<int> missing;
  for (std::size_t r = 0; r < meeting.calls.size(); ++r)
    if (!meeting.calls[r]) missing.push_back(static_cast<int>(r));
  return missing;
}

std::shared_ptr<Work::State> LocalBackend::submit(const Collective& call) {
  return std::make_shared<LocalWork>(hub_, hub_->arrive(place().rank, call, place()), call,
                                     place());
}

std::shared_ptr<Backend> LocalBackend::subgroup(const std::vector<int>& members,
                                                const std::string& name) {
  return std::make_shared<LocalBackend>(hub_->child(members, subgroups_[members]++, name),
                                        place_in(members, name));
}

void LocalBackend::abort(const std::string& cause) {
  hub_->domain().fail({.what = fmt::format("rank {} gave up: {}", place().rank, cause)});
}

std::optional<Failure> LocalBackend::failure() {
  const std::lock_guard lock(hub_->domain().mutex);
  return hub_->domain().failure;
}

}  // namespace tutti::distributed::local
