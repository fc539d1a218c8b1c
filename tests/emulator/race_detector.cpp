// Implements race_detector.h, and defines the functions that instrumented code calls.
#include "race_detector.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace emulator {
namespace {

bool instrumented = false;
thread_local RaceDetector* watching = nullptr;

// Scopes are numbered in three ranges.
constexpr std::uint64_t warps = std::uint64_t{1} << 40, blocks = std::uint64_t{2} << 40;

// Addresses of the shadow memory: those of device memory, and ranges for the block's shared memory.
constexpr std::uint64_t static_begin = std::uint64_t{1} << 62,
                        dynamic_begin = static_begin + (1 << 21);

std::string run(const std::string& command) {
  std::string output;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    std::array<char, 4096> text;
    while (std::fgets(text.data(), text.size(), pipe)) output += text.data();
    pclose(pipe);
  }
  return output;
}

// The function and the line of an instruction, then those that it was inlined into, by addr2line.
std::string source_of(const void* instruction) {
  Dl_info info{};
  if (dladdr(instruction, &info) == 0) return "an unknown place";
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(instruction) -
                                               static_cast<const char*>(info.dli_fbase));
  const std::string text =
      run(fmt::format("addr2line -s -C -i -f -e '{}' {:#x} 2>/dev/null", info.dli_fname, offset));
  std::string places;
  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;) {
    const std::string function = text.substr(begin, std::min<std::size_t>(end - begin, 120));
    const std::size_t line_end = text.find('\n', end + 1);
    if (line_end == std::string::npos) break;
    const std::size_t line_of_code = std::min(text.find(" (disc", end), line_end);
    places += fmt::format("{}{} in {}", places.empty() ? "" : "\n      inlined in ",
                          text.substr(end + 1, line_of_code - end - 1), function);
    begin = line_end + 1;
  }
  return places.empty() ? fmt::format("{}+{:#x}", info.dli_fname, offset) : places;
}

}  // namespace

// ---- shadow memory: the last accesses to each word of 8 bytes

struct RaceDetector::Cell {
  std::uint64_t instruction : 48;
  std::uint64_t bytes : 8;  // bit i is set for byte i of the word
  std::uint64_t kind_ : 8;
  std::uint32_t thread;  // its number within the grid
  Time time;

  Access kind() const { return static_cast<Access>(kind_); }
  bool writes() const { return kind() == Access::write || kind() == Access::atomic_write; }
  bool is_atomic() const { return kind() == Access::atomic_read || kind() == Access::atomic_write; }
};

struct RaceDetector::Word {
  // There may be eight writers of one byte each. Where there are more accesses that nothing orders,
  // one is forgotten at random.
  static constexpr std::uint32_t capacity = 10;
  static constexpr std::uint64_t size = 8;
  std::uint32_t stamp, count;  // cells of an earlier launch or block have another stamp
  Cell cells[capacity];
};

struct RaceDetector::Place {
  std::uint64_t address;
  std::uint32_t stamp;
  bool shared;
};

namespace {

// The words of all addresses that were ever accessed, in pages.
template <class Word>
class Shadow {
 public:
  std::uint32_t next_stamp() { return ++stamp_; }
  Word& at(std::uint64_t address) {
    const std::uint64_t page = address / page_bytes;
    auto& [number, words] = recent_[page % recent_.size()];
    if (number != page || !words) {
      Word*& found = pages_[page];
      if (!found) found = make_page();
      number = page, words = found;
    }
    return words[address % page_bytes / Word::size];
  }

 private:
  static constexpr std::uint64_t page_bytes = 4096;
  static Word* make_page() {
    void* page = mmap(nullptr, page_bytes / Word::size * sizeof(Word), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (page == MAP_FAILED) fatal("mmap failed: there is no memory left for the race detector");
    return static_cast<Word*>(page);
  }
  std::unordered_map<std::uint64_t, Word*> pages_;
  std::array<std::pair<std::uint64_t, Word*>, 64> recent_{};
  std::uint32_t stamp_ = 0;
};

template <class Word>
Shadow<Word>& shadow() {
  static thread_local auto* of_host_thread = new Shadow<Word>;
  return *of_host_thread;
}

}  // namespace

// ---- the running launch

bool RaceDetector::is_on() { return instrumented; }

RaceDetector::RaceDetector(const Launch& launch)
    : launch_(launch),
      block_threads_(std::size_t{launch.block.x} * launch.block.y * launch.block.z),
      block_warps_((block_threads_ + 31) / 32),
      static_shared_(static_shared()),
      stamp_(shadow<Word>().next_stamp()) {
  watching = this;
}
RaceDetector::~RaceDetector() { watching = nullptr; }

void RaceDetector::begin_block(std::size_t block, Region dynamic_shared) {
  block_stamp_ = shadow<Word>().next_stamp();
  dynamic_shared_ = dynamic_shared;
  threads_.assign(block_threads_, Thread{});
  for (std::size_t i = 0; i < block_threads_; ++i) {
    threads_[i].number = block * block_threads_ + i;
    threads_[i].warp = block * block_warps_ + i / 32;
    threads_[i].block = block;
  }
}

bool RaceDetector::locate(std::uintptr_t address, Place& place) const {
  const Region device = device_addresses();
  const auto offset_in = [&](const Region& region) {
    return address - reinterpret_cast<std::uintptr_t>(region.data);
  };
  if (offset_in(device) < device.bytes) return place = {address, stamp_, false}, true;
  if (const auto at = offset_in(dynamic_shared_); at < dynamic_shared_.bytes)
    return place = {dynamic_begin + at, block_stamp_, true}, true;
  std::uint64_t base = static_begin;
  for (const Region& region : static_shared_) {
    if (const auto at = offset_in(region); at < region.bytes)
      return place = {base + at, block_stamp_, true}, true;
    base += (region.bytes + 63) / 64 * 64;
  }
  return false;
}

// ---- accesses

void RaceDetector::access(const void* address, std::size_t bytes, Access kind,
                          const void* instruction) {
  Place place{};
  if (!running_ || !locate(reinterpret_cast<std::uintptr_t>(address), place)) return;
  Cell cell{.instruction = reinterpret_cast<std::uintptr_t>(instruction) & 0xffffffffffff,
            .bytes = 0,
            .kind_ = static_cast<std::uint8_t>(kind),
            .thread = static_cast<std::uint32_t>(running_->number),
            .time = running_->now};
  const std::uint64_t end = place.address + bytes;
  while (place.address < end) {
    const std::uint64_t word = place.address / Word::size * Word::size,
                        until = std::min(word + Word::size, end);
    cell.bytes = static_cast<std::uint8_t>((1u << (until - word)) - (1u << (place.address - word)));
    check(shadow<Word>().at(word), cell, place);
    place.address = until;
  }
}

// Compares an access with the earlier ones to the same word, and keeps it. An earlier access is
// forgotten if it comes before the new one and everything that races with it later races with the
// new one too.
void RaceDetector::check(Word& word, const Cell& cell, const Place& place) {
  if (word.stamp != place.stamp) word.stamp = place.stamp, word.count = 0;
  std::uint32_t kept = 0;
  bool known = false;
  for (std::uint32_t i = 0; i < word.count; ++i) {
    const Cell& earlier = word.cells[i];
    if ((earlier.bytes & cell.bytes) != 0) {
      const bool before = is_before(earlier, *running_);
      if (!before && (earlier.writes() || cell.writes()) &&
          !(earlier.is_atomic() && cell.is_atomic()))
        report(earlier, cell, place);
      known |= earlier.thread == cell.thread && earlier.time == cell.time &&
               earlier.kind() == cell.kind() && (cell.bytes & ~earlier.bytes) == 0;
      const bool covered = (earlier.bytes & ~cell.bytes) == 0 &&
                           (cell.kind() == Access::write || earlier.kind() == cell.kind());
      if (before && covered && !known) continue;
    }
    if (kept != i) word.cells[kept] = earlier;
    ++kept;
  }
  word.count = kept;
  if (known) return;
  if (word.count == Word::capacity) {
    // Plain writes are kept as long as possible, because any access may race with them.
    std::uint32_t victim = static_cast<std::uint32_t>(random_.below(Word::capacity));
    for (std::uint32_t i = 0; i < Word::capacity; ++i, victim = (victim + 1) % Word::capacity)
      if (word.cells[victim].kind() != Access::write) break;
    word.cells[victim] = cell;
  } else {
    word.cells[word.count++] = cell;
  }
}

bool RaceDetector::is_before(const Cell& cell, const Thread& thread) const {
  if (cell.thread == thread.number) return true;
  const std::size_t block = cell.thread / block_threads_,
                    warp = block * block_warps_ + cell.thread % block_threads_ / 32;
  if (block == thread.block && cell.time <= thread.seen_block) return true;
  if (warp == thread.warp && cell.time <= thread.seen_warp) return true;
  if (!thread.others) return false;
  for (const std::uint64_t scope : {std::uint64_t{cell.thread}, warps + warp, blocks + block}) {
    const auto seen = thread.others->find(scope);
    if (seen != thread.others->end() && cell.time <= seen->second) return true;
  }
  return false;
}

// ---- what orders threads

namespace {

template <class Clock>
void add(Clock& to, const std::shared_ptr<const Clock>& from) {
  if (!from) return;
  for (const auto& [scope, time] : *from) {
    auto& known = to[scope];
    known = std::max(known, time);
  }
}

}  // namespace

RaceDetector::ClockPointer RaceDetector::everything_before(const Thread& thread) const {
  Clock all;
  add(all, thread.others);
  const auto see = [&](std::uint64_t scope, Time time) {
    if (time > 0) all[scope] = std::max(all[scope], time);
  };
  see(thread.number, thread.now);
  see(warps + thread.warp, thread.seen_warp);
  see(blocks + thread.block, thread.seen_block);
  return std::make_shared<Clock>(std::move(all));
}

// Replaces the entries of a block's threads by one of the block, where every thread has one.
void RaceDetector::fold(Clock& clock, std::size_t block) const {
  const auto begin = clock.lower_bound(block * block_threads_),
             end = clock.lower_bound((block + 1) * block_threads_);
  if (static_cast<std::size_t>(std::distance(begin, end)) != block_threads_) return;
  const Time seen_by_all = std::min_element(begin, end, [](const auto& a, const auto& b) {
                             return a.second < b.second;
                           })->second;
  for (auto entry = begin; entry != end;)
    entry = entry->second <= seen_by_all ? clock.erase(entry) : std::next(entry);
  auto& seen = clock[blocks + block];
  seen = std::max(seen, seen_by_all);
}

void RaceDetector::join(std::span<Thread> threads, Time Thread::*seen) {
  Time latest = 0;
  for (const Thread& t : threads) latest = std::max(latest, t.now);
  for (Thread& t : threads) t.*seen = latest, t.now = latest + 1;
  for (const auto clock : {&Thread::others, &Thread::released, &Thread::acquired}) {
    const ClockPointer& first = threads.front().*clock;
    if (std::all_of(threads.begin(), threads.end(),
                    [&](const Thread& t) { return t.*clock == first; }))
      continue;
    auto all = std::make_shared<Clock>();
    const Clock* last = nullptr;
    for (const Thread& t : threads)
      if ((t.*clock).get() != last) add(*all, t.*clock), last = (t.*clock).get();
    fold(*all, threads.front().block);
    for (Thread& t : threads) t.*clock = all;
  }
}

void RaceDetector::join_warp() {
  const auto first = static_cast<std::size_t>(running_ - threads_.data()) / 32 * 32;
  join(std::span(threads_).subspan(first, std::min<std::size_t>(32, threads_.size() - first)),
       &Thread::seen_warp);
}

void RaceDetector::join_block() { join(threads_, &Thread::seen_block); }

void RaceDetector::fence() {
  Thread& t = *running_;
  if (t.acquired) {
    auto all = std::make_shared<Clock>();
    add(*all, t.others);
    add(*all, t.acquired);
    t.others = std::move(all);
    t.acquired = nullptr;
  }
  t.released = everything_before(t);
  ++t.now;
}

void RaceDetector::exchange(const void* address, bool acquires, bool releases) {
  Place place{};
  if (!running_ || !locate(reinterpret_cast<std::uintptr_t>(address), place)) return;
  Exchanged& word = exchanged_[place.address];
  if (word.stamp != place.stamp) word = {place.stamp, nullptr};
  const auto join_of = [](const ClockPointer& a, const ClockPointer& b) {
    if (!a || !b || a == b) return a ? a : b;
    auto all = std::make_shared<Clock>(*a);
    add(*all, b);
    return ClockPointer(std::move(all));
  };
  const ClockPointer earlier = word.clock;
  if (releases) word.clock = acquires ? join_of(earlier, running_->released) : running_->released;
  if (acquires) running_->acquired = join_of(running_->acquired, earlier);
}

// ---- reports

std::string RaceDetector::describe(const Cell& cell) const {
  const dim3 size = launch_.block, grid = launch_.grid;
  const std::size_t block = cell.thread / block_threads_, i = cell.thread % block_threads_;
  return fmt::format("thread ({}, {}, {}) of block ({}, {}, {}) {}{} at {}", i % size.x,
                     i / size.x % size.y, i / size.x / size.y, block % grid.x,
                     block / grid.x % grid.y, block / grid.x / grid.y,
                     cell.is_atomic() ? "atomically " : "", cell.writes() ? "writes" : "reads",
                     source_of(reinterpret_cast<const void*>(cell.instruction)));
}

void RaceDetector::report(const Cell& earlier, const Cell& later, const Place& place) const {
  fatal(
      fmt::format("a data race in {} memory, which nothing orders:\n  {}\n  {}\n  in the kernel {}",
                  place.shared ? "shared" : "device", describe(earlier), describe(later),
                  source_of(launch_.address)));
}

namespace {

using Access = RaceDetector::Access;

void watch(const volatile void* address, std::size_t bytes, Access kind, const void* caller) {
  if (watching)
    watching->access(const_cast<const void*>(address), bytes, kind,
                     static_cast<const char*>(caller) - 1);
}
void exchange(const volatile void* address, bool acquires, bool releases) {
  if (watching) watching->exchange(const_cast<const void*>(address), acquires, releases);
}

}  // namespace
}  // namespace emulator

// ---- what the compiler calls

using emulator::Access;

#define TUTTI_CALLER __builtin_return_address(0)

#define TUTTI_ACCESSES(size)                                                                  \
  void __tsan_read##size(void* at) { emulator::watch(at, size, Access::read, TUTTI_CALLER); } \
  void __tsan_write##size(void* at) { emulator::watch(at, size, Access::write, TUTTI_CALLER); }

// An atomic operation that writes is one that reads and writes, except for a store.
#define TUTTI_ATOMICS(bits, T)                                                                    \
  T __tsan_atomic##bits##_load(const volatile T* at, int) {                                       \
    emulator::watch(at, sizeof(T), Access::atomic_read, TUTTI_CALLER);                            \
    emulator::exchange(at, true, false);                                                          \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                 \
  }                                                                                               \
  void __tsan_atomic##bits##_store(volatile T* at, T value, int) {                                \
    emulator::watch(at, sizeof(T), Access::atomic_write, TUTTI_CALLER);                           \
    emulator::exchange(at, false, true);                                                          \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                \
  }                                                                                               \
  T __tsan_atomic##bits##_fetch_add(volatile T* at, T by, int) {                                  \
    emulator::watch(at, sizeof(T), Access::atomic_write, TUTTI_CALLER);                           \
    emulator::exchange(at, true, true);                                                           \
    return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST);                                          \
  }                                                                                               \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* at, T* expected, T to, int,      \
                                                     int) {                                       \
    emulator::watch(at, sizeof(T), Access::atomic_write, TUTTI_CALLER);                           \
    emulator::exchange(at, true, true);                                                           \
    return __atomic_compare_exchange_n(at, expected, to, false, __ATOMIC_SEQ_CST,                 \
                                       __ATOMIC_SEQ_CST);                                         \
  }                                                                                               \
  bool __tsan_atomic##bits##_compare_exchange_weak(volatile T* at, T* expected, T to, int, int) { \
    emulator::watch(at, sizeof(T), Access::atomic_write, TUTTI_CALLER);                           \
    emulator::exchange(at, true, true);                                                           \
    return __atomic_compare_exchange_n(at, expected, to, false, __ATOMIC_SEQ_CST,                 \
                                       __ATOMIC_SEQ_CST);                                         \
  }

extern "C" {

void __tsan_init() { emulator::instrumented = true; }  // when an instrumented library is loaded
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}

TUTTI_ACCESSES(1)
TUTTI_ACCESSES(2)
TUTTI_ACCESSES(4)
TUTTI_ACCESSES(8)
TUTTI_ACCESSES(16)
void __tsan_read_range(void* at, unsigned long bytes) {
  emulator::watch(at, bytes, Access::read, TUTTI_CALLER);
}
void __tsan_write_range(void* at, unsigned long bytes) {
  emulator::watch(at, bytes, Access::write, TUTTI_CALLER);
}
TUTTI_ATOMICS(8, std::uint8_t)
TUTTI_ATOMICS(32, std::uint32_t)
TUTTI_ATOMICS(64, std::uint64_t)

}  // extern "C"
