# SPDX-License-Identifier: Apache-2.0
# libggml-attune, a backend of ggml and so of llama.cpp: docs/llama_cpp.md. ggml promises no stable binary interface, so
# the backend is built against the headers of the llama.cpp (or ggml) that will load it.
set(ATTUNE_GGML_SOURCE "" CACHE PATH "A checkout of llama.cpp or ggml: builds the backend for it, libggml-attune.so")
set(ATTUNE_GGML_BUILD "" CACHE PATH "Its build folder, for ggml_compare and the tests; empty: build in the checkout")
option(ATTUNE_GGML "Build the backend of ggml; requires ATTUNE_GGML_SOURCE" OFF)

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

if(ATTUNE_GGML OR ATTUNE_GGML_SOURCE)
  foreach(folder ${ATTUNE_GGML_SOURCE}/ggml ${ATTUNE_GGML_SOURCE})
    if(EXISTS ${folder}/src/ggml-backend-impl.h)
      set(ggml_folder ${folder})
      break()
    endif()
  endforeach()
  if(NOT ggml_folder)
    message(FATAL_ERROR "ATTUNE_GGML_SOURCE: '${ATTUNE_GGML_SOURCE}' was given; a checkout of llama.cpp or ggml is "
      "accepted, which has src/ggml-backend-impl.h")
  endif()
  add_library(ggml_attune MODULE plugins/ggml/backend.cpp)
  set_target_properties(ggml_attune PROPERTIES OUTPUT_NAME ggml-attune)
  target_include_directories(ggml_attune SYSTEM PRIVATE ${ggml_folder}/include ${ggml_folder}/src)
  target_compile_definitions(ggml_attune PRIVATE GGML_BACKEND_DL)
  target_link_libraries(ggml_attune PRIVATE attune_ggml_parts)
  target_link_options(ggml_attune PRIVATE -Wl,--exclude-libs,ALL)
  as_installed(ggml_attune)
  set_target_properties(ggml_attune PROPERTIES INSTALL_RPATH_USE_LINK_PATH OFF)  # ggml is in the process already
  set(ggml_built ${ATTUNE_GGML_BUILD})
  if(NOT ggml_built)
    set(ggml_built ${ATTUNE_GGML_SOURCE}/build)
  endif()
  foreach(name ggml ggml-base llama)
    find_library(ATTUNE_LIB_${name} ${name} PATHS ${ggml_built}/bin ${ggml_built}/src ${ggml_built}/ggml/src
      NO_DEFAULT_PATH)
  endforeach()
  if(ATTUNE_LIB_ggml AND ATTUNE_LIB_ggml-base)
    # Named in the plug-in, libggml-base is found also where a program loaded it privately.
    target_link_libraries(ggml_attune PRIVATE ${ATTUNE_LIB_ggml-base})
    add_executable(ggml_compare EXCLUDE_FROM_ALL plugins/ggml/compare.cpp)
    target_include_directories(ggml_compare SYSTEM PRIVATE ${ggml_folder}/include)
    target_link_libraries(ggml_compare PRIVATE ${ATTUNE_LIB_ggml} ${ATTUNE_LIB_ggml-base})
    get_filename_component(ggml_libraries ${ATTUNE_LIB_ggml} DIRECTORY)  # where its backends are
    target_compile_definitions(ggml_compare PRIVATE ATTUNE_GGML_FOLDER="${ggml_libraries}")
    add_dependencies(ggml_compare ggml_attune)
  endif()
  install(TARGETS ggml_attune LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
endif()
