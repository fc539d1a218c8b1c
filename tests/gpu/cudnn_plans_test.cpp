// Tests that cuDNN has a plan for every kind of convolution on the architectures that we compile
// for. No GPU is needed: cuDNN's heuristics and engines answer for a device whose properties they
// are given. cuDNN also checks every attribute of our descriptors. Nothing is computed here; the
// results of convolutions are tested in tests/kernels/convolution_test.cpp.
#include "described_device.h"
#include "kernels/random_convolution.h"

#include <tutti/kernels/cuda/cudnn_graph.h>

#include <gtest/gtest.h>

#include <set>

namespace tutti {
namespace {

using namespace kernels::cuda::cudnn;
using test::described_device;
using test::find_execution_plans;
using test::pick;

constexpr MemoryFormat formats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};
constexpr Direction directions[] = {Direction::forward, Direction::backward_input,
                                    Direction::backward_weight};

struct Sizes {
  Shape x, w, y;
  Dims stride, padding, dilation;

  ConvolutionProblem problem(Direction direction, DType dtype, MemoryFormat format,
                             bool bias = false) const {
    ConvolutionProblem p{.direction = direction,
                         .x = describe(dtype, x, format),
                         .w = describe(dtype, w, format),
                         .y = describe(dtype, y, format),
                         .stride = spatial(stride, 1),
                         .padding = spatial(padding, 0),
                         .dilation = spatial(dilation, 1)};
    if (bias && direction == Direction::forward) p.bias = dtype;
    return p;
  }
};

class Plans : public ::testing::TestWithParam<int> {};

TEST_P(Plans, ForEveryKindOfConvolution) {
  const Descriptor device = described_device(GetParam());
  const PlanTarget target{.properties = &device};
  for (int i = 0; i < 18; ++i) {
    const test::ConvolutionCase c = test::random_convolution(1 + i % 3, i / 3 % 3, {5, 40, 5, 19});
    const Sizes sizes{c.x, c.w, c.y, c.options.stride, c.options.padding, c.options.dilation};
    for (const DType dtype : {float32, float64, bfloat16, float16})
      for (const MemoryFormat format : formats)
        for (const Direction direction : directions) {
          ConvolutionProblem p = sizes.problem(direction, dtype, format, pick(0, 1));
          p.allow_tf32 = pick(0, 1);
          p.deterministic = pick(0, 1);
          if (pick(0, 3) == 0)
            for (TensorDescription* t : {&p.x, &p.w, &p.y})
              t->alignment = static_cast<std::int64_t>(size_of(dtype));
          EXPECT_EQ(find_execution_plans(p, target, 1).size(), 1u)
              << p.text() << " " << to_string(format) << ", bias " << p.bias.has_value()
              << ", deterministic " << p.deterministic;
        }
  }
}

TEST_P(Plans, ForTheShapesOfResNets) {
  const Descriptor device = described_device(GetParam());
  const PlanTarget target{.properties = &device};
  struct Layer {
    std::int64_t in, out, size, kernel, stride;
  };
  for (const Layer l :
       {Layer{3, 64, 224, 7, 2}, Layer{64, 64, 56, 3, 1}, Layer{256, 128, 56, 1, 1},
        Layer{128, 128, 56, 3, 2}, Layer{256, 512, 56, 1, 2}, Layer{512, 512, 7, 3, 1}}) {
    const std::int64_t padding = l.kernel / 2,
                       to = (l.size + 2 * padding - l.kernel) / l.stride + 1;
    const Sizes sizes{{256, l.in, l.size, l.size}, {l.out, l.in, l.kernel, l.kernel},
                      {256, l.out, to, to},        {l.stride, l.stride},
                      {padding, padding},          {1, 1}};
    for (const DType dtype : {bfloat16, float16, float32})
      for (const Direction direction : directions) {
        const ConvolutionProblem p = sizes.problem(direction, dtype, MemoryFormat::channels_last);
        const auto plans = find_execution_plans(p, target, 8);
        ASSERT_GE(plans.size(), 3u) << p.text();  // something for autotuning to choose from
      }
  }
}

TEST_P(Plans, ForMoreThanTwoToThe31Elements) {
  const Descriptor device = described_device(GetParam());
  const Sizes sizes{
      {700, 64, 224, 224}, {64, 64, 3, 3}, {700, 64, 224, 224}, {1, 1}, {1, 1}, {1, 1}};
  for (const DType dtype : {float32, bfloat16})
    for (const MemoryFormat format : formats)
      for (const Direction direction : directions) {
        const ConvolutionProblem p = sizes.problem(direction, dtype, format);
        EXPECT_EQ(find_execution_plans(p, {.properties = &device}, 1).size(), 1u) << p.text();
      }
}

INSTANTIATE_TEST_SUITE_P(Cudnn, Plans, ::testing::Values(80, 90));

TEST(Cudnn, OneDimensionBecomesTwo) {
  const TensorDescription rows = describe(float32, {2, 3, 5}, MemoryFormat::contiguous),
                          last = describe(float32, {2, 3, 5}, MemoryFormat::channels_last);
  EXPECT_EQ(rows.shape, (Shape{2, 3, 1, 5}));
  EXPECT_EQ(rows.strides, (Strides{15, 5, 5, 1}));
  EXPECT_EQ(last.strides, (Strides{15, 1, 15, 3}));
  EXPECT_EQ(spatial({4}, 1), (Dims{1, 4}));
  EXPECT_EQ(spatial({4, 5, 6}, 1), (Dims{4, 5, 6}));
}

TEST(Cudnn, AlignmentOfAnAddress) {
  const auto at = [](std::uintptr_t address) {
    return describe(float16, {1, 1, 1, 1}, MemoryFormat::contiguous,
                    reinterpret_cast<const void*>(address))
        .alignment;
  };
  EXPECT_EQ(at(0x7000), 16);
  EXPECT_EQ(at(0x7008), 8);
  EXPECT_EQ(at(0x7002), 2);
}

TEST(Cudnn, DifferentProblemsHaveDifferentKeys) {
  const Sizes sizes{{4, 6, 9, 8}, {4, 6, 3, 3}, {4, 4, 9, 8}, {1, 1}, {1, 1}, {1, 1}};
  std::vector<ConvolutionProblem> problems;
  const ConvolutionProblem base =
      sizes.problem(Direction::forward, float32, MemoryFormat::contiguous);
  const auto with = [&](auto change) {
    ConvolutionProblem p = base;
    change(p);
    problems.push_back(std::move(p));
  };
  with([](ConvolutionProblem&) {});
  for (const Direction direction : {Direction::backward_input, Direction::backward_weight})
    with([&](ConvolutionProblem& p) { p.direction = direction; });
  with([](ConvolutionProblem& p) { p.allow_tf32 = true; });
  with([](ConvolutionProblem& p) { p.deterministic = true; });
  with([](ConvolutionProblem& p) { p.bias = float32; });
  with([](ConvolutionProblem& p) { p.bias = float64; });
  for (TensorDescription ConvolutionProblem::*t :
       {&ConvolutionProblem::x, &ConvolutionProblem::w, &ConvolutionProblem::y}) {
    with([&](ConvolutionProblem& p) { (p.*t).dtype = bfloat16; });
    with([&](ConvolutionProblem& p) { (p.*t).alignment = 4; });
    with([&](ConvolutionProblem& p) { (p.*t).shape[0] = 5; });
    with([&](ConvolutionProblem& p) { (p.*t).strides[2] = 77; });
  }
  for (Dims ConvolutionProblem::*dims :
       {&ConvolutionProblem::stride, &ConvolutionProblem::padding, &ConvolutionProblem::dilation})
    for (const int d : {0, 1}) with([&](ConvolutionProblem& p) { (p.*dims)[d] = 2; });
  std::set<std::vector<std::int64_t>> keys;
  for (const ConvolutionProblem& p : problems) keys.insert(p.key());
  EXPECT_EQ(keys.size(), problems.size());
}

TEST(Cudnn, ErrorsNameShapes) {
  const Descriptor device = described_device(90);
  Sizes sizes{{4, 6, 9, 8}, {4, 6, 3, 3}, {4, 4, 9, 7}, {1, 1}, {1, 1}, {1, 1}};  // y does not fit
  try {
    find_execution_plans(sizes.problem(Direction::forward, float32, MemoryFormat::contiguous),
                         {.properties = &device}, 1);
    FAIL() << "accepted";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("y float32 (4, 4, 9, 7)"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("cudnnBackendFinalize"), std::string::npos)
        << error.what();
  }
  const ConvolutionProblem integers =
      sizes.problem(Direction::forward, int64, MemoryFormat::contiguous);
  EXPECT_THROW(find_execution_plans(integers, {.properties = &device}, 1), DTypeError);
}

}  // namespace
}  // namespace tutti
