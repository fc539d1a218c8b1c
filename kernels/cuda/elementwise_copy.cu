// This file implements the elementwise kernels that move values: fill, copy with conversion, axpy,
// where. A kernel that only moves bits is compiled for each width of an element, and one that
// converts for each compute type. Dense arrays of one dtype are copied by the CUDA driver.
#include "../../core/create.h"
#include "../../core/cuda/check.h"
#include "../../core/cuda/generate.h"
#include "../../core/cuda/stream.h"
#include "element.h"
#include "elementwise_kernels.h"

#include <cstring>

namespace tutti::kernels::cuda {
namespace {

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

}  // namespace tutti::kernels::cuda
