// runtime.h and nvtx.h in a build without CUDA.
#include "machine/cuda/nvtx.h"
#include "machine/cuda/runtime.h"

namespace attune::cuda {
namespace {

Status none() { return Status::no("this build of attune has no GPU code: it was left out, or nvcc was not there"); }

}  // namespace

std::string_view built_for() { return ""; }
Status has_code(int) { return none(); }
Status count(int& out) { return out = 0, none(); }
Status device(int, Device&) { return none(); }
Status memory_of(int, size_t&) { return none(); }
Use::Use(int) : status(none()) {}
Use::~Use() = default;
Memory::~Memory() = default;
Status Memory::allocate(int, size_t) { return none(); }
OwnStream::~OwnStream() = default;
Status OwnStream::open(int) { return none(); }
Status copy_to(void*, const void*, size_t, void*) { return none(); }
Status copy_from(void*, const void*, size_t, void*) { return none(); }
Status wait(void*) { return none(); }
Status wait_all(int) { return none(); }
Status scatter(int32_t*, std::span<const Number>, void*) { return none(); }
Status reachable(const void*, int, std::string_view) { return none(); }
Range::Range(const Problem*) {}
Range::~Range() = default;

}  // namespace attune::cuda
