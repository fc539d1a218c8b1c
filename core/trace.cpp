#include "trace.h"

#include "atomic_file.h"
#include "cuda/ranges.h"
#include "error.h"
#include "fork.h"
#include "thread_owned.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>

namespace tutti::trace {

namespace detail {
std::atomic<bool> spans_enabled{cuda::has_ranges()};
std::atomic<bool> profiling{false};
}  // namespace detail

namespace {

constexpr std::size_t max_events = 1'000'000;

enum class Kind { span, async, thread };

struct Event {
  Kind kind;
  std::string name, details;
  int rank, thread;
  Clock::time_point begin, end;
};

// The Collector holds the events of the process and the number, rank and start of the present
// Profile.
struct Collector {
  std::mutex mutex;
  std::vector<Event> events;
  std::int64_t dropped = 0;
  std::atomic<std::int64_t> profile{0};  // the number of the present Profile, counted from 1
  std::atomic<int> rank{0}, threads{0};
  Clock::time_point start;
  ProcessMark process;  // of the present Profile; the mutex may stay locked in the child of a fork
};

Collector& collector() {
  static auto& instance = *new Collector;  // threads may outlive static objects
  return instance;
}

struct Thread {
  int number = ++collector().threads;
  int rank = -1;
  std::string name;
  std::int64_t announced = 0;  // the last Profile that got the thread's name
};
Thread& this_thread() { return tutti::detail::of_thread<Thread>(); }

void add(Kind kind, const std::string& name, Clock::time_point begin, Clock::time_point end,
         const std::string& details) {
  Collector& all = collector();
  if (!is_profiling() || all.process.is_of_parent()) return;
  Thread& thread = this_thread();
  const int rank = thread.rank >= 0 ? thread.rank : all.rank.load();
  const std::lock_guard lock(all.mutex);
  if (all.events.size() >= max_events) {
    ++all.dropped;
    return;
  }
  if (thread.announced != all.profile) {
    thread.announced = all.profile;
    all.events.push_back({Kind::thread,
                          thread.name.empty() ? "thread" : thread.name,
                          {},
                          rank,
                          thread.number,
                          begin,
                          end});
  }
  all.events.push_back({kind, name, details, rank, thread.number, begin, end});
}

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

std::string quoted(const std::string& text) {
  return nlohmann::ordered_json(text).dump(-1, ' ', false,
                                           nlohmann::ordered_json::error_handler_t::replace);
}

std::string process_name(int rank) {
  return fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"rank {}"}}}})",
                     rank, rank);
}

// Writes one event to a line and no comma after the last one, so that files can be merged as text.
std::string to_json(const std::vector<Event>& events, Clock::time_point start, std::int64_t dropped,
                    int rank) {
  std::vector<std::string> lines{process_name(rank)};
  if (dropped > 0)
    lines.push_back(fmt::format(
        R"({{"name":"dropped events","ph":"M","pid":{},"args":{{"count":{}}}}})", rank, dropped));
  std::int64_t id = 0;
  for (const Event& e : events) {
    const std::string where = fmt::format(R"("pid":{},"tid":{})", e.rank, e.thread);
    const double begin = microseconds(e.begin - start);
    switch (e.kind) {
      case Kind::thread:
        if (e.rank != rank) lines.push_back(process_name(e.rank));
        lines.push_back(fmt::format(R"({{"name":"thread_name","ph":"M",{},"args":{{"name":{}}}}})",
                                    where, quoted(e.name)));
        break;
      case Kind::span:
        lines.push_back(fmt::format(R"({{"name":{},"ph":"X","ts":{:.3f},"dur":{:.3f},{}}})",
                                    quoted(e.name), begin, microseconds(e.end - e.begin), where));
        break;
      case Kind::async: {
        const std::string head = fmt::format(R"("name":{},"cat":"collective","id":"{}.{}",{})",
                                             quoted(e.name), e.rank, ++id, where);
        lines.push_back(
            fmt::format(R"({{"ph":"b","ts":{:.3f},{},"args":{{{}}}}})", begin, head, e.details));
        lines.push_back(
            fmt::format(R"({{"ph":"e","ts":{:.3f},{}}})", microseconds(e.end - start), head));
        break;
      }
    }
  }
  return fmt::format("[\n{}\n]\n", fmt::join(lines, ",\n"));
}

}  // namespace

void Span::begin(std::string name) {
  name_ = std::move(name);
  cuda::push_range(name_.c_str());
  start_ = Clock::now();
  began_ = true;
}

void Span::end() noexcept {
  cuda::pop_range();
  try {
    add(Kind::span, name_, start_, Clock::now(), {});
  } catch (const std::bad_alloc&) {}
}

void add_async(const std::string& name, Clock::time_point begin, Clock::time_point end,
               const std::string& details) noexcept {
  try {
    add(Kind::async, name, begin, end, details);
  } catch (const std::bad_alloc&) {}
}

void name_thread(const std::string& name, int rank) {
  this_thread().name = name;
  this_thread().rank = rank;
  this_thread().announced = 0;
}

Profile::Profile(std::string path, int rank) : path_(std::move(path)) {
  Collector& all = collector();
  const std::lock_guard lock(all.mutex);
  if (detail::profiling)
    fail<Error>(
        "trace: a Profile exists already; a process has one at a time, so finish that one first");
  write_file_atomically(path_, "[\n]\n");  // fails now rather than at the end of the run
  std::remove(path_.c_str());
  if (this_thread().name.empty()) this_thread().name = "main";
  all.events.clear();
  all.dropped = 0;
  all.start = Clock::now();
  all.rank = rank;
  all.process = {};
  ++all.profile;
  detail::spans_enabled = true;
  detail::profiling = true;
}

Profile::~Profile() {
  try {
    finish();
  } catch (const std::exception&) {
    // A destructor must not throw; finish() reports the error.
  }
}

void Profile::finish() {
  Collector& all = collector();
  if (std::exchange(finished_, true) || all.process.is_of_parent()) return;
  std::vector<Event> events;
  std::int64_t dropped = 0;
  {
    const std::lock_guard lock(all.mutex);
    detail::profiling = false;
    detail::spans_enabled = cuda::has_ranges();
    events.swap(all.events);
    dropped = all.dropped;
  }
  write_file_atomically(path_, to_json(events, all.start, dropped, all.rank));
}

void merge(const std::vector<std::string>& parts, const std::string& path) {
  std::string text = "[";
  for (const std::string& part : parts) {
    std::ifstream file(part, std::ios::binary);
    if (!file)
      fail<Error>(
          "trace: cannot read {}; processes on several hosts need a folder that all of them share",
          part);
    const std::string whole{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!whole.starts_with("[\n") || !whole.ends_with("\n]\n"))
      fail<Error>("trace: expected a file that a Profile wrote, got {}", part);
    text += (text.size() > 1 ? ",\n" : "\n") + whole.substr(2, whole.size() - 5);
  }
  write_file_atomically(path, text + "\n]\n");
  for (const std::string& part : parts) std::remove(part.c_str());
}

}  // namespace tutti::trace
