# SPDX-License-Identifier: Apache-2.0
# Hardening of what is installed. Linked with full RELRO, so no pointer to a function of a library stays writable; release
# builds also check the stack at returns and the sizes of buffers. `unhardened` takes the checks back for the loops of
# src/machine/cpu, and `unchecked_stack` those of the stack for src/attention/cpu: they keep tiles there, take no text,
# and are called for every few rows. The check costs `selected` attention 5 % (q65 k65, n=4 s=8).
if(APPLE)
  return()
endif()
add_link_options(LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
set(unhardened "")
set(unchecked_stack "")
string(TOUPPER "${CMAKE_BUILD_TYPE}" harden_type)
if(ATTUNE_SANITIZE OR NOT harden_type MATCHES "^REL|MINSIZEREL")
  return()  # sanitizers check more; without optimization there is nothing to fortify
endif()
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
check_cxx_source_compiles("#include <cstring>\nint main() {}" attune_fortify_3)
unset(CMAKE_REQUIRED_FLAGS)
set(fortify -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$<IF:$<BOOL:${attune_fortify_3}>,3,2>)  # some compilers set their own
foreach(option -fstack-protector-strong ${fortify})
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:${option}>)
endforeach()
set(unhardened -fno-stack-protector -U_FORTIFY_SOURCE)
set(unchecked_stack -fno-stack-protector)
