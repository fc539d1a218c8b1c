# The library: every source of the layer folders. Optional parts are chosen here, file by file: either the real
# sources or the folder's unavailable.cpp.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
# By library and header: Debian's dnnl-config.cmake insists on OpenCL headers that nothing here needs.
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
     nn/*.cpp nn/batch_norm/*.cpp nn/functional/*.cpp optim/*.cpp)

set(TUTTI_HAS_MPI OFF)
if(NOT TUTTI_MPI STREQUAL "OFF")
  find_package(MPI COMPONENTS CXX)
  set(TUTTI_HAS_MPI ${MPI_CXX_FOUND})
  if(TUTTI_MPI STREQUAL "ON" AND NOT MPI_CXX_FOUND)
    message(FATAL_ERROR "TUTTI_MPI=ON, but CMake found no MPI. On Debian: apt-get install libopenmpi-dev openmpi-bin")
  endif()
endif()
if(TUTTI_HAS_MPI)
  file(GLOB TUTTI_MPI_SOURCES CONFIGURE_DEPENDS distributed/backends/mpi/*.cpp)
  list(FILTER TUTTI_MPI_SOURCES EXCLUDE REGEX "unavailable\\.cpp$")
else()
  set(TUTTI_MPI_SOURCES distributed/backends/mpi/unavailable.cpp)
endif()
include(cmake/cuda.cmake)
list(APPEND TUTTI_SOURCES ${TUTTI_MPI_SOURCES} ${TUTTI_CUDA_SOURCES})

add_library(tutti ${TUTTI_SOURCES})
add_library(tutti::tutti ALIAS tutti)
target_compile_features(tutti PUBLIC cxx_std_20)
target_compile_options(tutti PRIVATE $<$<CONFIG:Release>:-O3>)
tutti_use_cuda(tutti)
# Kernels are written for the auto-vectoriser, which needs to know that nobody traps on or reads floating-point flags.
file(GLOB TUTTI_KERNEL_SOURCES CONFIGURE_DEPENDS kernels/cpu/*.cpp)
set_source_files_properties(${TUTTI_KERNEL_SOURCES} PROPERTIES COMPILE_OPTIONS
                            "-fno-math-errno;-fno-trapping-math;-mprefer-vector-width=512;-Wno-psabi")
target_link_libraries(tutti PUBLIC fmt::fmt PRIVATE $<BUILD_INTERFACE:tutti_settings> OpenMP::OpenMP_CXX
                      $<BUILD_INTERFACE:tutti_dnnl> $<INSTALL_INTERFACE:dnnl>
                      $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
if(TUTTI_HAS_MPI)
  target_link_libraries(tutti PRIVATE MPI::MPI_CXX)
endif()

# <tutti/...>: in the build tree a folder of links to the layers, in the install tree a copy of their headers; in
# both the umbrella header stands beside them.
set(TUTTI_HEADERS ${PROJECT_BINARY_DIR}/headers)
set(TUTTI_LAYERS core kernels autograd distributed nn optim)
file(MAKE_DIRECTORY ${TUTTI_HEADERS}/tutti)
foreach(layer ${TUTTI_LAYERS})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${layer} ${TUTTI_HEADERS}/tutti/${layer} SYMBOLIC)
endforeach()
configure_file(cmake/tutti.h.in ${TUTTI_HEADERS}/tutti/tutti.h COPYONLY)
target_include_directories(tutti PUBLIC $<BUILD_INTERFACE:${TUTTI_HEADERS}>
                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
