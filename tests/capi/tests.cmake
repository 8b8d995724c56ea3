# SPDX-License-Identifier: Apache-2.0
# Tests that see the library as users do: the shared library and the installed headers, from C where that matters.
set(capi_dir ${CMAKE_CURRENT_LIST_DIR})
foreach(source blocks.cpp cache.cpp module.cpp memory.c misuse.c nsa_cache.cpp ring.cpp versions.c wrapper.cpp)
  string(REGEX REPLACE "\\..*" "" name ${source})
  set(name capi_${name})
  add_executable(${name} EXCLUDE_FROM_ALL ${capi_dir}/${source})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests C_STANDARD 11
    C_STANDARD_REQUIRED ON)
  target_link_libraries(${name} PRIVATE attune_shared m)
  target_compile_options(${name} PRIVATE ${test_level})
  add_test(NAME ${name} COMMAND ${name})
  list(APPEND all_tests ${name})
endforeach()

# Replays the inputs that the fuzzers found, without a fuzzer; see fuzz/CMakeLists.txt.
add_library(fuzz_replay OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/fuzz/replay.cpp)
target_compile_options(fuzz_replay PRIVATE ${test_level})
foreach(target problem_line formula tuned_file capi safetensors)
  set(name fuzz_${target}_replay)
  add_executable(${name} EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/fuzz/${target}.cpp)
  target_compile_options(${name} PRIVATE ${test_level})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE attune_inside fuzz_replay)
  add_test(NAME ${name} COMMAND ${name} ${PROJECT_SOURCE_DIR}/fuzz/corpus/${target})
  list(APPEND all_tests ${name})
endforeach()

add_test(NAME capi_exported_symbols COMMAND ${capi_dir}/exported_symbols.sh $<TARGET_FILE:attune_shared>
  ${PROJECT_SOURCE_DIR}/include/attune/attune.h)
set_tests_properties(capi_exported_symbols PROPERTIES SKIP_RETURN_CODE 77)
list(APPEND all_tests attune_shared)
if(NOT ATTUNE_SANITIZE)  # the examples are built as a user builds them, without a sanitizer runtime
  add_test(NAME capi_installed COMMAND ${capi_dir}/installed_test.sh ${CMAKE_COMMAND} ${CMAKE_BINARY_DIR}
    ${PROJECT_SOURCE_DIR} ${CMAKE_C_COMPILER} ${CMAKE_CXX_COMPILER})
endif()
