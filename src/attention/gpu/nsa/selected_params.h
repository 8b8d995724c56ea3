// The parameters of selected attention on a GPU, whichever kernel runs.
#pragma once
#include "attention/gpu/byte_rows.h"
#include "core/divisor.h"
#include "core/score.h"
#include "core/variant/nsa.h"

namespace attune::sm80 {

struct SelectedParams {
  ByteRows q, k, v;
  ByteRows out;           // of a backward: dq
  ByteRows d_out;         // of a backward
  ByteRows blocks;        // [batch, token, head of keys][n] i32
  Divisor group;          // query heads of a key head
  Divisor row_blocks;     // of one unit: a sequence and a head of keys
  Divisor splits;         // parts of every token's list
  Divisor heads_kv;
  int rows;               // of a block, at most those of its warps; whole tokens unless a token has more
  int n, size;            // entries of a token's list, and keys of a block
  int stages;
  float scale;            // log2 e folded in
  bool uniform;           // every sequence is `seq` but for its place in the batch: no lengths in tensors
  Sequence seq;
  float* partial_out;     // [split][batch][head][token][dim_v], where splits > 1
  float* partial_lse;     // [split][batch][head][token]
  const float2* row_stats;     // of a backward: [batch][head][padded] lse_of_weights(), base 2, and delta
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

// How many of the first keys a token sees. Keys stand one apart here, so that there is no division.
__device__ inline int keys_seen(const Sequence& s, int token) {
  return clamp(s.band.q_position(token) + s.band.right - s.band.k_first + 1, 0, s.len_k);
}

inline int heads_per_key(const Problem& p) { return p.heads_q / p.heads_kv; }

// What `sequence` reads on the GPU: without it the host knows the one sequence that all are alike.
inline bool uniform_lengths(const Args& a) {
  for (const Role r : {Role::cu_q, Role::cu_k, Role::used_q, Role::used_k, Role::left_pad, Role::cache_index})
    if (a.given(r)) return false;
  return true;
}

}  // namespace attune::sm80
