// copies.h and ring.h in a build without CUDA.
#include "machine/cuda/copies.h"
#include "machine/cuda/ring.h"

namespace attune::cuda {
namespace {

Status none() { return Status::no("this build of attune has no GPU code: it was left out, or nvcc was not there"); }

}  // namespace

Mark::~Mark() = default;
Status Mark::open(int) { return none(); }
Status Mark::set(void*) { return none(); }
Status Mark::before(void*) const { return none(); }
Status Mark::passed(bool& out) const { return out = false, none(); }
Status copy_later(void*, const void*, size_t, void*) { return none(); }
bool capturing(void*) { return false; }
Pinned::~Pinned() = default;
Status Pinned::at_least(size_t) { return none(); }
Status fill_tables(const ShardTables&, int, void*) { return none(); }
Status cut_lists(const ListCut&, int, void*) { return none(); }

}  // namespace attune::cuda
