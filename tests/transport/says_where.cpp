// SPDX-License-Identifier: Apache-2.0
// Stands for a library left in a folder: it prints on stderr that it was loaded, and from where. As the MPI plug-in it
// refuses.
#include <dlfcn.h>

#include <cstddef>
#include <cstdio>

extern "C" __attribute__((visibility("default"))) int attune_mpi_open(size_t, const void*, void*, char* why,
                                                                      size_t room) {
  std::snprintf(why, room, "this is a stand-in");
  return 1;
}

namespace {

__attribute__((constructor)) void opened() {
  Dl_info here{};
  dladdr(reinterpret_cast<const void*>(&attune_mpi_open), &here);
  std::fprintf(stderr, "opened %s\n", here.dli_fname);
}

}  // namespace
