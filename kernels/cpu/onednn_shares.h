// How a computation of oneDNN is divided among threads: into shares of about the same work, of
// which each is computed by calls of oneDNN on one thread. docs/design/tensors.md has the rule. The
// division depends on sizes and the number of threads alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tutti::kernels::cpu::onednn {

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

/// A part of a result, which one call computes: whole images or some rows of one, and some
/// channels. The images of a product are its matrices, the channels its columns.
struct Block {
  Range images, rows, channels;
};
using Blocks = std::vector<Block>;

/// The sizes that decide how a computation is divided.
struct Work {
  std::int64_t images = 1, rows = 1, channels = 1;
  std::int64_t row_unit = 1, channel_unit = 1;  ///< The smallest part of rows and of channels.
  double multiplications = 0;
  double x = 0, w = 0, y = 0;    ///< Elements of the operands; y are those that channels divide.
  bool copies_channels = false;  ///< Whether a part of the channels of y is computed in a copy.
  bool adds_rows = false;        ///< Whether every block of rows has a copy of w, to be added.
};

/// A way to divide a computation: images are cut into pieces of `height` rows, of which each of
/// `row_shares` threads computes a series, for each of `channel_blocks` parts of the channels.
struct Grid {
  std::int64_t height, row_shares = 1, channel_blocks = 1;

  std::int64_t pieces(const Work& work) const { return (work.rows + height - 1) / height; }
  /// The most calls of a share.
  std::int64_t calls(const Work& work) const {
    const std::int64_t q = pieces(work), of_share = (work.images * q + row_shares - 1) / row_shares;
    return q == 1 ? 1 : std::min(of_share, 2 * q - 1);
  }
};

// Costs are counted in multiplications. A core of an EPYC 7003 (Zen 3, AVX2) makes some 40 of them
// in a nanosecond, moves an element in the time of 16, and needs 2.5 us for a call.
constexpr double cost_of_element = 16, cost_of_call = 1e5;
/// The least work that is worth another thread: 25 us.
constexpr double least_of_share = 1e6;

/// Returns the cost of the largest share.
inline double cost_of_share(const Work& work, const Grid& grid) {
  const std::int64_t q = grid.pieces(work),
                     of_share = (work.images * q + grid.row_shares - 1) / grid.row_shares,
                     units = work.channels / work.channel_unit, blocks = grid.channel_blocks,
                     usual = (units + blocks - 1) / blocks * work.channel_unit,
                     last = work.channels - units * (blocks - 1) / blocks * work.channel_unit;
  const double rows = q == 1 ? static_cast<double>(of_share) / static_cast<double>(work.images)
                             : static_cast<double>(of_share * grid.height) /
                                   static_cast<double>(work.images * work.rows),
               channels = static_cast<double>(std::max(usual, last)) /
                          static_cast<double>(work.channels);
  const bool copies = grid.channel_blocks > 1 && work.copies_channels;
  const double added = work.adds_rows && grid.row_shares > 1 ? 2 : 0;
  const double elements = work.x * rows + work.w * channels * (1 + added) +
                          work.y * rows * channels * (copies ? 3 : 1) +
                          work.w / static_cast<double>(grid.channel_blocks);  // converted
  return work.multiplications * rows * channels + cost_of_element * elements +
         cost_of_call * static_cast<double>(grid.calls(work));
}

/// Returns the cheapest division among at most `threads` threads.
inline Grid choose_grid(const Work& work, int threads) {
  Grid best{.height = work.rows};
  double least = cost_of_share(work, best);
  const auto most =
      std::min<std::int64_t>(threads, static_cast<std::int64_t>(least / least_of_share));
  const std::int64_t units = work.channels / work.channel_unit;
  for (std::int64_t blocks = 1; blocks <= std::max<std::int64_t>(1, std::min(most, units));
       ++blocks)
    for (std::int64_t pieces = 1; pieces <= std::min(work.rows, 4 * most); ++pieces) {
      const std::int64_t parts = (work.rows + pieces - 1) / pieces;
      Grid grid{.height = (parts + work.row_unit - 1) / work.row_unit * work.row_unit,
                .channel_blocks = blocks};
      // A last piece of one row would be a vector, which oneDNN reads in other ways.
      if (grid.pieces(work) != pieces || (pieces > 1 && work.rows % grid.height == 1)) continue;
      grid.row_shares = std::max<std::int64_t>(1, std::min(most / blocks, work.images * pieces));
      const double copies = static_cast<double>(grid.row_shares * grid.calls(work));
      if (work.adds_rows && copies > 1 && copies * work.w > work.x + work.y) continue;
      const double cost = cost_of_share(work, grid);
      if (cost < least) best = grid, least = cost;
    }
  return best;
}

/// Returns the cost of the largest share of the cheapest division.
inline double least_cost(const Work& work, int threads) {
  return cost_of_share(work, choose_grid(work, threads));
}

/// Returns the blocks of each share. Blocks of rows have one height, but for the last of an image.
inline std::vector<Blocks> divide(const Work& work, int threads) {
  const Grid grid = choose_grid(work, threads);
  const std::int64_t q = grid.pieces(work), pieces = work.images * q,
                     units = work.channels / work.channel_unit, blocks = grid.channel_blocks;
  std::vector<Blocks> shares;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const Range channels{
        units * block / blocks * work.channel_unit,
        block + 1 < blocks ? units * (block + 1) / blocks * work.channel_unit : work.channels};
    for (std::int64_t share = 0; share < grid.row_shares; ++share) {
      const std::int64_t end = pieces * (share + 1) / grid.row_shares;
      shares.emplace_back();
      for (std::int64_t piece = pieces * share / grid.row_shares, images; piece < end;
           piece += std::max<std::int64_t>(1, images * q)) {
        const std::int64_t image = piece / q, row = piece % q * grid.height;
        images = row == 0 ? (end - piece) / q : 0;
        shares.back().push_back(images > 0
                                    ? Block{{image, image + images}, {0, work.rows}, channels}
                                    : Block{{image, image + 1},
                                            {row, std::min(row + grid.height, work.rows)},
                                            channels});
      }
    }
  }
  return shares;
}

/// Returns how many copies of a result the blocks compute that are added: those of the first
/// channels, which are as many as those of all others.
inline std::int64_t copies_of(const std::vector<Blocks>& shares) {
  std::int64_t copies = 0;
  for (const Blocks& share : shares)
    if (share.front().channels.begin == 0) copies += std::ssize(share);
  return copies;
}

}  // namespace tutti::kernels::cpu::onednn
