// Moving values: fill, copy with conversion, axpy, where.
#include "elementwise_loops.h"
#include "operand.h"

#include <algorithm>

namespace tutti::kernels::cpu {
namespace {

// Calls body.operator()<U>() with the unsigned integer as wide as the elements: moving bits needs
// no more types.
template <class Body>
void by_width(std::size_t width, const Body& body) {
  switch (width) {
    case 1: return body.template operator()<std::uint8_t>();
    case 2: return body.template operator()<std::uint16_t>();
    case 4: return body.template operator()<std::uint32_t>();
    default: return body.template operator()<std::uint64_t>();
  }
}

void copy_bits(const Tensor& in, const Tensor& out) {
  by_width(size_of(out.dtype()), [&]<class U>() {
    const U* from = static_cast<const U*>(in.raw());
    U* to = static_cast<U*>(out.raw());
    Walk({&out, &in}).run([=](const Block& block) {
      const U* x = from + block.at[1];
      U* y = to + block.at[0];
      const std::int64_t dx = block.step[1], dy = block.step[0];
      if (dx == 1 && dy == 1) std::copy_n(x, block.count, y);
      else
        for (std::int64_t i = 0; i < block.count; ++i) y[i * dy] = x[i * dx];
    });
  });
}

template <class C>
void copy_through(const Tensor& in, const Tensor& out) {
  const Source<C> source(in, 1);
  const Sink<C> sink(out);
  Walk({&out, &in}).run([=](const Block& block) {
    Buffer<C> buffer;
    // One of the two is usually dense C: then the conversion goes straight from or to it.
    C* const place = sink.place(block, buffer.data());
    const C* const values = source.read(block, place);
    if (values != place && sink.is_direct(block)) std::copy_n(values, block.count, place);
    else sink.write(block, values);
  });
}

bool fits_float(DType dtype) { return dtype != float64 && dtype != int64; }
bool fits_int64(DType dtype) { return !is_floating(dtype); }

}  // namespace

void fill(const Tensor& out, double value) {
  dispatch(AllTypes{}, out.dtype(), "fill", [&]<class T>() {
    const T v = convert<T>(value);
    by_width(sizeof(T), [&]<class U>() {
      if constexpr (sizeof(U) == sizeof(T)) {
        const U bits = std::bit_cast<U>(v);
        U* to = static_cast<U*>(out.raw());
        Walk({&out}).run([=](const Block& block) {
          U* y = to + block.at[0];
          if (block.step[0] == 1) std::fill_n(y, block.count, bits);
          else
            for (std::int64_t i = 0; i < block.count; ++i) y[i * block.step[0]] = bits;
        });
      }
    });
  });
}

void copy(const Tensor& in, const Tensor& out) {
  if (in.dtype() == out.dtype()) return copy_bits(in, out);
  if (fits_int64(in.dtype()) && fits_int64(out.dtype())) return copy_through<std::int64_t>(in, out);
  if (fits_float(in.dtype()) && fits_float(out.dtype())) return copy_through<float>(in, out);
  copy_through<double>(in, out);
}

void axpy(double alpha, const Tensor& x, const Tensor& y) {
  dispatch(RealTypes{}, y.dtype(), "axpy", [&]<class T>() {
    dispatch(RealTypes{}, x.dtype(), "axpy", []<class>() {});  // checks it
    using C = Compute<T>;
    const C scale = static_cast<C>(alpha);
    const Source<C> old(y, 0), other(x, 1);
    const Sink<C> sink(y);
    Walk({&y, &x}).run([=](const Block& block) {
      Buffer<C> from, kept;
      const C* a = other.read(block, from.data());
      const C* b = old.read(block, kept.data());
      C* const to = sink.place(block, kept.data());
#pragma GCC ivdep
      for (std::int64_t i = 0; i < block.count; ++i) to[i] = b[i] + scale * a[i];
      sink.write(block, to);
    });
  });
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  const bool* choose = condition.data<bool>();
  by_width(size_of(out.dtype()), [&]<class U>() {
    const U* first = static_cast<const U*>(a.raw());
    const U* second = static_cast<const U*>(b.raw());
    U* to = static_cast<U*>(out.raw());
    Walk({&out, &condition, &a, &b}).run([=](const Block& block) {
      const auto& [dy, dc, da, db] = block.step;
      U* y = to + block.at[0];
      const bool* c = choose + block.at[1];
      const U* p = first + block.at[2];
      const U* q = second + block.at[3];
      if (dy == 1 && dc == 1 && da == 1 && db == 1)
        for (std::int64_t i = 0; i < block.count; ++i) y[i] = c[i] ? p[i] : q[i];
      else
        for (std::int64_t i = 0; i < block.count; ++i)
          y[i * dy] = c[i * dc] ? p[i * da] : q[i * db];
    });
  });
}

}  // namespace tutti::kernels::cpu
