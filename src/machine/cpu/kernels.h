// SPDX-License-Identifier: Apache-2.0
// The small loops of attention as a table of functions, with the same names for every instruction set. The algorithm
// (attention/cpu/) handles tiles, masks, the online softmax and threads, and uses no instructions. A file of an
// instruction set handles instructions and data layouts, and nothing else. A call does thousands of multiply-adds, so
// the indirection is free, and code for one instruction set cannot reach a CPU that lacks it.
//
// A *panel* is `rows` rows (the height of a register tile); a *tile* is up to `tile` keys, in multiples of `keys`.
// Packed operands and the panels s, p and o have the order that suits the registers. They are opaque to the algorithm,
// except that s and p advance by `rows` elements per key and packed k by padded(dim) elements per key, in steps of
// `keys`. In a forward a panel's rows are queries and the tile's keys are keys; a backward runs the same loops with the
// two exchanged. References are integers (or -inf): any reference near the maximum is as good, and an integer joins the
// range reduction of exp2 at no cost.
#pragma once
#include <cstdint>

#include "core/device.h"

namespace attune {

// Keys [first, first + n) of a packed v.
struct KeyRun {
  const void* v;
  int first, n;
};

struct CpuKernels {
  const char* isa;       // "neon"
  uint32_t needs;        // required feature bits
  DType dtype;           // of q, k and v in memory
  int rows, keys, tile;  // tile is a multiple of keys; rows is a multiple of 4
  int dim_step;          // dims are padded to a multiple of this
  int operand_bytes;     // size of an element of a packed operand and of p
  bool scale_in_q;       // the softmax scale goes into packed q, not into `weights`

  // Packing. Rows are given by address. Rows from n up to a whole panel or a multiple of `keys` become 0, and so do
  // dims beyond `dim`.
  void (*pack_q)(const void* const* rows, int n, int dim, float scale, void* q);  // one panel
  void (*pack_k)(const void* const* rows, int n, int dim, void* k);               // one tile, for `scores`
  // One tile with a capacity of `capacity` keys (at least n, a multiple of `keys`), for `accumulate`.
  void (*pack_v)(const void* const* rows, int n, int dim, void* v, int capacity);

  // s = q k^T for a panel and n keys (a multiple of `keys`), and the maximum of each row.
  void (*scores)(const void* q, const void* k, int n, int dim, float* s, float* top);
  // s[r][j] = -inf unless first[r] <= j < last[r]; recomputes the maximum of each row.
  void (*hide)(float* s, int n, const int* first, const int* last, float* top);
  // p = exp2(s * scale - ref), sum += the sum of each row. A reference of -inf counts as 0.
  void (*weights)(const float* s, int n, float scale, const float* ref, float* sum, void* p);
  // A weight as rounded in p, if p is not f32; sums use the weights before rounding. Null: not rounded.
  float (*rounded_weight)(float) = nullptr;
  // o[r] *= factor[r]
  void (*rescale)(float* o, int dim, const float* factor);
  // o += p v over keys [first, first + n) of a tile packed with `capacity`; p begins at key `first`
  void (*accumulate)(const void* p, const void* v, int capacity, int first, int n, int dim, float* o);
  // The same over several runs of keys, each in its own tile packed with `capacity`; p continues from one run to the
  // next. Null if an instruction set gains nothing: cpu::accumulate() then adds run by run.
  void (*accumulate_runs)(const void* p, const KeyRun* runs, int count, int capacity, int dim, float* o) = nullptr;
  // `scores` and `accumulate` for a panel composed of smaller panels of four rows, whose operands or sums lie at any
  // addresses; s and p are whole panels. Null if an instruction set has no such panels.
  void (*scores_gathered)(const void* const* q, const void* k, int n, int dim, float* s, float* top) = nullptr;
  void (*accumulate_scattered)(const void* p, const void* v, int capacity, int n, int dim, float* const* o) = nullptr;
  // o[r] += x for one row; dim is that of o
  void (*add_row)(const float* x, int dim, int r, float* o);
  // to[r * stride + d] = o[r][d] * factor[r], for the first n rows
  void (*unpack)(const float* o, int dim, const float* factor, int n, float* to, int64_t stride);
  // The same in `dtype`, to rows at any addresses. Null: cpu::store_panel() unpacks and narrows.
  void (*store)(const float* o, int dim, const float* factor, int n, char* const* to) = nullptr;
  // to[r][d] = o[r][d] * factor[r] + to[r][d] * before[r], not read if before[r] is 0; rows at any addresses. Null:
  // rows are unpacked and joined in a loop.
  void (*join)(const float* o, int dim, const float* factor, const float* before, int n, char* const* to) = nullptr;
  // to[r][d] += o[r][d] * factor, for the first n rows, at any addresses. Null: cpu::add_panel() unpacks and adds.
  void (*add)(const float* o, int dim, float factor, int n, float* const* to) = nullptr;

  // For up to four rows, which would leave a panel almost empty: on rows of k and v by address, without packing. q, s,
  // p and o are plain rows of f32. Null: rows always come in panels.
  // s[r * stride + j] = q[r] k[j] for n keys
  void (*row_scores)(const float* q, int rows, const void* const* k, int n, int dim, float* s, int stride) = nullptr;
  // s = exp2(s - ref) in place for n keys of one row (a multiple of 16); returns their sum
  float (*row_weights)(float* s, int n, float ref) = nullptr;
  // o[r] += p[r * stride + j] v[j] over n keys
  void (*row_accumulate)(const float* p, int rows, int stride, const void* const* v, int n, int dim,
                         float* o) = nullptr;

  // Backward, where the tile's keys are queries: p = exp2(s * scale - lse[j]), ds = p (dp - delta[j]). An lse of +inf
  // gives 0. Returns the sum of ds, in f32.
  using Gradients = float(const float* s, const float* dp, int n, float scale, const float* lse, const float* delta,
                          void* p, void* ds);
  Gradients* gradients;
  // The same with exponentials as accurate as f32 allows, for a sum whose terms cancel. Null: those of `gradients`
  // already are.
  Gradients* summed_gradients = nullptr;
  // Transposes the panel `ds` of n queries and its keys into panels of `rows` queries (of this size or the other); the
  // panel of query j is at to + (j / rows) * panel elements. Its keys begin at key `at`, where a panel of keys begins.
  void (*transpose)(const void* ds, int n, void* to, int rows, int64_t panel, int at);

  // Converts between the opaque panels and plain rows, for options without a loop of their own (softcap, bias, ALiBi,
  // dropout): plain[r * stride + j] = s[r][j], and back; and p[r][j] = plain[r * stride + j].
  void (*read_scores)(const float* s, int n, float* plain, int64_t stride);
  void (*write_scores)(const float* plain, int64_t stride, int n, float* s);
  void (*write_weights)(const float* plain, int64_t stride, int n, void* p);

  // Converts rows to and from f32.
  void (*widen)(const void* from, int64_t n, float* to);
  void (*narrow)(const float* from, int64_t n, void* to);
  // True if n rows of `dim` numbers (a multiple of 8) hold neither NaN nor infinity.
  bool (*finite)(const void* const* rows, int n, int dim);
  // Dot product of two rows of `dtype`. Null: cpu::dot_of() widens them.
  float (*dot)(const void* a, const void* b, int n) = nullptr;
};

// The best kernels for a dtype that a device can run; null if this build has none.
const CpuKernels* best_kernels(DType, uint32_t features);
// The kernels of the same instruction set with the next smaller panels, slightly slower per row: for rows that would
// leave a panel half empty. Packed k and v are the same for both, and so are the bits of a row. Null if there is only
// one size.
const CpuKernels* smaller_panels(const CpuKernels&);

// The tables of each file, in the order f32, f16, bf16; with several panel sizes, all of the larger first. A file not
// built for this processor is not linked.
extern const CpuKernels kScalarKernels[3];
extern const CpuKernels kNeonKernels[6];
extern const CpuKernels kNeonBf16Kernels[3];
extern const CpuKernels kAvx2Kernels[3];
extern const CpuKernels kAvx512Kernels[3];
extern const CpuKernels kAvx512Bf16Kernels[1];
extern const CpuKernels kAmxKernels[1];

}  // namespace attune
