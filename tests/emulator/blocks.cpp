// Runs one kernel: its threads as fibers, in a random order between barriers. A fiber runs one
// thread after another. A further fiber is needed only when a thread waits at a barrier, so a
// kernel without barriers runs on a single fiber.
#include "race_detector.h"

#include <fmt/format.h>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim, gridDim;

namespace emulator {

constinit thread_local ThreadContext current_thread;

void fatal(const std::string& what) {
  std::fprintf(stderr, "CUDA emulator: %s\n", what.c_str());
  std::abort();
}

Random::Random(std::uint64_t stream) {
  static const std::uint64_t seed = [] {
    const char* text = std::getenv("TUTTI_EMULATOR_SEED");
    return text ? std::strtoull(text, nullptr, 10) : 1ULL;
  }();
  state_ = (seed * 0x9E3779B97F4A7C15ULL) ^ (stream * 0xD1B54A32D192ED03ULL);
}

std::uint64_t Random::below(std::uint64_t bound) {  // splitmix64
  std::uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return (z ^ (z >> 31)) % bound;
}

namespace {

constexpr int warp_size = 32;
constexpr int poison_byte = 0xff;  // NaN in every floating-point type, -1 in every integer

// ---- fibers

// A stack and the point at which it is suspended.
struct Fiber {
  boost::context::fiber context;
  const void* bottom = nullptr;
  std::size_t size = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's state of the stack
#if defined(__SANITIZE_ADDRESS__)
  static constexpr std::size_t stack_bytes = 512 << 10;
  void leave(const Fiber& to) { __sanitizer_start_switch_fiber(&fake_stack, to.bottom, to.size); }
  void arrive(Fiber& from) {
    __sanitizer_finish_switch_fiber(fake_stack, &from.bottom, &from.size);
  }
#else
  static constexpr std::size_t stack_bytes = 128 << 10;
  void leave(const Fiber&) {}
  void arrive(Fiber&) {}
#endif
};

// The fibers of one host thread that runs kernels. They are never freed but lent to the next
// launch, because tests start and end host threads (ranks) all the time.
class Fibers {
 public:
  Fiber* take() {
    if (idle_.empty()) return make();
    Fiber* fiber = idle_.back();
    idle_.pop_back();
    return fiber;
  }
  void give_back(Fiber* fiber) { idle_.push_back(fiber); }

  /// Each fiber runs this function again and again, one CUDA thread at a time.
  const std::function<void()>* work = nullptr;

  /// Suspends the running fiber and resumes `to`, or the host thread itself for null. Returns when
  /// another fiber resumes this one.
  void switch_to(Fiber* to) {
    Fiber *from = running_, *next = to ? to : &host_;
    if (from == next) return;
    came_from_ = from, running_ = next;
    from->leave(*next);
    boost::context::fiber left = std::move(next->context).resume();
    came_from_->context = std::move(left);
    from->arrive(*came_from_);
  }

 private:
  Fiber* make() {
    auto* fiber = new Fiber;
    boost::context::protected_fixedsize_stack allocator(Fiber::stack_bytes);
    const boost::context::stack_context memory = allocator.allocate();
    fiber->bottom = static_cast<const char*>(memory.sp) - memory.size;
    fiber->size = memory.size;
    fiber->context = boost::context::fiber(
        std::allocator_arg, boost::context::preallocated(memory.sp, memory.size, memory), allocator,
        [this, fiber](boost::context::fiber&& left) {
          came_from_->context = std::move(left);
          fiber->arrive(*came_from_);
          for (;;) {
            (*work)();
            switch_to(nullptr);
          }
          return std::move(left);  // is never reached
        });
    return fiber;
  }

  std::vector<Fiber*> idle_;
  Fiber host_;
  Fiber *running_ = &host_, *came_from_ = nullptr;
};

// Borrows a set of fibers for one launch.
class BorrowedFibers {
 public:
  BorrowedFibers() {
    const std::lock_guard lock(mutex());
    if (pool().empty()) pool().push_back(new Fibers);
    fibers_ = pool().back();
    pool().pop_back();
  }
  ~BorrowedFibers() {
    const std::lock_guard lock(mutex());
    pool().push_back(fibers_);
  }
  BorrowedFibers(const BorrowedFibers&) = delete;
  BorrowedFibers& operator=(const BorrowedFibers&) = delete;
  Fibers* operator->() const { return fibers_; }

 private:
  static std::mutex& mutex() {
    static auto* m = new std::mutex;
    return *m;
  }
  static std::vector<Fibers*>& pool() {
    static auto* p = new std::vector<Fibers*>;
    return *p;
  }
  Fibers* fibers_;
};

// ---- threads, warps, blocks

struct Thread;
struct Block;

// A point at which `expected` threads wait for each other.
struct Barrier {
  const char* name;
  std::size_t expected = 0;
  Location first = {};
  std::vector<Thread*> waiting = {};
};

struct Warp {
  Barrier barrier{"a shuffle or __syncwarp"};
  std::uint32_t lanes = 0;
  // Exchanges use the two halves in turn, because a lane may pass its next value while others still
  // read the values of the last exchange.
  int turn = 0;
  alignas(16) unsigned char slots[2][warp_size * WarpValues::stride];
};

struct Thread {
  uint3 index{};
  int lane = 0;
  Block* block = nullptr;
  Warp* warp = nullptr;
  Fiber* fiber = nullptr;
  const Barrier* waits_at = nullptr;
  Location waits_in = {};
  bool finished = false;
};

struct Block {
  uint3 index{};
  Barrier barrier{"__syncthreads"};
  std::vector<Warp> warps;
  std::vector<Thread> threads;
  std::vector<Thread*> ready;
  std::vector<unsigned char> dynamic_shared;
};

// One barrier or fence of the kernels that does nothing, to see whether a test finds that; and a
// file that gets the place of each that is passed. tests/emulator/mutations.py sets both.
bool is_left_out(const Location& at) {
  static const char* const left_out = std::getenv("TUTTI_EMULATOR_WITHOUT");
  static const char* const places = std::getenv("TUTTI_EMULATOR_PLACES");
  if (!left_out && !places) return false;
  const std::string place = fmt::format("{}:{}", at.file_name(), at.line());
  if (places) {
    static std::mutex mutex;
    static auto* known = new std::set<std::string>;
    const std::lock_guard lock(mutex);
    if (known->insert(place).second) std::ofstream(places, std::ios::app) << place << '\n';
  }
  return left_out && place.ends_with(left_out);
}

std::string text(const Location& at) { return fmt::format("{}:{}", at.file_name(), at.line()); }
std::string text(const Thread& t) {
  const uint3 i = t.index, b = t.block->index;
  return fmt::format("thread ({}, {}, {}) of block ({}, {}, {})", i.x, i.y, i.z, b.x, b.y, b.z);
}

class Grid {
 public:
  Grid(const Launch& launch, std::uint64_t number) : launch_(launch), random_(number) {
    body_ = [this] {
      launch_.kernel();
      thread_->finished = true;
    };
    fibers_->work = &body_;
  }

  void run() {
    const std::size_t count = std::size_t{launch_.grid.x} * launch_.grid.y * launch_.grid.z;
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = i;
    for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    Block block;
    if (RaceDetector::is_on()) races_.emplace(launch_);
    for (const std::size_t number : order) {
      fill(block, number);
      run(block);
    }
    races_.reset();
  }

  void wait(Barrier& barrier, Location at) {
    Thread* t = thread_;
    if (barrier.waiting.empty()) barrier.first = at;
    if (at.line() != barrier.first.line() ||
        (at.file_name() != barrier.first.file_name() &&
         std::strcmp(at.file_name(), barrier.first.file_name()) != 0))
      fatal(fmt::format("divergent barrier: {} waits in {}, but {} waits in {}", text(*t), text(at),
                        text(*barrier.waiting.front()), text(barrier.first)));
    t->waits_at = &barrier, t->waits_in = at;
    barrier.waiting.push_back(t);
    if (barrier.waiting.size() == barrier.expected) {
      if (races_ && &barrier == &t->block->barrier) races_->join_block();
      for (Thread* waiting : barrier.waiting) {
        waiting->waits_at = nullptr;
        waiting->block->ready.push_back(waiting);
      }
      barrier.waiting.clear();
    }
    // If the next thread of the block is suspended too, it can be resumed directly.
    Block& block = *t->block;
    if (!block.ready.empty() && pick(block)->fiber != nullptr) resume(*take_picked(block));
    else fibers_->switch_to(nullptr);
  }

  Thread* thread() const { return thread_; }
  RaceDetector* races() { return races_ ? &*races_ : nullptr; }

 private:
  void fill(Block& block, std::size_t number) {
    const dim3 grid = launch_.grid, size = launch_.block;
    const std::size_t count = std::size_t{size.x} * size.y * size.z;
    const auto n = static_cast<unsigned>(number);
    block.index = make_uint3(n % grid.x, n / grid.x % grid.y, n / grid.x / grid.y);
    block.barrier.expected = count;
    block.warps.assign((count + warp_size - 1) / warp_size, Warp{});
    block.threads.assign(count, Thread{});
    block.ready.clear();
    block.dynamic_shared.assign(launch_.shared_bytes, poison_byte);
    for (std::size_t i = 0; i < count; ++i) {
      Thread& t = block.threads[i];
      const auto k = static_cast<unsigned>(i);
      t.index = make_uint3(k % size.x, k / size.x % size.y, k / size.x / size.y);
      t.lane = static_cast<int>(i % warp_size);
      t.block = &block;
      t.warp = &block.warps[i / warp_size];
      ++t.warp->barrier.expected;
      t.warp->lanes |= 1u << t.lane;
      block.ready.push_back(&t);
    }
    if (races_)
      races_->begin_block(number, {block.dynamic_shared.data(), block.dynamic_shared.size()});
  }

  void run(Block& block) {
    for (const Region& region : static_shared())
      std::memset(region.data, poison_byte, region.bytes);
    while (!block.ready.empty()) {
      Thread* t = pick(block);
      if (t->fiber == nullptr) t->fiber = fibers_->take();
      resume(*take_picked(block));
      if (thread_->finished) fibers_->give_back(thread_->fiber);
    }
    expect_all_finished(block);
  }

  Thread* pick(Block& block) {
    std::swap(block.ready.back(), block.ready[random_.below(block.ready.size())]);
    return block.ready.back();
  }
  static Thread* take_picked(Block& block) {
    Thread* t = block.ready.back();
    block.ready.pop_back();
    return t;
  }
  void resume(Thread& t) {
    thread_ = &t;
    threadIdx = t.index;
    blockIdx = t.block->index;
    current_thread = {t.lane, t.block->dynamic_shared.data()};
    if (races_) races_->resume(static_cast<std::size_t>(&t - t.block->threads.data()));
    fibers_->switch_to(t.fiber);
  }

  static void expect_all_finished(const Block& block) {
    std::map<std::string, std::pair<int, const Thread*>> states;
    bool stuck = false;
    for (const Thread& t : block.threads) {
      const std::string state =
          t.finished ? "returned"
                     : fmt::format("wait at {}, {}", t.waits_at->name, text(t.waits_in));
      auto& [count, example] = states[state];
      ++count;
      example = &t;
      stuck |= !t.finished;
    }
    if (!stuck) return;
    std::string what = "a barrier that not all threads reach:";
    for (const auto& [state, threads] : states)
      what += fmt::format("\n  {} threads {} ({})", threads.first, state, text(*threads.second));
    fatal(what);
  }

  const Launch& launch_;
  Random random_;
  BorrowedFibers fibers_;
  std::function<void()> body_;
  Thread* thread_ = nullptr;
  std::optional<RaceDetector> races_;
};

thread_local Grid* grid = nullptr;

}  // namespace

void run(const Launch& launch) {
  static std::atomic<std::uint64_t> launches{0};
  if (grid != nullptr) fatal("a kernel was launched from within a kernel");
  Grid running(launch, ++launches);
  grid = &running;
  blockDim = launch.block;
  gridDim = launch.grid;
  running.run();
  grid = nullptr;
}

void block_barrier(Location at) {
  if (!is_left_out(at)) grid->wait(grid->thread()->block->barrier, at);
}

void warp_barrier(std::uint32_t mask, Location at) {
  if (is_left_out(at)) return;
  Warp& warp = *grid->thread()->warp;
  const bool last = warp.barrier.waiting.size() + 1 == warp.barrier.expected;
  if (last && grid->races()) grid->races()->join_warp();
  warp_exchange(mask, nullptr, 0, at);
}

void fence(Location at) {
  if (is_left_out(at)) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (grid->races()) grid->races()->fence();
}

WarpValues warp_exchange(std::uint32_t mask, const void* value, std::size_t bytes, Location at) {
  const Thread* t = grid->thread();
  Warp& warp = *t->warp;
  if (mask != ~std::uint32_t{0})
    fatal(fmt::format("only full warps are emulated: {} shuffles among fewer in {}", text(*t),
                      text(at)));
  unsigned char* slots = warp.slots[warp.turn];
  const int turn = warp.turn;
  if (bytes > 0)
    std::memcpy(slots + static_cast<std::size_t>(t->lane) * WarpValues::stride, value, bytes);
  if (warp.barrier.waiting.size() + 1 == warp.barrier.expected) warp.turn = 1 - turn;
  grid->wait(warp.barrier, at);
  return {slots, warp.lanes};
}

std::vector<Region (*)()>& shared_regions() {
  static auto* regions = new std::vector<Region (*)()>;
  return *regions;
}

const std::vector<Region>& static_shared() {
  thread_local const std::vector<Region> regions = [] {
    std::vector<Region> found;
    for (const auto& region : shared_regions()) found.push_back(region());
    return found;
  }();
  return regions;
}

}  // namespace emulator
