// The elementwise CUDA kernels. Those that compute are compiled for float, double and int64; the
// operation is a run-time value, the same for a whole launch. Those that only move bits are
// compiled for each width of an element. Dense arrays of one dtype are copied by the CUDA driver.
#include "../kernels.h"

#include "../../core/create.h"
#include "../../core/cuda/check.h"
#include "../../core/cuda/generate.h"
#include "../../core/cuda/stream.h"
#include "element.h"

#include <cstring>

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

template <class U>
__global__ __launch_bounds__(block_threads) void fill_kernel(OffsetCalculator calculator, U bits,
                                                             U* out) {
  const UnitValues<U> values = {bits, bits, bits, bits};
  for (std::int64_t unit = first_index(); unit < calculator.units; unit += index_step()) {
    const Offsets<1> offsets = calculator.offsets<1>(unit);
    store_elements<U, U>(out + offsets.at[0], offsets.count, values);
  }
}

template <class U>
__global__ __launch_bounds__(block_threads) void copy_bits_kernel(OffsetCalculator calculator,
                                                                  const U* in, U* out) {
  for (std::int64_t unit = first_index(); unit < calculator.units; unit += index_step()) {
    const Offsets<2> offsets = calculator.offsets<2>(unit);
    UnitValues<U> values;
    load_elements<U>(in + offsets.at[1], offsets.count, calculator.constant[1], values);
    store_elements<U, U>(out + offsets.at[0], offsets.count, values);
  }
}

template <class U>
__global__ __launch_bounds__(block_threads) void where_kernel(OffsetCalculator calculator,
                                                              const std::uint8_t* condition,
                                                              const U* a, const U* b, U* out) {
  for (std::int64_t unit = first_index(); unit < calculator.units; unit += index_step()) {
    const Offsets<4> offsets = calculator.offsets<4>(unit);
    UnitValues<std::uint8_t> choose;
    UnitValues<U> x, y;
    load_elements<std::uint8_t>(condition + offsets.at[1], offsets.count, calculator.constant[1],
                                choose);
    load_elements<U>(a + offsets.at[2], offsets.count, calculator.constant[2], x);
    load_elements<U>(b + offsets.at[3], offsets.count, calculator.constant[3], y);
#pragma unroll
    for (int j = 0; j < OffsetCalculator::vector_size; ++j) x[j] = choose[j] ? x[j] : y[j];
    store_elements<U, U>(out + offsets.at[0], offsets.count, x);
  }
}

template <class C>
__global__ __launch_bounds__(block_threads) void convert_kernel(OffsetCalculator calculator,
                                                                TypedPointer in, TypedPointer out) {
  for (std::int64_t unit = first_index(); unit < calculator.units; unit += index_step()) {
    const Offsets<2> offsets = calculator.offsets<2>(unit);
    UnitValues<C> values;
    load(in, offsets.at[1], offsets.count, calculator.constant[1], values);
    store(out, offsets.at[0], offsets.count, values);
  }
}

template <class C>
__global__ __launch_bounds__(block_threads) void axpy_kernel(OffsetCalculator calculator, C alpha,
                                                             TypedPointer x, TypedPointer y) {
  for (std::int64_t unit = first_index(); unit < calculator.units; unit += index_step()) {
    const Offsets<2> offsets = calculator.offsets<2>(unit);
    UnitValues<C> sum, added;
    load(y, offsets.at[0], offsets.count, false, sum);
    load(x, offsets.at[1], offsets.count, calculator.constant[1], added);
#pragma unroll
    for (int j = 0; j < OffsetCalculator::vector_size; ++j) sum[j] += alpha * added[j];
    store(y, offsets.at[0], offsets.count, sum);
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

void fill(const Tensor& out, double value) {
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Tensor number =
      full({}, value, {.dtype = out.dtype()});  // The bits of the value, on the host.
  dispatch_width(size_of(out.dtype()), [&]<class U>() {
    U bits = 0;
    std::memcpy(&bits, number.raw(), sizeof bits);
    const OffsetCalculator calculator{&out};
    tutti::cuda::launch("fill", fill_kernel<U>, grid_for(calculator.units, device), calculator,
                        bits, static_cast<U*>(out.raw()));
  });
}

void copy(const Tensor& in, const Tensor& out) {
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const OffsetCalculator calculator{&out, &in};
  if (calculator.units == 0) return;
  const tutti::cuda::Grid grid = grid_for(calculator.units, device);
  if (in.dtype() == out.dtype() && calculator.is_flat(2))
    tutti::cuda::check(
        cudaMemcpyAsync(out.raw(), in.raw(),
                        static_cast<std::size_t>(out.numel()) * size_of(out.dtype()),
                        cudaMemcpyDeviceToDevice, tutti::cuda::current_stream(device).get()),
        "cudaMemcpyAsync", "copy");
  else if (in.dtype() == out.dtype())
    dispatch_width(size_of(out.dtype()), [&]<class U>() {
      tutti::cuda::launch("copy", copy_bits_kernel<U>, grid, calculator,
                          static_cast<const U*>(in.raw()), static_cast<U*>(out.raw()));
    });
  else
    dispatch_conversion(in.dtype(), out.dtype(), [&]<class C>() {
      tutti::cuda::launch("copy", convert_kernel<C>, grid, calculator, TypedPointer(in),
                          TypedPointer(out));
    });
}

void axpy(double alpha, const Tensor& x, const Tensor& y) {
  const int device = y.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const OffsetCalculator calculator{&y, &x};
  if (!is_floating(x.dtype()))
    fail<DTypeError>("axpy: expected a floating dtype, got {}", to_string(x.dtype()));
  dispatch(TrainTypes{}, y.dtype(), "axpy", [&]<class T>() {
    using C = ComputeType<T>;
    tutti::cuda::launch("axpy", axpy_kernel<C>, grid_for(calculator.units, device), calculator,
                        static_cast<C>(alpha), TypedPointer(x), TypedPointer(y));
  });
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const OffsetCalculator calculator{&out, &condition, &a, &b};
  dispatch_width(size_of(out.dtype()), [&]<class U>() {
    tutti::cuda::launch("where", where_kernel<U>, grid_for(calculator.units, device), calculator,
                        reinterpret_cast<const std::uint8_t*>(condition.data<bool>()),
                        static_cast<const U*>(a.raw()), static_cast<const U*>(b.raw()),
                        static_cast<U*>(out.raw()));
  });
}

extern const Elementwise elementwise{.fill = fill,
                                     .copy = copy,
                                     .unary = unary,
                                     .binary = binary,
                                     .binary_scalar = binary_scalar,
                                     .axpy = axpy,
                                     .where = where};

}  // namespace tutti::kernels::cuda
