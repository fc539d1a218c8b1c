// Tests of the trace: what a Profile writes, that spans nest, and that nothing is recorded, written
// or lost by mistake.
#include <tutti/core/cuda/ranges.h>
#include <tutti/core/error.h>
#include <tutti/core/trace.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

namespace tutti {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Trace : public ::testing::Test {
 protected:
  Trace() { fs::create_directories(folder_); }
  ~Trace() override { fs::remove_all(folder_); }
  static json read(const std::string& path) { return json::parse(std::ifstream(path)); }
  static std::map<std::string, json> by_name(const json& events, const std::string& kind = "X") {
    std::map<std::string, json> found;
    for (const json& e : events)
      if (e.at("ph") == kind) found[e.at("name")] = e;
    return found;
  }
  std::string folder_ =
      (fs::temp_directory_path() / ("tutti_trace_" + std::to_string(getpid()))).string();
  std::string path_ = folder_ + "/out.json";
};

TEST_F(Trace, SpansNestAndNamesSurviveQuoting) {
  int named = 0;
  const auto name = [&] {
    ++named;
    return std::string("in\"ner\\ \x01");
  };
  { const trace::Span ignored(name); }
  const int others = cuda::has_ranges() ? 1 : 0;  // a profiler reads every name
  EXPECT_EQ(named, others);                       // no Profile exists
  {
    trace::Profile profile(path_, 5);
    const trace::Span outer("outer");
    { const trace::Span inner(name); }
    const auto now = trace::Clock::now();
    trace::add_async("sent", now, now + std::chrono::milliseconds(3), "\"bytes\":7");
  }
  { const trace::Span ignored(name); }
  EXPECT_EQ(named, 1 + 2 * others);
  const json events = read(path_);
  const auto spans = by_name(events);
  ASSERT_EQ(spans.size(), 2u);
  const json &outer = spans.at("outer"), &inner = spans.at("in\"ner\\ \x01");
  EXPECT_EQ(outer.at("pid"), 5);
  EXPECT_EQ(outer.at("tid"), inner.at("tid"));
  EXPECT_GE(inner.at("ts").get<double>(), outer.at("ts").get<double>());
  EXPECT_LE(inner.at("ts").get<double>() + inner.at("dur").get<double>(),
            outer.at("ts").get<double>() + outer.at("dur").get<double>());
  const json begin = by_name(events, "b").at("sent"), end = by_name(events, "e").at("sent");
  EXPECT_EQ(begin.at("args").at("bytes"), 7);
  EXPECT_EQ(begin.at("id"), end.at("id"));
  EXPECT_NEAR(end.at("ts").get<double>() - begin.at("ts").get<double>(), 3000, 0.01);
  // No temporary file is left.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(Trace, EveryThreadHasItsTrack) {
  constexpr int threads = 4, spans = 500;
  {
    trace::Profile profile(path_);
    std::vector<std::jthread> all;
    for (int t = 0; t < threads; ++t)
      all.emplace_back([t] {
        trace::name_thread("worker", t);
        for (int i = 0; i < spans; ++i) const trace::Span span("work");
      });
  }
  std::map<int, int> count;
  std::map<int, std::string> names;
  for (const json& e : read(path_)) {
    if (e.at("ph") == "X") ++count[e.at("pid").get<int>()];
    if (e.at("name") == "thread_name") names[e.at("pid").get<int>()] = e.at("args").at("name");
  }
  for (int t = 0; t < threads; ++t) {
    EXPECT_EQ(count[t], spans);
    EXPECT_EQ(names[t], "worker");
  }
}

TEST_F(Trace, IsWrittenAlsoWhereAnExceptionEndsTheRun) {
  try {
    trace::Profile profile(path_);
    { const trace::Span span("before"); }
    throw std::runtime_error("on purpose");
  } catch (const std::runtime_error&) {}
  EXPECT_EQ(by_name(read(path_)).count("before"), 1u);
}

TEST_F(Trace, SaysAtOnceWhatCannotWork) {
  EXPECT_THROW((void)trace::Profile(folder_ + "/nowhere/out.json"), Error);
  trace::Profile profile(path_);
  EXPECT_THROW((void)trace::Profile(folder_ + "/other.json"), Error);
  EXPECT_FALSE(fs::exists(folder_ + "/other.json"));
}

TEST_F(Trace, PartsOfSeveralProcessesBecomeOneFile) {
  const std::vector<std::string> parts{path_ + ".rank0", path_ + ".rank1"};
  for (int rank : {0, 1}) {
    trace::Profile profile(parts[static_cast<std::size_t>(rank)], rank);
    const trace::Span span("of " + std::to_string(rank));
  }
  trace::merge(parts, path_);
  const auto spans = by_name(read(path_));
  EXPECT_EQ(spans.at("of 0").at("pid"), 0);
  EXPECT_EQ(spans.at("of 1").at("pid"), 1);
  EXPECT_FALSE(fs::exists(parts[0]) || fs::exists(parts[1]));
  EXPECT_THROW(trace::merge(parts, path_), Error);
}

}  // namespace
}  // namespace tutti
