# SPDX-License-Identifier: Apache-2.0
"""conan create . : the library for other projects, as the CMake package attune (attune::attune). CPU by default;
-o cuda=True needs nvcc."""
from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Attune(ConanFile):
    name = "attune"
    version = "0.2.0"
    description = "Attention, tuned to your machine"
    license = "Apache-2.0"
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"cuda": [True, False]}
    default_options = {"cuda": False}
    exports_sources = ("CMakeLists.txt", "LICENSE", "THIRD_PARTY_NOTICES.md", "cmake/*", "src/*", "include/*", "verify/*",
                       "bench/*", "scripts/nvcc_log.sh")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for name in ("TOOL", "TESTS", "PYTHON", "MPI"):
            toolchain.cache_variables[f"ATTUNE_{name}"] = False
        toolchain.cache_variables["ATTUNE_CUDA"] = "ON" if self.options.cuda else "OFF"
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build(target="attune_shared")

    def package(self):
        copy(self, "LICENSE", self.source_folder, self.package_folder + "/licenses")
        CMake(self).install(component="library")

    def package_info(self):
        self.cpp_info.libs = ["attune"]
        self.cpp_info.set_property("cmake_file_name", "attune")
        self.cpp_info.set_property("cmake_target_name", "attune::attune")
