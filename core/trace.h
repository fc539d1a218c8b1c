// The trace is a timeline of what every thread does and which collectives are under way. A Profile
// writes it in Chrome's trace format, which ui.perfetto.dev opens; in a build with CUDA spans are
// NVTX ranges too, for Nsight Systems. Callers decide which operations get a span.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace tutti::trace {

/// The clock of all times in a trace.
using Clock = std::chrono::steady_clock;

namespace detail {
extern std::atomic<bool> spans_enabled;  // a Profile exists, or a profiler reads NVTX
extern std::atomic<bool> profiling;
}  // namespace detail

/// Returns whether a Profile exists in this process.
inline bool is_profiling() { return detail::profiling.load(std::memory_order_relaxed); }

/// A Span is an interval on the calling thread's track, from its construction to its destruction;
/// spans of a thread nest. `name` is a string, or a function that returns one and is called only
/// when the name is needed. A Span costs one load of an atomic while no Profile exists.
class Span {
 public:
  template <class Name>
  [[nodiscard]] explicit Span(const Name& name) {
    if (!detail::spans_enabled.load(std::memory_order_relaxed)) return;
    if constexpr (std::is_invocable_v<Name>) begin(name());
    else begin(name);
  }
  ~Span() {
    if (began_) end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void begin(std::string name);
  void end() noexcept;

  bool began_ = false;
  Clock::time_point start_ = {};
  std::string name_;
};

/// Adds an operation that ran beside the threads, such as a collective, on a track of its own below
/// the calling thread's rank. `details` are JSON members: "\"bytes\":4096,\"wait_us\":3.5". The
/// call does nothing while no Profile exists.
void add_async(const std::string& name, Clock::time_point begin, Clock::time_point end,
               const std::string& details) noexcept;

/// Names the calling thread's track and sets the rank that the thread works for from now on; -1
/// stands for the rank of the Profile.
void name_thread(const std::string& name, int rank = -1);

/// A Profile collects the spans of the whole process, at most a million events, and writes them to
/// `path` when it is finished or destroyed, also when an exception ends its scope. The file appears
/// whole or not at all. In the child of a fork nothing is collected or written. `rank` is the rank
/// of threads that name none. The constructor throws an Error if another Profile exists or `path`
/// cannot be written.
class Profile {
 public:
  [[nodiscard]] explicit Profile(std::string path, int rank = 0);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;
  /// Stops and writes the file. Throws an Error if that fails; the destructor, which writes the
  /// file unless finish() was called, ignores such an error.
  void finish();

 private:
  std::string path_;
  bool finished_ = false;
};

/// Joins the files that the Profiles of several processes wrote into one, and removes them.
void merge(const std::vector<std::string>& parts, const std::string& path);

}  // namespace tutti::trace
