// How the members of NCCL groups agree over the rendezvous store that a group is unused, and which
// reports of their collectives they publish. The ranks are objects of this thread.
#include "messages.h"

#include <tutti/core/error.h>
#include <tutti/distributed/backends/nccl/releases.h>
#include <tutti/distributed/backends/nccl/report.h>

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace tutti {
namespace {

using namespace distributed;
using nccl::Releases;
using test::expect_contains;
using test::message_of;

// Three ranks that share a table in memory.
struct ThreeRanks {
  std::shared_ptr<rendezvous::Store> store(int rank) const {
    return rendezvous::in_memory(table, {rank, 3});
  }
  Releases& at(int rank) { return ranks.at(static_cast<std::size_t>(rank)); }
  std::string list_of(int rank) const {
    const auto values = table->table.values();
    const auto found = values.find(fmt::format("released/{}", rank));
    return found == values.end() ? "none" : found->second;
  }
  std::shared_ptr<rendezvous::SharedTable> table = std::make_shared<rendezvous::SharedTable>();
  std::vector<Releases> ranks = [this] {
    std::vector<Releases> all;
    for (const int rank : {0, 1, 2}) all.emplace_back(store(rank));
    return all;
  }();
};

TEST(Releases, AGroupIsUnusedOnceAllItsMembersHaveReleasedIt) {
  ThreeRanks run;
  for (const int rank : {0, 2}) run.at(rank).add("pair", {0, 2});
  for (const int rank : {0, 1}) {
    run.at(rank).add("all", {0, 1, 2});
    run.at(rank).exchange();
    EXPECT_FALSE(run.at(rank).is_released_by_all("all"));
  }
  EXPECT_FALSE(run.at(0).is_released_by_all("pair"));
  run.at(2).exchange();
  EXPECT_TRUE(run.at(2).is_released_by_all("pair"));
  EXPECT_FALSE(run.at(2).is_released_by_all("all"));
  EXPECT_TRUE(run.at(2).read().at(1).contains("all"));
  EXPECT_FALSE(run.at(2).read().at(1).contains("pair"));
  run.at(2).add("all", {0, 1, 2});
  for (const int rank : {2, 0, 1}) {
    run.at(rank).exchange();
    EXPECT_TRUE(run.at(rank).is_released_by_all("all")) << rank;
  }
}

// Values of the store have 256 KiB at most, which 30,000 groups of 16 bytes exceed.
TEST(Releases, AListThatIsTooLongForTheStoreIsPublishedInParts) {
  ThreeRanks run;
  constexpr int groups = 30'000;
  std::vector<std::string> keys;
  for (int i = 0; i < groups; ++i) keys.push_back(fmt::format("world.{:06}:0", i));
  std::map<int, std::set<std::string>> released;
  for (const int rank : {0, 1, 2})
    for (const std::string& key : keys) run.at(rank).add(key, {0, 1, 2});
  for (int round = 0; round < 20; ++round)
    for (const int rank : {0, 1, 2}) {
      run.at(rank).exchange();
      ASSERT_LE(run.list_of(rank).size(), rendezvous::max_value_bytes);
      for (const std::string& key : keys)
        if (run.at(rank).is_released_by_all(key)) released[rank].insert(key);
    }
  for (const int rank : {0, 1, 2}) EXPECT_EQ(released[rank].size(), keys.size()) << rank;
}

// The ranks release 20,000 groups and look in a random order. Each must learn of every group, and
// in the end the lists are empty.
TEST(Releases, TheListsStayShortHoweverManyGroupsARunMakes) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  ThreeRanks run;
  std::map<int, std::vector<std::string>> in_use;
  const auto look = [&](int rank) {
    run.at(rank).exchange();
    std::erase_if(in_use[rank],
                  [&](const auto& key) { return run.at(rank).is_released_by_all(key); });
  };
  for (int split = 0; split < 20'000; ++split) {
    const std::string key = fmt::format("world.{}:0", split);
    for (const int rank : {0, 1, 2}) {
      run.at(rank).add(key, {0, 1, 2});
      in_use[rank].push_back(key);
    }
    for (int i = 0; i < 12; ++i) look(static_cast<int>(random() % 3));
    ASSERT_LT(run.list_of(0).size(), 2000u) << split;
  }
  for (int i = 0; i < 5; ++i)
    for (const int rank : {0, 1, 2}) look(rank);
  for (const int rank : {0, 1, 2}) {
    EXPECT_TRUE(in_use[rank].empty()) << rank;
    EXPECT_EQ(run.list_of(rank), "");
  }
  EXPECT_EQ(run.table->table.values().size(), 3u);
}

TEST(Releases, ListsThatAreMalformedAreErrors) {
  const nccl::ReleaseList list = {{"world", true}, {"world.1:0", false}};
  const std::string good = nccl::encode(list);
  EXPECT_EQ(nccl::decode_releases(good, 1), list);
  for (const std::string& text : {good.substr(0, good.size() - 1), std::string("+\n"),
                                  std::string("world\n"), good + "\n", std::string("+")})
    expect_contains(message_of<DistributedError>([&] { nccl::decode_releases(text, 1); }),
                    {"groups that rank 1 has released is malformed"});
}

TEST(Reports, ThoseWithCallsUnderWayArePublishedFirst) {
  nccl::Reports reports;
  for (int i = 0; i < 1000; ++i)
    reports[fmt::format("world.{:03}:0", i)] =
        nccl::Report{.last_issued = 1, .calls = i % 10 == 7 ? 1 : 0};
  const nccl::Reports chosen = that_fit(reports, rendezvous::max_value_bytes);
  const std::string text = encode(chosen);
  EXPECT_LE(text.size(), rendezvous::max_value_bytes);
  EXPECT_GT(text.size(), rendezvous::max_value_bytes - 2 * sizeof(nccl::Report));
  for (const auto& [key, report] : reports) {
    EXPECT_TRUE(report.calls == 0 || chosen.contains(key)) << key;
  }
  EXPECT_EQ(that_fit(reports, 1'000'000'000).size(), reports.size());
  EXPECT_EQ(encode(that_fit(reports, 0)), "");
}

}  // namespace
}  // namespace tutti
