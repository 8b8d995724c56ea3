# Writes the header that says from which commit the program is built. Run at every build (not at configuration, which a
# commit does not cause), it touches the file only where something changed. ATTUNE_COMMIT, of the environment or else of
# the configuration, is believed before git: a copy of the sources on another machine has no commit, or an older one.
set(commit "unknown")
set(dirty "false")
if(NOT "$ENV{ATTUNE_COMMIT}" STREQUAL "")
  set(given "$ENV{ATTUNE_COMMIT}")
endif()
if(NOT "${given}" STREQUAL "")
  if(NOT given MATCHES "^([0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]+)(-dirty)?$")
    message(FATAL_ERROR
      "ATTUNE_COMMIT: \"${given}\" is not 7 or more hexadecimal digits, with -dirty where files differ")
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
  # Unpacked inside somebody else's checkout, the commit would be theirs.
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
