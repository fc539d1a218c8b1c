// Tests that the page heap hands out separate blocks, merges what is released, and returns pages.
#include <tutti/core/page_heap.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace tutti {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

TEST(PageHeap, HandsOutSeparateBlocksThatKeepTheirContents) {
  struct Block {
    std::uint64_t* data;
    std::size_t elements;
    std::uint64_t mark;
  };
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  PageHeap heap;
  std::vector<Block> blocks;
  std::size_t live = 0;
  const auto check_and_release = [&](std::size_t i) {
    const Block block = blocks[i];
    for (std::size_t k = 0; k < block.elements; k += 512) EXPECT_EQ(block.data[k], block.mark + k);
    EXPECT_EQ(block.data[block.elements - 1], block.mark + block.elements - 1);
    live -= heap.size_of(block.data);
    heap.release(block.data);
    std::swap(blocks[i], blocks.back());
    blocks.pop_back();
  };
  for (std::uint64_t step = 0; step < 3000; ++step) {
    if (random() % 40 < blocks.size()) check_and_release(random() % blocks.size());
    const std::size_t elements = 1 + random() % (random() % 4 == 0 ? MiB : MiB / 64);
    auto* const data = static_cast<std::uint64_t*>(heap.allocate(elements * sizeof(std::uint64_t)));
    ASSERT_NE(data, nullptr);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(data) % 4096, 0u);
    const Block block{data, elements, step << 40};
    for (std::size_t k = 0; k < elements; k += 512) data[k] = block.mark + k;
    data[elements - 1] = block.mark + elements - 1;
    live += heap.size_of(data);
    blocks.push_back(block);
    if (random() % 100 == 0) heap.return_to_system(random() % (64 * MiB));
  }
  while (!blocks.empty()) check_and_release(blocks.size() - 1);
  EXPECT_EQ(live, 0u);
  EXPECT_GT(heap.free_bytes(), 0u);
  heap.return_to_system(heap.free_bytes());
  EXPECT_EQ(heap.free_bytes(), 0u);
}

TEST(PageHeap, ServesOtherSizesFromWhatWasReleased) {
  PageHeap heap;
  void* const whole = heap.allocate(16 * MiB - 64);
  heap.release(whole);
  std::vector<void*> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(heap.allocate(4 * MiB - 64));
  EXPECT_EQ(heap.free_bytes(), 0u);
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::shuffle(parts.begin(), parts.end(), std::mt19937_64(seed));
  for (void* part : parts) heap.release(part);
  EXPECT_EQ(heap.allocate(16 * MiB - 64), whole);
  EXPECT_EQ(heap.mappings(), 1u);
  heap.release(whole);
}

TEST(PageHeap, CutsBlocksOffTheSmallestFreeRange) {
  PageHeap heap;
  void* const large = heap.allocate(8 * MiB - 64);
  void* const between = heap.allocate(2 * MiB - 64);
  void* const small = heap.allocate(4 * MiB - 64);
  void* const end = heap.allocate(2 * MiB - 64);
  heap.release(small);
  heap.release(large);
  EXPECT_EQ(heap.allocate(3 * MiB), small);
  EXPECT_EQ(heap.allocate(5 * MiB), large);
  for (void* block : {small, large, between, end}) heap.release(block);
}

TEST(PageHeap, ReturnsTheEndsOfTheLargestRanges) {
  PageHeap heap;
  void* const block = heap.allocate(6 * MiB - 64);
  heap.release(block);
  heap.return_to_system(MiB - 1);
  EXPECT_EQ(heap.free_bytes(), 5 * MiB);
  EXPECT_EQ(heap.allocate(5 * MiB - 64), block);
  heap.return_to_system(MiB);  // nothing is free
  EXPECT_EQ(heap.free_bytes(), 0u);
  heap.release(block);
}

TEST(PageHeap, ReturnsNullWhereTheSystemHasNoMemory) {
  PageHeap heap;
  EXPECT_EQ(heap.allocate(std::size_t{1} << 60), nullptr);
  EXPECT_EQ(heap.mappings(), 0u);
  void* const block = heap.allocate(MiB);
  EXPECT_NE(block, nullptr);
  heap.release(block);
}

TEST(PageHeap, LetsAddressSanitizerSeeWhatIsNoBlock) {
#ifndef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the build has no AddressSanitizer";
#else
  PageHeap heap;
  auto* const block = static_cast<char*>(heap.allocate(2 * MiB));
  EXPECT_FALSE(__asan_address_is_poisoned(block + 2 * MiB - 1));
  EXPECT_TRUE(__asan_address_is_poisoned(block + 2 * MiB));
  heap.release(block);
  EXPECT_TRUE(__asan_address_is_poisoned(block));
#endif
}

}  // namespace
}  // namespace tutti
