# Fails if PROGRAM, the trainer, or LIBRARY, a shared tutti, needs a library of CUDA to start, or if the trainer loads one
# while it trains on the CPU.
cmake_minimum_required(VERSION 3.24)
set(cuda_libraries "lib(cuda|cudart|cudnn[a-z_]*|cublas|cublasLt|nccl)\\.so")
find_program(readelf readelf REQUIRED)
foreach(file ${PROGRAM} ${LIBRARY})
  execute_process(COMMAND ${readelf} -d ${file} OUTPUT_VARIABLE needed COMMAND_ERROR_IS_FATAL ANY)
  if(NOT needed MATCHES "NEEDED.*libc\\.so" OR needed MATCHES "NEEDED[^\n]*${cuda_libraries}")
    message(FATAL_ERROR "Expected ${file} to need libc and no library of CUDA, but it needs:\n${needed}")
  endif()
endforeach()

# The dynamic loader writes down every library that the program opens.
file(REMOVE_RECURSE ${BUILD_DIR})
file(MAKE_DIRECTORY ${BUILD_DIR})
execute_process(COMMAND ${CMAKE_COMMAND} -E env LD_DEBUG=files LD_DEBUG_OUTPUT=${BUILD_DIR}/loader
                        ${PROGRAM} --dataset synthetic --device cpu --max-steps 1 --out ${BUILD_DIR}/run
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB logs ${BUILD_DIR}/loader.*)
set(opened "")
foreach(log ${logs})
  file(STRINGS ${log} lines REGEX "calling init: ")
  string(APPEND opened "${lines}\n")
endforeach()
# libcuda.so.1 belongs to the driver: CUDA's static runtime opens it where there is one.
string(REGEX MATCH "lib(cudart|cudnn[a-z_]*|cublas|cublasLt|nccl)\\.so[^;\n]*" found "${opened}")
if(found OR NOT opened MATCHES "libc\\.so")
  message(FATAL_ERROR "The trainer on the CPU must load libc and no library of CUDA, but it loaded '${found}' of:\n"
                      "${opened}")
endif()
