// Elementwise functions of one tensor. Each is compiled for dense float and double arrays
// (block_access.h).
#include "block_access.h"
#include "elementwise_kernels.h"
#include "independent_loop.h"
#include "vector_math.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

template <class C>
using Loop = void (*)(const C* x, C* y, std::int64_t n);

// x and y are one array or do not overlap.
template <Unary op, class C>
void loop(const C* x, C* y, std::int64_t n) {
  TUTTI_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) y[i] = evaluate<op, Math>(x[i]);
}

}  // namespace

void unary(Unary op, const Tensor& in, const Tensor& out) {
  dispatch(RealTypes{}, in.dtype(), "elementwise", [&]<class T>() {
    using C = ComputeType<T>;
    Loop<C> compute = nullptr;
    with_operation(op, [&]<Unary each>() { compute = loop<each, C>; });
    const BlockReader<C> reader(in, 1);
    const BlockWriter<C> writer(out);
    TensorIterator({&out, &in}).for_each_block([=](const Block& block) {
      BlockBuffer<C> x, y;
      C* const to = writer.destination(block, y.data());
      compute(reader.read(block, x.data()), to, block.count);
      writer.write(block, to);
    });
  });
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
