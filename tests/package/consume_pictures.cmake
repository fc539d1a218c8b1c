# Builds examples/finetune and examples/classify in BUILD_DIR as projects of their own, against the tutti that is
# installed below PREFIX, and runs them: heads are trained and cancelled, and the saved weights classify pictures of the
# fixtures. SOURCE_DIR is the repository.
cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE ${BUILD_DIR})
foreach(example finetune classify)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE_DIR}/examples/${example} -B ${BUILD_DIR}/${example} -G Ninja
                  -DCMAKE_PREFIX_PATH=${PREFIX} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Release
                  COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD_DIR}/${example} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
set(finetune ${BUILD_DIR}/finetune/finetune)
set(classify ${BUILD_DIR}/classify/classify)
set(images ${SOURCE_DIR}/tests/fixtures/images)

# Runs a program, whose output must match every pattern of EXPECT.
function(run)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "COMMAND;EXPECT")
  execute_process(COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${BUILD_DIR} OUTPUT_VARIABLE output
                  COMMAND_ERROR_IS_FATAL ANY)
  message("${output}")
  foreach(pattern ${arg_EXPECT})
    if(NOT output MATCHES "${pattern}")
      message(FATAL_ERROR "Expected output that matches '${pattern}' from: ${arg_COMMAND}")
    endif()
  endforeach()
endfunction()

# Runs a program, which must fail with exit status 2, nothing on its output, and one line of error that matches EXPECT.
function(run_failing)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "EXPECT" "COMMAND")
  execute_process(COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${BUILD_DIR} OUTPUT_VARIABLE output ERROR_VARIABLE error
                  RESULT_VARIABLE status)
  if(NOT status EQUAL 2 OR NOT output STREQUAL "" OR NOT error MATCHES "^[^\n]*${arg_EXPECT}[^\n]*\n$")
    message(FATAL_ERROR "Expected exit status 2 and one line with '${arg_EXPECT}', got ${status}, '${output}', "
                        "'${error}' from: ${arg_COMMAND}")
  endif()
endfunction()

# The loss of a head on made-up pictures falls; the other candidate is cancelled after 5 of its steps.
run(COMMAND ${finetune} --cancel-second-after 5 --overwrite
    EXPECT "first  step   1" "first  step  60" "second cancelled" "first  accuracy (0\\.[4-9]|1\\.0)" "saved finetuned")
run(COMMAND ${classify} finetuned.safetensors ${images}/rgb.jpg ${images}/grey_16.png --top 2
    EXPECT "rgb\\.jpg\n  [01]\\.[0-9]+  wave [ABCD]\n  0\\.[0-9]+  wave [ABCD]\n[^ ]*grey_16\\.png\n")
run(COMMAND ${classify} finetuned.safetensors ${images}/rgb.jpg --bf16 EXPECT "wave A" "wave B" "wave C" "wave D")
run(COMMAND ${classify} finetuned.safetensors ${images}/rgb.jpg --top=1 EXPECT "rgb\\.jpg\n  0\\.[0-9]+  wave [ABCD]\n$")
run(COMMAND ${classify} --help EXPECT "^usage: classify")

# A folder of pictures, on top of the weights from above: the new head has two classes.
foreach(class dog cat)
  file(COPY ${images}/rgb.jpg ${images}/grey.png DESTINATION ${BUILD_DIR}/pictures/${class})
endforeach()
run(COMMAND ${finetune} --data pictures --weights finetuned.safetensors --out pets.safetensors --steps 3 --overwrite
    EXPECT "first  accuracy" "second accuracy" "saved pets")
run(COMMAND ${classify} pets.safetensors ${images}/rgb.jpg EXPECT "  0\\.[0-9]+  cat\n" "  0\\.[0-9]+  dog\n")

run_failing(COMMAND ${classify} EXPECT "usage: classify")
run_failing(COMMAND ${classify} pets.safetensors ${images}/rgb.jpg --top 0 EXPECT "--top: expected a number")
run_failing(COMMAND ${classify} pets.safetensors ${images}/rgb.jpg --best EXPECT "got '--best'")
run_failing(COMMAND ${classify} absent.safetensors ${images}/rgb.jpg EXPECT "absent.safetensors")
run_failing(COMMAND ${classify} pets.safetensors absent.jpg EXPECT "absent.jpg")
run_failing(COMMAND ${classify} pets.safetensors ${CMAKE_CURRENT_LIST_FILE} EXPECT "consume_pictures.cmake")
run_failing(COMMAND ${classify} ${images}/rgb.jpg ${images}/rgb.jpg EXPECT "rgb.jpg")
run_failing(COMMAND ${classify} ${SOURCE_DIR}/tests/fixtures/optim.safetensors ${images}/rgb.jpg
            EXPECT "optim.safetensors: model card: .*'model'")
run_failing(COMMAND ${finetune} --out pets.safetensors EXPECT "pets.safetensors exists: --overwrite replaces it")
run_failing(COMMAND ${finetune} --data absent --overwrite EXPECT "absent")
run_failing(COMMAND ${finetune} --steps many --overwrite EXPECT "--steps: expected a number of at least 1, got 'many'")
run_failing(COMMAND ${finetune} --weights ${SOURCE_DIR}/tests/fixtures/optim.safetensors --overwrite EXPECT "model card")
