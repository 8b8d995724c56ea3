// SPDX-License-Identifier: Apache-2.0
// Finds the plug-in that was built with this machine's MPI: next to this library or program, in the library folder of
// its installed tree, or on the system's search path. A launcher may start programs in untrusted folders. All paths are
// therefore relative to this code, and the current folder is never searched.
#include <filesystem>

#include "machine/library.h"
#include "transport/communicator.h"

namespace attune {
namespace {

using Open = int(size_t size, const void* comm, Transport* out, char* why, size_t room);

const Library& plug_in() {
  static const Library opened = [] {
    namespace fs = std::filesystem;
    constexpr const char* kName = "libattune_mpi.so";
    const fs::path here = fs::path(own_file()).parent_path();
    if (here.empty()) return Library({kName}, {"attune_mpi_open"});
    const std::string beside = (here / kName).string();
    const std::string next = (here / ".." / ATTUNE_LIBDIR / kName).lexically_normal().string();
    return Library({beside.c_str(), next.c_str(), kName}, {"attune_mpi_open"});
  }();
  return opened;
}

}  // namespace

Status open_mpi(const void* comm, Transport& out) {
  const Library& library = plug_in();
  if (!library.ok()) return Status::unsupported("MPI: ", library.missed());
  char why[512] = {};
  if (library.function<Open>("attune_mpi_open")(sizeof(Transport), comm, &out, why, sizeof why))
    return Status::failure(Code::device, "MPI: ", why);
  return Status::good();
}

}  // namespace attune
