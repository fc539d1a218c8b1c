// Lists the plans that cuDNN proposes for the convolutions of ResNet-50, and whether it has engines
// for graphs that fuse them with batch normalisation. cuDNN answers for described devices, so the
// program needs no GPU, and it says nothing about speed.
//   list_cudnn_plans > benchmarks/results/cudnn_plans.txt
// A plan is written as its engine's number, a letter for each numerical note (T tensor cores,
// D inputs are converted down, R sums in less than float32, F FFT, N not deterministic, W, 4, 6 and
// X Winograd, S strict NaN), and in parentheses MiB of workspace. *4 is four such plans, which
// differ in their tiles.
#include "described_device.h"

#include <fmt/core.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace tutti {
namespace {

using namespace kernels::cuda::cudnn;

constexpr Direction directions[] = {Direction::forward, Direction::backward_input,
                                    Direction::backward_weight};
constexpr const char* direction_names[] = {"forward", "input", "weight"};

struct Layer {
  std::int64_t in, out, size, kernel, stride;

  std::int64_t padding() const { return kernel / 2; }
  std::int64_t out_size() const { return (size + 2 * padding() - kernel) / stride + 1; }
  std::string text() const {
    return fmt::format("{}x{} {:>4} -> {:<4} {:>3}x{:<3}{}", kernel, kernel, in, out, size, size,
                       stride > 1 ? " /2" : "   ");
  }
};

// Returns the distinct convolutions of ResNet-50 in the order in which they come up.
std::vector<Layer> layers() {
  std::vector<Layer> result{{3, 64, 224, 7, 2}};
  std::int64_t in = 64, size = 56;
  for (std::int64_t width = 64; width <= 512; width *= 2) {
    const std::int64_t stride = width == 64 ? 1 : 2, out = size / stride;
    result.push_back({in, width, size, 1, 1});
    result.push_back({width, width, size, 3, stride});
    result.push_back({width, 4 * width, out, 1, 1});
    if (stride == 2) result.push_back({in, 4 * width, size, 1, stride});
    result.push_back({4 * width, width, out, 1, 1});
    if (stride == 2) result.push_back({width, width, out, 3, 1});
    in = 4 * width, size = out;
  }
  return result;
}

struct Precision {
  const char* name;
  DType dtype;
  bool allow_tf32;
};

ConvolutionProblem problem(const Layer& l, Direction direction, std::int64_t batch,
                           const Precision& precision) {
  const auto last = [&](const Shape& shape) {
    return describe(precision.dtype, shape, MemoryFormat::channels_last);
  };
  return {.direction = direction,
          .x = last({batch, l.in, l.size, l.size}),
          .w = last({l.out, l.in, l.kernel, l.kernel}),
          .y = last({batch, l.out, l.out_size(), l.out_size()}),
          .stride = {l.stride, l.stride},
          .padding = {l.padding(), l.padding()},
          .dilation = {1, 1},
          .allow_tf32 = precision.allow_tf32};
}

// Returns the plan's engine, a letter for each note, and the workspace in MiB where it has any.
std::string text(const ExecutionPlan& plan) {
  constexpr char letters[] = "TDRFNW46XS";  // in the order of cudnnBackendNumericalNote_t
  std::string result = fmt::format("{}", plan.engine.index);
  for (const cudnnBackendNumericalNote_t note : plan.engine.notes) result += letters[note];
  if (plan.workspace > 0)
    result += fmt::format("({:.3g})", static_cast<double>(plan.workspace) / (1 << 20));
  return result;
}

void list_convolutions(int architecture) {
  const Descriptor device = test::described_device(architecture);
  for (const Precision precision : {Precision{"bfloat16", bfloat16, false},
                                    {"float32", float32, false},
                                    {"tf32", float32, true}})
    for (const std::int64_t batch : {32, 256})
      for (const Layer& layer : layers())
        for (const Direction direction : directions) {
          const auto plans = test::find_execution_plans(problem(layer, direction, batch, precision),
                                                        {.properties = &device}, 8);
          std::string line = fmt::format("sm_{:<3} {:8} {:3} {} {:7}:", architecture,
                                         precision.name, batch, layer.text(),
                                         direction_names[static_cast<int>(direction)]);
          for (std::size_t i = 0, end; i < plans.size(); i = end) {
            for (end = i + 1; end < plans.size() && text(plans[end]) == text(plans[i]);) ++end;
            const std::string times = end - i > 1 ? fmt::format("*{}", end - i) : "";
            line += fmt::format(" {}{}", text(plans[i]), times);
          }
          fmt::print("{}\n", line);
        }
}

// ---- Graphs that fuse a convolution with parts of batch normalisation.

// The convolutions of a graph: 64 channels at 56 x 56, in the middle of a block of ResNet-50.
struct Fused {
  DType dtype;
  int kernel;
  std::vector<Descriptor> operations = {};
  std::int64_t tensors = 0;

  Shape activations() const { return {32, 64, 56, 56}; }
  TensorDescription last(DType of, const Shape& shape) const {
    return describe(of, shape, MemoryFormat::channels_last);
  }
  Descriptor activation() { return tensor(last(dtype, activations()), ++tensors); }
  Descriptor unrounded() { return tensor(last(float32, activations()), ++tensors, true); }
  Descriptor weight() { return tensor(last(dtype, {64, 64, kernel, kernel}), ++tensors); }
  Descriptor channels(DType of = float32) { return tensor(last(of, {1, 64, 1, 1}), ++tensors); }

  void convolution(Direction direction, const Descriptor& x, const Descriptor& w,
                   const Descriptor& y) {
    const TensorDescription map = last(dtype, activations());
    operations.push_back(operation_of({.direction = direction,
                                       .x = map,
                                       .w = last(dtype, {64, 64, kernel, kernel}),
                                       .y = map,
                                       .stride = {1, 1},
                                       .padding = {kernel / 2, kernel / 2},
                                       .dilation = {1, 1}},
                                      x, w, y));
  }
  void operation(
      cudnnBackendDescriptorType_t type,
      std::initializer_list<std::pair<cudnnBackendAttributeName_t, const Descriptor*>> of,
      cudnnBackendAttributeName_t precision = CUDNN_ATTR_POINTWISE_MATH_PREC) {
    Descriptor o(type);
    if (type == CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR)
      o.set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, CUDNN_GENSTATS_SUM_SQSUM);
    if (precision != CUDNN_ATTR_POINTWISE_MATH_PREC)
      o.set(precision, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    for (const auto& [name, descriptor] : of) o.set(name, *descriptor);
    o.finalize();
    operations.push_back(std::move(o));
  }
  // Adds the operation y = f(a, b); `b` is null for functions of one argument.
  void pointwise(cudnnPointwiseMode_t mode, const Descriptor& a, const Descriptor* b,
                 const Descriptor& y) {
    Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    how.finalize();
    const bool gradient = mode == CUDNN_POINTWISE_RELU_BWD;
    Descriptor o(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    o.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    o.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, gradient ? *b : a);
    if (gradient) o.set(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, a);
    if (b && !gradient) o.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
    o.set(gradient ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC : CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
          y);
    o.finalize();
    operations.push_back(std::move(o));
  }
  // Adds y = relu(scale x + bias) and returns the virtual y.
  Descriptor normalised(const Descriptor& x) {
    const Descriptor scale = channels(dtype), bias = channels(dtype);
    Descriptor scaled = unrounded(), moved = unrounded(), y = unrounded();
    pointwise(CUDNN_POINTWISE_MUL, x, &scale, scaled);
    pointwise(CUDNN_POINTWISE_ADD, scaled, &bias, moved);
    pointwise(CUDNN_POINTWISE_RELU_FWD, moved, nullptr, y);
    return y;
  }
  // Adds the sum of y for each channel.
  void sum(const Descriptor& y) {
    const Descriptor result = channels();
    Descriptor how(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
            CUDNN_REDUCE_TENSOR_ADD);
    how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    how.finalize();
    operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
              {{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &y},
               {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &result},
               {CUDNN_ATTR_OPERATION_REDUCTION_DESC, &how}});
  }
  // Adds the sums of y and of its squares for each channel, in float32.
  void statistics(const Descriptor& y) {
    const Descriptor sum = channels(), squares = channels();
    operation(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR,
              {{CUDNN_ATTR_OPERATION_GENSTATS_XDESC, &y},
               {CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, &sum},
               {CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, &squares}},
              CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC);
  }
};

struct Pattern {
  const char* name;
  void (*build)(Fused&);
};

constexpr Pattern patterns[] = {
    {"convolution + statistics",
     [](Fused& f) {
       const Descriptor x = f.activation(), w = f.weight(), y = f.activation();
       f.convolution(Direction::forward, x, w, y);
       f.statistics(y);
     }},
    {"convolution + sum of each channel by a reduction",
     [](Fused& f) {
       const Descriptor x = f.activation(), w = f.weight(), y = f.activation();
       f.convolution(Direction::forward, x, w, y);
       f.sum(y);
     }},
    {"convolution + sums of values and of squares by two reductions",
     [](Fused& f) {
       const Descriptor x = f.activation(), w = f.weight(), y = f.activation();
       const Descriptor squares = f.unrounded();
       f.convolution(Direction::forward, x, w, y);
       f.pointwise(CUDNN_POINTWISE_MUL, y, &y, squares);
       f.sum(y);
       f.sum(squares);
     }},
    {"scale, bias, ReLU + convolution",
     [](Fused& f) {
       const Descriptor x = f.activation(), w = f.weight(), y = f.activation();
       f.convolution(Direction::forward, f.normalised(x), w, y);
     }},
    {"scale, bias, ReLU + convolution + statistics",
     [](Fused& f) {
       const Descriptor x = f.activation(), w = f.weight(), y = f.activation();
       f.convolution(Direction::forward, f.normalised(x), w, y);
       f.statistics(y);
     }},
    {"scale, bias, ReLU + gradient of the weight",
     [](Fused& f) {
       const Descriptor x = f.activation(), dw = f.weight(), dy = f.activation();
       f.convolution(Direction::backward_weight, f.normalised(x), dw, dy);
     }},
    {"gradient of the input + ReLU + sums for batch norm's gradient",
     [](Fused& f) {
       const Descriptor dy = f.activation(), w = f.weight(), x = f.activation();
       const Descriptor mean = f.channels(), rstd = f.channels(), scale = f.channels(),
                        bias = f.channels();
       Descriptor centred = f.unrounded(), normal = f.unrounded(), scaled = f.unrounded(),
                  y = f.unrounded(), dx = f.unrounded();
       const Descriptor masked = f.activation();
       f.convolution(Direction::backward_input, dx, w, dy);
       f.pointwise(CUDNN_POINTWISE_SUB, x, &mean, centred);
       f.pointwise(CUDNN_POINTWISE_MUL, centred, &rstd, normal);
       f.pointwise(CUDNN_POINTWISE_MUL, normal, &scale, scaled);
       f.pointwise(CUDNN_POINTWISE_ADD, scaled, &bias, y);
       f.pointwise(CUDNN_POINTWISE_RELU_BWD, dx, &y, masked);
       const Descriptor dscale = f.channels(), dbias = f.channels(), a = f.channels(),
                        b = f.channels(), c = f.channels();
       f.operation(CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR,
                   {{CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, &mean},
                    {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, &rstd},
                    {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, &scale},
                    {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, &x},
                    {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, &masked},
                    {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, &dscale},
                    {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, &dbias},
                    {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, &a},
                    {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, &b},
                    {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, &c}},
                   CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC);
     }},
};

// Returns the plans for a graph, or cuDNN's reason why it takes no such graph.
std::string plans_for(const Pattern& pattern, DType dtype, int kernel, const PlanTarget& target) {
  std::string result;
  int found = 0;
  try {
    Fused fused{dtype, kernel};
    pattern.build(fused);
    const Descriptor graph = graph_of(fused.operations, target);
    for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
      for (const Descriptor& configuration : configurations(graph, mode, target))
        if (const auto plan = plan_of(configuration, target); plan && found++ < 4)
          result += fmt::format(" {}", text(*plan));
  } catch (const DeviceError& error) {
    return fmt::format(" refused: {}", error.what());
  }
  return found ? fmt::format("{} plans:{}", found, result) : " no engine";
}

void list_fused(int architecture) {
  const Descriptor device = test::described_device(architecture);
  for (const Pattern& pattern : patterns)
    for (const DType dtype : {float16, bfloat16, float32})
      for (const int kernel : {1, 3})
        fmt::print("sm_{:<3} {} {}x{}, {}:{}\n", architecture, to_string(dtype), kernel, kernel,
                   pattern.name, plans_for(pattern, dtype, kernel, {.properties = &device}));
}

}  // namespace
}  // namespace tutti

int main() {
  fmt::print("cuDNN {}.{}.{}\n", CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL);
  for (const int architecture : {80, 90, 100}) tutti::list_fused(architecture);
  for (const int architecture : {80, 90, 100}) tutti::list_convolutions(architecture);
}
