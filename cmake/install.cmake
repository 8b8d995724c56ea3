# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: headers, libattune, a CMake package (find_package(attune), attune::attune) and a pkg-config file.
# Both locate files relative to themselves, so the installed tree may be moved.
include(CMakePackageConfigHelpers)

if(NOT APPLE)
  target_link_options(attune_shared PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/attune.map)
  set_target_properties(attune_shared PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/attune.map)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attune)
install(TARGETS attune_shared EXPORT attune-targets COMPONENT library)
install(FILES include/attune/attune.h include/attune/attune.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/attune
  COMPONENT library)
install(EXPORT attune-targets NAMESPACE attune:: DESTINATION ${package_dir} COMPONENT library)
configure_package_config_file(cmake/attune-config.cmake.in ${CMAKE_BINARY_DIR}/attune-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/attune-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_BINARY_DIR}/attune-config.cmake ${CMAKE_BINARY_DIR}/attune-config-version.cmake
  DESTINATION ${package_dir} COMPONENT library)

install(FILES LICENSE THIRD_PARTY_NOTICES.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT library)

# From lib/pkgconfig, or lib/aarch64-linux-gnu/pkgconfig, back to the prefix.
file(RELATIVE_PATH pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_up ${pc_up})
configure_file(cmake/attune.pc.in ${CMAKE_BINARY_DIR}/attune.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/attune.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)

# Prints how every case is planned, for any machine: build-folder/plans.
add_executable(plans EXCLUDE_FROM_ALL bench/plans.cpp)
target_include_directories(plans PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(plans PRIVATE attune_verify attune_inside)
# Prints the overhead of a call: build-folder/call_overhead.
add_executable(call_overhead EXCLUDE_FROM_ALL bench/call_overhead.cpp)
target_link_libraries(call_overhead PRIVATE attune_shared)
if(attune_has_cuda)
  target_sources(call_overhead PRIVATE bench/launch.cu)
  target_include_directories(call_overhead PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(call_overhead PRIVATE ATTUNE_CUDA)
  target_link_libraries(call_overhead PRIVATE CUDA::cudart_static)
  # One token of native sparse attention over a full cache: docs/kernels/nsa.md.
  add_executable(nsa_decode EXCLUDE_FROM_ALL bench/nsa_decode.cpp)
  target_link_libraries(nsa_decode PRIVATE attune_shared CUDA::cudart_static)
  # Our memory pool compared with the driver's: docs/memory.md.
  add_executable(memory_pool EXCLUDE_FROM_ALL bench/memory_pool.cu)
  target_link_libraries(memory_pool PRIVATE attune_inside)
  set_target_properties(memory_pool PROPERTIES CUDA_STANDARD 20)
endif()
