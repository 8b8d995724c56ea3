// SPDX-License-Identifier: Apache-2.0
// Compression of native sparse attention on a GPU: code shared by its kernels. A row is one compressed token of one
// sequence, numbered (sequence, token) by the problem's bounds.
#pragma once
#include "core/divisor.h"
#include "core/variant/nsa.h"
#include "machine/cuda/launcher.h"
#include "machine/cuda/vec16.h"
#include "plan/backend.h"

namespace attune::compress {

inline constexpr std::string_view kWho = "cuda_compress";
inline constexpr int kThreads = 256, kVec = 8;
inline constexpr int64_t kMostBlocks = 132 * 64;  // above, threads take several vectors

struct Params {
  Nsa nsa;
  Problem problem;
  DenseArgs args;
  Tensor raw, out;  // q, and out or d_out
  Tensor d_raw;     // dq
  Tensor weights[5], gradients[5];
  Divisor vectors;  // of a row of one head
  Divisor heads;
  Divisor rows;     // per sequence, upper bound: compressed tokens, raw tokens, or groups of d raw tokens
  int64_t all;      // vectors of all rows

  // Gradient of the taps: stages of a sum.
  float* partial;  // [split][head][l][dim]
  int32_t row_splits, split_rows;

  // The MLP, f32 and without gaps: a chunk is d raw tokens of one head, and the token at row n sees the chunks n ... n
  // + l / d - 1. Rows are (head, sequence, chunk).
  float *chunks, *hidden, *tokens;  // [row][d dim], [row][width], [row][dim]
  float *d_chunks, *d_hidden;
  float *w1, *w2;                   // [width][l dim], [dim][width]
  float *d_w1, *d_w2;
  float *offset;                    // [width]: b1 + w1 position
  float *sum_b1, *sum_b2;           // [split][width], [split][dim]: partial gradients of b1 and b2
};

using Function = void (*)(Params);

__device__ inline CompressSequence sequence_of(const Params& x, int b) {
  return compress_sequence(x.problem, x.args, x.nsa, b, x.out.extent.seq);
}

// The vector, row and head of a thread.
struct Spot { int b, i, h, column; };
template <int Width>
__device__ inline Spot spot_of(const Params& x, int64_t n) {
  const uint32_t row = x.all <= INT32_MAX ? x.vectors.divide(uint32_t(n)) : uint32_t(n / x.vectors.by);
  const uint32_t token = x.heads.divide(row);
  return {int(x.rows.divide(token)), int(x.rows.rest(token)), int(x.heads.rest(row)),
          int(n - int64_t(row) * x.vectors.by) * Width};
}
__device__ inline char* vector_at(const Tensor& t, int b, int s, int h, int column) {
  return row_address(t, b, s, h) + int64_t(column) * size_of(t.dtype);
}

Status launch(const cuda::Launcher&, Function, const Params&, int64_t blocks);

// The MLP, in gpu/nsa/compress_mlp.cu.
Status mlp_supports(const Problem&);
void mlp_carve(Workspace&, const Problem&, Params&, std::byte*& scratch);
Status mlp_run(const cuda::Launcher&, Params&, std::byte* scratch);

}  // namespace attune::compress
