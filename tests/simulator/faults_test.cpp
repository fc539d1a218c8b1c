// Jobs of the simulator in which something goes wrong, by a seed, and what must hold after it.
#include "operations.h"
#include "training.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

namespace tutti::simulator {
namespace {

// Draws a fault that happens while the job of `sound` runs.
Fault draw_fault(std::uint64_t seed, const Layout& layout, const Job& sound) {
  std::mt19937_64 random(seed);
  const auto below = [&](Time most) {
    return static_cast<Time>(random() % static_cast<std::uint64_t>(most));
  };
  const auto hosts = static_cast<Time>(layout.host_sizes.size());
  using enum Fault::Kind;
  constexpr Fault::Kind kinds[] = {die, stop, sleep, error, delay, cut, host};
  Fault fault{.kind = kinds[below(hosts > 1 ? 7 : 4)]};
  if (layout.has_devices && below(3) == 0) fault.kind = below(2) ? hang : broken_device;
  fault.rank = static_cast<int>(below(layout.ranks()));
  fault.other = static_cast<int>(below(layout.ranks()));
  fault.where = below(3) == 0 ? Fault::at_poll : Fault::at_call;
  const bool is_of_device = fault.kind == hang || fault.kind == broken_device;
  if (is_of_device || (layout.has_devices && below(2))) fault.where = Fault::at_launch;
  const int calls = sound.ranks[static_cast<std::size_t>(fault.rank)].calls[fault.where];
  fault.call = 1 + static_cast<int>(below(calls));
  fault.begin = below(sound.end);
  constexpr Time durations[] = {500 * millisecond, 2 * second, 20 * second, never};
  fault.duration = durations[below(4)];
  const bool must_end = fault.kind == Fault::Kind::sleep || fault.kind == Fault::Kind::delay;
  if (must_end && fault.duration == never) fault.duration = 2 * second;
  if (below(3) == 0) {
    fault.full_disk_of = static_cast<int>(below(layout.ranks()));
    fault.room = below(20'000);
  }
  return fault;
}

// Returns the ranks that a text names, "rank 3" or "ranks 0, 2 and 5", without the one that throws.
std::set<int> named_ranks(const std::string& text) {
  static const std::regex list("(\\[?)ranks? (\\d+(?:, \\d+)*(?: and \\d+)?)"), number("\\d+");
  std::set<int> ranks;
  for (std::sregex_iterator each(text.begin(), text.end(), list), end; each != end; ++each) {
    const std::string numbers = (*each)[2];
    if ((*each)[1].length() > 0) continue;  // "[rank 1 of 4]"
    for (std::sregex_iterator n(numbers.begin(), numbers.end(), number); n != end; ++n)
      ranks.insert(std::stoi(n->str()));
  }
  return ranks;
}

// Returns the names of the groups whose calls a text tells.
std::vector<std::string> told_groups(const std::string& text) {
  static const std::regex group(" of group '([^']*)'");
  std::vector<std::string> names;
  for (std::sregex_iterator each(text.begin(), text.end(), group), end; each != end; ++each)
    names.push_back((*each)[1]);
  return names;
}

// Whether an error names one of these ranks of the world. The numbers in it are those of the group
// whose call has failed, except where MPI reports an error. It may also name ranks that wait for
// one of these in another group, which is not the world, if it tells that group.
bool names_one_of(const std::set<int>& ranks, const std::string& error, const Layout& layout) {
  const std::size_t latest = std::min(error.find(". Latest call of each group"), error.size());
  const std::string text = error.substr(0, latest);
  const auto groups = told_groups(text), others = told_groups(error.substr(latest));
  const std::string failed = groups.empty() ? "world" : groups.back();
  const std::vector<int> members = members_of(failed, layout);
  const auto is_at_fault = [&](int r) { return ranks.contains(r); };
  return std::ranges::any_of(named_ranks(text), [&](int r) {
    const auto at = static_cast<std::size_t>(r);
    if (layout.fault.kind == Fault::Kind::error && is_at_fault(r)) return true;
    if (at >= members.size()) return false;
    return is_at_fault(members[at]) || std::ranges::any_of(others, [&](const std::string& other) {
             const std::vector<int> there = members_of(other, layout);
             return other != failed && std::ssize(there) < layout.ranks() &&
                    std::ranges::count(there, members[at]) > 0 &&
                    std::ranges::any_of(there, is_at_fault);
           });
  });
}

// Whether an error tells of devices or of the set-up of their lanes, in which nobody knows the
// rank.
bool tells_of_devices(const std::string& error) {
  const auto has = [&](const char* text) { return error.find(text) != std::string::npos; };
  return has("the device is broken") || has("setting up NCCL") ||
         has("all ranks have issued it, but it did not end within 5 s: a device or the network");
}

// Returns the ranks that an error must name one of.
std::set<int> culprits(const Layout& layout) {
  const Fault& fault = layout.fault;
  const std::vector<int> hosts = layout.hosts();
  std::set<int> ranks = {fault.rank};
  const bool of_link = fault.kind == Fault::Kind::delay || fault.kind == Fault::Kind::cut;
  if (!of_link && fault.kind != Fault::Kind::host) return ranks;
  for (int r = 0; r < layout.ranks(); ++r) {
    const auto is_on_host_of = [&](int other) {
      return hosts[static_cast<std::size_t>(r)] == hosts[static_cast<std::size_t>(other)];
    };
    if (is_on_host_of(fault.rank) || (of_link && is_on_host_of(fault.other))) ranks.insert(r);
  }
  return ranks;
}

std::string to_string(const Fault& fault) {
  constexpr const char* kinds[] = {"nothing", "death", "stop",        "sleep", "error",
                                   "delay",   "a cut", "a host gone", "hang",  "a broken device"};
  constexpr const char* places[] = {"call", "poll", "launch"};
  return fmt::format("{} of rank {} (and {}) at {} {}, or from {} us on, for {} ms",
                     kinds[static_cast<int>(fault.kind)], fault.rank, fault.other,
                     places[fault.where], fault.call, fault.begin / microsecond,
                     fault.duration == never ? -1 : fault.duration / millisecond) +
         (fault.full_disk_of < 0 ? ""
                                 : fmt::format(", and a disk of the host of rank {} with {} B left",
                                               fault.full_disk_of, fault.room));
}

constexpr std::string_view unwritten = " leaves no flight recorder in ";

// Whether a rank has printed a line of another kind than that of a flight recorder.
bool says_why_it_ends(const Outcome& rank) {
  const std::string text = rank.lines;
  return std::ranges::count(text, '\n') > (text.find(unwritten) != std::string::npos);
}

// What must hold after a fault: each rank that lives has ended in time, with the right bits or with
// an error that names a rank at fault. A job may also be ended where ranks wait inside MPI: the
// rank at fault is then the one that prints no line.
void check_fault(const Job& job, const Layout& layout, const Job& sound) {
  const std::set<int> expected = culprits(layout);
  bool is_line = false;
  for (std::size_t r = 0; r < job.ranks.size(); ++r) {
    const Outcome& rank = job.ranks[r];
    is_line = is_line || says_why_it_ends(rank);
    if (rank.was_stopped) continue;
    EXPECT_TRUE(rank.has_exited || job.was_ended) << "rank " << r << " hangs" << job.waits;
    if (rank.state == Outcome::State::succeeded) {
      EXPECT_EQ(rank.result, sound.ranks[0].result) << "rank " << r;
    } else if (rank.state == Outcome::State::failed) {
      EXPECT_TRUE((layout.has_devices && tells_of_devices(rank.error)) ||
                  names_one_of(expected, rank.error, layout))
          << "rank " << r << ": " << rank.error;
    }
  }
  EXPECT_TRUE(is_line || !job.was_ended) << "no line says why the job ended";
  EXPECT_LT(job.end, 60 * second);
  const bool goes_on = layout.fault.duration <= 2 * second;
  if (goes_on &&
      (layout.fault.kind == Fault::Kind::stop || layout.fault.kind == Fault::Kind::sleep))
    expect_success(job);
}

// A folder for the flight recorders of a job.
class Folder {
 public:
  Folder() {
    std::filesystem::remove_all(path_);
    setenv("TUTTI_FLIGHT_RECORDER", path_.c_str(), 1);
  }
  ~Folder() {
    unsetenv("TUTTI_FLIGHT_RECORDER");
    std::filesystem::remove_all(path_);
  }
  std::string file_of(int rank) const {
    return path_ / fmt::format("flight_recorder.mpi.{}.jsonl", rank);
  }
  std::ptrdiff_t files() const {
    if (!std::filesystem::exists(path_)) return 0;
    return std::distance(std::filesystem::directory_iterator(path_), {});
  }

 private:
  const std::filesystem::path path_ = std::filesystem::temp_directory_path() /
                                      fmt::format("simulator_{}", getpid());
};

// The lines of a flight recorder: that of the rank, and one for each of its last calls.
void check_file(const std::string& path, int rank) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line, nullptr, false));
    ASSERT_FALSE(lines.back().is_discarded()) << path << ": " << line;
  }
  ASSERT_FALSE(lines.empty()) << path;
  EXPECT_EQ(lines[0]["rank"], rank);
  EXPECT_EQ(lines[0]["calls"], lines.size() - 1);
}

// What must hold of the flight recorders: a rank whose call has failed leaves a whole file, or one
// line that says why there is none, and nothing else is in the folder. A rank that makes its first
// call after its world has failed has nothing to write, nor has one whose call MPI refuses before.
void check_recorders(const Job& job, const Layout& layout, const Folder& folder) {
  const std::vector<int> hosts = layout.hosts();
  const int full = layout.fault.full_disk_of;
  std::ptrdiff_t files = 0;
  for (int r = 0; r < layout.ranks(); ++r) {
    const Outcome& rank = job.ranks[static_cast<std::size_t>(r)];
    const std::string text = rank.lines, error = rank.error;
    const bool is_there = std::filesystem::exists(folder.file_of(r));
    const std::size_t line = text.find(unwritten);
    const bool is_said = line != std::string::npos;
    files += is_there;
    if (is_there) check_file(folder.file_of(r), r);
    EXPECT_FALSE(is_said && is_there) << text;
    if (is_said) {
      EXPECT_EQ(text.find(unwritten, line + 1), std::string::npos) << text;
      EXPECT_NE(text.find(": No space left on device\n", line), std::string::npos) << text;
      EXPECT_TRUE(full >= 0 &&
                  hosts[static_cast<std::size_t>(full)] == hosts[static_cast<std::size_t>(r)])
          << text;
    }
    const auto has = [&](const char* part) { return error.find(part) != std::string::npos; };
    const bool has_called = has(" of group ") && (rank.marks > 2 || !has(" #1 of group "));
    if (rank.state == Outcome::State::failed && has_called && !rank.was_stopped) {
      EXPECT_TRUE(is_there || is_said) << "no file of rank " << r << ": " << error;
    }
  }
  EXPECT_EQ(folder.files(), files) << "a part of a file is left";
}

// Runs the program of a seed, which for every second one is the training.
Job simulate_program(const Layout& layout, std::uint64_t seed, int turn) {
  return turn % 2 == 0 && !layout.has_devices
             ? simulate_training(layout, seed)
             : simulate_operations(layout, seed, turn / 2 % operation_programs);
}

// Runs this part of the seeds [0, count), each on the layout that is its turn, or that of
// TUTTI_SIMULATOR_SEED alone. TUTTI_SIMULATOR_SEEDS is another count.
void run_seeds(const std::vector<Layout>& layouts, int count, int part = 0, int parts = 1) {
  const char* const one = std::getenv("TUTTI_SIMULATOR_SEED");
  if (const char* text = std::getenv("TUTTI_SIMULATOR_SEEDS")) count = std::atoi(text);
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  std::map<std::size_t, Job> all_sound;  // of either kind of program on each layout
  for (int seed = one ? std::atoi(one) : part; one || seed < count; seed += parts) {
    const int turn = seed / static_cast<int>(layouts.size());
    const std::size_t at = static_cast<std::size_t>(seed) % layouts.size();
    Layout layout = layouts[at];
    layout.jitter = 30 * microsecond;
    const auto [found, is_new] = all_sound.try_emplace(2 * at + turn % 2);
    Job& sound = found->second;
    if (is_new) expect_success(sound = simulate_program(layout, 1, turn));
    layout.fault = draw_fault(static_cast<std::uint64_t>(seed), layout, sound);
    const Folder folder;
    const Job job = simulate_program(layout, static_cast<std::uint64_t>(seed), turn);
    SCOPED_TRACE(
        fmt::format("{} on hosts of {} ranks; repeat it with\nTUTTI_SIMULATOR_SEED={} {} "
                    "--gtest_filter={}.{}",
                    to_string(layout.fault), fmt::join(layout.host_sizes, ", "), seed,
                    std::filesystem::read_symlink("/proc/self/exe").string(),
                    test.test_suite_name(), test.name()));
    check_fault(job, layout, sound);
    check_recorders(job, layout, folder);
    if (one || testing::Test::HasFatalFailure()) return;
  }
}

Layout even_hosts(int hosts, int size) {
  return {.host_sizes = std::vector(static_cast<std::size_t>(hosts), size)};
}

TEST(Faults, ASeedRepeatsToTheSameTrace) {
  Layout layout = even_hosts(2, 4);
  const Job sound = simulate_training(layout, 1);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    layout.fault = draw_fault(seed, layout, sound);
    const Job job = simulate_training(layout, seed), again = simulate_training(layout, seed);
    SCOPED_TRACE(seed);
    EXPECT_EQ(job.end, again.end);
    EXPECT_EQ(job.waits, again.waits);
    for (std::size_t r = 0; r < job.ranks.size(); ++r) {
      const Outcome &one = job.ranks[r], &other = again.ranks[r];
      EXPECT_EQ(one.state, other.state);
      EXPECT_EQ(one.traffic.messages, other.traffic.messages);
      EXPECT_EQ(one.traffic.bytes, other.traffic.bytes);
      for (int where = 0; where < 3; ++where) EXPECT_EQ(one.calls[where], other.calls[where]);
      for (std::size_t m = 0; m < one.marks; ++m) EXPECT_EQ(one.mark[m].at, other.mark[m].at);
    }
  }
}

TEST(Faults, OfUpTo5Ranks) {
  run_seeds({{{2}}, {{4}}, {{1, 1}}, {{3, 1}}, {{2, 2}, true}, even_hosts(5, 1)}, 300);
}

TEST(Faults, OfDevicesOfUpTo16Ranks) {
  std::vector<Layout> layouts = {{{2}}, {{4}}, {{3, 1}}, {{2, 2}, true}, {{8, 8}}, {{5, 5, 6}}};
  for (Layout& layout : layouts) layout.has_devices = true;
  run_seeds(layouts, 300);
}

// Parts of the same seeds, which run side by side: each has one of the layouts.
class FaultsOfManyRanks : public testing::TestWithParam<int> {};
constexpr int parts = 10;

TEST_P(FaultsOfManyRanks, From8To64) {
  run_seeds({{{8}},
             {{4, 4}},
             {{3, 3, 2}, true},
             even_hosts(8, 1),
             {{7, 8, 1, 8, 3, 5}},
             even_hosts(4, 8),
             {{16, 1, 15}, true},
             {{64}},
             even_hosts(8, 8),
             {{30, 1, 33}}},
            1000, GetParam(), parts);
}

INSTANTIATE_TEST_SUITE_P(Part, FaultsOfManyRanks, testing::Range(0, parts));

// Two parts alone, because each also runs the sound job, which takes as long as one with a fault.
class FaultsOf1024Ranks : public testing::TestWithParam<int> {};
constexpr int halves = 2;

TEST_P(FaultsOf1024Ranks, On128Hosts) { run_seeds({even_hosts(128, 8)}, 20, GetParam(), halves); }
INSTANTIATE_TEST_SUITE_P(Part, FaultsOf1024Ranks, testing::Range(0, halves));

// Errors of the last calls that poll, most of which are made at the exit, where no caller is left
// that could catch them.
TEST(Faults, AnErrorOfMpiAtTheExitEndsTheJobWithALine) {
  Layout layout{.host_sizes = {4}};
  const Job sound = simulate_training(layout, 1);
  int ended = 0;
  for (const int rank : {0, 2})
    for (int last = 0; last < 10; ++last) {
      const Outcome& before = sound.ranks[static_cast<std::size_t>(rank)];
      layout.fault = {.kind = Fault::Kind::error,
                      .rank = rank,
                      .where = Fault::at_poll,
                      .call = before.calls[1] - last};
      const Job job = simulate_training(layout, 1);
      if (!job.was_ended) expect_success(job);
      const std::string lines = job.ranks[static_cast<std::size_t>(rank)].lines;
      EXPECT_EQ(job.was_ended, lines.starts_with(fmt::format(
                                   "tutti: rank {} is exiting and ends the job: MPI_", rank)))
          << lines << job.waits;
      ended += job.was_ended;
    }
  EXPECT_GE(ended, 4);
}

}  // namespace
}  // namespace tutti::simulator
