// SPDX-License-Identifier: Apache-2.0
// Lengths of compressed tokens, computed on the device of the raw lengths: a composition must not read them on the
// host. One small launch on a GPU.
#pragma once
#include "core/variant/nsa.h"

namespace attune {

struct NsaLengths {
  Nsa nsa{};
  int batch = 0, rows_q = 0;        // rows_q: queries per sequence without cu_q and used_q
  Tensor cu_q{}, used_q{}, used_k{};  // as in Args; any may be missing
  Tensor cu{};                      // [batch + 1] i32: first compressed row of each sequence, floor(cu_q / d); or none
  Tensor used{};                    // [batch] i32: its number of compressed rows
  Tensor positions{};               // [batch, 2] i64: positions of query 0 and raw token 0
};

// Computes one sequence; b == batch has only a cu.
ATTUNE_HD inline void nsa_lengths_of(const NsaLengths& x, int b) {
  const int32_t* cu = static_cast<const int32_t*>(x.cu_q.data);
  if (x.cu.data) static_cast<int32_t*>(x.cu.data)[b] = (cu[b] > 0 ? cu[b] : 0) / x.nsa.d;
  if (b == x.batch) return;
  int64_t len_q = cu ? int64_t(cu[b + 1]) - cu[b] : x.rows_q;
  if (x.used_q.data) len_q = *view<const int32_t>(x.used_q).row(b, 0, 0);
  const int64_t tokens = x.used_k.data ? *view<const int32_t>(x.used_k).row(b, 0, 0) : len_q;
  static_cast<int32_t*>(x.used.data)[b] = clamp(x.nsa.compressed(tokens), 0, INT32_MAX);
  static_cast<int64_t*>(x.positions.data)[2 * b] = tokens - len_q;
  static_cast<int64_t*>(x.positions.data)[2 * b + 1] = 0;
}

Status nsa_lengths(const NsaLengths&, void* stream);

namespace cuda {
Status nsa_lengths(const NsaLengths&, void* stream);
}

}  // namespace attune
