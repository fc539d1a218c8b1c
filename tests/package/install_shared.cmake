# Builds the preset `library` as a shared library in BUILD_DIR and installs it below PREFIX: first its runtime, which must
# be the library alone, then the rest. CMake may not find what only tests, examples and benchmarks need. The compiler
# gets the flags of the outer build, so that a compiler cache helps.
cmake_minimum_required(VERSION 3.24)
set(hidden "")
foreach(package GTest CLI11 benchmark Boost Python3)
  list(APPEND hidden -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
execute_process(COMMAND ${CMAKE_COMMAND} --preset library -B ${BUILD_DIR} -DBUILD_SHARED_LIBS=ON -DTUTTI_NATIVE=${NATIVE}
                        -DTUTTI_WERROR=${WERROR} -DTUTTI_CUDA=OFF -DTUTTI_MPI=${MPI} -DTUTTI_IMAGES=${IMAGES} -DCMAKE_CXX_COMPILER=${COMPILER}
                        -DCMAKE_INSTALL_LIBDIR=lib ${hidden}
                WORKING_DIRECTORY ${SOURCE_DIR} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD_DIR} COMMAND_ERROR_IS_FATAL ANY)

file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${PREFIX} --component runtime
                COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE installed LIST_DIRECTORIES OFF RELATIVE ${PREFIX} ${PREFIX}/*)
list(SORT installed)
if(NOT installed MATCHES "^lib/libtutti\\.so\\.[0-9]+\\.[0-9]+;lib/libtutti\\.so\\.[0-9]+\\.[0-9]+\\.[0-9]+$")
  message(FATAL_ERROR "The component runtime must be the library and the link to it, but it is: ${installed}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${PREFIX} --component development OUTPUT_QUIET
                COMMAND_ERROR_IS_FATAL ANY)
