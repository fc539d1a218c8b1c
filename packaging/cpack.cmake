# Describes the Debian packages that `cpack -G DEB` makes in the build folder of a shared build: libtutti0.2 and
# libtutti-dev. packaging/deb.sh builds and packs them.
set(abi ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tutti)
set(CPACK_PACKAGE_VENDOR "the tutti authors")
set(CPACK_PACKAGE_CONTACT "the tutti authors <tutti@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "minimal deep-learning framework with SyncBatchNorm")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL runtime development)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libtutti${abi})
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION
    "Tensors, gradients, layers and optimizers in C++20, and training over many\nprocesses. This is the shared library.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/deb/triggers)
file(WRITE ${PROJECT_BINARY_DIR}/deb/triggers "activate-noawait ldconfig\n")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtutti-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "The headers of tutti, and what CMake and pkg-config need to find it.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libtutti${abi} (= ${PROJECT_VERSION})")

# Debian keeps the licence of each package under the package's name.
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  install(FILES LICENSE DESTINATION share/doc/libtutti${abi} RENAME copyright COMPONENT runtime)
  install(FILES LICENSE DESTINATION share/doc/libtutti-dev RENAME copyright COMPONENT development)
endif()
include(CPack)
