# Builds the library `tutti` from every source of the layer folders. An optional part (MPI, image files, CUDA, NCCL) is
# either the real sources of its folder or that folder's unavailable.cpp; the choice is made here and in cuda.cmake.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(ZLIB REQUIRED)
# oneDNN is found by its library and header, because Debian's dnnl-config.cmake requires OpenCL headers that we do not
# need.
find_library(TUTTI_DNNL_LIBRARY dnnl REQUIRED)
find_path(TUTTI_DNNL_INCLUDE dnnl.hpp REQUIRED)
add_library(tutti_dnnl INTERFACE)
target_link_libraries(tutti_dnnl INTERFACE ${TUTTI_DNNL_LIBRARY})
target_include_directories(tutti_dnnl INTERFACE ${TUTTI_DNNL_INCLUDE})

file(GLOB TUTTI_SOURCES CONFIGURE_DEPENDS
     core/*.cpp kernels/*.cpp kernels/cpu/*.cpp autograd/*.cpp
     distributed/*.cpp distributed/backends/*.cpp distributed/backends/local/*.cpp
     distributed/data_parallel/*.cpp distributed/diagnostics/*.cpp
     distributed/launch/*.cpp distributed/launch/rendezvous/*.cpp
     nn/*.cpp nn/batch_norm/*.cpp nn/functional/*.cpp optim/*.cpp
     data/*.cpp data/transforms/*.cpp data/decode/decode_image.cpp data/decode/exif.cpp)

set(TUTTI_HAS_MPI OFF)
if(NOT TUTTI_MPI STREQUAL "OFF")
  find_package(MPI COMPONENTS CXX)
  set(TUTTI_HAS_MPI ${MPI_CXX_FOUND})
  if(TUTTI_MPI STREQUAL "ON" AND NOT MPI_CXX_FOUND)
    message(FATAL_ERROR "TUTTI_MPI is ON, but CMake found no MPI. Install it (on Debian: apt-get install "
                        "libopenmpi-dev openmpi-bin), or set TUTTI_MPI to OFF.")
  endif()
endif()
if(TUTTI_HAS_MPI)
  file(GLOB TUTTI_MPI_SOURCES CONFIGURE_DEPENDS distributed/backends/mpi/*.cpp)
  list(FILTER TUTTI_MPI_SOURCES EXCLUDE REGEX "unavailable\\.cpp$")
else()
  set(TUTTI_MPI_SOURCES distributed/backends/mpi/unavailable.cpp)
endif()

set(TUTTI_HAS_IMAGES OFF)
if(NOT TUTTI_IMAGES STREQUAL "OFF")
  find_package(JPEG)
  find_package(PNG)
  if(JPEG_FOUND AND PNG_FOUND)
    set(TUTTI_HAS_IMAGES ON)
  elseif(TUTTI_IMAGES STREQUAL "ON")
    message(FATAL_ERROR "TUTTI_IMAGES is ON, but CMake did not find both libjpeg and libpng. Install them (on Debian: "
                        "apt-get install libjpeg62-turbo-dev libpng-dev), or set TUTTI_IMAGES to OFF.")
  endif()
endif()
set(TUTTI_IMAGE_SOURCES data/decode/unavailable.cpp)
if(TUTTI_HAS_IMAGES)
  set(TUTTI_IMAGE_SOURCES data/decode/jpeg.cpp data/decode/png.cpp)
endif()
include(cmake/cuda.cmake)
list(APPEND TUTTI_SOURCES ${TUTTI_MPI_SOURCES} ${TUTTI_IMAGE_SOURCES} ${TUTTI_CUDA_SOURCES})

add_library(tutti ${TUTTI_SOURCES})
add_library(tutti::tutti ALIAS tutti)
target_compile_features(tutti PUBLIC cxx_std_20)
target_compile_options(tutti PRIVATE $<$<CONFIG:Release>:-O3>)
tutti_use_cuda(tutti)
# The CPU kernels rely on the compiler's vectoriser, which may use these options because the library neither traps on
# floating-point exceptions nor reads their flags.
file(GLOB TUTTI_KERNEL_SOURCES CONFIGURE_DEPENDS kernels/cpu/*.cpp)
set(kernel_options -fno-math-errno -fno-trapping-math)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND kernel_options -mprefer-vector-width=512 -Wno-psabi)
endif()
set_source_files_properties(${TUTTI_KERNEL_SOURCES} PROPERTIES COMPILE_OPTIONS "${kernel_options}")
if(TUTTI_SANITIZE MATCHES fuzzer)
  # The kernels see no input of a fuzzer. Without optimisation and checks they compile in a quarter of the time.
  set_property(SOURCE ${TUTTI_KERNEL_SOURCES} APPEND PROPERTY COMPILE_OPTIONS "-O0;-fno-sanitize=all")
endif()
target_link_libraries(tutti PUBLIC fmt::fmt PRIVATE $<BUILD_INTERFACE:tutti_settings> OpenMP::OpenMP_CXX OpenSSL::Crypto
                      ZLIB::ZLIB
                      $<BUILD_INTERFACE:tutti_dnnl> $<INSTALL_INTERFACE:dnnl>
                      $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
include(cmake/cpu_levels.cmake)
if(TUTTI_HAS_MPI)
  target_link_libraries(tutti PRIVATE MPI::MPI_CXX)
endif()
if(TUTTI_HAS_IMAGES)
  target_link_libraries(tutti PRIVATE JPEG::JPEG PNG::PNG)
endif()

# Users write #include <tutti/...>. In the build tree `headers` holds links to the public headers, as the install tree
# holds copies of them; `tutti_private_headers` offers the private ones too, to our own tests and benchmarks.
include(cmake/public_headers.cmake)
tutti_public_headers(${PROJECT_SOURCE_DIR} TUTTI_PUBLIC_HEADERS)
set(headers ${PROJECT_BINARY_DIR}/headers)
file(REMOVE_RECURSE ${headers})
foreach(header ${TUTTI_PUBLIC_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  file(MAKE_DIRECTORY ${headers}/tutti/${folder})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${header} ${headers}/tutti/${header} SYMBOLIC)
  # A changed #include can change the list.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${header})
endforeach()
configure_file(cmake/tutti.h.in ${PROJECT_BINARY_DIR}/tutti.h COPYONLY)
file(CREATE_LINK ${PROJECT_BINARY_DIR}/tutti.h ${headers}/tutti/tutti.h SYMBOLIC)
target_include_directories(tutti PUBLIC $<BUILD_INTERFACE:${headers}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

set(private_headers ${PROJECT_BINARY_DIR}/private_headers)
file(MAKE_DIRECTORY ${private_headers}/tutti)
foreach(layer core kernels autograd distributed nn optim data)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${layer} ${private_headers}/tutti/${layer} SYMBOLIC)
endforeach()
add_library(tutti_private_headers INTERFACE)
target_include_directories(tutti_private_headers INTERFACE ${private_headers})

# What core/version.cpp says about this build.
file(STRINGS ${TUTTI_DNNL_INCLUDE}/oneapi/dnnl/dnnl_version.h onednn_lines REGEX "define DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX MATCHALL "[0-9]+" onednn_version "${onednn_lines}")
list(JOIN onednn_version "." onednn_version)
set(built_with_mpi "no")
if(TUTTI_HAS_MPI)
  set(built_with_mpi "yes, version ${MPI_CXX_VERSION} of the standard")
endif()
set(built_with_images "no")
if(TUTTI_HAS_IMAGES)
  set(built_with_images "yes")
endif()
set(built_with_cuda "no")
if(TUTTI_HAS_CUDA)
  set(built_with_cuda "${CUDAToolkit_VERSION}")
endif()
set(built_with_nccl "no")
if(TUTTI_HAS_NCCL)
  set(built_with_nccl "yes")
endif()
set_source_files_properties(core/version.cpp PROPERTIES COMPILE_DEFINITIONS
  "TUTTI_VERSION=\"${PROJECT_VERSION}\";TUTTI_BUILT_WITH_ONEDNN=\"${onednn_version}\";TUTTI_BUILT_WITH_MPI=\"${built_with_mpi}\";TUTTI_BUILT_WITH_IMAGES=\"${built_with_images}\";TUTTI_BUILT_WITH_CUDA=\"${built_with_cuda}\";TUTTI_BUILT_WITH_NCCL=\"${built_with_nccl}\"")
