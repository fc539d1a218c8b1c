// The version of the library, and what it was built from, for bug reports and --version.
#pragma once

#include <string>

namespace tutti {

/// Returns the version, such as "0.2.0".
std::string version();

/// Returns the compiler that built the library, such as "gcc 12.2.0".
std::string compiler();
/// Returns the widest vector instructions that the kernels use, such as "AVX-512" in a build for
/// this processor, or "AVX2, chosen at run time". Throws a ValueError where TUTTI_MAX_CPU names no
/// level of processors.
std::string vector_instructions();

/// Returns "tutti 0.2.0" and, on lines of their own, the compiler, the vector instructions that the
/// kernels use, and which of oneDNN, MPI, image files, CUDA and NCCL were found.
std::string describe_build();

}  // namespace tutti
