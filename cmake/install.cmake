# Installs the public headers under include/tutti, the library, and the package that find_package(tutti) reads.
include(CMakePackageConfigHelpers)
set(TUTTI_IS_STATIC ON)
if(BUILD_SHARED_LIBS)
  set(TUTTI_IS_STATIC OFF)
endif()
foreach(header ${TUTTI_PUBLIC_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti/${folder})
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/tutti.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti)
install(TARGETS tutti EXPORT tutti-targets)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(EXPORT tutti-targets NAMESPACE tutti:: DESTINATION ${package_dir})
configure_package_config_file(cmake/tutti-config.cmake.in ${PROJECT_BINARY_DIR}/tutti-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tutti-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tutti-config.cmake ${PROJECT_BINARY_DIR}/tutti-config-version.cmake
        DESTINATION ${package_dir})
