// The version of the library, and what it was built from, for bug reports and --version.
#pragma once

#include <string>

namespace tutti {

/// Returns the version, such as "0.1.0".
std::string version();

/// Returns the compiler that built the library, such as "gcc 12.2.0".
std::string compiler();
/// Returns the widest vector instructions for which the kernels were compiled, such as "AVX-512".
std::string vector_instructions();

/// Returns "tutti 0.1.0" and, on lines of their own, the compiler, the vector instructions for
/// which the kernels were compiled, and which of oneDNN, OpenMP, MPI, image files, CUDA and NCCL
/// were found.
std::string describe_build();

}  // namespace tutti
