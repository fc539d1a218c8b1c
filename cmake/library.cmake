# Builds the library `tutti` from every source of the layer folders. An optional part (oneDNN, MPI, image files, CUDA,
# NCCL) is either its real sources or an *unavailable.cpp in their place; the choice is made here and in cuda.cmake.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)

include(cmake/onednn.cmake)

file(GLOB TUTTI_SOURCES CONFIGURE_DEPENDS
     core/*.cpp kernels/*.cpp kernels/cpu/*.cpp autograd/*.cpp
     distributed/*.cpp distributed/backends/local/*.cpp
     distributed/data_parallel/*.cpp distributed/diagnostics/*.cpp
     distributed/launch/*.cpp
     nn/*.cpp nn/batch_norm/*.cpp nn/batch_norm/report/*.cpp nn/functional/*.cpp nn/models/*.cpp optim/*.cpp
     data/*.cpp data/transforms/*.cpp data/decode/decode_image.cpp)
if(TUTTI_HAS_ONEDNN)
  list(FILTER TUTTI_SOURCES EXCLUDE REGEX "/onednn_unavailable\\.cpp$")
else()
  list(FILTER TUTTI_SOURCES EXCLUDE REGEX "/onednn(_primitive|_matmul|_limits|_exit)?\\.cpp$")
endif()

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
                        "apt-get install libjpeg-dev libpng-dev), or set TUTTI_IMAGES to OFF.")
  endif()
endif()
set(TUTTI_IMAGE_SOURCES data/decode/unavailable.cpp)
if(TUTTI_HAS_IMAGES)
  set(TUTTI_IMAGE_SOURCES data/decode/jpeg.cpp data/decode/png.cpp)
endif()
include(cmake/cuda.cmake)
list(APPEND TUTTI_SOURCES ${TUTTI_MPI_SOURCES} ${TUTTI_IMAGE_SOURCES})
if(NOT TUTTI_HAS_CUDA)
  list(APPEND TUTTI_SOURCES ${TUTTI_CUDA_SOURCES})
endif()

add_library(tutti ${TUTTI_SOURCES})
tutti_compile_folders_as_one(tutti)
target_compile_features(tutti PUBLIC cxx_std_20)
target_compile_options(tutti PRIVATE $<$<CONFIG:Release>:-O3>)
# CUDA's sources are an object library, so that a build with them shares all other objects with a build without them.
if(TUTTI_HAS_CUDA)
  add_library(tutti_cuda OBJECT ${TUTTI_CUDA_SOURCES})
  tutti_compile_folders_as_one(tutti_cuda)
  target_compile_options(tutti_cuda PRIVATE $<$<CONFIG:Release>:-O3>)
  target_link_libraries(tutti_cuda PRIVATE fmt::fmt tutti_settings)
  tutti_use_cuda(tutti_cuda)
  target_sources(tutti PRIVATE $<TARGET_OBJECTS:tutti_cuda>)
  target_link_libraries(tutti PRIVATE $<LINK_ONLY:CUDA::cudart_static> ${CMAKE_DL_LIBS})
endif()
# The CPU kernels rely on the compiler's vectoriser, which may use these options because the library neither traps on
# floating-point exceptions nor reads their flags.
file(GLOB TUTTI_KERNEL_SOURCES CONFIGURE_DEPENDS kernels/cpu/*.cpp)
set(kernel_options -fno-math-errno -fno-trapping-math -fopenmp-simd -Wno-psabi)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND kernel_options -mprefer-vector-width=512)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)  # warns where it cannot vectorise a loop of `#pragma omp simd`
  list(APPEND kernel_options -Wno-pass-failed)
endif()
set_source_files_properties(${TUTTI_KERNEL_SOURCES} PROPERTIES COMPILE_OPTIONS "${kernel_options}")
if(TUTTI_SANITIZE MATCHES fuzzer)
  # The kernels see no input of a fuzzer. Without optimisation and checks they compile in a quarter of the time.
  set_property(SOURCE ${TUTTI_KERNEL_SOURCES} APPEND PROPERTY COMPILE_OPTIONS "-O0;-fno-sanitize=all")
endif()
target_link_libraries(tutti PUBLIC $<BUILD_INTERFACE:fmt::fmt> PRIVATE $<BUILD_INTERFACE:tutti_settings> ZLIB::ZLIB
                      $<BUILD_INTERFACE:tutti_dnnl> $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
foreach(item ${TUTTI_ONEDNN_INSTALLED})  # CMake wraps each in $<LINK_ONLY:...>, which takes no list
  target_link_libraries(tutti PRIVATE $<INSTALL_INTERFACE:${item}>)
endforeach()
target_link_libraries(tutti PRIVATE ${CMAKE_DL_LIBS})
target_link_options(tutti INTERFACE $<BUILD_INTERFACE:${TUTTI_ONEDNN_FIRST}>)
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

# Gives a shared library of our objects its version and the list of the symbols that it exports.
function(tutti_use_exports target)
  set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  target_link_options(${target} PRIVATE LINKER:--version-script=${exports})
  set_target_properties(${target} PROPERTIES LINK_DEPENDS ${exports} VERSION ${PROJECT_VERSION} DEFINE_SYMBOL ""
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endfunction()
if(BUILD_SHARED_LIBS)
  tutti_use_exports(tutti)
  # A host project may hide its own symbols. A static tutti then hides there, too; a shared one exports its interface.
  set(exported -fvisibility=default -fno-visibility-inlines-hidden)
  target_compile_options(tutti PRIVATE ${exported})
  if(TARGET tutti_cuda)
    target_compile_options(tutti_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${exported}>")
  endif()
endif()

# Makes a library of the objects of `tutti`, which are the same in a static and in a shared library.
function(tutti_add_library_of_objects target kind)
  get_target_property(objects tutti SOURCES)
  list(FILTER objects INCLUDE REGEX "TARGET_OBJECTS")  # of object libraries that are a part of it
  add_library(${target} ${kind} EXCLUDE_FROM_ALL $<TARGET_OBJECTS:tutti> ${objects})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(${target} PUBLIC ${headers})
  get_target_property(libraries tutti LINK_LIBRARIES)
  target_link_libraries(${target} PUBLIC ${libraries})
endfunction()

# What our own tests, examples and benchmarks link to is static always: some of them use what is not exported.
if(BUILD_SHARED_LIBS AND PROJECT_IS_TOP_LEVEL)
  tutti_add_library_of_objects(tutti_static STATIC)
  add_library(tutti::tutti ALIAS tutti_static)
else()
  add_library(tutti::tutti ALIAS tutti)
endif()

set(private_headers ${PROJECT_BINARY_DIR}/private_headers)
file(MAKE_DIRECTORY ${private_headers}/tutti)
foreach(layer core kernels autograd distributed nn optim data)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${layer} ${private_headers}/tutti/${layer} SYMBOLIC)
endforeach()
add_library(tutti_private_headers INTERFACE)
target_include_directories(tutti_private_headers INTERFACE ${private_headers})

# What core/version.cpp says about this build.
set(built_with_onednn "no: convolutions and matrix products are slow")
if(TUTTI_HAS_ONEDNN)
  set(built_with_onednn "${TUTTI_ONEDNN_VERSION}")
endif()
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
  "TUTTI_VERSION=\"${PROJECT_VERSION}\";TUTTI_BUILT_WITH_ONEDNN=\"${built_with_onednn}\";TUTTI_BUILT_WITH_MPI=\"${built_with_mpi}\";TUTTI_BUILT_WITH_IMAGES=\"${built_with_images}\";TUTTI_BUILT_WITH_CUDA=\"${built_with_cuda}\";TUTTI_BUILT_WITH_NCCL=\"${built_with_nccl}\"")
