// cmake/library.cmake defines what CMake found: TUTTI_VERSION and the TUTTI_BUILT_WITH_* strings.
#include "version.h"

#include "cpu_level.h"
#include "parallel.h"

#include <fmt/format.h>

namespace tutti {

std::string version() { return TUTTI_VERSION; }

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

namespace {

// The kernels of the baseline are compiled with the same options for the processor as this file.
std::string baseline_instructions() {
#if defined(__AVX512BF16__)
  return "AVX-512 with bfloat16";
#elif defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#elif defined(__ARM_FEATURE_SVE)
  return "SVE";
#elif defined(__ARM_NEON)
  return "NEON";
#else
  return "those of every processor of this architecture";
#endif
}

}  // namespace

std::string vector_instructions() {
  switch (cpu_level()) {
    case CpuLevel::baseline: break;
    case CpuLevel::avx2: return "AVX2, chosen at run time";
    case CpuLevel::avx512: return "AVX-512, chosen at run time";
    case CpuLevel::avx512_bf16: return "AVX-512 with bfloat16, chosen at run time";
  }
  return baseline_instructions();
}

std::string describe_build() {
  std::string text = "tutti " + version() + "\n";
  for (const auto& [name, value] : {std::pair<const char*, std::string>{"compiler", compiler()},
                                    {"vector instructions", vector_instructions()},
                                    {"oneDNN", TUTTI_BUILT_WITH_ONEDNN},
                                    {"computes with", describe_threads()},
                                    {"MPI", TUTTI_BUILT_WITH_MPI},
                                    {"JPEG and PNG", TUTTI_BUILT_WITH_IMAGES},
                                    {"CUDA", TUTTI_BUILT_WITH_CUDA},
                                    {"NCCL", TUTTI_BUILT_WITH_NCCL}})
    text += fmt::format("{:<20} {}\n", name, value);
  return text;
}

}  // namespace tutti
