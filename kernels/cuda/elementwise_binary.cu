// Elementwise functions of two tensors, or of a tensor and a number. A kernel is compiled for
// float, double and int64; the operation is a run-time value, the same for a whole launch.
#include "../../core/cuda/stream.h"
#include "element.h"
#include "elementwise_kernels.h"

namespace tutti::kernels::cuda {
namespace {

// The other argument of an operation: a tensor, or a number as the second or first argument.
template <class C>
struct SecondArgument {
  enum class Kind { tensor, number, number_first };
  Kind kind;
  TypedPointer tensor = {};
  C number = C(0);
};

// x[j] = op(x[j], y[j])
template <class C>
__device__ void apply(Binary op, UnitValues<C>& x, const UnitValues<C>& y) {
  with_operation(op, [&]<Binary each>() {
    if constexpr (!std::is_void_v<ResultOf<each, Math, C>>) {
#pragma unroll
      for (int j = 0; j < OffsetCalculator::vector_size; ++j)
        x[j] = static_cast<C>(evaluate<each, Math>(x[j], y[j]));
    }
  });
}

// Sets y, or else x, to the number; the other one has the tensor's values, which are loaded into x.
// Choosing the array by a run-time reference would keep both arrays in local memory.
template <class C>
__device__ void insert_number(const SecondArgument<C>& b, UnitValues<C>& x, UnitValues<C>& y) {
  const bool first = b.kind == SecondArgument<C>::Kind::number_first;
#pragma unroll
  for (int j = 0; j < OffsetCalculator::vector_size; ++j) {
    y[j] = first ? x[j] : b.number;
    x[j] = first ? b.number : x[j];
  }
}

template <class C>
__global__ __launch_bounds__(block_threads) void binary_kernel(Binary op,
                                                               OffsetCalculator calculator,
                                                               TypedPointer a, SecondArgument<C> b,
                                                               TypedPointer out) {
  using Kind = typename SecondArgument<C>::Kind;
  for (std::int64_t unit = first_index(); unit < calculator.units; unit += index_step()) {
    const Offsets<3> offsets = calculator.offsets<3>(unit);
    UnitValues<C> x, y;
    load(a, offsets.at[1], offsets.count, calculator.constant[1], x);
    if (b.kind == Kind::tensor)
      load(b.tensor, offsets.at[2], offsets.count, calculator.constant[2], y);
    else insert_number<C>(b, x, y);
    apply<C>(op, x, y);
    store(out, offsets.at[0], offsets.count, x);
  }
}

// Calls body.operator()<C>() with the compute type of `dtype`.
template <class Body>
void dispatch_compute_type(Binary op, DType dtype, const Body& body) {
  dispatch(AllTypes{}, dtype, "elementwise", [&]<class T>() {
    if (!is_floating(dtype) && !is_defined_for_integers(op))
      fail<DTypeError>(
          "elementwise: this operation needs a floating dtype; convert with .to(float32)");
    body.template operator()<ComputeType<T>>();
  });
}

template <class C>
void run(Binary op, const OffsetCalculator& calculator, const Tensor& a, const SecondArgument<C>& b,
         const Tensor& out) {
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  tutti::cuda::launch("elementwise", binary_kernel<C>, grid_for(calculator.units, device), op,
                      calculator, TypedPointer(a), b, TypedPointer(out));
}

}  // namespace

void binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch_compute_type(op, a.dtype(), [&]<class C>() {
    run<C>(op, OffsetCalculator{&out, &a, &b}, a,
           {.kind = SecondArgument<C>::Kind::tensor, .tensor = TypedPointer(b)}, out);
  });
}

void binary_scalar(Binary op, const Tensor& a, double b, bool reversed, const Tensor& out) {
  dispatch_compute_type(op, a.dtype(), [&]<class C>() {
    using Kind = typename SecondArgument<C>::Kind;
    run<C>(op, OffsetCalculator{&out, &a}, a,
           {.kind = reversed ? Kind::number_first : Kind::number, .number = convert<C>(b)}, out);
  });
}

}  // namespace tutti::kernels::cuda
