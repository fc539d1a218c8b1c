# cmake --install: headers under include/tutti, the library, and a package for find_package(tutti).
include(CMakePackageConfigHelpers)
set(TUTTI_IS_STATIC ON)
if(BUILD_SHARED_LIBS)
  set(TUTTI_IS_STATIC OFF)
endif()
foreach(layer ${TUTTI_LAYERS})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${layer} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti
          FILES_MATCHING PATTERN "*.h")
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/headers/tutti/tutti.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti)
install(TARGETS tutti EXPORT tutti-targets)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(EXPORT tutti-targets NAMESPACE tutti:: DESTINATION ${package_dir})
configure_package_config_file(cmake/tutti-config.cmake.in ${PROJECT_BINARY_DIR}/tutti-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tutti-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tutti-config.cmake ${PROJECT_BINARY_DIR}/tutti-config-version.cmake
              cmake/cuda_libraries.cmake
        DESTINATION ${package_dir})
