# Compiles all headers that are installed below PREFIX, by building the project PROJECT in BUILD_DIR.
file(REMOVE_RECURSE ${BUILD_DIR})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${PROJECT} -B ${BUILD_DIR} -G Ninja -DCMAKE_PREFIX_PATH=${PREFIX}
                -DCMAKE_CXX_COMPILER=${COMPILER} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD_DIR} RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "A public header includes a file that is not installed, or is not valid C++.")
endif()
