#include "page_heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#if __has_include(<sanitizer/asan_interface.h>)  // a compiler may be installed without it
#include <sanitizer/asan_interface.h>  // its macros do nothing in a build without AddressSanitizer
#else
#define ASAN_POISON_MEMORY_REGION(begin, bytes) (static_cast<void>(begin), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(begin, bytes) ASAN_POISON_MEMORY_REGION(begin, bytes)
#endif

namespace tutti {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
// A block takes some bytes more than it needs, so that AddressSanitizer finds accesses behind its
// end, and so that not all blocks of a power of two begin at the same sets of a second-level cache.
constexpr std::size_t gap = 64;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::size_t whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return round_up(bytes, page);
}

char* map(std::uintptr_t wanted, std::size_t size) {
  void* const begin = mmap(reinterpret_cast<void*>(wanted), size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return begin == MAP_FAILED ? nullptr : static_cast<char*>(begin);
}

// Maps `size` bytes at a multiple of a huge page, of which Linux makes sure itself from version 6.7
// on. Null if there is no memory.
char* map_huge_pages(std::uintptr_t wanted, std::size_t size) {
  char* const begin = map(wanted / huge_page * huge_page, size);
  const auto missing = [](char* address) {
    return -reinterpret_cast<std::uintptr_t>(address) % huge_page;
  };
  if (!begin || missing(begin) == 0) return begin;
  munmap(begin, size);
  char* const more = map(0, size + huge_page);
  if (!more) return nullptr;
  const std::size_t before = missing(more), after = huge_page - before;
  if (before > 0) munmap(more, before);
  munmap(more + before + size, after);
  return more + before;
}

}  // namespace

void* PageHeap::allocate(std::size_t bytes) {
  if (bytes > PTRDIFF_MAX) return nullptr;
  const std::size_t size = whole_pages(bytes + gap);
  const auto smallest = [&] { return free_.lower_bound({size, nullptr}); };
  auto found = smallest();
  if (found == free_.end()) {
    if (!map_pages(size)) return nullptr;
    found = smallest();
  }
  const auto range = ranges_.find(found->second);
  char* const block = range->first;
  const std::size_t rest = range->second.size - size;
  if (rest > 0) add_block(block + size, rest);
  range->second = {size, free_.extract(found)};
  free_bytes_ -= size + rest;
  if (rest > 0) release(block + size);
  ASAN_UNPOISON_MEMORY_REGION(block, bytes);
  return block;
}

void PageHeap::release(void* block) noexcept {
  auto range = ranges_.find(static_cast<char*>(block));
  FreeRanges::node_type node = std::move(range->second.free_node);
  free_bytes_ += range->second.size;
  ASAN_POISON_MEMORY_REGION(block, range->second.size);
  const auto are_adjacent = [](Ranges::iterator first, Ranges::iterator second) {
    return first->first + first->second.size == second->first;
  };
  if (const auto next = std::next(range);
      next != ranges_.end() && next->second.is_free() && are_adjacent(range, next)) {
    free_.erase({next->second.size, next->first});
    range->second.size += next->second.size;
    ranges_.erase(next);
  }
  if (range != ranges_.begin()) {
    const auto previous = std::prev(range);
    if (previous->second.is_free() && are_adjacent(previous, range)) {
      free_.erase({previous->second.size, previous->first});
      previous->second.size += range->second.size;
      ranges_.erase(range);
      range = previous;
    }
  }
  node.value() = {range->second.size, range->first};
  free_.insert(std::move(node));
}

void PageHeap::return_to_system(std::size_t bytes) noexcept {
  for (std::size_t left = std::min(whole_pages(bytes), free_bytes_); left > 0;) {
    const auto largest = std::prev(free_.end());
    const auto [size, begin] = *largest;
    const std::size_t part = std::min(left, size), kept = size - part;
    ASAN_UNPOISON_MEMORY_REGION(begin + kept, part);  // for whoever gets these addresses next
    if (munmap(begin + kept, part) != 0) {
      ASAN_POISON_MEMORY_REGION(begin + kept, part);
      return;
    }
    FreeRanges::node_type node = free_.extract(largest);
    if (kept > 0) {
      ranges_.at(begin).size = kept;
      node.value() = {kept, begin};
      free_.insert(std::move(node));
    } else {
      ranges_.erase(begin);
    }
    free_bytes_ -= part;
    left -= part;
  }
}

// Adds a free range of `size` bytes or more. It asks for the addresses below all others, because
// free ranges merge where the system grants them.
bool PageHeap::map_pages(std::size_t size) {
  size = round_up(size, huge_page);
  const auto lowest = ranges_.empty() ? 0
                                      : reinterpret_cast<std::uintptr_t>(ranges_.begin()->first);
  char* const begin = map_huge_pages(lowest > size ? lowest - size : 0, size);
  if (!begin) return false;
  madvise(begin, size, MADV_HUGEPAGE);  // only a hint
  try {
    add_block(begin, size);
  } catch (...) {
    munmap(begin, size);
    throw;
  }
  ++mappings_;
  release(begin);
  return true;
}

// Adds the range of a block that release() then makes free.
void PageHeap::add_block(char* begin, std::size_t size) {
  FreeRanges one{{size, begin}};
  ranges_.emplace(begin, Range{size, one.extract(one.begin())});
}

}  // namespace tutti
