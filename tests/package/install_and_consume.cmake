# Installs the build tree BUILD_DIR below WORK_DIR, builds the consumer project of CONSUMER_DIR against it from the
# program PROGRAM (the README's), and runs it.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/prefix)
# The headers must be complete in themselves: nothing of the source tree may be needed.
run(${CMAKE_COMMAND} -S ${CONSUMER_DIR} -B ${WORK_DIR}/build -G Ninja -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix
    -DCMAKE_BUILD_TYPE=Release -DTUTTI_MINIMAL_PROGRAM=${PROGRAM})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
execute_process(COMMAND ${WORK_DIR}/build/minimal OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
message("${output}")
if(NOT output MATCHES "step 300  loss 0\\.[01]")  # it starts at 0.7, the logarithm of 2
  message(FATAL_ERROR "the program ran but did not learn")
endif()
