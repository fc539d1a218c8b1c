// PageHeap: memory for large blocks. It maps pages of the system, cuts each block off the smallest
// free range of pages that holds it, and merges free ranges beside each other, so that the same
// memory serves blocks of any size. It takes no lock and knows no tensors, devices or small blocks
// (core/memory.cpp).
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace tutti {

/// Hands out blocks of whole pages. It is not thread-safe.
class PageHeap {
 public:
  PageHeap() = default;
  /// Returns the free ranges to the system. All blocks must have been released.
  ~PageHeap() { return_to_system(free_bytes_); }
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  /// Returns a block of at least `bytes` bytes at the beginning of a page, uninitialised. Null if
  /// the system has no such memory left. May throw std::bad_alloc, and changes no block then.
  void* allocate(std::size_t bytes);
  /// Takes a block back.
  void release(void* block) noexcept;
  /// Returns `bytes` bytes of free ranges to the system, rounded up to pages, or all that are free.
  /// The largest ranges go first. It stops early where the process may not have more mappings.
  void return_to_system(std::size_t bytes) noexcept;

  /// Returns the bytes of the pages that a block takes.
  std::size_t size_of(void* block) const { return ranges_.at(static_cast<char*>(block)).size; }
  std::size_t free_bytes() const { return free_bytes_; }
  /// Returns how often the system was asked for pages so far.
  std::size_t mappings() const { return mappings_; }

 private:
  using FreeRanges = std::set<std::pair<std::size_t, char*>>;  // sizes and beginnings
  struct Range {
    std::size_t size = 0;
    // The element of free_ with which the range of a block will be free again, so that release()
    // needs no memory. Empty while the range is free.
    FreeRanges::node_type free_node = {};

    bool is_free() const { return free_node.empty(); }
  };
  using Ranges = std::map<char*, Range>;  // by their beginnings

  bool map_pages(std::size_t size);
  void add_block(char* begin, std::size_t size);

  Ranges ranges_;
  FreeRanges free_;
  std::size_t free_bytes_ = 0, mappings_ = 0;
};

}  // namespace tutti
