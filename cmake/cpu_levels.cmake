# Adds to `tutti` the CPU kernels for the levels of x86-64 processors above the baseline (core/cpu_level.h). Each source
# with a region between core/begin_cpu_level.h and core/end_cpu_level.h is compiled once more for every level. A build
# for this machine's processor has the baseline only, and so have the fuzzers, which run no kernels.
set(TUTTI_CPU_LEVELS OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8 AND NOT TUTTI_NATIVE
   AND NOT TUTTI_SANITIZE MATCHES fuzzer)
  set(TUTTI_CPU_LEVELS ON)
endif()
if(TUTTI_CPU_LEVELS)
  set(level_sources ${TUTTI_KERNEL_SOURCES})
  list(FILTER level_sources EXCLUDE REGEX
       "/(convolution|matmul|onednn.*|reference_convolution|winograd)\\.cpp$")
  list(APPEND level_sources data/transforms/normalize_loops.cpp distributed/reduce_loops.cpp)
  foreach(level avx2 avx512 avx512_bf16)
    string(TOUPPER ${level} name)
    add_library(tutti_${level} OBJECT ${level_sources})
    target_compile_definitions(tutti_${level} PRIVATE TUTTI_CPU_${name})
    target_compile_options(tutti_${level} PRIVATE $<$<CONFIG:Release>:-O3>)
    target_link_libraries(tutti_${level} PRIVATE fmt::fmt tutti_settings)
    target_sources(tutti PRIVATE $<TARGET_OBJECTS:tutti_${level}>)
  endforeach()
  set_source_files_properties(core/cpu_level.cpp kernels/cpu/kernels.cpp kernels/cpu/matmul.cpp kernels/cpu/winograd.cpp
                              data/transforms/normalize.cpp distributed/data_flow.cpp
                              PROPERTIES COMPILE_DEFINITIONS TUTTI_CPU_LEVELS)
endif()
