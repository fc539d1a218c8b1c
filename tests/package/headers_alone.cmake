# The target headers_alone compiles each header of the library and the trainer by itself. tests/alone.sh builds it.
set(headers "")
file(GLOB_RECURSE all_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/core/*.h
     ${PROJECT_SOURCE_DIR}/kernels/*.h ${PROJECT_SOURCE_DIR}/autograd/*.h ${PROJECT_SOURCE_DIR}/distributed/*.h
     ${PROJECT_SOURCE_DIR}/nn/*.h ${PROJECT_SOURCE_DIR}/optim/*.h ${PROJECT_SOURCE_DIR}/data/*.h
     ${PROJECT_SOURCE_DIR}/examples/*.h)
# Headers with device code are for nvcc, and only .cu files include them.
file(GLOB cuda_sources ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cpp)
set(host_includes "")
foreach(source ${cuda_sources})
  file(STRINGS ${source} lines REGEX "^#include \"")
  list(APPEND host_includes ${lines})
endforeach()
foreach(header ${all_headers})
  get_filename_component(name ${header} NAME)
  if(header MATCHES "^kernels/cuda/" AND NOT host_includes MATCHES "\"${name}\"")
    continue()
  endif()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/headers_alone/${header}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${PROJECT_SOURCE_DIR}/${header}\"\n")
  list(APPEND headers ${source})
endforeach()
add_library(headers_alone OBJECT EXCLUDE_FROM_ALL ${headers})
find_package(CLI11 REQUIRED)
get_target_property(libraries tutti LINK_LIBRARIES)
target_link_libraries(headers_alone PRIVATE train_resnet_lib tutti_settings CLI11::CLI11 ${libraries})
tutti_use_cuda(headers_alone)
