// SPDX-License-Identifier: Apache-2.0
// Parameters of selected attention on a GPU, for every kernel.
#pragma once
#include "attention/gpu/byte_rows.h"
#include "core/divisor.h"
#include "core/score.h"
#include "core/variant/nsa.h"

namespace attune::sm80 {

struct SelectedParams {
  ByteRows q, k, v;
  ByteRows out;             // backward: dq
  ByteRows d_out;           // backward
  ByteRows blocks;          // [batch, token, KV head][n] i32
  Divisor group;            // query heads per KV head
  Divisor row_blocks;       // per sequence and KV head
  Divisor splits;           // splits of every token's list
  Divisor heads_kv;
  int rows;                 // per CTA, at most the rows of its warps; whole tokens unless a token has more
  int n, size;              // entries per token's list, and keys per block
  int stages;
  float scale;              // includes log2(e)
  bool uniform;             // all sequences equal `seq` except for the batch index: no lengths in tensors
  Sequence seq;
  float* partial_out;       // [split][batch][head][token][dim_v], if splits > 1
  float* partial_lse;       // [split][batch][head][token]
  const float2* row_stats;  // backward: [batch][head][padded] lse_of_weights() in base 2, and delta
  int padded;
  Problem problem;
  DenseArgs args;

  __device__ Sequence sequence_of(int b) const {
    if (!uniform) return sequence(problem, args, b);
    Sequence s = seq;
    s.q_batch = s.k_batch = b;
    return s;
  }
  __device__ int64_t partial_row(int split, int b, int head, int token) const {
    return ((int64_t(split) * problem.batch + b) * problem.heads_q + head) * problem.len_q + token;
  }
};

// Number of leading keys that a token sees. k_step is 1 here, so no division is needed.
__device__ inline int keys_seen(const Sequence& s, int token) {
  return clamp(s.band.q_position(token) + s.band.right - s.band.k_first + 1, 0, s.len_k);
}

inline int heads_per_key(const Problem& p) { return p.heads_q / p.heads_kv; }

}  // namespace attune::sm80
