# SPDX-License-Identifier: Apache-2.0
# The GPU part. nvcc is used if found and never required. A file's folder determines its targets: attention/sm80 for
# every GPU from Ampere on, attention/sm90 for Hopper only, whose instructions no other GPU has, and every other .cu
# file for Turing too. The runtime is linked statically and loads the driver dynamically, so one library file serves
# machines with and without a GPU.
set(ATTUNE_CUDA AUTO CACHE STRING "Build the GPU kernels: AUTO where nvcc and a GPU's driver are found, ON, OFF")
set(ATTUNE_CUDA_ARCHS "75;80;89;90" CACHE STRING "Compute capabilities to build for")
option(ATTUNE_CUDA_PTX "Also PTX of the newest of them, for GPUs to come" ON)
set_property(CACHE ATTUNE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(gpu_objects "")

# With AUTO, a machine without a GPU does not wait for kernels that it cannot run, which take most of a build's time.
set(attune_wants_cuda ${ATTUNE_CUDA})
if(ATTUNE_CUDA STREQUAL "AUTO")
  execute_process(COMMAND nvidia-smi --list-gpus RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(failed AND NOT EXISTS /dev/nvidiactl AND NOT EXISTS /dev/nvgpu AND NOT EXISTS /dev/nvhost-gpu)
    message(STATUS "no driver of an NVIDIA GPU is here: the GPU kernels are left out; -DATTUNE_CUDA=ON builds them")
    set(attune_wants_cuda OFF)
  endif()
endif()

if(attune_wants_cuda)
  # 90a and CMake's own words, such as native, would cause errors elsewhere.
  if(NOT ATTUNE_CUDA_ARCHS MATCHES "^[0-9]+(;[0-9]+)*$")
    message(FATAL_ERROR
      "ATTUNE_CUDA_ARCHS is '${ATTUNE_CUDA_ARCHS}', and it takes numbers with semicolons: 75;80;89;90")
  endif()
  list(SORT ATTUNE_CUDA_ARCHS COMPARE NATURAL)
  list(GET ATTUNE_CUDA_ARCHS 0 oldest)
  if(oldest LESS 75)
    message(FATAL_ERROR "ATTUNE_CUDA_ARCHS has ${oldest}, and the kernels need 75 (Turing) or later; an older GPU "
      "would need a compiler of CUDA 12, and textbook kernels tested on such a GPU")
  endif()
  list(GET ATTUNE_CUDA_ARCHS -1 newest)
  # Architectures for Turing and for Ampere on. A build for Turing alone contains the latter too: its backends refuse
  # there.
  set(from_ampere ${ATTUNE_CUDA_ARCHS})
  list(FILTER from_ampere EXCLUDE REGEX "^[1-7][0-9]$")
  if(NOT from_ampere)
    set(from_ampere 80)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${ATTUNE_CUDA_ARCHS})
  foreach(codes CMAKE_CUDA_ARCHITECTURES from_ampere)
    list(GET ${codes} -1 last)
    list(TRANSFORM ${codes} APPEND "-real")
    if(ATTUNE_CUDA_PTX)
      list(APPEND ${codes} "${last}-virtual")
    endif()
  endforeach()
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(attune_nvcc NAMES $ENV{CUDACXX} nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
      PATH_SUFFIXES bin)
    if(attune_nvcc)
      set(CMAKE_CUDA_COMPILER ${attune_nvcc})
    endif()
  endif()
  # With AUTO, an unusable compiler (too old, no supported host compiler, no runtime) is ignored; CMake would stop.
  if(ATTUNE_CUDA STREQUAL "AUTO" AND CMAKE_CUDA_COMPILER)
    if(NOT attune_nvcc_tried STREQUAL "${CMAKE_CUDA_COMPILER} ${newest}")
      set(trial ${CMAKE_BINARY_DIR}/CMakeFiles/attune_nvcc_trial)
      file(WRITE ${trial}.cu "#include <concepts>\n__global__ void nothing() {}\nint main() {}\n")
      execute_process(COMMAND ${CMAKE_CUDA_COMPILER} -std=c++20 -arch=sm_${newest} ${trial}.cu -o ${trial}
        RESULT_VARIABLE failed OUTPUT_FILE ${trial}.log ERROR_FILE ${trial}.log)
      set(attune_nvcc_failed "${failed}" CACHE INTERNAL "")
      set(attune_nvcc_tried "${CMAKE_CUDA_COMPILER} ${newest}" CACHE INTERNAL "")
    endif()
    if(attune_nvcc_failed)
      message(STATUS "${CMAKE_CUDA_COMPILER} does not compile C++20 for sm_${newest}: CMakeFiles/attune_nvcc_trial.log")
      unset(CMAKE_CUDA_COMPILER)
      unset(CMAKE_CUDA_COMPILER CACHE)
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    # CMake 3.25 does not list C++20 for nvcc; without the flag it refuses to configure.
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION OR CMAKE_CUDA20_STANDARD_COMPILE_OPTION STREQUAL "")
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(attune_has_cuda ON)
    # With several GPUs the kernels are compressed to a third of the size, and the driver decompresses them. Earlier
    # compilers lack the option.
    list(LENGTH ATTUNE_CUDA_ARCHS count)
    if(count GREATER 1 AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
      set(attune_pack --compress-mode=size)
    endif()
  elseif(ATTUNE_CUDA STREQUAL "AUTO")
    message(STATUS "no working nvcc is here: the GPU kernels are left out")
  else()
    message(FATAL_ERROR "ATTUNE_CUDA is ON and no working nvcc is here")
  endif()
endif()

if(NOT attune_has_cuda)
  list(FILTER sources EXCLUDE REGEX "${needs_cuda}")
  # The stub that refuses in its place, and the files that compile without CUDA.
  foreach(name absent nvml)
    list(APPEND sources ${PROJECT_SOURCE_DIR}/src/machine/cuda/${name}.cpp)
  endforeach()
  return()
endif()
list(FILTER sources EXCLUDE REGEX "machine/cuda/absent\\.cpp$")
list(TRANSFORM ATTUNE_CUDA_ARCHS PREPEND "sm_" OUTPUT_VARIABLE built_for)
list(JOIN built_for ", " built_for)
if(ATTUNE_CUDA_PTX)
  string(APPEND built_for " and PTX of sm_${newest}")
endif()
message(STATUS "GPU kernels for ${built_for}")
list(JOIN ATTUNE_CUDA_ARCHS "," built_list)
set_source_files_properties(src/machine/cuda/runtime.cpp PROPERTIES COMPILE_DEFINITIONS
  "ATTUNE_CUDA_BUILT_FOR=\"${built_for}\";ATTUNE_CUDA_BUILT_LIST=${built_list};\
ATTUNE_CUDA_BUILT_PTX=$<IF:$<BOOL:${ATTUNE_CUDA_PTX}>,${newest},0>")

# gpu_library NAME REGEX ARCHS...: the .cu files whose name matches, as objects. The ptxas output is kept next to each
# object, where scripts/check_ptxas.py checks it for spills.
function(gpu_library name regex)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cu)
  list(FILTER files INCLUDE REGEX "${regex}")
  if(NOT files)
    return()
  endif()
  add_library(${name} OBJECT ${files})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_compile_definitions(${name} PRIVATE ATTUNE_CUDA)
  target_compile_options(${name} PRIVATE --expt-relaxed-constexpr -Xptxas=-v -Xcompiler=-Wall ${attune_pack})
  set_target_properties(${name} PROPERTIES CUDA_STANDARD 20 CUDA_VISIBILITY_PRESET hidden
    CUDA_ARCHITECTURES "${ARGN}"
    CUDA_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/scripts/nvcc_log.sh;${CMAKE_CXX_COMPILER_LAUNCHER}")
  set(gpu_objects ${gpu_objects} ${name} PARENT_SCOPE)
endfunction()
gpu_library(attune_sm80 "/attention/sm80/" ${from_ampere})
if("90" IN_LIST ATTUNE_CUDA_ARCHS)
  gpu_library(attune_sm90 "/attention/sm90/" 90a-real)
  set_property(SOURCE src/plan/plan.cpp APPEND PROPERTY COMPILE_DEFINITIONS ATTUNE_SM90)
endif()
gpu_library(attune_cuda "/attention/(gpu|cudnn)/|/machine/|/variants/" ${CMAKE_CUDA_ARCHITECTURES})

find_program(attune_python python3)
if(ATTUNE_TESTS AND attune_python)
  add_test(NAME cuda_ptxas COMMAND ${attune_python} ${PROJECT_SOURCE_DIR}/scripts/check_ptxas.py ${CMAKE_BINARY_DIR}
    ${PROJECT_SOURCE_DIR}/tests/gpu/spills.txt)
endif()
