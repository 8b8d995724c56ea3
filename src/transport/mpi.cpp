// Finds the plug-in that was built with the MPI of this machine: beside this library or program, in the lib folder next
// to its own, or where the system looks.
#include <dlfcn.h>

#include <cstring>

#include "machine/library.h"
#include "transport/communicator.h"

namespace attune {
namespace {

using Open = int(size_t size, const void* comm, Transport* out, char* why, size_t room);

const Library& plug_in() {
  static const Library opened = [] {
    Dl_info here{};
    std::string folder;
    if (dladdr(reinterpret_cast<const void*>(&plug_in), &here) && here.dli_fname && std::strchr(here.dli_fname, '/'))
      folder = std::string(here.dli_fname, strrchr(here.dli_fname, '/') + 1);
    const std::string beside = folder + "libattune_mpi.so", next = folder + "../lib/libattune_mpi.so";
    return Library({beside.c_str(), next.c_str(), "libattune_mpi.so"}, {"attune_mpi_open"});
  }();
  return opened;
}

}  // namespace

Status open_mpi(const void* comm, Transport& out) {
  const Library& library = plug_in();
  if (!library.ok()) return Status::no("MPI: ", library.missed());
  char why[512] = {};
  if (library.function<Open>("attune_mpi_open")(sizeof(Transport), comm, &out, why, sizeof why))
    return Status::no("MPI: ", why);
  return Status::good();
}

}  // namespace attune
