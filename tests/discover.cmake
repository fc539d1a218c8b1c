# Makes entries of ctest of a program of gtest: one for each suite, whose tests share a process, and one for each test of a
# suite with values (INSTANTIATE_TEST_SUITE_P), because values are where a suite takes long.
#   tutti_discover_tests(TARGET LABEL [PREFIX prefix] [FILTER filter] [ENVIRONMENT variable...] [PROPERTIES name value...])
# The entries are named <prefix><suite> and <prefix><suite>.<test>/<value>; the prefix is `<label>.` unless given. The
# variables of ENVIRONMENT are added to TUTTI_TEST_ENVIRONMENT. list_suites.cmake asks the program after each build.
function(tutti_discover_tests target label)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "PREFIX;FILTER" "ENVIRONMENT;PROPERTIES")
  if(NOT arg_PREFIX)
    set(arg_PREFIX ${label}.)
  endif()
  get_property(count TARGET ${target} PROPERTY tutti_discoveries)
  math(EXPR count "0${count} + 1")
  set_property(TARGET ${target} PROPERTY tutti_discoveries ${count})
  set(entries ${CMAKE_CURRENT_BINARY_DIR}/${target}_entries_${count}.cmake)
  set(environment ${TUTTI_TEST_ENVIRONMENT} ${arg_ENVIRONMENT})
  add_custom_command(TARGET ${target} POST_BUILD VERBATIM
                     COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${target}> "-DEMULATOR=${CMAKE_CROSSCOMPILING_EMULATOR}"
                             -DPREFIX=${arg_PREFIX} "-DFILTER=${arg_FILTER}" "-DENVIRONMENT=${environment}"
                             "-DPROPERTIES=LABELS;${label};${arg_PROPERTIES}" -DENTRIES=${entries}
                             -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/list_suites.cmake)
  set(include ${CMAKE_CURRENT_BINARY_DIR}/${target}_include_${count}.cmake)
  file(WRITE ${include} "if(EXISTS \"${entries}\")\n  include(\"${entries}\")\n"
                        "else()\n  add_test(${target}_NOT_BUILT ${target}_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${include})
endfunction()
