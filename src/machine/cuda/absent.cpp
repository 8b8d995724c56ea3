// SPDX-License-Identifier: Apache-2.0
// Every GPU function in a build without CUDA: each refuses with the same sentence.
#include "attention/gpu/block_lists.h"
#include "machine/append_rows.h"
#include "machine/cuda/blas.h"
#include "machine/cuda/copies.h"
#include "machine/cuda/events.h"
#include "machine/cuda/nvtx.h"
#include "machine/cuda/pool.h"
#include "machine/cuda/runtime.h"
#include "machine/layer_ops.h"
#include "machine/tensor_ops.h"
#include "variants/adaptive/gpu.h"
#include "variants/masked/gpu.h"
#include "variants/nsa/lengths.h"
#include "variants/ring/gpu.h"

namespace attune::cuda {
namespace {

Status none() {
  return Status::unsupported("this build of attune has no GPU code: it was left out, or nvcc was not there");
}
Status none(std::string_view who) { return none().after(who, ": "); }

}  // namespace

// runtime.h, nvtx.h
std::string_view built_for() { return ""; }
Status has_code(int) { return none(); }
Status count(int& out) { return out = 0, none(); }
Status device(int, Device&) { return none(); }
Status memory_of(int, size_t&) { return none(); }
DeviceGuard::DeviceGuard(int) : status(none()) {}
DeviceGuard::~DeviceGuard() = default;
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

// events.h
Status facts_of(int, Facts&) { return none(); }
Status fill(void*, unsigned char, size_t, void*) { return none(); }
Status copy_inside(void*, const void*, size_t, void*) { return none(); }
Status launch_nothing(void*) { return none(); }
Status release_kept_lines() { return none(); }
Marks::~Marks() = default;
Status Marks::open(int, int) { return none(); }
Status Marks::set(int, void*) { return none(); }
Status Marks::between(int, int, double&) const { return none(); }
Gate::~Gate() = default;
Status Gate::open(int) { return none(); }
Status Gate::hold(void*) { return none(); }
void Gate::release() {}
bool Gate::gave_up() const { return false; }
Ticks::~Ticks() = default;
Status Ticks::open(int) { return none(); }
Status Ticks::set(int, void*) { return none(); }
double Ticks::megahertz() const { return 0; }
Graph::~Graph() = default;
Status Graph::begin(void*) { return none(); }
Status Graph::end(void*) { return none(); }
Status Graph::launch(void*) const { return none(); }

// pool.h
Status allocate(int, size_t, void*, void*& out) { return out = nullptr, none(); }
Status free(int, void*, void*) { return none(); }
Status trim(int, size_t) { return none(); }
Status reset_marks(int) { return none(); }
Status pool_state(int, PoolState&) { return none(); }
Status Borrowed::take(int, size_t, void*) { return none(); }
Status Borrowed::give_back() { return Status::good(); }

// copies.h, variants/ring/gpu.h
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

// blas.h
Status blas_found() { return none(); }
Status multiply(const Product&, const Factors&, void*, void*) { return none(); }

// append_rows.h
Status copy_all(std::span<const Copy>, void*) { return none(); }

// tensor_ops.h
Status combine(const detail::Combine&, void*) { return none(); }
Status merge(const detail::Merge&, void*) { return none(); }

// layer_ops.h
Status normalize(const Normalize&, void*) { return none(); }
Status normalize_backward(const NormalizeBackward&, void*) { return none(); }
Status column_sum(const ColumnSum&, void*) { return none(); }
Status rotate(const Rotate&, void*) { return none(); }
Status activate(const Activate&, void*) { return none(); }
Status activate_backward(const Activate&, void*) { return none(); }
Status drop(const Drop&, void*) { return none(); }
Status group_mean(const GroupMean&, void*) { return none(); }

// attention/gpu/block_lists.h
Status build_blocks(const BlockBuild&, int, void*) { return none("blocks"); }

// variants/nsa/lengths.h
Status nsa_lengths(const NsaLengths&, void*) { return none(); }

// variants/masked/gpu.h
Status fill_masked(const MaskedRows&, int, void*) { return none("masked_dense"); }
Status sum_masked(const MaskedRows&, int, void*) { return none("masked_dense"); }

// variants/adaptive/gpu.h
Status score_blocks(const Scorer&, int, void*) { return none("adaptive"); }
Status score_gradients(const Scorer&, int, void*) { return none("adaptive"); }

}  // namespace attune::cuda
