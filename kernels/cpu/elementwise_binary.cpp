// Elementwise functions of two tensors, or of a tensor and a number. Each is compiled for dense
// float, double and int64 arrays (block_access.h); a number is a tensor that broadcasts.
#include "block_access.h"
#include "elementwise_kernels.h"
#include "independent_loop.h"
#include "vector_math.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

using ElementTypes = Types<float, double, BFloat16, std::int64_t, std::uint8_t, bool>;

template <class C, class Out>
using Loop = void (*)(const C* x, const C* y, Out* out, std::int64_t n);

// The output is one of the inputs or overlaps neither.
template <Binary op, class C, class Out>
void loop(const C* x, const C* y, Out* out, std::int64_t n) {
  TUTTI_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) out[i] = evaluate<op, Math>(x[i], y[i]);
}

template <class C>
void run_arithmetic(Loop<C, C> compute, const Tensor& a, const Tensor& b, const Tensor& out) {
  const BlockReader<C> first(a, 1), second(b, 2);
  const BlockWriter<C> writer(out);
  TensorIterator({&out, &a, &b}).for_each_block([=](const Block& block) {
    BlockBuffer<C> x, y, result;
    C* const to = writer.destination(block, result.data());
    compute(first.read(block, x.data()), second.read(block, y.data()), to, block.count);
    writer.write(block, to);
  });
}

template <class C>
void run_comparison(Loop<C, bool> compare, const Tensor& a, const Tensor& b, const Tensor& out) {
  const BlockReader<C> first(a, 1), second(b, 2);
  bool* const base = out.data<bool>();
  TensorIterator({&out, &a, &b}).for_each_block([=](const Block& block) {
    BlockBuffer<C> x, y;
    BlockBuffer<bool> result;
    bool* const to = base + block.offset[0];
    const bool is_direct = block.stride[0] == 1;
    bool* const values = is_direct ? to : result.data();
    compare(first.read(block, x.data()), second.read(block, y.data()), values, block.count);
    if (!is_direct)
      for (std::int64_t i = 0; i < block.count; ++i) to[i * block.stride[0]] = values[i];
  });
}

template <class C>
void run(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) {
  Loop<C, C> compute = nullptr;
  Loop<C, bool> compare = nullptr;
  with_operation(op, [&]<Binary each>() {
    using Result = ResultOf<each, Math, C>;
    if constexpr (std::is_same_v<Result, bool>) compare = loop<each, C, bool>;
    else if constexpr (std::is_same_v<Result, C>) compute = loop<each, C, C>;
  });
  if (compare) return run_comparison(compare, a, b, out);
  if (compute) return run_arithmetic(compute, a, b, out);
  fail<DTypeError>("elementwise: this operation needs a floating dtype; convert with .to(float32)");
}

}  // namespace

void binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch(ElementTypes{}, a.dtype(), "elementwise",
           [&]<class T>() { run<ComputeType<T>>(op, a, b, out); });
}

void binary_scalar(Binary op, const Tensor& a, double b, bool reversed, const Tensor& out) {
  dispatch(ElementTypes{}, a.dtype(), "elementwise", [&]<class T>() {
    using C = ComputeType<T>;
    // A tensor of one number in the compute type, in memory of this function.
    C number = convert<C>(b);
    const auto memory = std::make_shared<Storage>(&number, sizeof(number), Device::cpu(), nullptr);
    const Tensor scalar(memory, {}, {}, 0, dtype_of<C>::value);
    if (reversed) run<C>(op, scalar, a, out);
    else run<C>(op, a, scalar, out);
  });
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
