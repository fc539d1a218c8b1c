// Whether the library was built with OpenMP. Without it every thread computes alone. Only the
// sources that tests/CMakeLists.txt names may include this header.
#pragma once

namespace tutti::test {

#ifdef TUTTI_HAS_OPENMP
inline constexpr bool has_openmp = true;
#else
inline constexpr bool has_openmp = false;
#endif

}  // namespace tutti::test
