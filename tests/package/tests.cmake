# The tests with label package. They check the repository as a whole: include rules, documentation, and an installed
# tutti as its users see it. Most of them are CMake scripts of this folder.
function(add_package_test name)
  add_test(NAME package.${name} ${ARGN})
  set_tests_properties(package.${name} PROPERTIES LABELS package TIMEOUT 300)
endfunction()
set(package ${CMAKE_CURRENT_LIST_DIR})

# The layers: which folder may include which.
add_package_test(include_rules COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
                 -P ${CMAKE_CURRENT_SOURCE_DIR}/include_rules.cmake)

# The README shows examples/minimal.cpp, and docs/*.md show parts of the examples, word for word.
add_package_test(readme_program COMMAND ${CMAKE_COMMAND} -DREADME=${PROJECT_SOURCE_DIR}/README.md
                 -DPROGRAM=${PROJECT_SOURCE_DIR}/examples/minimal.cpp -P ${package}/readme_program.cmake)
add_package_test(doc_snippets COMMAND ${PROJECT_SOURCE_DIR}/docs/snippets.sh)

# Every public class and function has a comment that doxygen finds. Without doxygen the test counts as skipped.
add_package_test(api_reference COMMAND ${PROJECT_SOURCE_DIR}/docs/api.sh --offline)
set_tests_properties(package.api_reference PROPERTIES SKIP_RETURN_CODE 77)

# A program that was built with CUDA starts and computes where no library of CUDA is installed.
if(TUTTI_BUILD_EXAMPLES AND NOT TUTTI_SANITIZE)
  add_package_test(cuda_is_optional COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:train_resnet>
                   -DBUILD_DIR=${CMAKE_CURRENT_BINARY_DIR}/cuda_is_optional -P ${package}/cuda_is_optional.cmake)
  set_tests_properties(package.cuda_is_optional PROPERTIES ENVIRONMENT "${TUTTI_TEST_ENVIRONMENT}")
endif()

# An installed tutti: what is installed, whether each header compiles alone, and whether the README's program runs in a
# project of its own.
if(NOT TUTTI_SANITIZE)
  set(installed ${CMAKE_CURRENT_BINARY_DIR}/package)
  add_package_test(install COMMAND ${CMAKE_COMMAND} -DBUILD_DIR=${PROJECT_BINARY_DIR} -DPREFIX=${installed}/prefix
                   -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -P ${package}/install.cmake)
  set_tests_properties(package.install PROPERTIES FIXTURES_SETUP installed)
  foreach(what program headers)
    add_package_test(consume_${what} COMMAND ${CMAKE_COMMAND} -DPREFIX=${installed}/prefix -DPROJECT=${package}/${what}
                     -DBUILD_DIR=${installed}/${what} -DCOMPILER=${CMAKE_CXX_COMPILER}
                     -DPROGRAM=${PROJECT_SOURCE_DIR}/examples/minimal.cpp -P ${package}/consume_${what}.cmake)
    set_tests_properties(package.consume_${what} PROPERTIES FIXTURES_REQUIRED installed TIMEOUT 600)
  endforeach()

  # The examples that are projects of their own.
  if(TUTTI_HAS_IMAGES)
    add_package_test(consume_pictures COMMAND ${CMAKE_COMMAND} -DPREFIX=${installed}/prefix
                     -DBUILD_DIR=${installed}/pictures -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
                     -DCOMPILER=${CMAKE_CXX_COMPILER} -P ${package}/consume_pictures.cmake)
    set_tests_properties(package.consume_pictures PROPERTIES FIXTURES_REQUIRED installed TIMEOUT 600
                         ENVIRONMENT "${TUTTI_TEST_ENVIRONMENT}")
  endif()
endif()
