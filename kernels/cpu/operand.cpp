#include "operand.h"

#include <algorithm>

namespace tutti::kernels::cpu {
namespace {

template <class T, class C>
void load(const char* base, std::int64_t at, std::int64_t step, C* to, std::int64_t count) {
  const T* from = reinterpret_cast<const T*>(base) + at;
  if (step == 1)
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<C>(from[i]);
  else if (step == 0) std::fill_n(to, count, convert<C>(*from));
  else
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<C>(from[i * step]);
}

template <class T, class C>
void store(const C* values, char* base, std::int64_t at, std::int64_t step, std::int64_t count) {
  T* to = reinterpret_cast<T*>(base) + at;
  if (step == 1)
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<T>(values[i]);
  else
    for (std::int64_t i = 0; i < count; ++i) to[i * step] = convert<T>(values[i]);
}

}  // namespace

template <class C>
Source<C>::Source(const Tensor& x, int k)
    : base_(static_cast<const char*>(x.raw())),
      k_(static_cast<std::size_t>(k)),
      same_type_(x.dtype() == dtype_of<C>::value) {
  dispatch(AllTypes{}, x.dtype(), "elementwise", [&]<class T>() { load_ = load<T, C>; });
}

template <class C>
Sink<C>::Sink(const Tensor& x)
    : base_(static_cast<char*>(x.raw())), same_type_(x.dtype() == dtype_of<C>::value) {
  dispatch(AllTypes{}, x.dtype(), "elementwise", [&]<class T>() { store_ = store<T, C>; });
}

template class Source<float>;
template class Source<double>;
template class Source<std::int64_t>;
template class Sink<float>;
template class Sink<double>;
template class Sink<std::int64_t>;

}  // namespace tutti::kernels::cpu
