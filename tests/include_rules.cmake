# Checks the layering of the library from its #include lines: a folder includes only folders to its left.
#   core -> kernels -> autograd -> distributed -> { nn, optim }
#   core -> data
# optim includes neither nn nor distributed; data includes core only. Process groups and their backends include core
# only. Inside distributed/ each file of this list includes only files to its left, and the backends see no
# more than them:
#   group_info, collective, flight_recorder, data_flow, absence, flight_recorder_file, stoppable_sleep, watcher, world, lane,
#   world_lanes, backend
# Public headers include what libc++ 14 has. Inside the library every project include is relative, so that an embedder's
# own folders can never be picked up.
cmake_minimum_required(VERSION 3.24)
set(allowed_core core)
set(allowed_kernels core kernels)
set(allowed_autograd core kernels autograd)
set(allowed_distributed core kernels autograd distributed)
set(allowed_nn core kernels autograd distributed nn)
set(allowed_optim core kernels autograd optim)
set(allowed_data core data)
set(foundation group_info collective flight_recorder data_flow absence flight_recorder_file stoppable_sleep watcher world
    lane world_lanes backend)

set(violations "")
set(checked 0)
foreach(layer core kernels autograd distributed nn optim data)
  file(GLOB_RECURSE files RELATIVE ${SOURCE_DIR} ${SOURCE_DIR}/${layer}/*.h ${SOURCE_DIR}/${layer}/*.cpp
       ${SOURCE_DIR}/${layer}/*.cu ${SOURCE_DIR}/${layer}/*.cuh)
  foreach(file ${files})
    set(allowed ${allowed_${layer}})
    # The part of distributed/ that the file belongs to, if it is one with rules of its own.
    set(part "")
    string(REGEX REPLACE "^distributed/([a-z_]+)\\.[a-z]+$" "\\1" stem ${file})
    list(FIND foundation "${stem}" level)
    if(NOT level EQUAL -1)
      set(part foundation)
    elseif(file MATCHES "^distributed/backends/")
      set(part backend)
    elseif(file MATCHES "^distributed/(process_group|broadcast_text)\\.")
      set(part group)
    endif()
    if(part)
      set(allowed core distributed)
    endif()
    get_filename_component(folder ${SOURCE_DIR}/${file} DIRECTORY)
    get_filename_component(own_folder ${file} DIRECTORY)
    file(STRINGS ${SOURCE_DIR}/${file} lines REGEX "^[ \t]*#[ \t]*include")
    foreach(line ${lines})
      if(line MATCHES "<tutti/|<(core|kernels|autograd|distributed|nn|optim|data)/")
        string(APPEND violations "${file}: ${line}: inside the library include by relative path\n")
      elseif(line MATCHES "\"([^\"]+)\"")
        math(EXPR checked "${checked} + 1")
        get_filename_component(target ${folder}/${CMAKE_MATCH_1} ABSOLUTE)
        if(NOT EXISTS ${target})
          string(APPEND violations "${file}: ${line}: no such file beside it\n")
        endif()
        file(RELATIVE_PATH target ${SOURCE_DIR} ${target})
        string(REGEX REPLACE "/.*" "" target_layer ${target})
        if(NOT target_layer IN_LIST allowed)
          string(APPEND violations "${file} includes ${target}: allowed are ${allowed}\n")
        elseif(part AND target_layer STREQUAL "distributed")
          string(REGEX REPLACE "^distributed/([a-z_]+)\\.h$" "\\1" target_stem ${target})
          list(FIND foundation "${target_stem}" target_level)
          if(part STREQUAL "foundation")
            if(target_level EQUAL -1 OR target_level GREATER level)
              string(APPEND violations "${file} includes ${target}: below process groups the order is ${foundation}\n")
            endif()
          elseif(target_level EQUAL -1
                 AND NOT target MATCHES "^distributed/diagnostics/fault_injection\\.h$"
                 AND NOT (part STREQUAL "group" AND target MATCHES "^distributed/(process_group|broadcast_text)\\.h$")
                 AND (own_folder STREQUAL "distributed" OR NOT target MATCHES "^${own_folder}/"))
            string(APPEND violations "${file} includes ${target}: a ${part} file sees only ${foundation}, fault_injection and its own folder\n")
          endif()
        endif()
      endif()
    endforeach()
  endforeach()
endforeach()
# Public headers need no more of the standard library than libc++ 14 has.
include(${SOURCE_DIR}/cmake/public_headers.cmake)
tutti_public_headers(${SOURCE_DIR} public_headers)
foreach(file ${public_headers})
  file(STRINGS ${SOURCE_DIR}/${file} lines REGEX
       "^[^/]*(include <(stop_token|source_location|format|print|expected|generator)>|std::(jthread|atomic_ref|format|move_only_function|osyncstream))")
  foreach(line ${lines})
    string(APPEND violations "${file}: ${line}: a public header, and libc++ 14 lacks it\n")
  endforeach()
endforeach()
if(checked LESS 50)
  message(FATAL_ERROR "only ${checked} includes seen: is SOURCE_DIR=${SOURCE_DIR} right?")
endif()
if(violations)
  message(FATAL_ERROR "include rules broken:\n${violations}")
endif()
message(STATUS "${checked} includes follow the layers")
