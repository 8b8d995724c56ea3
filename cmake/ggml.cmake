# SPDX-License-Identifier: Apache-2.0
# libggml-attune, a backend of ggml and so of llama.cpp: docs/llama_cpp.md. ggml promises no stable binary interface, so
# the backend is built against the headers of the llama.cpp (or ggml) that will load it.
# Everything but the interface to ggml; the tests link it too.
add_library(attune_ggml_parts STATIC EXCLUDE_FROM_ALL plugins/ggml/attention.cpp plugins/ggml/decode.cpp
  plugins/ggml/mask.cpp plugins/ggml/panels.cpp plugins/ggml/rows.cpp)
target_include_directories(attune_ggml_parts PUBLIC ${PROJECT_SOURCE_DIR})
target_compile_options(attune_ggml_parts PRIVATE ${machine_level} ${unchecked_stack})
target_link_libraries(attune_ggml_parts PUBLIC attune_inside)
find_package(OpenMP QUIET COMPONENTS CXX)
if(OpenMP_CXX_FOUND AND NOT ATTUNE_SANITIZE)
  target_link_libraries(attune_ggml_parts PRIVATE OpenMP::OpenMP_CXX)
endif()
