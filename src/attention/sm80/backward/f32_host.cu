// SPDX-License-Identifier: Apache-2.0
// sm80_backward_f32: host side of sm80/backward/f32_kernel.h. A run launches prepare, the dQ kernel and the dK/dV
// kernel. Where sequences share keys, a deterministic run processes one sequence after another.
#include "attention/gpu/clear_rows.h"
#include "attention/sm80/backward/f32_kernel.h"
#include "attention/sm80/f32_host.h"

namespace attune {
namespace {

using sm80::F32Gradients;

constexpr std::string_view kWho = "sm80_backward_f32";

struct Kernel {
  int dim;         // largest head dim it serves, of q and v
  int own;         // query rows or keys per CTA
  int key_ctas;    // CTAs per key tile: one, or one per gradient
  int threads, shared_bytes;
  void (*rows[2])(F32Gradients);  // tf32, tf32x3
  void (*keys[2])(F32Gradients);
  cuda::SharedMemoryOptIn rows_ready[2]{}, keys_ready[2]{};
};

template <sm80::BackwardF32Config C>
constexpr Kernel instance() {
  using One = sm80::BackwardF32<C, false>;
  using Three = sm80::BackwardF32<C, true>;
  static_assert(One::kSharedBytes <= cuda::shared_limit(89));
  return {.dim = C.dim,
          .own = C.own,
          .key_ctas = One::kBoth ? 1 : 2,
          .threads = One::kThreads,
          .shared_bytes = One::kSharedBytes,
          .rows = {sm80::backward_f32_rows_kernel<One>, sm80::backward_f32_rows_kernel<Three>},
          .keys = {sm80::backward_f32_keys_kernel<One>, sm80::backward_f32_keys_kernel<Three>}};
}

using Config = sm80::BackwardF32Config;
constinit Kernel kKernels[] = {instance<Config{.dim = 64, .own = 64, .walked = 32}>(),
                               instance<Config{.dim = 128, .own = 64, .walked = 32}>(),
                               instance<Config{.dim = 256, .own = 32, .walked = 16}>()};

Kernel& kernel_of(const Problem& p) {
  int n = 0;
  while (kKernels[n].dim < std::max(p.dim_qk, p.dim_v)) ++n;
  return kKernels[n];
}

int64_t padded(const Problem& p) { return round_up(p.len_q, sm80::kRowsOfPrepare); }
int64_t heads(const Problem& p) { return int64_t(p.batch) * p.heads_q; }
int64_t row_tiles(const Problem& p) { return sm80::f32_tiles(p.len_q, p.mask.blocks.q, kernel_of(p).own); }
int64_t key_tiles(const Problem& p) { return sm80::f32_tiles(p.len_k, p.mask.blocks.k, kernel_of(p).own); }

float2* carve(Workspace& ws, const Problem& p) { return ws.take<float2>(size_t(heads(p) * padded(p))); }

Status supports(const Problem& p, const Device& d) {
  return sm80::f32_refusal(kWho, Pass::backward, p, d).no_reproducible_bias().status();
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  plan.tile_q = plan.tile_k = kernel_of(p).own;
  const int64_t most = std::max({row_tiles(p) * heads(p), heads(p) * padded(p) / sm80::kRowsOfPrepare,
                                 key_tiles(p) * p.heads_kv * p.batch * kernel_of(p).key_ctas});
  if (most > sm80::kF32MostBlocks) return Status::unsupported(kWho, ": ", most, " blocks are over 2^31 - 1");
  Workspace count;
  carve(count, p);
  plan.workspace_bytes = count.used;
  return Status::good();
}

class Run {
 public:
  Run(const Problem& p, const Args& a, Workspace ws, const cuda::Launcher& launcher)
      : p_(p), a_(a), kernel_(kernel_of(p)), launcher_(launcher), precision_(p.precision == Precision::tf32x3) {
    x_.call = sm80::f32_call(p, a);
    x_.rows = carve(ws, p), x_.padded = int(padded(p));
    x_.shared_keys = p.keys == KeySource::paged || a.given(Role::cache_index);
    x_.running = p.has(Option::accumulate);
  }

  Status run() {
    static constinit cuda::SharedMemoryOptIn prepare;
    const int64_t blocks = heads(p_) * x_.padded / sm80::kRowsOfPrepare;
    if (Status s = launcher_({.kernel = cuda::address(sm80::prepare_f32_kernel), .ready = &prepare, .blocks = blocks,
                              .threads = 256},
                             x_);
        !s.ok())
      return s;
    if (a_.given(Role::d_sinks))
      if (Status s = sinks(); !s.ok()) return s;
    // Clears keys that no sequence owns, and sums.
    const bool every = x_.call.uniform && a_[Role::k].extent.seq <= p_.len_k;
    for (const Role r : {Role::dk, Role::dv})
      if (a_.given(r) && !every && !x_.running)
        if (Status s = sm80::clear_rows(launcher_, a_[r]); !s.ok()) return s;
    if (a_.given(Role::d_bias) && !x_.running)
      if (Status s = sm80::clear_rows(launcher_, a_[Role::d_bias]); !s.ok()) return s;
    if (a_.given(Role::dq) || a_.given(Role::d_bias))
      if (Status s = rows(); !s.ok()) return s;
    return a_.given(Role::dk) || a_.given(Role::dv) ? keys() : Status::good();
  }

 private:
  Status sinks() const {
    static constinit cuda::SharedMemoryOptIn ready;
    sm80::BackwardParams x{};
    x.problem = p_, x.args = x_.call.args, x.rows = x_.rows, x.padded = x_.padded, x.running = x_.running;
    return launcher_({.kernel = cuda::address(sm80::sink_kernel), .ready = &ready, .blocks = p_.heads_q,
                      .threads = 256},
                     x);
  }
  Status rows() {
    x_.call.tiles = int(row_tiles(p_));
    return launcher_({.kernel = cuda::address(kernel_.rows[precision_]), .ready = &kernel_.rows_ready[precision_],
                      .blocks = x_.call.tiles * heads(p_), .threads = kernel_.threads,
                      .shared_bytes = kernel_.shared_bytes},
                     x_);
  }
  Status keys() {
    x_.call.tiles = int(key_tiles(p_));
    const bool one_by_one = x_.shared_keys && p_.reproducible != Reproducible::no;
    const int rounds = one_by_one ? p_.batch : 1;
    const int64_t blocks = int64_t(x_.call.tiles) * p_.heads_kv * kernel_.key_ctas * (one_by_one ? 1 : p_.batch);
    for (int b = 0; b < rounds; ++b) {
      x_.call.first_batch = b;
      if (Status s = launcher_({.kernel = cuda::address(kernel_.keys[precision_]),
                                .ready = &kernel_.keys_ready[precision_], .blocks = blocks,
                                .threads = kernel_.threads, .shared_bytes = kernel_.shared_bytes},
                               x_);
          !s.ok())
        return s;
    }
    return Status::good();
  }

  const Problem& p_;
  const Args& a_;
  Kernel& kernel_;
  const cuda::Launcher& launcher_;
  const int precision_;
  F32Gradients x_{};
};

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const cuda::Launcher launcher(kWho, plan.problem, a[Role::q].device_index, stream);
  return launcher.status.ok() ? Run(plan.problem, a, ws, launcher).run() : launcher.status;
}

}  // namespace

extern const Backend sm80_backward_f32{.name = kWho, .supports = supports, .shape = shape, .run = run};

}  // namespace attune
