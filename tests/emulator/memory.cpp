// Device memory: one range of addresses for all devices, which host code must not access. Each
// block lies between two guards. A release checks them, and AddressSanitizer, if it is on, reports
// an access to them at once.
#include "census.h"
#include "emulator.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) \
  (static_cast<void>(address), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) \
  (static_cast<void>(address), static_cast<void>(bytes))
#endif

namespace emulator {
namespace {

constexpr std::size_t alignment = 256;  // cudaMalloc's
constexpr std::size_t guard = 256;
constexpr unsigned char guard_byte = 0xdb;
constexpr std::size_t huge_page = 2 << 20;
// Returns the bytes of addresses for all devices; only touched pages use memory.
std::size_t address_bytes() { return std::size_t{census::device() ? 512u : 16u} << 30; }

struct Block {
  std::size_t bytes, reserved;  // `reserved` includes the guards
  int device;
};

[[maybe_unused]] void explain_fault(int, siginfo_t* info, void*) {
  if (device_of(info->si_addr) >= 0) {
    const char text[] =
        "CUDA emulator: host code touches device memory, which would fault on a GPU machine\n";
    [[maybe_unused]] const auto written = ::write(2, text, sizeof(text) - 1);
  }
  std::signal(SIGSEGV, SIG_DFL);  // after the return the access faults again and ends the process
}

struct Memory {
  std::mutex mutex;
  const std::size_t range = address_bytes();
  unsigned char* base;
  std::size_t used = 0;                        // bytes of the range that were ever allocated
  std::map<unsigned char*, std::size_t> free;  // by address
  std::map<unsigned char*, Block> blocks;      // by address of the block's first byte
  std::map<int, Usage> usage;
  int accesses = 0;

  Memory() {
    void* pages =
        mmap(nullptr, range, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) fatal("mmap failed: there are no addresses left for device memory");
    const std::uintptr_t aligned = (reinterpret_cast<std::uintptr_t>(pages) + huge_page - 1) /
                                   huge_page * huge_page;
    base = reinterpret_cast<unsigned char*>(aligned);
    free[base] = range - huge_page;
    // The protection of huge pages changes a thousand times faster.
    madvise(base, range - huge_page, MADV_HUGEPAGE);
#if !defined(__SANITIZE_ADDRESS__)
    struct sigaction action {};
    action.sa_sigaction = explain_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
#endif
  }

  void protect() const {
    if (used > 0 && mprotect(base, used, accesses > 0 ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
      fatal("mprotect of device memory failed");
  }

  auto block_at(const void* address) {
    auto after = blocks.upper_bound(static_cast<unsigned char*>(const_cast<void*>(address)));
    return after == blocks.begin() ? blocks.end() : std::prev(after);
  }
};

Memory& memory() {
  static auto* m = new Memory;
  return *m;
}

}  // namespace

DeviceAccess::DeviceAccess() {
  const std::lock_guard lock(memory().mutex);
  if (memory().accesses++ == 0) memory().protect();
}
DeviceAccess::~DeviceAccess() {
  const std::lock_guard lock(memory().mutex);
  if (--memory().accesses == 0) memory().protect();
}

namespace {

void put_guards(Memory& m, unsigned char* start, std::size_t bytes, std::size_t reserved) {
  const std::size_t end = (static_cast<std::size_t>(start + reserved - m.base) + huge_page - 1) /
                          huge_page * huge_page;
  if (end > m.used) m.used = end, m.protect();
  ASAN_UNPOISON_MEMORY_REGION(start, reserved);
  std::memset(start, guard_byte, reserved);
  ASAN_POISON_MEMORY_REGION(start, guard);
  ASAN_POISON_MEMORY_REGION(start + guard + bytes, reserved - guard - bytes);
}

// Checks the guards of a block that is released, and fills it with NaN.
void check_guards(unsigned char* start, std::size_t bytes, std::size_t reserved) {
  ASAN_UNPOISON_MEMORY_REGION(start, reserved);
  for (std::size_t i = 0; i < reserved; ++i)
    if ((i < guard || i >= guard + bytes) && start[i] != guard_byte)
      fatal(fmt::format("something wrote up to {} bytes {} a block of {} bytes",
                        i < guard ? guard - i : i - guard - bytes + 1,
                        i < guard ? "before" : "past the end of", bytes));
  std::memset(start, 0xff, reserved);
  ASAN_POISON_MEMORY_REGION(start, reserved);
}

}  // namespace

std::size_t memory_bytes() {
  return census::device() ? census::device()->memory_bytes : device_memory;
}

void* allocate(std::size_t bytes, int device) {
  Memory& m = memory();
  const DeviceAccess access;
  const std::lock_guard lock(m.mutex);
  Usage& u = m.usage[device];
  if (u.live + bytes > memory_bytes()) return nullptr;
  const std::size_t reserved = guard + (bytes + alignment - 1) / alignment * alignment + guard;
  const auto room = std::find_if(m.free.begin(), m.free.end(),
                                 [&](const auto& f) { return f.second >= reserved; });
  if (room == m.free.end()) return nullptr;
  unsigned char* start = room->first;
  if (room->second > reserved) m.free[start + reserved] = room->second - reserved;
  m.free.erase(room);
  if (census::device()) census::add_block(bytes, device);
  else put_guards(m, start, bytes, reserved);
  m.blocks[start + guard] = {bytes, reserved, device};
  u.live += bytes;
  u.peak = std::max(u.peak, u.live);
  return start + guard;
}

void poison(void* block) {
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(memory().mutex);
    const auto found = memory().blocks.find(static_cast<unsigned char*>(block));
    if (found == memory().blocks.end()) return;  // released already
    bytes = found->second.bytes;
  }
  std::memset(block, 0xff, bytes);
}

void release(void* block) {
  Memory& m = memory();
  const DeviceAccess access;
  const std::lock_guard lock(m.mutex);
  auto* data = static_cast<unsigned char*>(block);
  const auto found = m.blocks.find(data);
  if (found == m.blocks.end())
    fatal("a pointer was released that is not a live block of device memory");
  const auto [bytes, reserved, device] = found->second;
  unsigned char* start = data - guard;
  if (census::device()) census::end_block(bytes, device);
  else check_guards(start, bytes, reserved);
  m.blocks.erase(found);
  m.usage[device].live -= bytes;
  auto here_free = m.free.emplace(start, reserved).first;
  if (const auto next = std::next(here_free);
      next != m.free.end() && start + reserved == next->first) {
    here_free->second += next->second;
    m.free.erase(next);
  }
  if (here_free != m.free.begin()) {
    const auto before = std::prev(here_free);
    if (before->first + before->second == start) {
      before->second += here_free->second;
      m.free.erase(here_free);
    }
  }
}

Usage usage(int device) {
  const std::lock_guard lock(memory().mutex);
  return memory().usage[device];
}

void reset_peak(int device) {
  const std::lock_guard lock(memory().mutex);
  memory().usage[device].peak = memory().usage[device].live;
}

Region device_addresses() { return {memory().base, memory().range - huge_page}; }

int device_of(const void* address) {
  Memory& m = memory();
  const auto* a = static_cast<const unsigned char*>(address);
  if (a < m.base || a >= m.base + m.range) return -1;
  const std::unique_lock lock(
      m.mutex, std::try_to_lock);  // the fault may happen while this thread holds the lock
  if (!lock) return 0;
  const auto block = m.block_at(address);
  return block == m.blocks.end() ? 0 : block->second.device;
}

std::size_t bytes_from(const void* address) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto block = m.block_at(address);
  const auto* a = static_cast<const unsigned char*>(address);
  if (block == m.blocks.end() || a >= block->first + block->second.bytes) return 0;
  return static_cast<std::size_t>(block->first + block->second.bytes - a);
}

void expect_allocated(const void* address, std::size_t bytes, const char* call) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto block = m.block_at(address);
  const auto* a = static_cast<const unsigned char*>(address);
  if (block == m.blocks.end() || a + bytes > block->first + block->second.bytes)
    fatal(fmt::format("{}: {} bytes that do not lie in one block of device memory", call, bytes));
}

}  // namespace emulator
