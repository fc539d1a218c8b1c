# Defines tutti_find_cuda_libraries(), which looks for cuDNN and NCCL by header and library file and defines the targets
# tutti::cudnn and tutti::nccl for those that it finds. Our build uses this file, and so does an installed tutti, whose
# static library needs the same targets.
function(tutti_find_cuda_library name header minimum version_header version_macro)
  find_path(TUTTI_${name}_INCLUDE ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include)
  find_library(TUTTI_${name}_LIBRARY ${name} HINTS ${CUDAToolkit_LIBRARY_DIR} /usr/local/cuda/lib64)
  mark_as_advanced(TUTTI_${name}_INCLUDE TUTTI_${name}_LIBRARY)
  if(TARGET tutti::${name} OR NOT TUTTI_${name}_INCLUDE OR NOT TUTTI_${name}_LIBRARY)
    return()
  endif()
  file(STRINGS ${TUTTI_${name}_INCLUDE}/${version_header} line REGEX "define ${version_macro} +[0-9]+")
  string(REGEX MATCH "[0-9]+$" version "${line}")
  if(version LESS minimum)
    message(STATUS "tutti: ${TUTTI_${name}_INCLUDE}/${header} has version ${version}, but tutti needs ${minimum} or later, so it is not used")
    return()
  endif()
  add_library(tutti::${name} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(tutti::${name} PROPERTIES IMPORTED_LOCATION ${TUTTI_${name}_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${TUTTI_${name}_INCLUDE})
endfunction()

function(tutti_find_cuda_libraries)
  tutti_find_cuda_library(cudnn cudnn.h 9 cudnn_version.h CUDNN_MAJOR)
  tutti_find_cuda_library(nccl nccl.h 2 nccl.h NCCL_MAJOR)
endfunction()
