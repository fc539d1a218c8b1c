// One traced training step on any process group, and what its timeline must show. On rank 0 the
// first bucket is on its way while backward computes.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/autograd/matmul.h>
#include <tutti/autograd/record.h>
#include <tutti/core/create.h>
#include <tutti/core/trace.h>
#include <tutti/distributed/data_parallel/data_parallel.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <map>

namespace tutti::test {

/// Weights of 128 x 128 in float64 have 128 KiB: too much to travel with the fingerprint.
constexpr std::int64_t traced_width = 128;

/// Runs a step of three layers with a bucket each. On the other ranks backward begins by waiting
/// until rank 0 is in its last operation, so rank 0's bucket 0 cannot be done before that.
inline void run_traced_step(const ProcessGroup& group) {
  Generator generator(1);
  StateDict model;
  for (const char* layer : {"a", "b", "c"})
    model.emplace_back(
        layer, randn({traced_width, traced_width}, {.dtype = float64}, generator).requires_grad_());
  distributed::DataParallel ddp(model, {}, group, {.bucket_cap_mb = 0.1, .first_bucket_mb = 0.1});
  const auto wait_for_all = [&](const Tensor& gradient) {
    group.for_normalization().barrier({.name = "all ranks are there"});
    return gradient;
  };
  const bool first = group.rank() == 0;
  const auto spy = [&](const char* name, const Tensor& x, bool waits) {
    return autograd::record(name, x.detach().clone(), {x}, [waits, wait_for_all](const Tensor& g) {
      return waits ? wait_for_all(g) : g;
    });
  };
  Tensor x = matmul(randn({4, traced_width}, {.dtype = float64}, generator),
                    spy("late", model[0].second, first));
  x = matmul(tanh(matmul(tanh(x), model[1].second)), model[2].second);
  spy("early", sum(x), !first).backward();
}

inline nlohmann::json read_trace(const std::string& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

/// Expects that two spans of one track are either nested or apart.
inline void expect_nesting(const nlohmann::json& events) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  for (const auto& e : events)
    if (e.at("ph") == "X") {
      const double begin = e.at("ts");
      tracks[{e.at("pid"), e.at("tid")}].emplace_back(begin, begin + e.at("dur").get<double>());
    }
  constexpr double digits = 0.002;  // microseconds: times are written to three places
  for (const auto& [track, spans] : tracks)
    for (const auto& a : spans)
      for (const auto& b : spans) {
        if (!(a.first < b.first)) continue;
        EXPECT_TRUE(b.first >= a.second - digits || b.second <= a.second + digits)
            << "rank " << track.first << ": " << a.first << " to " << a.second << " and " << b.first
            << " to " << b.second;
      }
}

inline void expect_traced_step(const nlohmann::json& events, int ranks) {
  expect_nesting(events);
  struct Seen {
    std::map<std::string, std::pair<double, double>> spans, collectives;
    std::map<std::string, nlohmann::json> details;
  };
  std::map<int, Seen> seen;
  std::map<std::string, double> begun;  // by id
  for (const auto& e : events) {
    if (e.at("ph") == "M") continue;
    const std::string name = e.at("name");
    const double at = e.at("ts");
    Seen& rank = seen[e.at("pid")];
    if (e.at("ph") == "X") rank.spans[name] = {at, at + e.at("dur").get<double>()};
    if (e.at("ph") == "b") {
      begun[e.at("id")] = at;
      rank.details[name] = e.at("args");
    }
    if (e.at("ph") == "e") {
      ASSERT_TRUE(begun.contains(e.at("id"))) << name;
      rank.collectives[name] = {begun.at(e.at("id")), at};
      begun.erase(e.at("id"));
    }
  }
  EXPECT_TRUE(begun.empty());
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(ranks));
  for (const auto& [rank, s] : seen) {
    EXPECT_TRUE(s.spans.contains("backward") && s.spans.contains("late") &&
                s.spans.contains("matmul"))
        << rank;
    const auto backward = s.spans.at("backward");
    for (const char* bucket : {"bucket 0: c", "bucket 1: b", "bucket 2: a"}) {
      ASSERT_TRUE(s.collectives.contains(bucket)) << rank << ": " << bucket;
      const auto& [begin, end] = s.collectives.at(bucket);
      EXPECT_GE(begin, backward.first);
      EXPECT_LE(end, backward.second);
      EXPECT_EQ(s.details.at(bucket).at("operation"), "all_reduce");
      EXPECT_EQ(s.details.at(bucket).at("bytes"), 8 * traced_width * traced_width);
      EXPECT_GE(s.details.at(bucket).at("wait_us").get<double>(), 0);
    }
  }
  // The overlap: rank 0 computes while its first bucket is on its way.
  const auto bucket = seen.at(0).collectives.at("bucket 0: c");
  const auto late = seen.at(0).spans.at("late");
  EXPECT_LT(bucket.first, late.first);
  EXPECT_GT(bucket.second, late.first);
}

}  // namespace tutti::test
