# cmake -DMPIRUN=command -DTRAINER=program -DFOLDER=path -P: a run of two processes of which one is killed, resumed, ends
# with the same metrics (but for times), and weights, bit for bit, as one that nobody disturbs.
set(arguments --dataset synthetic --threads 1 --batch-size 16 --max-steps 6 --checkpoint-every 2 --log-every 1)
file(REMOVE_RECURSE ${FOLDER})
function(run result fault)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env "TUTTI_FAULT=${fault}" ${MPIRUN} ${TRAINER} ${arguments} ${ARGN}
                  RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 100)
  message("${output}\nexit code: ${code}")
  if(NOT code MATCHES "^[0-9]+$")  # a word, where the time is up
    message(FATAL_ERROR "it did not end by itself: ${code}")
  endif()
  if(result STREQUAL "fails" AND code EQUAL 0 OR result STREQUAL "works" AND NOT code EQUAL 0)
    message(FATAL_ERROR "expected that it ${result}")
  endif()
  set(output ${output} PARENT_SCOPE)
endfunction()
function(read_metrics folder variable)
  file(READ ${folder}/metrics.jsonl text)
  string(REGEX REPLACE "\"images_per_second\":[^,]*," "" text "${text}")
  string(REGEX REPLACE ",\"data_waiting\":[^,}]*" "" text "${text}")
  set(${variable} ${text} PARENT_SCOPE)
endfunction()

run(works "" --out ${FOLDER}/whole)
run(fails "rank=1,group=world/normalization,collective=130,action=kill" --out ${FOLDER}/parts)  # in the fourth step
run(works "" --out ${FOLDER}/parts --resume)
if(NOT output MATCHES "going on after step 2 of 6")
  message(FATAL_ERROR "expected that it goes on after step 2")
endif()
read_metrics(${FOLDER}/whole whole)
read_metrics(${FOLDER}/parts parts)
if(NOT whole STREQUAL parts OR NOT whole MATCHES "\"step\":6")
  message(FATAL_ERROR "the metrics differ:\n${whole}\n${parts}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${FOLDER}/whole/model.safetensors ${FOLDER}/parts/model.safetensors
                COMMAND_ERROR_IS_FATAL ANY)

# A checkpoint that the network or the length of the run refuses is told once, not by each process.
execute_process(COMMAND sed -i "s/\"steps\":\"6\"/\"steps\":\"9\"/" ${FOLDER}/parts/checkpoint.safetensors COMMAND_ERROR_IS_FATAL ANY)
run(fails "" --out ${FOLDER}/parts --resume)
string(REGEX MATCHALL "cannot resume from [^\n]*it has made 6 steps of 128 in an epoch" refusals "${output}")
list(LENGTH refusals count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "expected one refusal, got ${count}")
endif()
