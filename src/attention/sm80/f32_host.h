// SPDX-License-Identifier: Apache-2.0
// Host code shared by the two f32 backends: the problems they support and the parameters of their kernels.
#pragma once
#include <algorithm>

#include "attention/gpu/refusal.h"
#include "attention/sm80/f32.h"
#include "core/check.h"
#include "machine/cuda/launcher.h"
#include "plan/backend.h"

namespace attune::sm80 {

inline constexpr int kF32MaxDim = 256;
inline constexpr int64_t kF32MostBlocks = INT32_MAX;

inline cuda::Refusal f32_refusal(std::string_view who, Pass pass, const Problem& p, const Device& d) {
  cuda::Refusal r(who, p, d);
  r.needs_arch_from(80).pass(pass).no_variant().without({Option::descale});
  for (const DType t : {p.dtype.q, p.dtype.kv, p.dtype.out, p.dtype.grad})
    r.require(t == DType::f32 || t == DType::none, "dtypes ", name(p.dtype), " are not all f32");
  r.require(p.precision != Precision::full, "computes with precision=tf32 or tf32x3, not with full");
  for (const int dim : {p.dim_qk, p.dim_v}) r.require(dim <= kF32MaxDim, "dim ", dim, " is over ", kF32MaxDim);
  return r;
}

// True if every loaded row starts at a multiple of 16 bytes and its length is a multiple of 16 bytes.
inline bool rows_aligned16(const Args& a) {
  for (const Role r : {Role::q, Role::k, Role::v, Role::d_out}) {
    if (!a.given(r)) continue;
    const Tensor& t = a[r];
    if (reinterpret_cast<uintptr_t>(t.data) % 16) return false;
    for (const int64_t step : {t.stride.batch, t.stride.seq, t.stride.head, int64_t(t.extent.dim)})
      if (step % 4) return false;
  }
  return true;
}

// Number of tiles in `length`; with a block list, tiles do not cross blocks.
inline int64_t f32_tiles(int64_t length, int64_t block, int64_t tile) {
  return block ? ceil_div(length, block) * ceil_div(block, tile) : ceil_div(length, tile);
}

inline F32Call f32_call(const Problem& p, const Args& a) {
  F32Call x{.problem = p, .args = dense(a), .aligned16 = rows_aligned16(a), .options = needs_general(p)};
  x.uniform = p.keys == KeySource::linear && !has_sequence_tensors(a);
  if (x.uniform) x.seq = sequence(p, a, 0);
  return x;
}

}  // namespace attune::sm80
