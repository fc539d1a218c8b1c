// Tests that tensors created on a device hold what the CPU creates from the same generator.
#include "../test_device.h"

#include <tutti/core/create.h>

#include <gtest/gtest.h>

namespace tutti::create_test {
namespace {

using test::test_device;

TEST(Create, ConstantsInEveryDtype) {
  for (const DType dtype : {float32, float64, bfloat16, float16, int64, uint8, boolean})
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{5, 3}, Shape{70000}}) {
      const TensorOptions here{dtype, Device::cpu()}, there{dtype, test_device()};
      EXPECT_EQ(to_vector(ones(shape, there)), to_vector(ones(shape, here))) << to_string(dtype);
      EXPECT_EQ(to_vector(full(shape, 3.1, there)), to_vector(full(shape, 3.1, here)))
          << to_string(dtype);
      EXPECT_EQ(to_vector(zeros(shape, there)), to_vector(zeros(shape, here))) << to_string(dtype);
    }
  EXPECT_EQ(to_vector(arange(9, {int64, test_device()})), to_vector(arange(9)));
}

TEST(Create, RandomNumbersAreTheCpus) {
  for (const DType dtype : {float32, float64, bfloat16, float16}) {
    Generator here(7), there(7);
    // The counts lead to all offsets within a block of the random stream.
    for (const std::int64_t count : {1, 2, 3, 0, 1000, 5, 4, 1027}) {
      const Tensor a = bernoulli(0.3, {count}, {dtype}, here),
                   b = bernoulli(0.3, {count}, {dtype, test_device()}, there);
      EXPECT_EQ(to_vector(b), to_vector(a)) << count;
      EXPECT_EQ(there.state(), here.state());
    }
    EXPECT_EQ(to_vector(randn({50}, {dtype, test_device()}, there)),
              to_vector(randn({50}, {dtype}, here)));
    EXPECT_EQ(to_vector(bernoulli(1, {9}, {dtype, test_device()}, there)),
              std::vector<double>(9, 1.0));
    EXPECT_EQ(to_vector(bernoulli(0, {9}, {dtype, test_device()}, there)),
              std::vector<double>(9, 0.0));
  }
}

TEST(Create, PrintingCopiesToTheHost) {
  const Tensor x = tensor({1, 2, 3, 4}, {2, 2}, {.device = test_device()});
  EXPECT_NE(x.to_string().find("[1, 2]"), std::string::npos) << x.to_string();
  EXPECT_NE(x.to_string().find("device=cuda:0"), std::string::npos) << x.to_string();
  EXPECT_EQ(x.select(0, 1).select(0, 0).item<int>(), 3);
}

}  // namespace
}  // namespace tutti::create_test
