# An overlay port inside the repository builds the repository itself:
#   vcpkg install tutti --overlay-ports=packaging/vcpkg
# A port in a registry would call vcpkg_from_github() here instead.
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../.." ABSOLUTE)

foreach(feature images mpi cuda)
  string(TOUPPER ${feature} name)
  set(use_${feature} -DTUTTI_${name}=OFF)
  if(feature IN_LIST FEATURES)
    set(use_${feature} -DTUTTI_${name}=ON)
  endif()
endforeach()

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${use_images} ${use_mpi} ${use_cuda} -DTUTTI_NATIVE=OFF -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_EXAMPLES=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/tutti)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(INSTALL "${CURRENT_PORT_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
