#include "cudnn_graph.h"

#include <algorithm>

namespace tutti::kernels::cuda::cudnn {
namespace {

cudnnDataType_t data_type(DType dtype) {
  switch (dtype) {
    case float32: return CUDNN_DATA_FLOAT;
    case float64: return CUDNN_DATA_DOUBLE;
    case float16: return CUDNN_DATA_HALF;
    case bfloat16: return CUDNN_DATA_BFLOAT16;
    default:
      fail<DTypeError>(
          "convolution: cannot compute in {} on this device (expected one of float32, float64, "
          "bfloat16, float16); convert with .to(dtype)",
          to_string(dtype));
  }
}

cudnnDataType_t sums_of(const ConvolutionProblem& p) {
  return p.x.dtype == float64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

// The attributes of the three operations.
struct Attributes {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t convolution, x, w, y, alpha, beta;
};
Attributes attributes(Direction direction) {
  switch (direction) {
    case Direction::forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case Direction::backward_input:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case Direction::backward_weight: break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

Descriptor convolution_of(const ConvolutionProblem& p, cudnnDataType_t sums) {
  Descriptor d(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  d.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, sums);
  d.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
  d.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, static_cast<std::int64_t>(p.stride.size()));
  d.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, p.padding);
  d.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, p.padding);
  d.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, p.dilation);
  d.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, p.stride);
  d.finalize();
  return d;
}

// Returns the operation y = sum + bias.
Descriptor bias_addition(const ConvolutionProblem& p, const Descriptor& sum, const Descriptor& y) {
  const Dims ones = Dims::filled(p.y.shape.size(), 1);
  TensorDescription description{*p.bias, ones, ones};
  description.shape[1] = p.y.shape[1];
  description.strides[0] = description.shape[1];
  const Descriptor bias = tensor(description, bias_id);
  Descriptor add(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  add.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
  add.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, sums_of(p));
  add.finalize();
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, add);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, sum);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, bias);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  operation.finalize();
  return operation;
}

// Returns the operation graph: the convolution and, if there is a bias, its addition to the
// unrounded sums. The descriptors from which the graph is built may be destroyed afterwards.
Descriptor graph_of(const ConvolutionProblem& p, const PlanTarget& target) {
  const Descriptor x = tensor(p.x, x_id), w = tensor(p.w, w_id), y = tensor(p.y, y_id);
  std::vector<Descriptor> operations;
  if (p.bias) {
    const TensorDescription unrounded{p.x.dtype == float64 ? float64 : float32, p.y.shape,
                                      p.y.strides};
    const Descriptor sum = tensor(unrounded, sum_id, true);
    operations.push_back(operation_of(p, x, w, sum));
    operations.push_back(bias_addition(p, sum, y));
  } else {
    operations.push_back(operation_of(p, x, w, y));
  }
  return graph_of(operations, target);
}

// Reads the values of an attribute, `most` at most, and returns how many it has read.
std::size_t get(const Descriptor& of, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, std::size_t most, void* values) {
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(of.get(), name, type, static_cast<std::int64_t>(most), &count,
                                 values),
        "cudnnBackendGetAttribute");
  return static_cast<std::size_t>(count);
}

// Returns the descriptors that an attribute holds, all of one type, of which there are `most` at
// most.
std::vector<Descriptor> descriptors(const Descriptor& of, cudnnBackendAttributeName_t name,
                                    cudnnBackendDescriptorType_t type, std::size_t most) {
  std::vector<Descriptor> result;
  std::vector<cudnnBackendDescriptor_t> raw;
  while (raw.size() < most) raw.push_back(result.emplace_back(type).get());
  result.resize(get(of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, raw.data()));
  return result;
}

// Returns whether an engine is as precise and as deterministic as the problem requires.
bool is_acceptable(const Engine& engine, const ConvolutionProblem& p) {
  // For float32 these two notes mean that the engine uses TF32.
  const bool rounds = engine.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) ||
                      engine.has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
  return !engine.has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) &&
         !(engine.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) && p.deterministic) &&
         !(rounds && p.x.dtype == float32 && !p.allow_tf32);
}

}  // namespace

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char message[512] = "";
  cudnnGetLastErrorString(message, sizeof message);
  fail<DeviceError>("{} failed: {} ({})", call, cudnnGetErrorString(status), message);
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t created = nullptr;
  check(cudnnBackendCreateDescriptor(type, &created), "cudnnBackendCreateDescriptor");
  descriptor_.reset(created);
}

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     std::int64_t count, const void* values) {
  check(cudnnBackendSetAttribute(get(), name, type, count, values), "cudnnBackendSetAttribute");
}
void Descriptor::set(cudnnBackendAttributeName_t name, const Dims& values) {
  set(name, CUDNN_TYPE_INT64, values.size(), values.begin());
}
void Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& value) {
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.get());
}
void Descriptor::finalize() { check(cudnnBackendFinalize(get()), "cudnnBackendFinalize"); }

Dims spatial(const Dims& option, std::int64_t filler) {
  Dims result = option;
  if (result.size() == 1) result.insert(0, filler);
  return result;
}

TensorDescription describe(DType dtype, const Shape& given, MemoryFormat format,
                           const void* address) {
  Shape shape = given;
  if (shape.size() == 3) shape.insert(2, 1);
  const auto bits = reinterpret_cast<std::uintptr_t>(address);
  return {
      dtype, shape, dense_strides(shape, format),
      bits == 0 ? 16 : std::min<std::int64_t>(16, static_cast<std::int64_t>(bits & (~bits + 1)))};
}

std::string ConvolutionProblem::text() const {
  const char* name = direction == Direction::forward ? "convolution"
                     : direction == Direction::backward_input
                         ? "convolution, gradient of the input"
                         : "convolution, gradient of the weight";
  return fmt::format("{}: x {} {}, weight {} {}, y {} {}, stride {}, padding {}, dilation {}", name,
                     to_string(x.dtype), to_string(x.shape), to_string(w.dtype), to_string(w.shape),
                     to_string(y.dtype), to_string(y.shape), to_string(stride), to_string(padding),
                     to_string(dilation));
}

std::vector<std::int64_t> ConvolutionProblem::key() const {
  std::vector<std::int64_t> key{static_cast<std::int64_t>(direction), allow_tf32, deterministic,
                                bias ? static_cast<std::int64_t>(*bias) : -1, stride.size()};
  const auto append = [&](const Dims& dims) { key.insert(key.end(), dims.begin(), dims.end()); };
  for (const TensorDescription* t : {&x, &w, &y}) {
    key.push_back(static_cast<std::int64_t>(t->dtype));
    key.push_back(t->alignment);
    append(t->shape);
    append(t->strides);
  }
  for (const Dims* dims : {&stride, &padding, &dilation}) append(*dims);
  return key;
}

Descriptor tensor(const TensorDescription& t, std::int64_t id, bool is_virtual) {
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, data_type(t.dtype));
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, t.shape);
  d.set(CUDNN_ATTR_TENSOR_STRIDES, t.strides);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, t.alignment);
  if (is_virtual) d.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
  d.finalize();
  return d;
}

Descriptor operation_of(const ConvolutionProblem& p, const Descriptor& x, const Descriptor& w,
                        const Descriptor& y) {
  const cudnnDataType_t sums = sums_of(p);
  const Attributes a = attributes(p.direction);
  const Descriptor convolution = convolution_of(p, sums);
  Descriptor operation(a.type);
  operation.set(a.convolution, convolution);
  operation.set(a.x, x);
  operation.set(a.w, w);
  operation.set(a.y, y);
  if (sums == CUDNN_DATA_DOUBLE) {
    operation.set(a.alpha, CUDNN_TYPE_DOUBLE, 1.0);
    operation.set(a.beta, CUDNN_TYPE_DOUBLE, 0.0);
  } else {
    operation.set(a.alpha, CUDNN_TYPE_FLOAT, 1.0f);
    operation.set(a.beta, CUDNN_TYPE_FLOAT, 0.0f);
  }
  operation.finalize();
  return operation;
}

Descriptor graph_of(const std::vector<Descriptor>& operations, const PlanTarget& target) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& operation : operations) raw.push_back(operation.get());
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (target.handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<std::int64_t>(raw.size()), raw.data());
  graph.finalize();
  return graph;
}

bool Engine::has(cudnnBackendNumericalNote_t note) const {
  return std::find(notes.begin(), notes.end(), note) != notes.end();
}

std::vector<Descriptor> configurations(const Descriptor& graph, cudnnBackendHeurMode_t mode,
                                       const PlanTarget& target) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (target.properties) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.properties);
  if (!heuristics.try_finalize()) return {};
  const std::size_t announced =
      get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  return descriptors(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                     announced);
}

Engine engine_of(const Descriptor& configuration) {
  const Descriptor descriptor = std::move(
      descriptors(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1)
          .at(0));
  Engine engine;
  get(descriptor, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &engine.index);
  engine.notes.resize(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  engine.notes.resize(get(descriptor, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                          CUDNN_NUMERICAL_NOTE_TYPE_COUNT, engine.notes.data()));
  return engine;
}

std::optional<ExecutionPlan> plan_of(const Descriptor& configuration, const PlanTarget& target) {
  ExecutionPlan plan{Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR), engine_of(configuration)};
  if (target.handle)
    plan.descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  if (target.properties)
    plan.descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.properties);
  plan.descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
  if (!plan.descriptor.try_finalize()) return {};
  get(plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
      &plan.workspace);
  return plan;
}

PlanSearch::PlanSearch(const ConvolutionProblem& problem, const PlanTarget& target)
    : problem_(problem), target_(target) {
  try {
    graph_ = graph_of(problem_, target_);
  } catch (const DeviceError& error) {
    fail<DeviceError>("{}: {}", problem_.text(), error.what());
  }
}

bool PlanSearch::propose_more() {
  constexpr cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
  if (modes_ == std::size(modes)) return false;
  std::ranges::move(configurations(graph_, modes[modes_++], target_),
                    std::back_inserter(configurations_));
  return true;
}

std::optional<ExecutionPlan> PlanSearch::next() {
  try {
    do {
      while (position_ < configurations_.size()) {
        const Descriptor configuration = std::move(configurations_[position_++]);
        if (is_acceptable(engine_of(configuration), problem_))
          if (auto plan = plan_of(configuration, target_)) return plan;
      }
    } while (propose_more());
  } catch (const DeviceError& error) {
    fail<DeviceError>("{}: {}", problem_.text(), error.what());
  }
  return {};
}

}  // namespace tutti::kernels::cuda::cudnn
