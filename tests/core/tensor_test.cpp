// Tests of tensors as such: handles, bounds, memory formats, creation and printing, and devices
// that do not exist.
#include <tutti/core/create.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/dlpack.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

namespace tutti {
namespace {

constexpr MemoryFormat last = MemoryFormat::channels_last;

TEST(TensorHandle, CopiesShareAndUndefinedThrows) {
  const Tensor x = tensor({1, 2, 3}), y = x;
  EXPECT_TRUE(y.is_same(x));
  EXPECT_FALSE(x.is_exclusive());
  EXPECT_TRUE(zeros({2}).is_exclusive());
  const Tensor whole = zeros({2}), part = whole.alias({1}, {1}, 0);
  EXPECT_FALSE(whole.is_exclusive()) << "a view shares its storage";
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_THROW(none.shape(), Error);
  EXPECT_THROW(none.numel(), Error);
  EXPECT_THROW(x.data<double>(), DTypeError);
  EXPECT_THROW(x.item<float>(), ShapeError);
  EXPECT_EQ(tensor({2.5}, {}, {bfloat16}).item<float>(), 2.5f);
  EXPECT_EQ(x.size(-1), 3);
  EXPECT_THROW(x.size(1), ShapeError);
}

// Values keep their C++ type on the way into a tensor and out of it.
template <class T>
void expect_round_trip(const std::vector<T>& values) {
  const Tensor x = tensor(values, {1, static_cast<std::int64_t>(values.size())});
  EXPECT_EQ(x.dtype(), dtype_of<T>::value);
  EXPECT_EQ(to_vector<T>(x), values);
  EXPECT_EQ(tensor(values, {.dtype = float64}).dtype(), float64);
  EXPECT_THROW((void)tensor(values, {2, 7}), ShapeError);
}

TEST(TensorValues, HaveTheTypesOfTheDtypes) {
  expect_round_trip<float>({0.1f, -2});
  expect_round_trip<std::int64_t>({(std::int64_t{1} << 62) + 1, -3});
  expect_round_trip<std::uint8_t>({0, 255});
  expect_round_trip<bool>({true, false, true});
  EXPECT_EQ(to_vector<std::uint8_t>(tensor({-1, 2.9, 300})),
            (std::vector<std::uint8_t>{0, 2, 255}));
  EXPECT_EQ(tensor(std::vector<double>{1}).dtype(), float32);
}

// The structures of dlpack/dlpack.h, as another library fills them.
struct ForeignTensor {
  void* data;
  struct {
    std::int32_t type, id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code, bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};

template <class Managed>
constexpr bool is_taken = requires(Managed* managed) {
  from_dlpack(managed);
};

TEST(DLPack, SharesMemoryInBothDirections) {
  const Tensor x = tensor({0, 1, 2, 3, 4, 5}, {2, 3});
  auto* const given = reinterpret_cast<ForeignTensor*>(to_dlpack(x.alias({3, 2}, {1, 3}, 0)));
  EXPECT_EQ(given->data, x.raw());
  EXPECT_EQ(given->device.type, 1);
  EXPECT_EQ((std::vector<int>{given->ndim, given->dtype.code, given->dtype.bits}),
            (std::vector<int>{2, 2, 32}));
  given->byte_offset = sizeof(float);
  given->shape[0] = 2;
  {
    const Tensor back = from_dlpack(reinterpret_cast<DLManagedTensor*>(given));
    EXPECT_EQ(to_vector(back), (std::vector<double>{1, 4, 2, 5}));
    EXPECT_FALSE(x.is_exclusive());
  }
  EXPECT_TRUE(x.is_exclusive()) << "the deleter has run";
  for (const DType dtype : {float32, float64, bfloat16, float16, int64, uint8, boolean})
    EXPECT_EQ(from_dlpack(to_dlpack(zeros({2, 0}, {dtype}))).dtype(), dtype);
}

TEST(DLPack, RefusesWhatItDoesNotHaveAndReleasesIt) {
  int released = 0;
  std::int64_t shape[] = {2}, strides[] = {-1};
  float values[] = {1, 2};
  const ForeignTensor good{
      values, {1, 0}, 1, {2, 32, 1}, shape, nullptr, 0, &released, [](DLManagedTensor* m) {
        ++*static_cast<int*>(reinterpret_cast<ForeignTensor*>(m)->manager_ctx);
      }};
  const auto take = [](ForeignTensor m) {
    return to_vector(from_dlpack(reinterpret_cast<DLManagedTensor*>(&m)));
  };
  EXPECT_EQ(take(good), (std::vector<double>{1, 2}));
  ForeignTensor odd = good;
  odd.dtype = {0, 32, 1};
  EXPECT_THROW(take(odd), DTypeError);
  odd = good;
  odd.device.type = 4;
  EXPECT_THROW(take(odd), DeviceError);
  odd = good;
  odd.strides = strides;
  EXPECT_THROW(take(odd), ShapeError);
  EXPECT_EQ(released, 4);
  EXPECT_THROW(from_dlpack(static_cast<DLManagedTensor*>(nullptr)), ValueError);
  static_assert(!is_taken<DLManagedTensorVersioned>);
}

TEST(TensorHandle, ViewsStayInsideTheirStorage) {
  const Tensor x = zeros({6});
  EXPECT_NO_THROW(x.alias({2, 3}, {3, 1}, 0));
  EXPECT_THROW(x.alias({2, 3}, {3, 1}, 1), ShapeError);
  EXPECT_THROW(x.alias({7}, {1}, 0), ShapeError);
  EXPECT_THROW(x.alias({2}, {-1}, 1), ShapeError);
  EXPECT_THROW(x.alias({2}, {1}, -1), ShapeError);
  EXPECT_THROW(x.alias({2, 3}, {3}, 0), ShapeError);
  EXPECT_THROW(x.alias({3}, {std::int64_t{1} << 62}, 0), ShapeError);
  EXPECT_NO_THROW(x.alias({0, 5}, {1, 1}, 6));  // nothing is read
  EXPECT_NO_THROW(x.alias({100}, {0}, 5));
}

TEST(TensorHandle, HugeOffsetsAndStridesDoNotOverflow) {
  const Tensor x = zeros({6});
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  try {
    x.alias({2}, {1}, huge);
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(huge)), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(x.alias({2, 2}, {huge, huge}, 0), ShapeError);
  // Nothing is read, so any offset is legal.
  EXPECT_EQ(x.alias({0, 2}, {1, 1}, huge).raw(), x.raw());
  const Tensor none = x.alias({1, 1}, {huge, huge}, 0).slice(0, 1, 1).slice(1, 1, 1);
  EXPECT_EQ(none.numel(), 0);
  EXPECT_EQ(none.raw(), x.raw());
  EXPECT_TRUE(to_vector(none).empty());
}

TEST(TensorHandle, ItemsOutOfRangeAreTheNearestIntegers) {
  EXPECT_EQ(scalar(1e300, {float64}).item<std::int64_t>(),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(scalar(-1e300, {float64}).item<int>(), std::numeric_limits<int>::min());
  EXPECT_EQ(scalar(NAN).item<int>(), 0);
  EXPECT_EQ(scalar(-2.9).item<int>(), -2);
  EXPECT_EQ(scalar(-2.9).item<std::uint8_t>(), 0);
  EXPECT_EQ(full({}, INFINITY, {uint8}).item<int>(), 255);
}

// A double holds integers of up to 53 bits only.
TEST(TensorHandle, ItemsOfInt64AreExact) {
  const std::int64_t odd = (std::int64_t{1} << 53) + 1;
  const Tensor x = zeros({}, {int64});
  for (const std::int64_t value :
       {odd, -odd, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}, std::int64_t{300}}) {
    x.data<std::int64_t>()[0] = value;
    EXPECT_EQ(x.item<std::int64_t>(), value);
    EXPECT_EQ(x.item<std::uint8_t>(), x.to(uint8).item<std::uint8_t>()) << value;
    EXPECT_EQ(x.item<float>(), x.to(float32).item<float>()) << value;
    EXPECT_EQ(x.item<double>(), x.to(float64).item<double>()) << value;
    EXPECT_EQ(x.item<bool>(), true) << value;
  }
}

TEST(TensorHandle, SetDataMovesEveryHandle) {
  const Tensor x = zeros({2}), y = x;
  x.set_data(ones({3}, {float64}));
  EXPECT_EQ(y.numel(), 3);
  EXPECT_EQ(y.dtype(), float64);
}

TEST(MemoryFormats, AreReadFromTheStrides) {
  EXPECT_EQ(empty({2, 3, 4, 5}).memory_format(), MemoryFormat::contiguous);
  EXPECT_EQ(empty({2, 3, 4, 5}, {}, last).memory_format(), last);
  EXPECT_EQ(empty({2, 3, 4, 5, 6}, {}, last).memory_format(), last);
  EXPECT_TRUE(empty({2, 3, 4, 5}, {}, last).is_dense());
  EXPECT_FALSE(empty({2, 3, 4, 5}, {}, last).is_contiguous());
  EXPECT_TRUE(empty({2, 3, 4, 5}, {}, last).is_contiguous(last));
  EXPECT_FALSE(empty({4, 4}).slice(1, 0, 2).is_dense());
  EXPECT_TRUE(empty({4, 4}).transpose(0, 1).is_dense());
  EXPECT_FALSE(empty({4, 1}).expand({4, 4}).is_dense());
  EXPECT_TRUE(empty({0, 3}).is_dense());
  EXPECT_TRUE(empty({4, 1}).expand({4, 4}).has_overlapping_elements());
  EXPECT_FALSE(empty({4, 1}).expand({4, 1}).has_overlapping_elements());
  EXPECT_FALSE(empty({0, 1}).expand({0, 4}).has_overlapping_elements());
  EXPECT_FALSE(empty({4, 4}).slice(1, 0, 2).has_overlapping_elements());
}

TEST(Views, WindowsThatShareElementsOverlapAndCannotBeWritten) {
  const Tensor x = arange(10);
  const Tensor windows = x.alias({3, 3}, {1, 1}, 0);
  EXPECT_TRUE(windows.has_overlapping_elements());
  EXPECT_THROW(windows.fill_(1), ShapeError);
  EXPECT_EQ(x.slice(0, 4, 5).item<int>(), 4);
  EXPECT_TRUE(x.alias({3, 4}, {2, 1}, 0).has_overlapping_elements());
  EXPECT_TRUE(x.alias({4, 2}, {1, 3}, 0).has_overlapping_elements());
  EXPECT_FALSE(x.alias({3, 3}, {1, 3}, 0).has_overlapping_elements());
  EXPECT_FALSE(x.alias({1, 2, 3, 1}, {1, 5, 2, 1}, 0).has_overlapping_elements());
  EXPECT_FALSE(empty({2, 3, 4, 5}).permute({2, 0, 3, 1}).has_overlapping_elements());
}

TEST(MemoryFormats, AmbiguousShapesRememberWhatWasMeant) {
  // With one channel or one pixel a tensor is dense in both formats; the exact strides decide.
  for (const Shape& shape : {Shape{2, 1, 4, 5}, Shape{2, 3, 1, 1}, Shape{1, 1, 1, 1}}) {
    const Tensor a = empty(shape), b = empty(shape, {}, last);
    for (const Tensor& x : {a, b}) {
      EXPECT_TRUE(x.is_contiguous());
      EXPECT_TRUE(x.is_contiguous(last));
    }
    EXPECT_EQ(a.memory_format(), MemoryFormat::contiguous) << to_string(shape);
    if (!(a.strides() == b.strides())) {
      EXPECT_EQ(b.memory_format(), last) << to_string(shape);
      EXPECT_EQ(a.contiguous(last).memory_format(), last);
      EXPECT_EQ(a.contiguous(last).raw(), a.raw());  // no copy
      EXPECT_EQ(empty_like(b).memory_format(), last);
    }
  }
}

TEST(Making, ValuesAndErrors) {
  EXPECT_EQ(to_vector(arange(4)), (std::vector<double>{0, 1, 2, 3}));
  EXPECT_EQ(to_vector(full({2}, 1.5, {bfloat16})), (std::vector<double>{1.5, 1.5}));
  EXPECT_EQ(to_vector(tensor({1, 2, 3, 4}, {2, 2}).transpose(0, 1)),
            (std::vector<double>{1, 3, 2, 4}));
  EXPECT_THROW(tensor({1, 2, 3}, {2, 2}), ShapeError);
  EXPECT_EQ(scalar(3).rank(), 0);
  EXPECT_EQ(to_vector(zeros_like(ones({2}, {int64}))), (std::vector<double>{0, 0}));
  EXPECT_EQ(empty_like(empty({2, 3, 4, 5}, {}, last), float64).memory_format(), last);
  EXPECT_TRUE(to_vector(zeros({3, 0})).empty());
}

TEST(Making, AroundForeignMemory) {
  float data[] = {1, 2, 3, 4};
  int released = 0;
  {
    const Tensor x = from_blob(data, {2, 2}, float32, [&] { ++released; });
    const Tensor view = x.select(0, 1);
    x.fill_(5);
    EXPECT_EQ(released, 0);
    EXPECT_EQ(view.raw(), data + 2);
  }
  EXPECT_EQ(released, 1);
  EXPECT_EQ(data[3], 5);
  EXPECT_THROW((void)from_blob(nullptr, {2}, float32), ValueError);
  EXPECT_EQ(from_blob(nullptr, {0}, float32).numel(), 0);

  // Rows of three elements, two of which belong to the picture.
  float rows[] = {1, 2, 0, 3, 4};
  const Tensor picture = from_blob(rows, {2, 2}, {3, 1}, float32);
  EXPECT_EQ(to_vector(picture), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(picture.storage()->bytes(), sizeof rows);
  EXPECT_THROW((void)from_blob(nullptr, {2}, {4}, float32), ValueError);
  EXPECT_THROW((void)from_blob(rows, {2}, {-1}, float32), ShapeError);
}

TEST(Printing, ShowsValuesShapeAndDtype) {
  EXPECT_EQ(tensor({1, 2.5, -3, 4}, {2, 2}).to_string(),
            "tensor([[1, 2.5],\n [-3, 4]], shape=(2, 2), dtype=float32)");
  EXPECT_EQ(arange(100).to_string(),
            "tensor([0, 1, 2, ..., 97, 98, 99], shape=(100,), dtype=int64)");
  EXPECT_EQ(scalar(7, {int64}).to_string(), "tensor(7, shape=(), dtype=int64)");
  EXPECT_EQ(scalar(std::copysign(NAN, -1)).to_string(), "tensor(nan, shape=(), dtype=float32)");
  EXPECT_EQ(zeros({0}).to_string(), "tensor([], shape=(0,), dtype=float32)");
  EXPECT_EQ(Tensor().to_string(), "tensor(undefined)");
  std::ostringstream out;
  out << tensor({1}, {boolean});
  EXPECT_EQ(out.str(), "tensor([1], shape=(1,), dtype=bool)");
}

TEST(Devices, Names) {
  EXPECT_EQ(to_string(Device::cpu()), "cpu");
  EXPECT_EQ(to_string(Device::cuda(1)), "cuda:1");
  EXPECT_EQ(Device::from_string("cuda:3"), Device::cuda(3));
  EXPECT_EQ(Device::from_string("cuda"), Device::cuda());
  EXPECT_EQ(Device::from_string("cpu"), Device::cpu());
  for (const char* bad : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", ""})
    EXPECT_THROW(Device::from_string(bad), ValueError) << bad;
}

TEST(Devices, AnAbsentCudaDeviceSaysWhy) {
  if (cuda::device_count() > 0) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_FALSE(cuda::why_unavailable().empty());
  try {
    zeros({2}, {.device = Device::cuda()});
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find(cuda::why_unavailable()), std::string::npos)
        << error.what();
  }
  EXPECT_THROW((void)ones({2}).to(Device::cuda()), DeviceError);
}

}  // namespace
}  // namespace tutti
