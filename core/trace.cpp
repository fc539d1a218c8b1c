#include "trace.h"

#include "cuda/ranges.h"
#include "error.h"
#include "whole_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>

namespace tutti::trace {

namespace detail {
std::atomic<bool> wanted{cuda::has_ranges()};
std::atomic<bool> recording{false};
}  // namespace detail

namespace {

constexpr std::size_t most_events = 1'000'000;

enum class Kind { span, async, thread };

struct Event {
  Kind kind;
  std::string name, details;
  int rank, thread;
  Clock::time_point begin, end;
};

struct Recorder {
  std::mutex mutex;
  std::vector<Event> events;
  std::int64_t dropped = 0;
  std::atomic<std::int64_t> number{0};  // of the present recording
  std::atomic<int> rank{0}, threads{0};
  Clock::time_point zero;
};

Recorder& recorder() {
  static auto& one = *new Recorder;  // threads may outlive static objects
  return one;
}

struct Thread {
  int number = ++recorder().threads;
  int rank = -1;
  std::string name;
  std::int64_t announced = 0;  // in which recording
};
thread_local Thread this_thread;

void add(Kind kind, const std::string& name, Clock::time_point begin, Clock::time_point end,
         const std::string& details) {
  if (!is_recording()) return;
  Recorder& all = recorder();
  Thread& thread = this_thread;
  const int rank = thread.rank >= 0 ? thread.rank : all.rank.load();
  const std::lock_guard lock(all.mutex);
  if (all.events.size() >= most_events) {
    ++all.dropped;
    return;
  }
  if (thread.announced != all.number) {
    thread.announced = all.number;
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
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// One event to a line, the last one without a comma: so that files can be merged line by line.
std::string to_json(const std::vector<Event>& events, Clock::time_point zero, std::int64_t dropped,
                    int rank) {
  std::vector<std::string> lines{fmt::format(
      R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"rank {}"}}}})", rank, rank)};
  if (dropped > 0)
    lines.push_back(fmt::format(
        R"({{"name":"dropped events","ph":"M","pid":{},"args":{{"count":{}}}}})", rank, dropped));
  std::int64_t id = 0;
  for (const Event& e : events) {
    const std::string where = fmt::format(R"("pid":{},"tid":{})", e.rank, e.thread);
    const double begin = microseconds(e.begin - zero);
    switch (e.kind) {
      case Kind::thread:
        if (e.rank != rank)
          lines.push_back(fmt::format(
              R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"rank {}"}}}})", e.rank,
              e.rank));
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
            fmt::format(R"({{"ph":"e","ts":{:.3f},{}}})", microseconds(e.end - zero), head));
        break;
      }
    }
  }
  return fmt::format("[\n{}\n]\n", fmt::join(lines, ",\n"));
}

void write_timeline(const std::string& path, const std::string& text) {
  try {
    write_whole(path, text);
  } catch (const Error& error) {
    fail<Error>("trace: {}; is there such a folder, and room?", error.what());
  }
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
  this_thread.name = name;
  this_thread.rank = rank;
  this_thread.announced = 0;
}

Recording::Recording(std::string path, int rank) : path_(std::move(path)) {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  if (detail::recording)
    fail<Error>("trace: a Recording lives already; there is one timeline for a process");
  write_timeline(path_, "[\n]\n");  // where that cannot be done, the time to say so is now
  std::remove(path_.c_str());
  if (this_thread.name.empty()) this_thread.name = "main";
  all.events.clear();
  all.dropped = 0;
  all.zero = Clock::now();
  all.rank = rank;
  ++all.number;
  detail::wanted = true;
  detail::recording = true;
}

Recording::~Recording() {
  try {
    finish();
  } catch (const std::exception&) {
    // There is nobody to tell: finish() does.
  }
}

void Recording::finish() {
  if (std::exchange(finished_, true)) return;
  Recorder& all = recorder();
  std::vector<Event> events;
  std::int64_t dropped = 0;
  {
    const std::lock_guard lock(all.mutex);
    detail::recording = false;
    detail::wanted = cuda::has_ranges();
    events.swap(all.events);
    dropped = all.dropped;
  }
  write_timeline(path_, to_json(events, all.zero, dropped, all.rank));
}

void merge(const std::vector<std::string>& parts, const std::string& path) {
  std::string text = "[";
  for (const std::string& part : parts) {
    std::ifstream file(part, std::ios::binary);
    if (!file)
      fail<Error>(
          "trace: cannot read {}; processes of other hosts need a folder that all of them share",
          part);
    const std::string whole{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!whole.starts_with("[\n") || !whole.ends_with("\n]\n"))
      fail<Error>("trace: {} is no file of a Recording", part);
    text += (text.size() > 1 ? ",\n" : "\n") + whole.substr(2, whole.size() - 5);
  }
  write_whole(path, text + "\n]\n");
  for (const std::string& part : parts) std::remove(part.c_str());
}

}  // namespace tutti::trace
