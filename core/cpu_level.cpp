// cmake/cpu_levels.cmake defines TUTTI_CPU_LEVELS where the kernels are compiled for several
// levels.
#include "cpu_level.h"

#include "error.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace tutti {
namespace {

constexpr std::array level_names{"baseline", "avx2", "avx512", "avx512_bf16"};

// The features of each level are those for which begin_cpu_level.h compiles. The compiler's
// function also asks whether the operating system saves the registers.
CpuLevel highest_level() {
#if defined(TUTTI_CPU_LEVELS)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2"))
    return CpuLevel::baseline;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl"))
    return CpuLevel::avx2;
  return __builtin_cpu_supports("avx512bf16") ? CpuLevel::avx512_bf16 : CpuLevel::avx512;
#else
  return CpuLevel::baseline;
#endif
}

}  // namespace

CpuLevel detail::choose_cpu_level(const char* max) {
  const CpuLevel highest = highest_level();
  if (!max) return highest;
  for (std::size_t i = 0; i < level_names.size(); ++i)
    if (std::string_view(max) == level_names[i]) return std::min(highest, static_cast<CpuLevel>(i));
  fail<ValueError>(
      "TUTTI_MAX_CPU: expected baseline, avx2, avx512 or avx512_bf16, got '{}'; set one of them, "
      "or "
      "unset the variable to use all instructions that the processor has",
      max);
}

CpuLevel cpu_level() {
  static const CpuLevel chosen = detail::choose_cpu_level(std::getenv("TUTTI_MAX_CPU"));
  return chosen;
}

std::string to_string(CpuLevel level) { return level_names[static_cast<std::size_t>(level)]; }

}  // namespace tutti
