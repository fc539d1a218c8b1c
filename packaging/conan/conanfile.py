"""Builds and packages tutti from the repository that this file lies in:
conan create packaging/conan --build=missing"""

import os

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, rmdir


class TuttiRecipe(ConanFile):
    name = "tutti"
    version = "0.2.0"
    license = "MIT"
    description = "A minimal deep-learning framework with SyncBatchNorm as a first-class layer"
    topics = ("deep-learning", "batch-normalization", "distributed-training")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {
        "shared": [True, False],
        "images": [True, False],
        "mpi": [True, False],
    }
    default_options = {"shared": False, "images": True, "mpi": False}

    def export_sources(self):
        root = os.path.dirname(os.path.dirname(self.recipe_folder))
        for pattern in ("CMakeLists.txt", "CMakePresets.json", "LICENSE"):
            copy(self, pattern, root, self.export_sources_folder)
        for folder in ("cmake", "packaging", "core", "kernels", "autograd", "distributed", "nn", "optim", "data"):
            copy(self, folder + "/*", root, self.export_sources_folder)

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        # No public header needs these. They are linked, and a static tutti passes them on.
        self.requires("fmt/[>=9 <12]")
        self.requires("nlohmann_json/[>=3.11 <4]")
        self.requires("onednn/[>=2.7 <4]")
        self.requires("zlib/[>=1.2.11 <2]")
        if self.options.images:
            self.requires("libjpeg-turbo/[>=2 <4]")
            self.requires("libpng/[>=1.6 <2]")
        if self.options.mpi:
            self.requires("openmpi/[>=4.1 <6]")

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["TUTTI_NATIVE"] = False
        toolchain.cache_variables["TUTTI_BUILD_TESTS"] = False
        toolchain.cache_variables["TUTTI_BUILD_EXAMPLES"] = False
        toolchain.cache_variables["TUTTI_CUDA"] = "OFF"
        toolchain.cache_variables["TUTTI_IMAGES"] = "ON" if self.options.images else "OFF"
        toolchain.cache_variables["TUTTI_MPI"] = "ON" if self.options.mpi else "OFF"
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()
        # Conan's generators write these for the libraries of Conan.
        rmdir(self, os.path.join(self.package_folder, "lib", "cmake"))
        rmdir(self, os.path.join(self.package_folder, "lib", "pkgconfig"))

    def package_info(self):
        self.cpp_info.libs = ["tutti"]
        self.cpp_info.set_property("cmake_file_name", "tutti")
        self.cpp_info.set_property("cmake_target_name", "tutti::tutti")
        self.cpp_info.set_property("pkg_config_name", "tutti")
        if not self.options.shared:
            self.cpp_info.system_libs = ["pthread", "dl", "m"]
