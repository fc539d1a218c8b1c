// Trace: a timeline of what every thread does and which collectives are under way, in Chrome's
// trace format, which ui.perfetto.dev opens. A Span costs one load of an atomic while nobody
// records. Built with CUDA, spans are NVTX ranges too, for Nsight Systems. What is worth a span is
// the caller's business.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace tutti::trace {

using Clock = std::chrono::steady_clock;

namespace detail {
extern std::atomic<bool> wanted;  // somebody records, or ranges go to NVTX
extern std::atomic<bool> recording;
}  // namespace detail

/// Whether a Recording lives.
inline bool is_recording() { return detail::recording.load(std::memory_order_relaxed); }

/// From construction to destruction on the calling thread's track; spans of a thread nest. `name`
/// is a text, or a function that makes one and runs only where it is wanted.
class Span {
 public:
  template <class Name>
  explicit Span(const Name& name) {
    if (!detail::wanted.load(std::memory_order_relaxed)) return;
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

/// Something that was under way beside the threads, on a track of its own below the rank of the
/// calling thread: a collective. `details` are JSON members: "\"bytes\":4096,\"wait_us\":3.5".
/// Nothing where nobody records.
void add_async(const std::string& name, Clock::time_point begin, Clock::time_point end,
               const std::string& details) noexcept;

/// Names the calling thread's track and says which rank it works for: from then on, or, for -1, the
/// process's rank.
void name_thread(const std::string& name, int rank = -1);

/// Collects the spans of the whole process while it lives, up to a million events, then writes
/// `path`: at once or not at all, also where an exception ends its scope. `rank` is that of threads
/// that name none. Error where another one lives or `path` cannot be written.
class Recording {
 public:
  explicit Recording(std::string path, int rank = 0);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  /// Stops and writes. Error where that fails; the destructor, which writes if this was not called,
  /// keeps that quiet.
  void finish();

 private:
  std::string path_;
  bool finished_ = false;
};

/// Joins files that Recordings of several processes wrote into one, and removes them.
void merge(const std::vector<std::string>& parts, const std::string& path);

}  // namespace tutti::trace
