#include "block_access.h"

#include <algorithm>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

template <class T, class C>
void load(const char* base, std::int64_t offset, std::int64_t stride, C* to, std::int64_t count) {
  const T* from = reinterpret_cast<const T*>(base) + offset;
  if (stride == 1)
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<C>(from[i]);
  else if (stride == 0) std::fill_n(to, count, convert<C>(*from));
  else
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<C>(from[i * stride]);
}

template <class T, class C>
void store(const C* values, char* base, std::int64_t offset, std::int64_t stride,
           std::int64_t count) {
  T* to = reinterpret_cast<T*>(base) + offset;
  if (stride == 1)
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<T>(values[i]);
  else
    for (std::int64_t i = 0; i < count; ++i) to[i * stride] = convert<T>(values[i]);
}

}  // namespace

template <class C>
BlockReader<C>::BlockReader(const Tensor& x, int k)
    : base_(static_cast<const char*>(x.raw())),
      k_(static_cast<std::size_t>(k)),
      same_type_(x.dtype() == dtype_of<C>::value) {
  dispatch(AllTypes{}, x.dtype(), "elementwise", [&]<class T>() { load_ = load<T, C>; });
}

template <class C>
BlockWriter<C>::BlockWriter(const Tensor& x)
    : base_(static_cast<char*>(x.raw())), same_type_(x.dtype() == dtype_of<C>::value) {
  dispatch(AllTypes{}, x.dtype(), "elementwise", [&]<class T>() { store_ = store<T, C>; });
}

template class BlockReader<float>;
template class BlockReader<double>;
template class BlockReader<std::int64_t>;
template class BlockWriter<float>;
template class BlockWriter<double>;
template class BlockWriter<std::int64_t>;
template class BlockWriter<bool>;  // comparisons

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
