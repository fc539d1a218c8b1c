# Finds oneDNN, or fetches it, as the option TUTTI_ONEDNN asks. Sets TUTTI_HAS_ONEDNN and TUTTI_ONEDNN_VERSION, and
# TUTTI_ONEDNN_INSTALLED to what programs link that use an installed tutti. The target tutti_dnnl is empty without
# oneDNN. Its headers are system headers, so that their warnings are not shown.
add_library(tutti_dnnl INTERFACE)
set(TUTTI_HAS_ONEDNN OFF)
set(TUTTI_ONEDNN_VERSION "")
set(TUTTI_ONEDNN_INSTALLED "")
set(TUTTI_ONEDNN_FIRST "")

# LibTorch exports parts of a oneDNN of its own, which libdnnl would run where a program names LibTorch first. So libdnnl
# comes first on every command line (TUTTI_ONEDNN_FIRST), and a static one exports nothing.
function(tutti_link_first library)
  if(library MATCHES "[.]a$")
    set(TUTTI_ONEDNN_FIRST LINKER:--exclude-libs,libdnnl.a PARENT_SCOPE)
  else()
    set(TUTTI_ONEDNN_FIRST LINKER:--push-state,--no-as-needed,${library},--pop-state PARENT_SCOPE)
  endif()
endfunction()

# Sets `library` and `include` to oneDNN below TUTTI_ONEDNN_ROOT, else to that of the system. oneDNN is found by its
# library and header, because Debian's dnnl-config.cmake requires OpenCL headers that we do not need.
function(tutti_find_onednn library include)
  if(TUTTI_ONEDNN_ROOT)
    set(where PATHS ${TUTTI_ONEDNN_ROOT} NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH NO_CACHE)
    find_library(found_library dnnl PATH_SUFFIXES lib lib64 ${where})
    find_path(found_include dnnl.hpp PATH_SUFFIXES include ${where})
    if(NOT found_library OR NOT found_include)
      message(FATAL_ERROR "TUTTI_ONEDNN_ROOT is ${TUTTI_ONEDNN_ROOT}, but lib/libdnnl.* and include/dnnl.hpp are not "
                          "both there. Set it to the folder into which oneDNN was installed.")
    endif()
    set(${library} ${found_library} PARENT_SCOPE)
    set(${include} ${found_include} PARENT_SCOPE)
    return()
  endif()
  find_library(TUTTI_DNNL_LIBRARY dnnl)
  find_path(TUTTI_DNNL_INCLUDE dnnl.hpp)
  mark_as_advanced(TUTTI_DNNL_LIBRARY TUTTI_DNNL_INCLUDE)
  set(${library} ${TUTTI_DNNL_LIBRARY} PARENT_SCOPE)
  set(${include} ${TUTTI_DNNL_INCLUDE} PARENT_SCOPE)
endfunction()

# Sets `version` to that of the headers in `include`. Fails where tutti cannot use it.
function(tutti_check_onednn include version)
  file(STRINGS ${include}/oneapi/dnnl/dnnl_version.h lines REGEX "define DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
  list(JOIN numbers "." found)
  string(CONCAT advice "Install another one (on Debian: apt-get install libdnnl-dev) and, where it is not in the "
         "system's folders, set TUTTI_ONEDNN_ROOT to it, or set TUTTI_ONEDNN to OFF, which is slow.")
  if(NOT found VERSION_GREATER_EQUAL 2.6 OR NOT found VERSION_LESS 4)
    message(FATAL_ERROR "tutti needs oneDNN 2.6 or a later 2.x, or 3.x, but found '${found}' in ${include}. "
                        "${advice}")
  endif()
  # Each call of oneDNN computes on one thread, which tutti can ask of OpenMP, but not of TBB.
  file(STRINGS ${include}/oneapi/dnnl/dnnl_config.h threads REGEX "define DNNL_CPU_THREADING_RUNTIME ")
  string(REGEX REPLACE ".*DNNL_RUNTIME_" "" threads "${threads}")
  if(NOT threads MATCHES "^(OMP|SEQ)$")
    message(FATAL_ERROR "tutti needs oneDNN with threads of OpenMP (OMP) or without threads (SEQ), but oneDNN in "
                        "${include} has '${threads}'. ${advice}")
  endif()
  set(${version} ${found} PARENT_SCOPE)
endfunction()

# Adds oneDNN to this build: only what tutti uses, as a static library. Its install rules run with ours, so that an
# installed tutti finds it beside itself.
function(tutti_fetch_onednn include)
  include(FetchContent)
  set(ONEDNN_LIBRARY_TYPE STATIC)
  set(ONEDNN_CPU_RUNTIME SEQ)  # tutti divides the work
  set(ONEDNN_BUILD_GRAPH OFF)
  set(ONEDNN_BUILD_EXAMPLES OFF)
  set(ONEDNN_BUILD_TESTS OFF)
  # Both bring an assembler file for whose sake linkers would give programs an executable stack.
  set(ONEDNN_ENABLE_ITT_TASKS OFF)
  set(ONEDNN_ENABLE_JIT_PROFILING OFF)
  set(ONEDNN_ENABLE_PRIMITIVE "CONVOLUTION;MATMUL;REORDER;INNER_PRODUCT")
  set(CMAKE_UNITY_BUILD OFF)  # its files do not compile as one, and our presets set it
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)  # oneDNN's option() keeps the values above
  set(CMAKE_POLICY_DEFAULT_CMP0126 NEW)  # so does its set(CACHE)
  # The commit is release 3.7.3.
  FetchContent_Declare(onednn GIT_REPOSITORY https://github.com/uxlfoundation/oneDNN.git
                       GIT_TAG 34d53b436e652c2e315a66d65bf3c79940c2c530)
  FetchContent_MakeAvailable(onednn)
  set(${include} ${onednn_BINARY_DIR}/include PARENT_SCOPE)
endfunction()

if(TUTTI_ONEDNN STREQUAL "FETCH")
  tutti_fetch_onednn(include)
  tutti_check_onednn(${include} TUTTI_ONEDNN_VERSION)
  target_link_libraries(tutti_dnnl INTERFACE $<LINK_ONLY:dnnl>)
  target_include_directories(tutti_dnnl SYSTEM INTERFACE $<TARGET_PROPERTY:dnnl,INTERFACE_INCLUDE_DIRECTORIES>)
  tutti_link_first(libdnnl.a)
  set(TUTTI_ONEDNN_INSTALLED $<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}/libdnnl.a ${CMAKE_DL_LIBS})
  set(TUTTI_HAS_ONEDNN ON)
elseif(NOT TUTTI_ONEDNN STREQUAL "OFF")
  tutti_find_onednn(library include)
  if(library AND include)
    tutti_check_onednn(${include} TUTTI_ONEDNN_VERSION)
    target_link_libraries(tutti_dnnl INTERFACE ${library})
    tutti_link_first(${library})
    target_include_directories(tutti_dnnl SYSTEM INTERFACE ${include})
    # The system's library has another path on another system.
    set(TUTTI_ONEDNN_INSTALLED dnnl)
    if(TUTTI_ONEDNN_ROOT)
      set(TUTTI_ONEDNN_INSTALLED ${library})
    endif()
    set(TUTTI_HAS_ONEDNN ON)
  elseif(TUTTI_ONEDNN STREQUAL "ON")
    message(FATAL_ERROR "TUTTI_ONEDNN is ON, but CMake found no oneDNN. Install it (on Debian: apt-get install "
                        "libdnnl-dev), set TUTTI_ONEDNN_ROOT to where it is, set TUTTI_ONEDNN to FETCH to download and "
                        "build it, or to OFF to build without it.")
  endif()
endif()
if(TUTTI_HAS_ONEDNN)
  message(STATUS "tutti: oneDNN ${TUTTI_ONEDNN_VERSION}")
else()
  message(STATUS "tutti: no oneDNN. Convolutions and matrix products on the CPU use the reference kernels, which are "
                 "many times slower")
endif()
