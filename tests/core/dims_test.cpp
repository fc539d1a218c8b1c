// Tests of shapes: counting, overflow, broadcasting, dense strides.
#include <tutti/core/create.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Dims, InsertEraseCompareAndPrint) {
  Dims d{2, 3};
  d.insert(1, 7);
  EXPECT_EQ(to_string(d), "(2, 7, 3)");
  d.insert(3, 9);
  d.erase(0);
  EXPECT_EQ(d, (Dims{7, 3, 9}));
  EXPECT_NE(d, (Dims{7, 3}));
  EXPECT_EQ(to_string(Dims{4}), "(4,)");
  EXPECT_EQ(to_string(Dims{}), "()");
  Dims full = Dims::filled(Dims::max_rank, 1);
  EXPECT_THROW(full.push_back(1), ShapeError);
}

TEST(Dims, ASingleNumberNeedsNoBraces) {
  EXPECT_EQ(zeros(3).shape(), (Shape{3}));
  const Dims one = std::size_t{7};
  EXPECT_EQ(one, (Dims{7}));
  static_assert(!std::is_convertible_v<bool, Dims> && !std::is_convertible_v<double, Dims>);
}

TEST(Dims, CountsAndRefusesWhatDoesNotFit) {
  constexpr std::int64_t big = std::int64_t{1} << 32;
  EXPECT_EQ(numel({}), 1);
  EXPECT_EQ(numel({3, 0, 5}), 0);
  EXPECT_EQ(numel({big, big / 4}), std::int64_t{1} << 62);
  EXPECT_THROW(numel({big, big}), ShapeError);
  EXPECT_THROW(numel({big, 0, big}), ShapeError);  // its strides would overflow
  EXPECT_THROW(numel({-1}), ShapeError);
  EXPECT_THROW(empty({big, big / 4}), ShapeError);  // the bytes overflow
  EXPECT_THROW(zeros({2, -3}), ShapeError);
}

TEST(Dims, StridesOfBothFormats) {
  EXPECT_EQ(dense_strides({2, 3, 4, 5}), (Strides{60, 20, 5, 1}));
  EXPECT_EQ(dense_strides({2, 3, 4, 5}, MemoryFormat::channels_last), (Strides{60, 1, 15, 3}));
  EXPECT_EQ(dense_strides({2, 3, 4, 5, 6}, MemoryFormat::channels_last),
            (Strides{360, 1, 90, 18, 3}));
  EXPECT_EQ(dense_strides({2, 3, 4}, MemoryFormat::channels_last), (Strides{12, 1, 3}));
  EXPECT_EQ(dense_strides({2, 3}, MemoryFormat::channels_last), (Strides{3, 1}));
  EXPECT_EQ(dense_strides({}), Strides{});
}

TEST(Dims, Broadcasting) {
  EXPECT_EQ(broadcast_shapes({2, 3}, {3}, "test"), (Shape{2, 3}));
  EXPECT_EQ(broadcast_shapes({2, 1, 4}, {3, 1}, "test"), (Shape{2, 3, 4}));
  EXPECT_EQ(broadcast_shapes({}, {2}, "test"), (Shape{2}));
  EXPECT_EQ(broadcast_shapes({0, 3}, {1, 3}, "test"), (Shape{0, 3}));
  try {
    broadcast_shapes({2, 3}, {2}, "add");
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_STREQ(
        error.what(),
        "add: shapes (2, 3) and (2,) do not broadcast: sizes 3 and 2 differ and neither is 1");
  }
}

TEST(Dims, NormalizesDimensions) {
  EXPECT_EQ(normalize_dim(-1, 3, "test"), 2);
  EXPECT_EQ(normalize_dim(0, 3, "test"), 0);
  EXPECT_THROW(normalize_dim(3, 3, "test"), ShapeError);
  EXPECT_THROW(normalize_dim(-4, 3, "test"), ShapeError);
  EXPECT_THROW(normalize_dim(0, 0, "test"), ShapeError);
}

}  // namespace
}  // namespace tutti
