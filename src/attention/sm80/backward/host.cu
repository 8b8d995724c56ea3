// SPDX-License-Identifier: Apache-2.0
// sm80_backward: host side of sm80/backward/kernel.h. It selects a kernel by head dim and shared memory. A run launches
// prepare, the dK/dV kernel and finish. In a deterministic run CTAs add to dQ in ticket order; with a block list, the
// dQ kernel computes it instead. Where sequences share keys, a deterministic run processes them one after another.
#include <algorithm>
#include <cmath>

#include "attention/gpu/backward_pre_post_host.h"
#include "attention/gpu/block_lists.h"
#include "attention/gpu/clear_rows.h"
#include "attention/gpu/refusal.h"
#include "attention/sm80/backward/instances.h"
#include "core/check.h"
#include "machine/cuda/kernels.h"
#include "machine/cuda/launcher.h"
#include "plan/backend.h"

namespace attune {
namespace {

using sm80::BackwardKernel;
using sm80::BackwardParams;
using sm80::SharedMemory;

constexpr std::string_view kWho = "sm80_backward";
constexpr int64_t kMostBlocks = INT32_MAX;

// The code that a GPU runs: built for it or for an earlier member of its family; otherwise the newest, as PTX.
int code_for(int arch) {
  constexpr int built[] = {__CUDA_ARCH_LIST__};  // 800, 890, 900
  int family = 0, newest = 0;
  for (const int code : built) {
    if (code <= arch * 10 && code / 100 == arch / 10) family = std::max(family, code);
    newest = std::max(newest, code);
  }
  return family ? family : newest;
}

SharedMemory shared_memory_of(int arch) {
  const int bytes = cuda::shared_limit(arch), code = code_for(arch);
  if (code >= sm80::kLargeFrom && bytes >= 200 * 1024) return SharedMemory::large;
  return sm80::is_middle(code) && bytes >= 150 * 1024 ? SharedMemory::middle : SharedMemory::small;
}

// Ratio of the keys in all tiles to the keys of the list's blocks.
constexpr double kMostWasted = 1.3;
double wasted(const Problem& p, const BackwardKernel& k) {
  const int size = p.mask.blocks.k;
  return size ? double(round_up(size, k.tile)) / size : 1;
}

struct Chosen { BackwardKernel *keys, *rows; };  // rows: separate dQ kernel, if needed

Chosen choose(const Problem& p, const Device& d) {
  const int dim = p.dim_qk > p.dim_v ? p.dim_qk : p.dim_v;
  const SharedMemory available = shared_memory_of(d.arch);
  const bool options = needs_general(p);
  for (const auto kernels : {sm80::backward_kernels_64, sm80::backward_kernels_96, sm80::backward_kernels_128,
                             sm80::backward_kernels_192, sm80::backward_kernels_256}) {
    const sm80::BackwardKernels all = kernels();
    if (all.keys[0].dim < dim) continue;
    Chosen c{};
    for (const SharedMemory wanted : {available, SharedMemory::small})
      for (BackwardKernel& k : all.keys) {
        if (k.with_options != options || (k.shared_memory != SharedMemory::any && k.shared_memory != wanted)) continue;
        // Prefers a smaller tile if the list's blocks leave much of this one empty.
        if (!c.keys || wasted(p, *c.keys) > kMostWasted * wasted(p, k)) c.keys = &k;
      }
    if (p.reproducible != Reproducible::no && p.mask.blocks.q) c.rows = all.rows;
    return c;
  }
  return {};
}

// Number of tiles in `length`; with a block list, tiles do not cross blocks.
int64_t tiles(int64_t length, int64_t block, int64_t tile) {
  return block ? ceil_div(length, block) * ceil_div(block, tile) : ceil_div(length, tile);
}

// CTAs of the dK/dV kernel.
int64_t key_blocks(const Problem& p, const Chosen& c) {
  return tiles(p.len_k, p.mask.blocks.k, c.keys->tile) * p.batch * p.heads_kv;
}

int64_t padded(const Problem& p) { return round_up(p.len_q, sm80::kRowsOfPrepare); }
int64_t heads(const Problem& p) { return int64_t(p.batch) * p.heads_q; }

// Without a list by key block, a CTA searches the lists of all query blocks for its key block. If there are many, the
// run builds the missing list.
constexpr int64_t kMostSearched = 1024;
bool many_lists(const Problem& p) { return p.mask.blocks.q && ceil_div(p.len_q, p.mask.blocks.q) > kMostSearched; }

struct Scratch {
  float2* rows;
  int32_t *order, *begin_k, *row_k;
  int* disjoint;
  float* dq;
  int* tickets;
  uint64_t* large_logits;
};
Scratch carve(Workspace& ws, const Problem& p, const Chosen& c) {
  const size_t rows = size_t(heads(p) * padded(p));
  Scratch s{.rows = ws.take<float2>(rows), .large_logits = ws.take<uint64_t>(1)};
  if (p.mask.blocks.q) s.order = ws.take<int32_t>(size_t(key_blocks(p, c)));
  if (many_lists(p)) {
    s.begin_k = ws.take<int32_t>(size_t(heads(p) * (ceil_div(p.len_k, p.mask.blocks.k) + 1)));
    s.row_k = ws.take<int32_t>(size_t(p.mask.blocks.bound));
    s.disjoint = ws.take<int>(1);
  }
  if (c.rows) return s;
  s.dq = ws.take<float>(rows * size_t(c.keys->dim));
  if (p.reproducible != Reproducible::no) s.tickets = ws.take<int>(1 + rows / sm80::kTicketRows);
  return s;
}

Status supports(const Problem& p, const Device& d) {
  return cuda::Refusal(kWho, p, d).needs_arch_from(80).pass(Pass::backward).no_variant().without({Option::descale})
      .half_inputs().half_gradients().dims(8, 256).no_reproducible_bias().status();
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  const Chosen c = choose(p, plan.device);
  plan.tile_k = c.keys->tile, plan.tile_q = c.rows ? c.rows->tile : 64;
  const int64_t most = std::max({key_blocks(p, c),
                                 c.rows ? tiles(p.len_q, p.mask.blocks.q, c.rows->tile) * heads(p) : int64_t(0),
                                 heads(p) * padded(p) / sm80::kRowsOfPrepare});
  if (most > kMostBlocks) return Status::unsupported(kWho, ": ", most, " blocks are over 2^31 - 1");
  Workspace count;
  carve(count, p, c);
  plan.workspace_bytes = count.used;
  return Status::good();
}

// Loads and stores are 16 bytes wide.
Status fits(const Plan&, const Args& a) {
  return check_aligned16(kWho, a, {Role::q, Role::k, Role::v, Role::out, Role::d_out, Role::dq, Role::dk, Role::dv});
}

class Run {
 public:
  Run(const Plan& plan, const Args& a, Workspace ws, const cuda::Launcher& launcher)
      : p_(plan.problem), a_(a), chosen_(choose(p_, plan.device)), launcher_(launcher),
        place_{launcher.device(), plan.device.arch} {
    const Scratch scratch = carve(ws, p_, chosen_);
    x_.problem = p_, x_.args = dense(a);
    x_.uniform = p_.keys == KeySource::linear && !has_sequence_tensors(a);
    if (x_.uniform) x_.seq = sequence(p_, a, 0);
    x_.rows = scratch.rows, x_.dq = a.given(Role::dq) ? scratch.dq : nullptr;
    x_.tickets = x_.dq ? scratch.tickets : nullptr;
    x_.padded = int(padded(p_)), x_.dq_pitch = chosen_.keys->dim;
    x_.group = p_.heads_q / p_.heads_kv, x_.scale = scale_of(p_, a);
    x_.kept = sm80::kept(x_.scale, p_.dim_qk);
    x_.shared_keys = p_.keys == KeySource::paged || a.given(Role::cache_index);
    x_.running = p_.has(Option::accumulate);
    x_.large_logits = scratch.large_logits, x_.launch = sm80::next_launch(),
    x_.zero_large_logits = !chosen_.keys->with_options;
    x_.tiles = int(tiles(p_.len_k, p_.mask.blocks.k, chosen_.keys->tile));
    one_by_one_ = x_.shared_keys && p_.reproducible != Reproducible::no;
    if (many_lists(p_) && !a.given(Role::block_begin_k)) make_list(scratch);
    // With a list by key block, longest first.
    if (x_.args.given(Role::block_begin_k) && !x_.tickets && (!one_by_one_ || x_.disjoint))
      x_.order = {.place = scratch.order, .begin = Role::block_begin_k, .tiles = Divisor(uint32_t(x_.tiles)),
                  .heads = Divisor(uint32_t(p_.heads_kv)),
                  .tiles_per_block = Divisor(uint32_t(ceil_div(p_.mask.blocks.k, chosen_.keys->tile))),
                  .batch = uint32_t(p_.batch), .group = uint32_t(x_.group), .falling = false, .by_tile = false};
  }

  Status run() {
    if (x_.disjoint)
      if (Status s = cuda::build_blocks(list_, launcher_.device(), launcher_.stream()); !s.ok()) return s;
    if (Status s = sm80::backward_prepare(kWho, x_, place_, launcher_.stream()); !s.ok()) return s;
    // Clears keys that no sequence owns, and sums.
    const bool every = x_.uniform && a_[Role::k].extent.seq <= p_.len_k;
    for (const Role r : {Role::dk, Role::dv})
      if (a_.given(r) && !every && !x_.running)
        if (Status s = clear(r); !s.ok()) return s;
    if (a_.given(Role::d_bias) && !x_.running)
      if (Status s = clear(Role::d_bias); !s.ok()) return s;
    if (x_.dq || a_.given(Role::dk) || a_.given(Role::dv) || a_.given(Role::d_bias))
      if (Status s = keys(); !s.ok()) return s;
    if (!a_.given(Role::dq)) return Status::good();
    return chosen_.rows ? rows() : sm80::backward_finish(kWho, x_, place_, launcher_.stream());
  }

 private:
  Status clear(Role r) const { return sm80::backward_clear(kWho, p_, a_[r], place_, launcher_.stream()); }
  void make_list(const Scratch& scratch) {
    const Tensor& by_query = a_[Role::block_begin];
    const auto [batch, seq, head, dim] = by_query.extent;
    const int columns = int(ceil_div(p_.len_k, p_.mask.blocks.k));
    Tensor &begin = x_.args[Role::block_begin_k], &entries = x_.args[Role::block_row_k];
    begin = entries = by_query;
    begin.data = scratch.begin_k, begin.extent = {batch, 1, head, columns + 1};
    begin.stride = {batch > 1 ? int64_t(head) * (columns + 1) : 0, 0, head > 1 ? columns + 1 : 0};
    entries.data = scratch.row_k, entries.extent = {1, 1, 1, p_.mask.blocks.bound}, entries.stride = {};
    x_.disjoint = scratch.disjoint;
    list_ = {.problem = p_, .args = x_.args, .origin = BlockOrigin::lists, .batch = batch, .heads = head,
             .rows = int32_t(ceil_div(p_.len_q, p_.mask.blocks.q)), .columns = columns};
  }
  Status keys() {
    cuda::Launch launch = cuda::launch_of(*chosen_.keys, p_.dtype.q);
    launch.blocks = int64_t(x_.tiles) * p_.heads_kv * (one_by_one_ ? 1 : p_.batch);
    const int rounds = one_by_one_ ? p_.batch : 1;
    if (one_by_one_) x_.order.place = nullptr;  // the order covers the whole batch
    for (int b = 0; b < rounds; ++b) {
      x_.first_batch = b;
      launch.dependent = b == 0 && sm80::supports_dependent_launch(place_.arch);
      if (Status s = launcher_(launch, x_); !s.ok()) return s;
    }
    return Status::good();
  }
  Status rows() {
    BackwardKernel& k = *chosen_.rows;
    x_.tiles = int(tiles(p_.len_q, p_.mask.blocks.q, k.tile));
    x_.args[Role::d_bias] = {};  // the dK/dV kernel computes it
    cuda::Launch launch = cuda::launch_of(k, p_.dtype.q);
    launch.blocks = x_.tiles * heads(p_);
    return launcher_(launch, x_);
  }

  const Problem& p_;
  const Args& a_;
  const Chosen chosen_;
  const cuda::Launcher& launcher_;
  const sm80::Place place_;
  BlockBuild list_{};        // list by key block, if this run builds it
  bool one_by_one_ = false;  // sequences share keys and sums must have a fixed order
  BackwardParams x_{};
};

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  if (Status s = fits(plan, a); !s.ok()) return s;
  const cuda::Launcher launcher(kWho, plan.problem, a[Role::q].device_index, stream);
  return launcher.status.ok() ? Run(plan, a, ws, launcher).run() : launcher.status;
}

}  // namespace

namespace sm80 {
namespace {

int64_t row_blocks(const BackwardParams& x) { return heads(x.problem) * x.padded / kRowsOfPrepare; }

// One of the kernels of gpu/backward_pre_post.h, of 256 threads each.
cuda::Launch pre_post(const void* kernel, cuda::SharedMemoryOptIn& ready, int64_t blocks, int arch) {
  return {.kernel = kernel, .ready = &ready, .blocks = blocks, .threads = 256,
          .dependent = supports_dependent_launch(arch)};
}

}  // namespace

Kept kept(float scale, int dim) {
  const float size = std::abs(scale) * std::sqrt(float(dim));
  if (!std::isnormal(size)) return {};
  const int power = std::clamp(int(std::lround(std::log2(size) / 2)), -40, 40);
  return {std::ldexp(1.f, power), std::ldexp(1.f, -power)};
}

Status backward_prepare(std::string_view who, const BackwardParams& x, Place place, Stream stream) {
  static constinit cuda::SharedMemoryOptIn ready[2][2], sink;
  using cuda::address;
  const void* const kernel[2][2] = {{address(prepare_kernel<F16, false>), address(prepare_kernel<Bf16, false>)},
                                    {address(prepare_kernel<F16, true>), address(prepare_kernel<Bf16, true>)}};
  const cuda::Launcher launcher(who, x.problem, place.device, stream);
  if (!launcher.status.ok()) return launcher.status;
  const int order = x.order.place ? 1 : 0, type = x.problem.dtype.q == DType::bf16;  // sorting takes one extra CTA
  const int64_t blocks = x.prepared ? int64_t(x.prepared) * (x.padded / kRowsOfPrepare) : row_blocks(x);
  const Status s = launcher(pre_post(kernel[order][type], ready[order][type], blocks + order, place.arch), x);
  if (!s.ok() || !x.args.given(Role::d_sinks)) return s;
  return launcher(pre_post(address(sink_kernel), sink, x.problem.heads_q, place.arch), x);
}

uint64_t next_launch() { return cuda::launch_tag(); }

Status backward_clear(std::string_view who, const Problem& p, const Tensor& t, Place place, Stream stream) {
  const cuda::Launcher launcher(who, p, place.device, stream);
  return launcher.status.ok() ? clear_rows(launcher, t) : launcher.status;
}

Status backward_finish(std::string_view who, const BackwardParams& x, Place place, Stream stream) {
  static constinit cuda::SharedMemoryOptIn ready[2][2];
  using cuda::address;
  const void* const kernel[2][2] = {{address(finish_kernel<F16, false>), address(finish_kernel<Bf16, false>)},
                                    {address(finish_kernel<F16, true>), address(finish_kernel<Bf16, true>)}};
  const int transposed = x.transposed, type = x.problem.dtype.q == DType::bf16;
  const cuda::Launcher launcher(who, x.problem, place.device, stream);
  if (!launcher.status.ok()) return launcher.status;
  return launcher(pre_post(kernel[transposed][type], ready[transposed][type], row_blocks(x), place.arch), x);
}

}  // namespace sm80

extern const Backend sm80_backward{.name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
