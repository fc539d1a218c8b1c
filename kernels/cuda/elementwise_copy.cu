// Moving values: fill, copy with conversion, axpy, where. What only moves bits is compiled for each
// width, what converts for each compute type; one array into another of its dtype is left to the
// driver.
#include "../../core/create.h"
#include "../../core/cuda/check.h"
#include "../../core/cuda/generate.h"
#include "../../core/cuda/stream.h"
#include "element.h"
#include "elementwise_loops.h"

#include <cstring>

namespace tutti::kernels::cuda {
namespace {

template <class Body>
void by_width(std::size_t width, const Body& body) {
  switch (width) {
    case 1: return body(std::uint8_t{});
    case 2: return body(std::uint16_t{});
    case 4: return body(std::uint32_t{});
    default: return body(std::uint64_t{});
  }
}

// Elements without a meaning, as `load` and `store` do it for those with one.
template <class U>
__device__ void load_bits(const U* base, std::int64_t at, int count, bool constant,
                          U (&values)[Layout::pack]) {
  const U* from = base + at;
  if (!constant && count == Layout::pack) {
    const Quad<U> pack = *reinterpret_cast<const Quad<U>*>(from);
#pragma unroll
    for (int j = 0; j < Layout::pack; ++j) values[j] = pack.elements[j];
  } else {
#pragma unroll
    for (int j = 0; j < Layout::pack; ++j) values[j] = j < count ? from[constant ? 0 : j] : U(0);
  }
}

template <class U>
__device__ void store_bits(U* base, std::int64_t at, int count, const U (&values)[Layout::pack]) {
  U* to = base + at;
  if (count == Layout::pack) {
    Quad<U> pack;
#pragma unroll
    for (int j = 0; j < Layout::pack; ++j) pack.elements[j] = values[j];
    *reinterpret_cast<Quad<U>*>(to) = pack;
  } else {
#pragma unroll
    for (int j = 0; j < Layout::pack; ++j)
      if (j < count) to[j] = values[j];
  }
}

template <class U>
__global__ __launch_bounds__(block_threads) void fill_kernel(Layout layout, U bits, U* out) {
  const U values[Layout::pack] = {bits, bits, bits, bits};
  for (std::int64_t unit = first_index(); unit < layout.units; unit += index_step()) {
    const Place<1> place = layout.place<1>(unit);
    store_bits(out, place.at[0], place.count, values);
  }
}

template <class U>
__global__ __launch_bounds__(block_threads) void copy_bits_kernel(Layout layout, const U* in,
                                                                  U* out) {
  for (std::int64_t unit = first_index(); unit < layout.units; unit += index_step()) {
    const Place<2> place = layout.place<2>(unit);
    U values[Layout::pack];
    load_bits(in, place.at[1], place.count, layout.constant[1], values);
    store_bits(out, place.at[0], place.count, values);
  }
}

template <class U>
__global__ __launch_bounds__(block_threads) void where_kernel(Layout layout,
                                                              const std::uint8_t* condition,
                                                              const U* a, const U* b, U* out) {
  for (std::int64_t unit = first_index(); unit < layout.units; unit += index_step()) {
    const Place<4> place = layout.place<4>(unit);
    std::uint8_t choose[Layout::pack];
    U x[Layout::pack], y[Layout::pack];
    load_bits(condition, place.at[1], place.count, layout.constant[1], choose);
    load_bits(a, place.at[2], place.count, layout.constant[2], x);
    load_bits(b, place.at[3], place.count, layout.constant[3], y);
#pragma unroll
    for (int j = 0; j < Layout::pack; ++j) x[j] = choose[j] ? x[j] : y[j];
    store_bits(out, place.at[0], place.count, x);
  }
}

template <class C>
__global__ __launch_bounds__(block_threads) void convert_kernel(Layout layout, Operand in,
                                                                Operand out) {
  for (std::int64_t unit = first_index(); unit < layout.units; unit += index_step()) {
    const Place<2> place = layout.place<2>(unit);
    C values[Layout::pack];
    load(in, place.at[1], place.count, layout.constant[1], values);
    store(out, place.at[0], place.count, values);
  }
}

template <class C>
__global__ __launch_bounds__(block_threads) void axpy_kernel(Layout layout, C alpha, Operand x,
                                                             Operand y) {
  for (std::int64_t unit = first_index(); unit < layout.units; unit += index_step()) {
    const Place<2> place = layout.place<2>(unit);
    C sum[Layout::pack], added[Layout::pack];
    load(y, place.at[0], place.count, false, sum);
    load(x, place.at[1], place.count, layout.constant[1], added);
#pragma unroll
    for (int j = 0; j < Layout::pack; ++j) sum[j] += alpha * added[j];
    store(y, place.at[0], place.count, sum);
  }
}

bool fits_float(DType dtype) { return dtype != float64 && dtype != int64; }

}  // namespace

void fill(const Tensor& out, double value) {
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Tensor number = full({}, value, {.dtype = out.dtype()});  // on the host: its bits
  by_width(size_of(out.dtype()), [&](auto zero) {
    using U = decltype(zero);
    U bits = 0;
    std::memcpy(&bits, number.raw(), sizeof bits);
    const Layout layout{&out};
    tutti::cuda::launch("fill", fill_kernel<U>, grid_for(layout.units, device), layout, bits,
                        static_cast<U*>(out.raw()));
  });
}

void copy(const Tensor& in, const Tensor& out) {
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Layout layout{&out, &in};
  if (layout.units == 0) return;
  const tutti::cuda::Grid grid = grid_for(layout.units, device);
  const auto through = [&](auto zero) {
    tutti::cuda::launch("copy", convert_kernel<decltype(zero)>, grid, layout, Operand(in),
                        Operand(out));
  };
  if (in.dtype() == out.dtype() && layout.is_flat(2))
    tutti::cuda::check(
        cudaMemcpyAsync(out.raw(), in.raw(),
                        static_cast<std::size_t>(out.numel()) * size_of(out.dtype()),
                        cudaMemcpyDeviceToDevice, tutti::cuda::current_stream(device).get()),
        "cudaMemcpyAsync", "copy");
  else if (in.dtype() == out.dtype())
    by_width(size_of(out.dtype()), [&](auto zero) {
      using U = decltype(zero);
      tutti::cuda::launch("copy", copy_bits_kernel<U>, grid, layout,
                          static_cast<const U*>(in.raw()), static_cast<U*>(out.raw()));
    });
  else if (!is_floating(in.dtype()) && !is_floating(out.dtype())) through(std::int64_t{});
  else if (fits_float(in.dtype()) && fits_float(out.dtype())) through(float{});
  else through(double{});
}

void axpy(double alpha, const Tensor& x, const Tensor& y) {
  const int device = y.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Layout layout{&y, &x};
  if (!is_floating(x.dtype()))
    fail<DTypeError>("axpy: expected a floating dtype, got {}", to_string(x.dtype()));
  dispatch(TrainTypes{}, y.dtype(), "axpy", [&]<class T>() {
    using C = Compute<T>;
    tutti::cuda::launch("axpy", axpy_kernel<C>, grid_for(layout.units, device), layout,
                        static_cast<C>(alpha), Operand(x), Operand(y));
  });
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  const int device = out.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Layout layout{&out, &condition, &a, &b};
  by_width(size_of(out.dtype()), [&](auto zero) {
    using U = decltype(zero);
    tutti::cuda::launch("where", where_kernel<U>, grid_for(layout.units, device), layout,
                        reinterpret_cast<const std::uint8_t*>(condition.data<bool>()),
                        static_cast<const U*>(a.raw()), static_cast<const U*>(b.raw()),
                        static_cast<U*>(out.raw()));
  });
}

}  // namespace tutti::kernels::cuda
