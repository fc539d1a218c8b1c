// Operations on integers, bytes and bools, and tensors without dimensions.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/indexing.h>
#include <tutti/core/create.h>
#include <tutti/core/memory.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

using Values = std::vector<double>;

// Returns by how many bytes `body` raises the bytes in use on the CPU at any one time.
template <class Body>
std::size_t memory_of(const Body& body) {
  Allocator& memory = allocator(Device::cpu());
  const MemoryStats stats = memory.stats();
  // The peak is reached now, so that it shows what comes.
  const Tensor filler = empty({static_cast<std::int64_t>(stats.peak - stats.live + 64)}, {uint8});
  const std::size_t before = memory.stats().peak;
  body();
  return memory.stats().peak - before;
}

TEST(Integers, EveryDtypeHasANegative) {
  EXPECT_EQ(to_vector(-arange(3)), (Values{0, -1, -2}));
  EXPECT_EQ(to_vector(-tensor({1, 0}, {uint8})), (Values{255, 0}));
  EXPECT_EQ(to_vector(-tensor({1, 0}, {boolean})), (Values{1, 0}));
  EXPECT_EQ((-tensor({1, 0}, {boolean})).dtype(), boolean);
  EXPECT_TRUE(std::signbit((-scalar(0)).item<double>()));
}

TEST(Integers, ArithmeticInPlace) {
  const Tensor x = arange(3);
  x.add_(arange(3), 2);
  EXPECT_EQ(to_vector(x), (Values{0, 3, 6}));
  x.add_(tensor({1}, {int64})).mul_(-2);
  EXPECT_EQ(to_vector(x), (Values{-2, -8, -14}));
  const Tensor bytes = tensor({250, 1}, {uint8});
  bytes.add_(tensor({10}, {uint8}));
  EXPECT_EQ(to_vector(bytes), (Values{4, 11}));
  EXPECT_THROW(x.add_(ones({3})), DTypeError);
}

TEST(Integers, CompareWithNumbersOfAnySize) {
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                         most = std::numeric_limits<std::int64_t>::max();
  const Tensor x = tensor(std::vector<std::int64_t>{least, most});
  for (const double above : {1e30, double{INFINITY}}) {
    EXPECT_EQ(to_vector(lt(x, above)), (Values{1, 1}));
    EXPECT_EQ(to_vector(le(x, above)), (Values{1, 1}));
    EXPECT_EQ(to_vector(gt(x, above)), (Values{0, 0}));
    EXPECT_EQ(to_vector(ge(x, above)), (Values{0, 0}));
    EXPECT_EQ(to_vector(eq(x, above)), (Values{0, 0}));
    EXPECT_EQ(to_vector(ne(x, above)), (Values{1, 1}));
    EXPECT_EQ(to_vector(gt(x, -above)), (Values{1, 1}));
    EXPECT_EQ(to_vector(ge(x, -above)), (Values{1, 1}));
    EXPECT_EQ(to_vector(lt(x, -above)), (Values{0, 0}));
    EXPECT_EQ(to_vector(le(x, -above)), (Values{0, 0}));
    EXPECT_EQ(to_vector(eq(x, -above)), (Values{0, 0}));
    EXPECT_EQ(to_vector(ne(x, -above)), (Values{1, 1}));
  }
  EXPECT_EQ(to_vector(eq(x, static_cast<double>(most))), (Values{0, 1}));
  EXPECT_EQ(to_vector(lt(tensor({0, 255}, {uint8}), 300)), (Values{1, 1}));
  EXPECT_EQ(to_vector(gt(tensor({0, 255}, {uint8}), -1)), (Values{1, 1}));
  EXPECT_THROW(gt(x, NAN), DTypeError);
}

TEST(Integers, NumbersThatTheDtypeDoesNotHoldAreRefusedWhereTheyWouldBeElements) {
  const Tensor bytes = tensor({0, 44, 255}, {uint8}), x = arange(3);
  EXPECT_EQ(to_vector(clamp(bytes, -5, 300)), (Values{0, 44, 255}));
  EXPECT_EQ(to_vector(clamp(bytes, 7, INFINITY)), (Values{7, 44, 255}));
  EXPECT_EQ(to_vector(clamp(x, -1e30, 1)), (Values{0, 1, 1}));
  EXPECT_THROW(clamp(bytes, 300, {}), DTypeError);
  EXPECT_THROW(clamp(bytes, {}, -1), DTypeError);
  EXPECT_THROW(clamp(x, 1e30, {}), DTypeError);
  EXPECT_THROW(clamp(x, NAN, {}), DTypeError);
  const Tensor mask = tensor({1, 0, 0}, {boolean});
  EXPECT_THROW(masked_fill(bytes, mask, 256), DTypeError);
  EXPECT_THROW(masked_fill(mask, mask, 2), DTypeError);
  EXPECT_THROW(masked_fill(x, mask, -1e19), DTypeError);
  EXPECT_EQ(to_vector(masked_fill(bytes, mask, 255)), (Values{255, 44, 255}));
  EXPECT_THROW(pad(bytes, {1, 0}, -1), DTypeError);
  EXPECT_THROW(arange(257, {uint8}), DTypeError);
  EXPECT_THROW(randint(257, {3}, {uint8}), DTypeError);
  EXPECT_THROW(x + 1e30, DTypeError);
  EXPECT_THROW(x.mul_(INFINITY), DTypeError);
  EXPECT_EQ(to_vector(bytes + 300), (Values{44, 88, 43}));  // bytes count modulo 256
}

TEST(Integers, BytesAndBoolsReduceWithoutACopy) {
  const Tensor bytes = full({1 << 12, 1 << 12}, 200, {uint8}), bools = gt(bytes, 100);
  bytes.select(0, 7).select(0, 9).fill_(201);
  bools.select(0, 0).select(0, 3).fill_(0);
  const std::size_t used = memory_of([&] {
    EXPECT_EQ(sum(bytes).item<std::int64_t>(), (std::int64_t{200} << 24) + 1);
    EXPECT_EQ(sum(bools).item<std::int64_t>(), (1 << 24) - 1);
    EXPECT_EQ(sum(bools, {1}).select(0, 0).item<std::int64_t>(), (1 << 12) - 1);
    EXPECT_EQ(sum(bytes.transpose(0, 1), {1}).select(0, 9).item<std::int64_t>(), (200 << 12) + 1);
    EXPECT_EQ(max(bytes).item<int>(), 201);
    EXPECT_EQ(min(bools).item<int>(), 0);
    EXPECT_EQ(argmax(bytes).item<std::int64_t>(), (7 << 12) + 9);
    EXPECT_EQ(argmax(bools, 0).select(0, 3).item<std::int64_t>(), 1);
    EXPECT_EQ(topk(bytes.select(0, 7), 1).second.item<std::int64_t>(), 9);
  });
  EXPECT_LT(used, std::size_t{1} << 20);
  EXPECT_EQ(max(bytes).dtype(), uint8);
  EXPECT_EQ(sum(bytes).dtype(), int64);
}

TEST(Integers, PrintingCopiesWhatItShows) {
  const Tensor large = zeros({1 << 12, 1 << 12});
  const std::size_t used = memory_of([&] { EXPECT_LT(large.to_string().size(), 300u); });
  EXPECT_LT(used, std::size_t{1} << 20);
  const std::int64_t odd = (std::int64_t{1} << 53) + 1;  // no double
  EXPECT_EQ((full({1}, 1, {int64}) + static_cast<double>(odd - 1)).to_string(),
            "tensor([9007199254740993], shape=(1,), dtype=int64)");
  EXPECT_EQ(
      arange(8).reshape({8, 1}).expand({8, 9}).transpose(0, 1).to_string(),
      "tensor([[0, 1, 2, ..., 5, 6, 7],\n [0, 1, 2, ..., 5, 6, 7],\n [0, 1, 2, ..., 5, 6, 7],"
      "\n ..., [0, 1, 2, ..., 5, 6, 7],\n [0, 1, 2, ..., 5, 6, 7],\n [0, 1, 2, ..., 5, 6, 7]],"
      " shape=(9, 8), dtype=int64)");
}

TEST(WithoutDimensions, DimensionZeroAndMinusOneAreTaken) {
  for (const std::int64_t dim : {0, -1}) {
    const Tensor x = scalar(3, {float64}).requires_grad_();
    EXPECT_EQ(sum(x, {dim}).shape(), Shape());
    EXPECT_EQ(sum(x, {dim}, true).item<double>(), 3);
    EXPECT_EQ(mean(x, {dim}).item<double>(), 3);
    EXPECT_EQ(max(x, {dim}).item<double>(), 3);
    EXPECT_EQ(min(x, {dim}).item<double>(), 3);
    EXPECT_EQ(var(x, {dim}, {.correction = 0}).item<double>(), 0);
    EXPECT_EQ(argmax(x, dim).item<std::int64_t>(), 0);
    EXPECT_EQ(topk(x, 1, dim).first.item<double>(), 3);
    EXPECT_EQ(gather(x, dim, scalar(0, {int64})).item<double>(), 3);
    EXPECT_EQ(index_select(x, dim, zeros({1}, {int64})).shape(), Shape());
    EXPECT_EQ(flip(x, {dim}).item<double>(), 3);
    EXPECT_EQ(x.transpose(dim, 0).shape(), Shape());
    EXPECT_EQ(x.squeeze(dim).shape(), Shape());
    EXPECT_EQ(x.flatten(dim).shape(), Shape{1});
    const Tensor all = sum(x, {dim}) + mean(x, {dim}) + max(x, {dim}) + flip(x, {dim}) +
                       gather(x, dim, scalar(0, {int64}));
    all.backward();
    EXPECT_EQ(x.grad().item<double>(), 5);
    EXPECT_THROW(sum(x, {dim, dim}), ShapeError);
  }
  EXPECT_THROW(sum(scalar(3), {1}), ShapeError);
  EXPECT_THROW(flip(scalar(3), {-2}), ShapeError);
}

}  // namespace
}  // namespace tutti
