# What a user can choose, and the settings every target shares.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

option(TUTTI_NATIVE "Compile for this machine's processor (-march=native)" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_BENCHMARKS "Build the benchmarks (needs Google Benchmark)" OFF)
option(TUTTI_WERROR "Warnings are errors" OFF)
set(TUTTI_MPI AUTO CACHE STRING "The MPI backend: AUTO (where MPI is found), ON or OFF")
set(TUTTI_CUDA AUTO CACHE STRING "CUDA devices: AUTO (where nvcc, cuDNN 9 and NCCL are found), ON or OFF")
set(TUTTI_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "As for CMAKE_CUDA_ARCHITECTURES; a plain number adds PTX")
set(TUTTI_CUDA_EMULATOR AUTO CACHE STRING "GPU tests on the CPU: AUTO (where CUDA's headers are found) or OFF")
set(TUTTI_SANITIZE "" CACHE STRING "Sanitizers for everything, as for -fsanitize=: address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(TUTTI_CCACHE ccache)
if(TUTTI_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TUTTI_CCACHE})
endif()

# How our own code is compiled, library, examples and tests alike; never passed on to consumers.
add_library(tutti_settings INTERFACE)
target_compile_options(tutti_settings INTERFACE
                       "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion>"
                       $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${TUTTI_WERROR}>>:-Werror>)
if(TUTTI_NATIVE)
  target_compile_options(tutti_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
endif()
if(TUTTI_SANITIZE)
  add_compile_options(-fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TUTTI_SANITIZE})
endif()
