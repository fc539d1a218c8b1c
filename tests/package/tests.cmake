# The tests with label package. They check the repository as a whole: include rules, documentation, and an installed
# tutti as its users see it. Most of them are CMake scripts of this folder. Without TUTTI_LONG_TESTS one installed package
# is tested, and with them each way to install and to use one.
function(add_package_test name)
  add_test(NAME package.${name} ${ARGN})
  set_tests_properties(package.${name} PROPERTIES LABELS package TIMEOUT 300)
endfunction()
set(package ${CMAKE_CURRENT_LIST_DIR})

# The layers: which folder may include which.
add_package_test(include_rules COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
                 -P ${CMAKE_CURRENT_SOURCE_DIR}/include_rules.cmake)

# tests/alone.sh builds this target of all headers.
if(TUTTI_BUILD_EXAMPLES)
  include(package/headers_alone.cmake)
endif()

# The compiler warns of objects and results that do nothing unless they are kept.
add_package_test(discarded COMMAND ${CMAKE_COMMAND} -DCOMPILER=${CMAKE_CXX_COMPILER} -DHEADERS=${PROJECT_BINARY_DIR}/headers
                 -DSOURCE=${package}/discarded.cpp -P ${package}/discarded.cmake)

# The README shows examples/minimal.cpp, and docs/*.md show parts of the examples, word for word.
add_package_test(readme_program COMMAND ${CMAKE_COMMAND} -DREADME=${PROJECT_SOURCE_DIR}/README.md
                 -DPROGRAM=${PROJECT_SOURCE_DIR}/examples/minimal.cpp -P ${package}/readme_program.cmake)
add_package_test(doc_snippets COMMAND ${PROJECT_SOURCE_DIR}/docs/snippets.sh)
# docs/reference.md lists what the public headers declare.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  add_package_test(doc_reference COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/docs/reference.py)
endif()
# The commands of the pages run, with the programs of this build.
if(TUTTI_LONG_TESTS AND TUTTI_BUILD_EXAMPLES AND TUTTI_HAS_IMAGES AND TUTTI_HAS_MPI AND NOT TUTTI_SANITIZE
   AND NOT BUILD_SHARED_LIBS)
  add_package_test(doc_commands COMMAND ${PROJECT_SOURCE_DIR}/docs/commands.sh ${PROJECT_BINARY_DIR})
  set_tests_properties(package.doc_commands PROPERTIES PROCESSORS 2)
endif()

# Every public class and function has a comment that doxygen finds. Without doxygen the test counts as skipped.
add_package_test(api_reference COMMAND ${PROJECT_SOURCE_DIR}/docs/api.sh --offline)
set_tests_properties(package.api_reference PROPERTIES SKIP_RETURN_CODE 77)

# The recipes for package managers follow the project's version and options.
add_package_test(recipes COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
                 -DBUILD_DIR=${CMAKE_CURRENT_BINARY_DIR}/package/recipes -P ${package}/recipes.cmake)

# An installed tutti: what is installed, whether each header finds what it includes, and whether the README's program
# runs in a project of its own.
if(NOT TUTTI_SANITIZE)
  set(installed ${CMAKE_CURRENT_BINARY_DIR}/package)
  add_package_test(install COMMAND ${CMAKE_COMMAND} -DBUILD_DIR=${PROJECT_BINARY_DIR} -DPREFIX=${installed}/prefix
                   -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -P ${package}/install.cmake)
  set_tests_properties(package.install PROPERTIES FIXTURES_SETUP installed)
  set(components "")
  foreach(part ONEDNN MPI IMAGES CUDA NCCL)
    if(TUTTI_HAS_${part})
      string(TOLOWER ${part} part)
      list(APPEND components ${part})
    endif()
  endforeach()
  foreach(what program headers)
    add_package_test(consume_${what} COMMAND ${CMAKE_COMMAND} -DPREFIX=${installed}/prefix -DPROJECT=${package}/${what}
                     -DBUILD_DIR=${installed}/${what} -DCOMPILER=${CMAKE_CXX_COMPILER}
                     -DPROGRAM=${PROJECT_SOURCE_DIR}/examples/minimal.cpp "-DCOMPONENTS=${components}"
                     -P ${package}/consume_${what}.cmake)
    set_tests_properties(package.consume_${what} PROPERTIES FIXTURES_REQUIRED installed TIMEOUT 600)
  endforeach()

  function(add_pkg_config_test name prefix fixture)
    add_package_test(${name} COMMAND ${CMAKE_COMMAND} -DPREFIX=${prefix} -DBUILD_DIR=${installed}/${name}
                     -DCOMPILER=${CMAKE_CXX_COMPILER} -DPROGRAM=${package}/pkg_config/main.cpp
                     -P ${package}/consume_pkg_config.cmake)
    set_tests_properties(package.${name} PROPERTIES FIXTURES_REQUIRED ${fixture} TIMEOUT 600)
  endfunction()
  add_pkg_config_test(consume_pkg_config ${installed}/prefix installed)

endif()

if(TUTTI_LONG_TESTS AND NOT TUTTI_SANITIZE)
  # A project that has tutti as a part of itself, without a preset, and is strict with all of its targets.
  add_package_test(host COMMAND ${CMAKE_COMMAND} -DPROJECT=${package}/host -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
                   -DBUILD_DIR=${installed}/host -DCOMPILER=${CMAKE_CXX_COMPILER}
                   -DCCACHE=$<$<BOOL:${TUTTI_CCACHE}>:${TUTTI_CCACHE}> -P ${package}/host.cmake)
  set_tests_properties(package.host PROPERTIES TIMEOUT 1800 COST 100 ENVIRONMENT "${TUTTI_TEST_ENVIRONMENT}")

  # What a shared library exports. It is made of the objects of the static one.
  set(shared tutti)
  if(NOT BUILD_SHARED_LIBS)
    set(shared tutti_shared)
    tutti_add_library_of_objects(tutti_shared SHARED)
    tutti_use_exports(tutti_shared)
    set_target_properties(tutti_shared PROPERTIES EXCLUDE_FROM_ALL OFF)
  endif()
  add_package_test(exports COMMAND ${CMAKE_COMMAND} -DLIBRARY=$<TARGET_FILE:${shared}> -P ${package}/exports.cmake)

  # A program that was built with CUDA starts and computes where no library of CUDA is installed.
  if(TUTTI_BUILD_EXAMPLES)
    add_package_test(cuda_is_optional COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:train_resnet>
                     -DLIBRARY=$<TARGET_FILE:${shared}> -DBUILD_DIR=${installed}/cuda_is_optional
                     -P ${package}/cuda_is_optional.cmake)
    set_tests_properties(package.cuda_is_optional PROPERTIES ENVIRONMENT "${TUTTI_TEST_ENVIRONMENT}")
  endif()

  # An installed shared library. Its build compiles the library a second time, which only a compiler cache makes quick.
  # The cache knows the files by their relative paths, so that build folder must be as deep as this one, and must not
  # mind the options that say of a shared library what is the default.
  if(TUTTI_CCACHE AND NOT BUILD_SHARED_LIBS)
    add_package_test(install_shared COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
                     -DBUILD_DIR=${PROJECT_BINARY_DIR}-shared -DPREFIX=${installed}/shared -DCOMPILER=${CMAKE_CXX_COMPILER}
                     -DNATIVE=${TUTTI_NATIVE} -DWERROR=${TUTTI_WERROR} -DMPI=${TUTTI_MPI} -DIMAGES=${TUTTI_IMAGES}
                     -P ${package}/install_shared.cmake)
    set_tests_properties(package.install_shared PROPERTIES FIXTURES_SETUP installed_shared TIMEOUT 1800 COST 100 ENVIRONMENT
                         "CCACHE_IGNOREOPTIONS=-fvisibility=default -fno-visibility-inlines-hidden")
    add_pkg_config_test(consume_shared_pkg_config ${installed}/shared installed_shared)
    add_package_test(consume_shared_program COMMAND ${CMAKE_COMMAND} -DPREFIX=${installed}/shared
                     -DPROJECT=${package}/program -DBUILD_DIR=${installed}/shared_program
                     -DCOMPILER=${CMAKE_CXX_COMPILER} -DPROGRAM=${PROJECT_SOURCE_DIR}/examples/minimal.cpp
                     -P ${package}/consume_program.cmake)
    set_tests_properties(package.consume_shared_program PROPERTIES FIXTURES_REQUIRED installed_shared TIMEOUT 600)
  endif()

  # The examples that are projects of their own.
  if(TUTTI_HAS_IMAGES)
    add_package_test(consume_pictures COMMAND ${CMAKE_COMMAND} -DPREFIX=${installed}/prefix
                     -DBUILD_DIR=${installed}/pictures -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
                     -DCOMPILER=${CMAKE_CXX_COMPILER} -P ${package}/consume_pictures.cmake)
    set_tests_properties(package.consume_pictures PROPERTIES FIXTURES_REQUIRED installed TIMEOUT 600
                         ENVIRONMENT "${TUTTI_TEST_ENVIRONMENT}")
  endif()
endif()
