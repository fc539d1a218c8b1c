# Declares the options that a user can set and the compiler settings that all our targets share (tutti_settings).
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

option(TUTTI_NATIVE "Compile for this machine's processor (-march=native)" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BUILD_BENCHMARKS "Build the benchmarks (needs Google Benchmark)" OFF)
option(TUTTI_INSTALL "Install the library with the project" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_WERROR "Warnings are errors" OFF)
set(TUTTI_ONEDNN AUTO CACHE STRING "oneDNN: AUTO (where it is found), ON, OFF or FETCH, which downloads and builds it")
set(TUTTI_ONEDNN_ROOT "" CACHE PATH "The folder into which oneDNN was installed, where it is not the system's")
set(TUTTI_MPI AUTO CACHE STRING "The MPI backend: AUTO (where MPI is found), ON or OFF")
set(TUTTI_IMAGES AUTO CACHE STRING "JPEG and PNG files: AUTO (where libjpeg and libpng are found), ON or OFF")
set(TUTTI_CUDA AUTO CACHE STRING "CUDA devices: AUTO (where nvcc, cuDNN 9 and NCCL are found), ON or OFF")
set(TUTTI_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "As for CMAKE_CUDA_ARCHITECTURES; a plain number adds PTX")
set(TUTTI_CUDA_EMULATOR AUTO CACHE STRING "Run the GPU tests on the CPU too: AUTO (with GCC, where CUDA's headers are found) or OFF")
foreach(part TUTTI_ONEDNN TUTTI_MPI TUTTI_IMAGES TUTTI_CUDA TUTTI_CUDA_EMULATOR)
  string(TOUPPER "${${part}}" choice)
  if(choice MATCHES "^(OFF|0|NO|N|FALSE)$")
    set(choice OFF)
  elseif(choice MATCHES "^(ON|1|YES|Y|TRUE)$")
    set(choice ON)
  elseif(part STREQUAL "TUTTI_ONEDNN" AND NOT choice MATCHES "^(AUTO|FETCH)$")
    message(FATAL_ERROR "${part} is '${${part}}', but it must be AUTO, ON, OFF or FETCH.")
  elseif(NOT part STREQUAL "TUTTI_ONEDNN" AND NOT choice STREQUAL AUTO)
    message(FATAL_ERROR "${part} is '${${part}}', but it must be AUTO, ON or OFF.")
  endif()
  set(${part} ${choice})
endforeach()
set(TUTTI_SANITIZE "" CACHE STRING "Sanitizers for all targets, as for -fsanitize: address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# A cache of compiled files names them by paths from the build folder on, so that two build folders share what is equal.
find_program(TUTTI_CCACHE ccache)
if(TUTTI_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${TUTTI_CCACHE})
endif()

# The library, the examples and the tests are compiled with these settings; projects that use the library are not.
add_library(tutti_settings INTERFACE)
# A host project's wish that warnings are errors holds for its own sources: what an optimiser warns of in ours depends
# on its version and on the host's options. tests/package/host.cmake checks that there is no warning.
if(NOT PROJECT_IS_TOP_LEVEL)
  set(CMAKE_COMPILE_WARNING_AS_ERROR OFF)
  target_compile_options(tutti_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-error>)
endif()
target_compile_options(tutti_settings INTERFACE
                       "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion>"
                       $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${TUTTI_WERROR}>>:-Werror>)
# GCC 12 takes std::string's operator+ for a copy that overlaps (its bug 105651, mended in 13).
target_compile_options(tutti_settings INTERFACE
                       $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
# A host project may set -ffast-math for all its targets. These options come after its own, so that the kernels round as
# they are written. core/begin_cpu_level.h refuses to compile where a part of fast math is still on.
set(TUTTI_NO_FAST_MATH -fno-fast-math -fno-unsafe-math-optimizations -fno-associative-math -fno-reciprocal-math
                       -fno-finite-math-only -fsigned-zeros)
list(JOIN TUTTI_NO_FAST_MATH "," no_fast_math)
target_compile_options(tutti_settings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${TUTTI_NO_FAST_MATH}>"
                       "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${no_fast_math}>")
# With -ffast-math the linker would add start-up code that sets the mode of the processor to flush denormal numbers.
target_link_options(tutti_settings INTERFACE -fno-fast-math)
# A unity build (CMAKE_UNITY_BUILD, which the presets set) compiles each folder of `target` as one file. Names in the
# unnamed namespaces of a folder's files must therefore differ. CUDA files stay on their own, because nvcc compiles them
# side by side and they take longest; CMake 3.31 and later would join them, too.
function(tutti_compile_folders_as_one target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE folder)
    cmake_path(REMOVE_FILENAME folder)
    string(MAKE_C_IDENTIFIER "${folder}" group)
    if(source MATCHES "\\.cu$")
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    else()
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
endfunction()
# Most files are then included by another one, and GCC takes their unnamed namespaces for a header's.
target_compile_options(tutti_settings INTERFACE
                       $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wno-subobject-linkage>)
# What stands in for an absent part (*unavailable.cpp) does not use all members of a class. Clang 19 warns of what
# std::stable_sort() of libstdc++ 12 calls itself.
target_compile_options(tutti_settings INTERFACE
                       $<$<COMPILE_LANG_AND_ID:CXX,Clang,AppleClang>:-Wno-unused-private-field -Wno-deprecated-declarations>)
if(TUTTI_NATIVE)
  target_compile_options(tutti_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
endif()
if(TUTTI_SANITIZE)
  add_compile_options(-fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TUTTI_SANITIZE})
endif()
