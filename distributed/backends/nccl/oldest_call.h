// OldestCall: the oldest call of a group that the device has not finished, for World::give_up(). It
// says when this rank compares the call with those of the other ranks, and finds in their reports
// who is missing or disagrees. Its time counts from when this rank's inputs are ready, because what
// its own device has still to do is no fault of another rank.
#pragma once

#include "group_registry.h"
#include "report.h"

namespace tutti::distributed::nccl {

class GroupRegistry::OldestCall : public PendingCollective {
 public:
  OldestCall(GroupRegistry& registry, const RegisteredGroup& group, const IssuedCall& issued)
      : registry_(registry), group_(group), issued_(issued) {}
  const Collective& call() const override { return issued_.call; }
  const GroupInfo& group() const override { return group_.info; }
  Deadline deadline() const override {
    return Deadline::after(call().timeout, *issued_.waiting_since);
  }
  Clock::time_point inspect_from() const override;
  PendingState pending_state() const override;

 private:
  std::string calls_of(const Reports& reports) const;

  GroupRegistry& registry_;
  const RegisteredGroup& group_;
  const IssuedCall& issued_;
};

}  // namespace tutti::distributed::nccl
