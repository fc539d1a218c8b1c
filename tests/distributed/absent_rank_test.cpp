// Tests how a World finds out at a deadline which of the ranks that it waits for are absent: by the
// latest calls that they tell. Two World objects in one process stand for two processes.
#include "messages.h"

#include <tutti/distributed/backend.h>

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;
using test::expect_contains;

// Puts what a rank sends into the inbox of the other one.
class InboxTransport : public World::Transport {
 public:
  using Inbox = std::deque<World::Notice>;
  InboxTransport(Inbox& own, Inbox& other, std::mutex& mutex)
      : own_(own), other_(other), mutex_(mutex) {}
  Failure send_failure(const Failure& failure) override { return failure; }
  void send(int, const World::Notice& notice) override {
    const std::lock_guard lock(mutex_);
    other_.push_back(notice);
  }
  std::optional<World::Notice> receive() override {
    const std::lock_guard lock(mutex_);
    if (own_.empty()) return {};
    World::Notice notice = std::move(own_.front());
    own_.pop_front();
    return notice;
  }

 private:
  Inbox &own_, &other_;
  std::mutex& mutex_;
};

// A rank's part of a group, which only notes the calls.
class Member : public Backend {
 public:
  using Backend::Backend;
  bool accepts(Device) const override { return true; }
  std::shared_ptr<WorkState> submit(const Collective& call) override {
    record(call);
    return nullptr;
  }
  std::shared_ptr<Backend> subgroup(const std::vector<int>&, const std::string&) override {
    return nullptr;
  }
};

// A call whose deadline has passed, unless time is `left`. Nothing is known of rank 1, and there
// may be a third rank.
class Late : public PendingCollective {
 public:
  Late(const Member& member, std::int64_t sequence, std::chrono::seconds patience,
       std::chrono::seconds left = -1s)
      : member_(member), call_{.sequence = sequence}, patience_(patience), left_(left) {
    call_.fingerprint = fingerprint(call_);
  }
  const Collective& call() const override { return call_; }
  const GroupInfo& group() const override { return member_.info(); }
  Deadline deadline() const override { return {began_ + left_, 1s}; }
  Clock::time_point patient_until() const override { return began_ + patience_; }
  PendingState pending_state() const override { return {.hosts_to_ask = {{1}}}; }

 private:
  const Member& member_;
  Collective call_;
  std::chrono::seconds patience_, left_;
  Clock::time_point began_ = Clock::now();
};

// Its receive() returns when a test lets it.
struct SlowTransport : World::Transport {
  Failure send_failure(const Failure& failure) override { return failure; }
  std::optional<World::Notice> receive() override {
    is_receiving = true;
    is_receiving.notify_all();
    is_slow.wait(true);
    return {};
  }
  std::atomic<bool> is_receiving = false, is_slow = true;
};

TEST(World, APollWaitsForNoOtherThread) {
  auto owned = std::make_unique<SlowTransport>();
  SlowTransport& transport = *owned;
  World world(World::Options{.transport = std::move(owned)});
  const std::jthread first([&] { world.poll(); });
  transport.is_receiving.wait(false);
  const auto second = std::async(std::launch::async, [&] { return world.poll().has_value(); });
  EXPECT_EQ(second.wait_for(10s), std::future_status::ready);
  transport.is_slow = false;
  transport.is_slow.notify_all();
}

// Ranks 0 and 1 of three. Rank 0 waits.
class AbsentRank : public ::testing::Test {
 protected:
  // Makes the same group on both ranks.
  struct Group {
    Member waiting, asked;
  };
  std::unique_ptr<Group> group(const std::string& name) {
    GroupInfo info{.size = 3, .group = name, .world_ranks = {0, 1, 2}}, there = info;
    there.rank = 1;
    return std::unique_ptr<Group>(new Group{Member(info, waiting_), Member(there, asked_)});
  }
  static void issue(Member& member, std::int64_t sequence, const std::string& name = {}) {
    Collective call{.options = {.name = name}, .sequence = sequence};
    call.fingerprint = fingerprint(call);
    member.submit(call);
  }
  static void issue(Group& group, std::int64_t sequence, const std::string& name = {}) {
    issue(group.asked, sequence, name);
  }
  // Returns the error of rank 0 where it waits for this call; an empty text where it goes on
  // waiting.
  std::string error_at(const Group& group, std::int64_t sequence, std::chrono::seconds patience) {
    Late call(group.waiting, sequence, patience);
    waiting_->give_up(call);  // asks
    asked_->poll();           // answers
    waiting_->poll();
    return waiting_->give_up(call) ? waiting_->failure()->what : "";
  }

  std::mutex mutex_;  // of both inboxes
  InboxTransport::Inbox to_waiting_, to_asked_;
  const std::shared_ptr<World> waiting_ = std::make_shared<World>(World::Options{
      .transport = std::make_unique<InboxTransport>(to_waiting_, to_asked_, mutex_), .rank = 0});
  const std::shared_ptr<World> asked_ = std::make_shared<World>(World::Options{
      .transport = std::make_unique<InboxTransport>(to_asked_, to_waiting_, mutex_), .rank = 1});
};

TEST_F(AbsentRank, IsNoneThatHasIssuedCallsOfManyGroupsSince) {
  const auto world = group("world");
  issue(*world, 1);
  std::vector<std::unique_ptr<Group>> others;
  for (int i = 0; i < 14; ++i) {
    others.push_back(group(fmt::format("world/split{}", i)));
    issue(*others.back(), 1);
  }
  EXPECT_EQ(error_at(*world, 1, 60s), "");
  const std::string error = error_at(*world, 2, 60s);
  expect_contains(error, {"rank 1 did not arrive within 1 s", " and 9 more"});
}

// Rank 1 tells its latest groups only, so it may wait in an older one.
TEST_F(AbsentRank, IsNoneWhoseCallIsOlderThanAllThatItTells) {
  const auto world = group("world");
  issue(*world, 1);
  std::vector<std::unique_ptr<Group>> others;
  for (std::size_t i = 0; i < LatestCalls::most; ++i) {
    others.push_back(group(fmt::format("world/split{}", i)));
    issue(*others.back(), 1);
  }
  EXPECT_EQ(error_at(*world, 1, 60s), "");
  asked_->depart(1);
  waiting_->poll();
  EXPECT_EQ(error_at(*world, 1, 60s), "") << "it may have departed after its part of the call";
}

TEST_F(AbsentRank, IsFoundWhereItIsInAnotherGroupOfTheSameName) {
  const auto first = group("world/split0"), second = group("world/split0");
  EXPECT_NE(first->waiting.info().id, second->waiting.info().id);
  EXPECT_EQ(first->waiting.info().id, first->asked.info().id);
  EXPECT_EQ(second->waiting.info().id, second->asked.info().id);
  issue(*second, 3);
  EXPECT_EQ(error_at(*second, 3, 60s), "");
  expect_contains(error_at(*first, 1, 60s), {"rank 1 did not arrive within 1 s"});
}

TEST_F(AbsentRank, IsFoundWhereTheNameOfItsCallLooksLikeTheGroup) {
  const auto world = group("world"), split = group("world/split0");
  issue(*world, 1);
  issue(*split, 8, "mean of group 'world'");
  EXPECT_EQ(error_at(*world, 1, 60s), "");
  expect_contains(error_at(*world, 2, 60s), {"rank 1 did not arrive within 1 s"});
}

TEST_F(AbsentRank, IsFoundAtOnceWhereItHasDepartedBeforeTheCall) {
  const auto first = group("world/split0"), second = group("world/split0");
  issue(*first, 1);
  asked_->depart(1);
  waiting_->poll();
  EXPECT_EQ(error_at(*first, 1, 60s), "") << "it has departed after its part of the call";
  expect_contains(error_at(*second, 1, 60s), {"rank 1 will never arrive: it has departed"});
}

// Nobody announces a departure. A rank that waits asks, long before its deadline.
TEST_F(AbsentRank, IsFoundBeforeTheDeadlineWhereItDepartsMeanwhile) {
  const auto world = group("world");
  Late call(world->waiting, 1, 60s, 60s);
  EXPECT_FALSE(waiting_->give_up(call));
  asked_->depart(1);
  EXPECT_TRUE(to_asked_.empty() && to_waiting_.empty());
  std::this_thread::sleep_for(260ms);
  EXPECT_FALSE(waiting_->give_up(call));
  EXPECT_EQ(to_asked_.size(), 1u);
  asked_->poll();
  waiting_->poll();
  ASSERT_TRUE(waiting_->give_up(call));
  expect_contains(waiting_->failure()->what, {"rank 1 will never arrive: it has departed"});
}

TEST_F(AbsentRank, LivesWhereItAnswers) {
  std::jthread other([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) asked_->poll();
  });
  const int rank = 1;
  EXPECT_TRUE(waiting_->all_answer({&rank, 1}));
  other.request_stop();
  other.join();
  EXPECT_FALSE(waiting_->all_answer({&rank, 1}));
}

// Where ranks are at different calls of one number, the first question finds it.
TEST_F(AbsentRank, IsFoundAtOnceWhereItIsAtAnotherCallOfThisNumber) {
  const auto world = group("world");
  issue(*world, 1, "rank 1 calls this");
  Late call(world->waiting, 1, 60s, 60s);
  EXPECT_FALSE(waiting_->give_up(call));
  std::this_thread::sleep_for(260ms);
  EXPECT_FALSE(waiting_->give_up(call));
  asked_->poll();
  waiting_->poll();
  ASSERT_TRUE(waiting_->give_up(call));
  expect_contains(waiting_->failure()->what,
                  {"rank 0 at barrier #1, rank 1 at barrier #1 (rank 1 calls this)"});
}

TEST_F(AbsentRank, IsFoundAtOnceWhereItHasDestroyedTheGroup) {
  GroupInfo info{.size = 3, .group = "world", .world_ranks = {0, 1, 2}};
  const Member waiting(info, waiting_);
  info.rank = 1;
  auto asked = std::make_unique<Member>(info, asked_);
  issue(*asked, 1);
  asked.reset();
  info.group = "world/next";
  const Member next(info, asked_);  // whose making forgets the former group
  Late passed(waiting, 1, 60s, 60s), call(waiting, 2, 60s, 60s);
  for (Late* each : {&passed, &call}) {
    waiting_->give_up(*each);
    std::this_thread::sleep_for(260ms);
    waiting_->give_up(*each);
    asked_->poll();
    waiting_->poll();
  }
  EXPECT_FALSE(waiting_->give_up(passed))
      << "it has destroyed the group after its part of the call";
  ASSERT_TRUE(waiting_->give_up(call));
  expect_contains(waiting_->failure()->what,
                  {"rank 1 will never arrive: its group has been destroyed"});
}

// Rank 0 has asked only the rank that it waits for. Rank 2 may be the one that is absent.
TEST_F(AbsentRank, MayBeOneThatWasNotAsked) {
  const auto world = group("world");
  issue(*world, 1);
  const std::string error = error_at(*world, 1, 0s);
  expect_contains(error, {"rank 1, for which rank 0 waits, has issued it as far as is known",
                          "did not end within 1 s: another rank is absent, or the network hangs",
                          "rank 1 at barrier #1 of group 'world'"});
  EXPECT_EQ(error.find("all ranks"), std::string::npos) << error;
}

}  // namespace
}  // namespace tutti
