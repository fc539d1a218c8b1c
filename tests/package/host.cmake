# Configures a project that has tutti as a part of itself. Fails if the project's own installation has files of tutti.
# Nothing is built: an install rule of the library would fail for want of it.
file(REMOVE_RECURSE ${BUILD_DIR})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${PROJECT} -B ${BUILD_DIR} -G Ninja -DTUTTI_SOURCE_DIR=${SOURCE_DIR}
                        -DCMAKE_CXX_COMPILER=${COMPILER} -DTUTTI_CUDA=OFF -DCMAKE_INSTALL_PREFIX=${BUILD_DIR}/prefix
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE installed RELATIVE ${BUILD_DIR}/prefix ${BUILD_DIR}/prefix/*)
if(NOT installed STREQUAL "share/host/CMakeLists.txt")
  message(FATAL_ERROR "The host project must install its own file alone, but it installed: ${installed}")
endif()
