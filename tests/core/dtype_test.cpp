// Tests of the 16-bit types against their definitions, and of dispatch.
#include <tutti/core/dtype.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Checks conversions around every rounding boundary of `T`: its neighbours, the midpoint and the
// floats beside the midpoint. The expected value comes from arithmetic in double, which is exact
// here.
template <class T>
void check_rounding(std::uint16_t largest_finite) {
  for (std::uint32_t bits = 0; bits < largest_finite; ++bits) {
    T low, high;
    low.bits = static_cast<std::uint16_t>(bits);
    high.bits = static_cast<std::uint16_t>(bits + 1);
    const float a = low, b = high;
    const float middle = static_cast<float>((static_cast<double>(a) + static_cast<double>(b)) / 2);
    const T even = bits % 2 == 0 ? low : high;
    ASSERT_EQ(T(middle).bits, even.bits) << bits;
    ASSERT_EQ(T(std::nextafter(middle, 0.0f)).bits, low.bits) << bits;
    ASSERT_EQ(T(std::nextafter(middle, INFINITY)).bits, high.bits) << bits;
    ASSERT_EQ(T(-middle).bits, even.bits | 0x8000) << bits;
  }
}

TEST(Float16Type, AllBitPatternsSurviveTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    Float16 h;
    h.bits = static_cast<std::uint16_t>(bits);
    const float value = h;
    const std::uint32_t exponent = (bits >> 10) & 31, mantissa = bits & 1023;
    if (exponent == 31 && mantissa != 0) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(Float16(value)))) << bits;
      continue;
    }
    const double magnitude = exponent == 31 ? static_cast<double>(INFINITY)
                             : exponent == 0
                                 ? std::ldexp(mantissa, -24)
                                 : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
    ASSERT_EQ(static_cast<double>(value), bits & 0x8000 ? -magnitude : magnitude) << bits;
    ASSERT_EQ(Float16(value).bits, bits);
  }
}

TEST(Float16Type, RoundsToNearestEven) {
  check_rounding<Float16>(0x7bff);
  EXPECT_EQ(Float16(65519.996f).bits, 0x7bff);  // below the midpoint to 65536
  EXPECT_EQ(Float16(65520.0f).bits, 0x7c00);    // the midpoint: infinity
  EXPECT_EQ(Float16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(Float16(from_bits(1)).bits, 0);  // far below the smallest subnormal
  EXPECT_EQ(Float16(-0.0f).bits, 0x8000);
}

TEST(BFloat16Type, IsTheUpperHalfOfAFloat) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    BFloat16 b;
    b.bits = static_cast<std::uint16_t>(bits);
    const float value = b;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(value), bits << 16);
    if (std::isnan(value)) ASSERT_TRUE(std::isnan(static_cast<float>(BFloat16(value)))) << bits;
    else ASSERT_EQ(BFloat16(value).bits, bits);
  }
}

TEST(BFloat16Type, RoundsToNearestEven) {
  check_rounding<BFloat16>(0x7f7f);
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);  // rounds to infinity
  // A NaN whose payload is in the lower half must not become infinity.
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(from_bits(0x7f800001)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(from_bits(0xffffffff)))));
}

TEST(DTypes, NamesAndSizes) {
  for (const DType dtype : {float32, float64, bfloat16, float16, int64, uint8, boolean}) {
    EXPECT_EQ(dtype_from_string(to_string(dtype)), dtype);
    dispatch(AllTypes{}, dtype, "test", [&]<class T>() {
      EXPECT_EQ(sizeof(T), size_of(dtype));
      EXPECT_EQ(dtype_of<T>::value, dtype);
    });
  }
  EXPECT_THROW(dtype_from_string("float8"), ValueError);
  EXPECT_EQ(accumulate_dtype(bfloat16), float32);
  EXPECT_EQ(accumulate_dtype(float64), float64);
}

TEST(DTypes, DispatchNamesWhatWasExpected) {
  try {
    dispatch(RealTypes{}, uint8, "relu", []<class T>() { FAIL(); });
    FAIL();
  } catch (const DTypeError& error) {
    EXPECT_STREQ(error.what(),
                 "relu: cannot compute in uint8 on this device (expected one of float32, float64, "
                 "bfloat16); convert with .to(dtype)");
  }
}

}  // namespace
}  // namespace tutti
