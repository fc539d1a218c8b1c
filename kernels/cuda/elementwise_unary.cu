// Elementwise functions of one tensor. A kernel is compiled for float and for double; the operation
// is a run-time value, the same for a whole launch.
#include "../../core/cuda/stream.h"
#include "element.h"
#include "elementwise_kernels.h"

namespace tutti::kernels::cuda {
namespace {

template <class C>
__global__ __launch_bounds__(block_threads) void unary_kernel(Unary op, OffsetCalculator calculator,
                                                              TypedPointer in, TypedPointer out) {
  for (std::int64_t unit = first_index(); unit < calculator.units; unit += index_step()) {
    const Offsets<2> offsets = calculator.offsets<2>(unit);
    UnitValues<C> values;
    load(in, offsets.at[1], offsets.count, calculator.constant[1], values);
    with_operation(op, [&]<Unary each>() {
#pragma unroll
      for (C& v : values) v = evaluate<each, Math>(v);
    });
    store(out, offsets.at[0], offsets.count, values);
  }
}

}  // namespace

void unary(Unary op, const Tensor& in, const Tensor& out) {
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  dispatch(TrainTypes{}, in.dtype(), "elementwise", [&]<class T>() {
    const OffsetCalculator calculator{&out, &in};
    tutti::cuda::launch("elementwise", unary_kernel<ComputeType<T>>,
                        grid_for(calculator.units, device), op, calculator, TypedPointer(in),
                        TypedPointer(out));
  });
}

}  // namespace tutti::kernels::cuda
