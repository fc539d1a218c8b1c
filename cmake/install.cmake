# Installs the library, the public headers under include/tutti, and what find_package(tutti) and pkg-config read. The
# component `runtime` is the shared library, the component `development` is everything else.
include(CMakePackageConfigHelpers)
set(TUTTI_IS_STATIC ON)
if(BUILD_SHARED_LIBS)
  set(TUTTI_IS_STATIC OFF)
endif()
foreach(header ${TUTTI_PUBLIC_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti/${folder}
          COMPONENT development)
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/tutti.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti COMPONENT development)
install(TARGETS tutti EXPORT tutti-targets
        RUNTIME COMPONENT runtime
        LIBRARY COMPONENT runtime NAMELINK_COMPONENT development
        ARCHIVE COMPONENT development)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(EXPORT tutti-targets NAMESPACE tutti:: DESTINATION ${package_dir} COMPONENT development)
configure_package_config_file(cmake/tutti-config.cmake.in ${PROJECT_BINARY_DIR}/tutti-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tutti-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tutti-config.cmake ${PROJECT_BINARY_DIR}/tutti-config-version.cmake
        DESTINATION ${package_dir} COMPONENT development)

# The file for pkg-config. The program that links a static tutti links the libraries that tutti uses, too, which
# pkg-config names when it is called with --static.
set(pc_requires "")
set(pc_libraries "")
if(TUTTI_IS_STATIC)
  set(pc_requires libcrypto zlib)
  if(TUTTI_HAS_IMAGES)
    list(APPEND pc_requires libjpeg libpng)
  endif()
  set(pc_libraries -ldnnl ${OpenMP_CXX_FLAGS})
  set(files "")
  if(TUTTI_HAS_MPI)
    list(APPEND files ${MPI_CXX_LIBRARIES})
  endif()
  if(TUTTI_HAS_CUDA)
    list(APPEND files ${CUDA_cudart_static_LIBRARY})
  endif()
  foreach(file ${files})
    get_filename_component(folder ${file} DIRECTORY)
    get_filename_component(name ${file} NAME_WE)
    string(REGEX REPLACE "^lib" "" name ${name})
    list(APPEND pc_libraries -L${folder} -l${name})
  endforeach()
  list(APPEND pc_libraries -lstdc++ -lpthread -lrt -ldl -lm)
endif()
list(JOIN pc_requires " " TUTTI_PC_REQUIRES)
list(JOIN pc_libraries " " TUTTI_PC_LIBRARIES)
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH TUTTI_PC_PREFIX /prefix/${pc_dir} /prefix)
configure_file(cmake/tutti.pc.in ${PROJECT_BINARY_DIR}/tutti.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${pc_dir} COMPONENT development)
