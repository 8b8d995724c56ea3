# SPDX-License-Identifier: Apache-2.0
# Writes the header with the commit that the program is built from. It runs at every build, because a new commit does
# not trigger a configuration, and touches the file only if something changed. ATTUNE_COMMIT, from the environment or
# else from the configuration, overrides git: a copy of the sources on another machine has no commit or an older one.
set(commit "unknown")
set(dirty "false")
if(NOT "$ENV{ATTUNE_COMMIT}" STREQUAL "")
  set(given "$ENV{ATTUNE_COMMIT}")
endif()
if(NOT "${given}" STREQUAL "")
  if(NOT given MATCHES "^([0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]+)(-dirty)?$")
    message(FATAL_ERROR
      "ATTUNE_COMMIT: \"${given}\" is not 7 or more hexadecimal digits, followed by -dirty if files differ")
  endif()
  string(SUBSTRING "${CMAKE_MATCH_1}" 0 12 commit)
  if(CMAKE_MATCH_2)
    set(dirty "true")
  endif()
else()
  find_package(Git QUIET)
endif()
if(Git_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${source} rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH ${source} here)
  # If the sources are unpacked inside another checkout, git would return the commit of that one.
  if(top STREQUAL here)
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${source} rev-parse --short=12 HEAD
      OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${source} status --porcelain --untracked-files=no
      OUTPUT_VARIABLE changed ERROR_QUIET)
    if(head)
      set(commit ${head})
    endif()
    if(changed)
      set(dirty "true")
    endif()
  endif()
endif()
string(STRIP "${flags}" flags)
string(REPLACE "\"" "\\\"" flags "${flags}")
file(CONFIGURE OUTPUT ${output} @ONLY CONTENT [[// Written at every build; see tool/record/build_info.cmake.
#pragma once
namespace attune::build {
inline constexpr const char* kCommit = "@commit@";
inline constexpr bool kDirty = @dirty@;
inline constexpr const char* kVersion = "@version@";
inline constexpr const char* kCompiler = "@compiler@";
inline constexpr const char* kFlags = "@flags@";
}  // namespace attune::build
]])
