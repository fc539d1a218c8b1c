# Finds nvcc and the headers of cuDNN 9 and NCCL as the option TUTTI_CUDA asks for, and sets TUTTI_HAS_CUDA and
# TUTTI_HAS_NCCL. Sets TUTTI_CUDA_SOURCES to the sources that need them, or to the unavailable.cpp of their folders.

# Looks for the header of cuDNN or NCCL and checks its version. Sets TUTTI_HAS_HEADER_<name>. The process loads the
# library when it uses a device (core/cuda/shared_library.h): nothing is linked to it, and only the folder of the
# library is kept, if it is here at all.
function(tutti_find_header name header minimum version_header version_macro)
  find_path(TUTTI_${name}_INCLUDE ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include)
  find_library(TUTTI_${name}_LIBRARY ${name} HINTS ${CUDAToolkit_LIBRARY_DIR} /usr/local/cuda/lib64)
  mark_as_advanced(TUTTI_${name}_INCLUDE TUTTI_${name}_LIBRARY)
  set(TUTTI_HAS_HEADER_${name} OFF PARENT_SCOPE)
  if(NOT TUTTI_${name}_INCLUDE)
    return()
  endif()
  file(STRINGS ${TUTTI_${name}_INCLUDE}/${version_header} line REGEX "define ${version_macro} +[0-9]+")
  string(REGEX MATCH "[0-9]+$" version "${line}")
  if(version LESS minimum)
    message(STATUS "tutti: ${TUTTI_${name}_INCLUDE}/${header} has version ${version}, but tutti needs ${minimum} or "
                   "later, so it is not used")
    return()
  endif()
  set(TUTTI_HAS_HEADER_${name} ON PARENT_SCOPE)
endfunction()

set(TUTTI_HAS_CUDA OFF)
set(TUTTI_HAS_NCCL OFF)
if(NOT TUTTI_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit 12.4 QUIET)
  if(CUDAToolkit_FOUND)
    tutti_find_header(cudnn cudnn.h 9 cudnn_version.h CUDNN_MAJOR)
    tutti_find_header(nccl nccl.h 2 nccl.h NCCL_MAJOR)
  endif()
  set(missing "")
  if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
    string(APPEND missing " nvcc (CUDA 12.4 or later)")
  endif()
  if(NOT TUTTI_HAS_HEADER_cudnn)
    string(APPEND missing " cuDNN 9")
  endif()
  if(NOT TUTTI_HAS_HEADER_nccl)
    string(APPEND missing " NCCL")
  endif()
  if(NOT missing)
    set(TUTTI_HAS_NCCL ON)
  endif()
  if(missing STREQUAL "" OR (TUTTI_CUDA STREQUAL "ON" AND missing STREQUAL " NCCL"))
    set(TUTTI_HAS_CUDA ON)
  elseif(TUTTI_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TUTTI_CUDA is ON, but CMake did not find:${missing}. It looks in the PATH, in CUDA_PATH and "
                        "in /usr/local/cuda. Install what is missing, or set "
                        "TUTTI_cudnn_INCLUDE and TUTTI_nccl_INCLUDE to the folders of cudnn.h and nccl.h.")
  endif()
  message(STATUS "tutti: CUDA ${TUTTI_HAS_CUDA}, NCCL ${TUTTI_HAS_NCCL}, missing:${missing}")
endif()

if(TUTTI_HAS_CUDA)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE} CACHE FILEPATH "nvcc")
  set(CMAKE_CUDA_ARCHITECTURES ${TUTTI_CUDA_ARCHITECTURES})
  enable_language(CUDA)
  # CMake 3.25 does not know how to ask CUDA 13 for C++20, so it must not try; -std=c++20 is given below.
  set(CMAKE_CUDA_STANDARD_DEFAULT "")
  # nvcc has no option that takes a host project's --use_fast_math back, and no macro tells of it, so it is removed here.
  get_directory_property(inherited_options COMPILE_OPTIONS)
  foreach(flags CMAKE_CUDA_FLAGS CMAKE_CUDA_FLAGS_DEBUG CMAKE_CUDA_FLAGS_RELEASE CMAKE_CUDA_FLAGS_RELWITHDEBINFO
                CMAKE_CUDA_FLAGS_MINSIZEREL inherited_options)
    string(REGEX REPLACE "--?use_fast_math" "" ${flags} "${${flags}}")
  endforeach()
  set_directory_properties(PROPERTIES COMPILE_OPTIONS "${inherited_options}")
  if(TUTTI_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${TUTTI_CCACHE})
  endif()
  file(GLOB TUTTI_CUDA_SOURCES CONFIGURE_DEPENDS core/cuda/*.cpp core/cuda/*.cu kernels/cuda/*.cpp kernels/cuda/*.cu)
  list(FILTER TUTTI_CUDA_SOURCES EXCLUDE REGEX "unavailable\\.cpp$")
else()
  set(TUTTI_CUDA_SOURCES core/cuda/unavailable.cpp kernels/cuda/unavailable.cpp)
endif()
file(GLOB nccl CONFIGURE_DEPENDS distributed/backends/nccl/*.cpp)
if(TUTTI_HAS_NCCL)
  list(FILTER nccl EXCLUDE REGEX "unavailable\\.cpp$")
else()
  list(FILTER nccl INCLUDE REGEX "unavailable\\.cpp$")
endif()
list(APPEND TUTTI_CUDA_SOURCES ${nccl})

# The files that load cuDNN, cuBLASLt and NCCL define functions of theirs, which must stay ours alone in a program that
# is linked to these libraries itself. In the folders that are named here the libraries were found.
set(loaders kernels/cuda/cudnn_functions.cpp kernels/cuda/cublaslt_functions.cpp
    distributed/backends/nccl/nccl_functions.cpp)
foreach(library cudnn nccl)
  set(folder_${library} "")
  if(TUTTI_${library}_LIBRARY)
    get_filename_component(folder_${library} ${TUTTI_${library}_LIBRARY} DIRECTORY)
  endif()
endforeach()
set_source_files_properties(${loaders} PROPERTIES COMPILE_OPTIONS -fvisibility=hidden COMPILE_DEFINITIONS
  "TUTTI_CUDNN_FOLDER=\"${folder_cudnn}\";TUTTI_CUDA_FOLDER=\"${CUDAToolkit_LIBRARY_DIR}\";TUTTI_NCCL_FOLDER=\"${folder_nccl}\"")

# Gives `target` the headers of CUDA's runtime, adds the folders of the headers and sets the options of its .cu files. FMT_USE_CONSTEXPR tells fmt 9 that nvcc
# supports constexpr, which fmt does not detect.
function(tutti_use_cuda target)
  if(NOT TUTTI_HAS_CUDA)
    return()
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-DFMT_USE_CONSTEXPR=1;-Xcompiler=-Wall,-Wextra>"
                         "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${TUTTI_WERROR}>>:-Werror=all-warnings;-Xcompiler=-Werror>")
  target_link_libraries(${target} PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
  target_include_directories(${target} SYSTEM PRIVATE ${TUTTI_cudnn_INCLUDE})
  if(TUTTI_HAS_NCCL)
    target_include_directories(${target} SYSTEM PRIVATE ${TUTTI_nccl_INCLUDE})
  endif()
endfunction()
