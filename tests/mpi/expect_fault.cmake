# cmake -DCOMMAND=... -DEXPECTED=regex -P: the command must fail, in time, and say what is expected.
execute_process(COMMAND ${COMMAND} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 40)
message("${output}\nexit code: ${code}")
if(NOT code MATCHES "^[0-9]+$" OR code EQUAL 0)
  message(FATAL_ERROR "expected an exit code other than 0")
endif()
if(NOT output MATCHES "${EXPECTED}")
  message(FATAL_ERROR "expected: ${EXPECTED}")
endif()
