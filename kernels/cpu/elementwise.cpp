// The elementwise kernels of the CPU. Those that compute are compiled for dense arrays of float,
// double and int64 (tensor_iterator.h), and those that only move elements for each width of an
// element.
#include "../kernels.h"

#include "../../core/parallel.h"

#include <algorithm>

#include "tensor_iterator.h"
#include "vector_math.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

using ElementTypes = Types<float, double, BFloat16, std::int64_t, std::uint8_t, bool>;

template <class C>
using UnaryLoop = void (*)(const C* x, C* out, std::int64_t n);
template <class C, class Out>
using BinaryLoop = void (*)(const C* x, const C* y, Out* out, std::int64_t n);

// The output is one of the inputs or overlaps neither.
template <Unary op, class C>
void loop(const C* x, C* out, std::int64_t n) {
  TUTTI_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) out[i] = evaluate<op, Math>(x[i]);
}
template <Binary op, class C, class Out>
void loop(const C* x, const C* y, Out* out, std::int64_t n) {
  TUTTI_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) out[i] = evaluate<op, Math>(x[i], y[i]);
}

template <class C, class Out>
void run(BinaryLoop<C, Out> compute, const Tensor& a, const Tensor& b, const Tensor& out) {
  const BlockReader<C> first(a, 1), second(b, 2);
  const BlockWriter<Out> writer(out);
  TensorIterator({&out, &a, &b}).for_each_block([=](const Block& block) {
    BlockBuffer<C> x, y;
    BlockBuffer<Out> result;
    Out* const to = writer.destination(block, result.data());
    compute(first.read(block, x.data()), second.read(block, y.data()), to, block.count);
    writer.write(block, to);
  });
}

template <class C>
void run(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) {
  BinaryLoop<C, C> compute = nullptr;
  BinaryLoop<C, bool> compare = nullptr;
  with_operation(op, [&]<Binary each>() {
    using Result = ResultOf<each, Math, C>;
    if constexpr (std::is_same_v<Result, bool>) compare = loop<each, C, bool>;
    else if constexpr (std::is_same_v<Result, C>) compute = loop<each, C, C>;
  });
  const bool is_extremum = op == Binary::maximum || op == Binary::minimum;
  const ScopedValue keeps(tutti::detail::keeps_denormals,
                          tutti::detail::keeps_denormals || compare || is_extremum);
  if (compare) return run(compare, a, b, out);
  if (compute) return run(compute, a, b, out);
  fail<DTypeError>("elementwise: this operation needs a floating dtype; convert with .to(float32)");
}

void copy_bits(const Tensor& in, const Tensor& out) {
  dispatch_width(size_of(out.dtype()), [&]<class U>() {
    const U* from = static_cast<const U*>(in.raw());
    U* to = static_cast<U*>(out.raw());
    TensorIterator({&out, &in}).for_each_block([=](const Block& block) {
      const U* x = from + block.offset[1];
      U* y = to + block.offset[0];
      const std::int64_t dx = block.stride[1], dy = block.stride[0];
      if (dx == 1 && dy == 1) std::copy_n(x, block.count, y);
      else
        for (std::int64_t i = 0; i < block.count; ++i) y[i * dy] = x[i * dx];
    });
  });
}

template <class C>
void copy_through(const Tensor& in, const Tensor& out) {
  const BlockReader<C> reader(in, 1);
  const BlockWriter<C> writer(out);
  TensorIterator({&out, &in}).for_each_block([=](const Block& block) {
    BlockBuffer<C> buffer;
    // Usually one of the two tensors is dense and of type C: then there is no buffer in between.
    C* const to = writer.destination(block, buffer.data());
    const C* const values = reader.read(block, to);
    if (values != to && writer.is_direct(block)) std::copy_n(values, block.count, to);
    else writer.write(block, values);
  });
}

}  // namespace

void unary(Unary op, const Tensor& in, const Tensor& out) {
  dispatch(RealTypes{}, in.dtype(), "elementwise", [&]<class T>() {
    using C = ComputeType<T>;
    UnaryLoop<C> compute = nullptr;
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

void fill(const Tensor& out, double value) {
  dispatch(AllTypes{}, out.dtype(), "fill", [&]<class T>() {
    const T v = convert<T>(value);
    dispatch_width(sizeof(T), [&]<class U>() {
      if constexpr (sizeof(U) == sizeof(T)) {
        const U bits = std::bit_cast<U>(v);
        U* to = static_cast<U*>(out.raw());
        TensorIterator({&out}).for_each_block([=](const Block& block) {
          U* y = to + block.offset[0];
          if (block.stride[0] == 1) std::fill_n(y, block.count, bits);
          else
            for (std::int64_t i = 0; i < block.count; ++i) y[i * block.stride[0]] = bits;
        });
      }
    });
  });
}

void copy(const Tensor& in, const Tensor& out) {
  if (in.dtype() == out.dtype()) return copy_bits(in, out);
  // Another operation, which takes denormals for 0, may store its result in this way.
  using Scope = tutti::detail::DenormalScope;
  const ScopedValue keeps(tutti::detail::keeps_denormals, (Scope::read() & Scope::bits) == 0);
  dispatch_conversion(in.dtype(), out.dtype(), [&]<class C>() { copy_through<C>(in, out); });
}

void axpy(double alpha, const Tensor& x, const Tensor& y) {
  dispatch(RealTypes{}, y.dtype(), "axpy", [&]<class T>() {
    dispatch(RealTypes{}, x.dtype(), "axpy", []<class>() {});  // throws for an integer dtype
    using C = ComputeType<T>;
    const C scale = static_cast<C>(alpha);
    const BlockReader<C> old(y, 0), other(x, 1);
    const BlockWriter<C> writer(y);
    TensorIterator({&y, &x}).for_each_block([=](const Block& block) {
      BlockBuffer<C> from, kept;
      const C* a = other.read(block, from.data());
      const C* b = old.read(block, kept.data());
      C* const to = writer.destination(block, kept.data());
      TUTTI_INDEPENDENT_LOOP
      for (std::int64_t i = 0; i < block.count; ++i) to[i] = b[i] + scale * a[i];
      writer.write(block, to);
    });
  });
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  const bool* choose = condition.data<bool>();
  dispatch_width(size_of(out.dtype()), [&]<class U>() {
    const U* first = static_cast<const U*>(a.raw());
    const U* second = static_cast<const U*>(b.raw());
    U* to = static_cast<U*>(out.raw());
    TensorIterator({&out, &condition, &a, &b}).for_each_block([=](const Block& block) {
      const auto& [dy, dc, da, db, none] = block.stride;
      U* y = to + block.offset[0];
      const bool* c = choose + block.offset[1];
      const U* p = first + block.offset[2];
      const U* q = second + block.offset[3];
      if (dy == 1 && dc == 1 && da == 1 && db == 1)
        for (std::int64_t i = 0; i < block.count; ++i) y[i] = c[i] ? p[i] : q[i];
      else
        for (std::int64_t i = 0; i < block.count; ++i)
          y[i * dy] = c[i * dc] ? p[i * da] : q[i * db];
    });
  });
}

extern const Elementwise elementwise{.fill = fill,
                                     .copy = copy,
                                     .unary = unary,
                                     .binary = binary,
                                     .binary_scalar = binary_scalar,
                                     .axpy = axpy,
                                     .where = where};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
