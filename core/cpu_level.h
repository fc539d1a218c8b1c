// The CPU kernels are compiled once for each level of processors, and cpu_level() chooses the level
// at run time. A build with -march=native (TUTTI_NATIVE), or for another architecture than x86-64,
// has the baseline only. Code that is compiled for each level stands between
// #include "begin_cpu_level.h" and #include "end_cpu_level.h", which explain how.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>

namespace tutti {

/// The levels, each of which includes those before it.
enum class CpuLevel {
  baseline,    ///< what the compiler's options name: usually every processor of the architecture
  avx2,        ///< AVX2, FMA, BMI1 and BMI2
  avx512,      ///< AVX-512 F, BW, CD, DQ and VL
  avx512_bf16  ///< AVX-512 BF16, which converts float32 to bfloat16
};

/// Returns the level whose kernels this process uses: the highest one that was compiled, that the
/// processor and the operating system support, and that the environment variable TUTTI_MAX_CPU
/// allows (baseline, avx2, avx512 or avx512_bf16). The first successful call decides. Throws a
/// ValueError if TUTTI_MAX_CPU names no level.
CpuLevel cpu_level();

/// Returns "baseline", "avx2", "avx512" or "avx512_bf16".
std::string to_string(CpuLevel level);

namespace detail {
/// Returns the level that cpu_level() chooses where TUTTI_MAX_CPU has this value; null: is not set.
CpuLevel choose_cpu_level(const char* max);

/// Returns the function of cpu_level() from those of all levels, in their order.
template <class Function>
Function* at_cpu_level(std::initializer_list<Function*> functions) {
  return functions.begin()[static_cast<std::size_t>(cpu_level())];
}
}  // namespace detail

/// Declares a function that has the type `Type` in the namespace of each level, and defines
/// NAME_of_level(), which returns that of cpu_level(). cmake/cpu_levels.cmake defines
/// TUTTI_CPU_LEVELS for the sources that use it, where there are more levels than the baseline.
#if defined(TUTTI_CPU_LEVELS)
#define TUTTI_CPU_LEVEL_FUNCTION(Type, name)                            \
  namespace baseline {                                                  \
  Type name;                                                            \
  }                                                                     \
  namespace avx2 {                                                      \
  Type name;                                                            \
  }                                                                     \
  namespace avx512 {                                                    \
  Type name;                                                            \
  }                                                                     \
  namespace avx512_bf16 {                                               \
  Type name;                                                            \
  }                                                                     \
  static Type& name##_of_level() {                                      \
    static Type* const chosen = ::tutti::detail::at_cpu_level<Type>(    \
        {baseline::name, avx2::name, avx512::name, avx512_bf16::name}); \
    return *chosen;                                                     \
  }
#else
#define TUTTI_CPU_LEVEL_FUNCTION(Type, name)                                           \
  namespace baseline {                                                                 \
  Type name;                                                                           \
  }                                                                                    \
  static Type& name##_of_level() {                                                     \
    static Type* const chosen = ::tutti::detail::at_cpu_level<Type>({baseline::name}); \
    return *chosen;                                                                    \
  }
#endif

}  // namespace tutti
