# Builds the project PROJECT in BUILD_DIR against the tutti that is installed below PREFIX, with the README's program
# PROGRAM as its source, and runs it. The project asks for the components COMPONENTS; a component that tutti has not must
# be named in the error.
file(REMOVE_RECURSE ${BUILD_DIR})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${PROJECT} -B ${BUILD_DIR} -G Ninja -DCMAKE_PREFIX_PATH=${PREFIX}
                -DCMAKE_CXX_COMPILER=${COMPILER} -DTUTTI_MINIMAL_PROGRAM=${PROGRAM} -DCOMPONENTS=hologram
                RESULT_VARIABLE refused OUTPUT_QUIET ERROR_VARIABLE output)
if(NOT refused OR NOT output MATCHES "no component 'hologram'")
  message(FATAL_ERROR "Expected an error that names the component hologram, got:\n${output}")
endif()
file(REMOVE_RECURSE ${BUILD_DIR})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${PROJECT} -B ${BUILD_DIR} -G Ninja -DCMAKE_PREFIX_PATH=${PREFIX}
                -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Release -DTUTTI_MINIMAL_PROGRAM=${PROGRAM}
                "-DCOMPONENTS=${COMPONENTS}"
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD_DIR} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${BUILD_DIR}/minimal OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
message("${output}")
if(NOT output MATCHES "step 300  loss 0\\.[01]")  # it starts at 0.7, the logarithm of 2
  message(FATAL_ERROR "The program ran, but its loss did not fall below 0.2 in 300 steps.")
endif()
