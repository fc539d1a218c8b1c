# Configures and builds a strict project that has tutti as a part of itself, without any preset, and runs its programs.
# Fails if the project's own installation has files of tutti. tests/alone.sh compiles each source by itself, also for all
# levels of processors. One level without optimisation compiles in a quarter of the time.
file(REMOVE_RECURSE ${BUILD_DIR})
set(cache "")
if(CCACHE)
  set(cache -DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE})
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -S ${PROJECT} -B ${BUILD_DIR} -G Ninja -DTUTTI_SOURCE_DIR=${SOURCE_DIR}
                        -DCMAKE_CXX_COMPILER=${COMPILER} -DTUTTI_CUDA=OFF -DTUTTI_NATIVE=ON -DCMAKE_UNITY_BUILD=ON
                        -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=
                        -DCMAKE_INSTALL_PREFIX=${BUILD_DIR}/prefix
                        ${cache}
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD_DIR} RESULT_VARIABLE failed OUTPUT_VARIABLE output)
if(failed)
  message(FATAL_ERROR "The host project does not build:\n${output}")
endif()
if(output MATCHES "warning:")
  message(FATAL_ERROR "tutti compiles with warnings as a part of the host project:\n${output}")
endif()
execute_process(COMMAND ${BUILD_DIR}/minimal OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output MATCHES "step 300  loss 0\\.[01]")
  message(FATAL_ERROR "The loss of minimal.cpp did not fall below 0.2 in 300 steps:\n${output}")
endif()
execute_process(COMMAND ${BUILD_DIR}/functions OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
set(expected "exp(1) = 2.718282, sigmoid(1) = 0.731059, tanh(1) = 0.761594, 1000 of 1000 NaN differ from themselves\n")
if(NOT output STREQUAL expected)
  message(FATAL_ERROR "Expected ${expected}Got ${output}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE installed RELATIVE ${BUILD_DIR}/prefix ${BUILD_DIR}/prefix/*)
if(NOT installed STREQUAL "share/host/CMakeLists.txt")
  message(FATAL_ERROR "The host project must install its own file alone, but it installed: ${installed}")
endif()
