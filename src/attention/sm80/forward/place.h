// SPDX-License-Identifier: Apache-2.0
// Parameters of the sm80 forward kernels, and the rows and keys of one CTA.
#pragma once
#include "attention/gpu/byte_rows.h"
#include "core/args.h"
#include "core/divisor.h"

namespace attune::sm80 {

// The fields that locate a CTA's work come first and contiguously: constants are fetched by cache line, and for short
// sequences the time to the first load dominates.
struct ForwardParams {
  ByteRows q, k, v, out;    // paged keys: data pointer only
  Divisor group;            // query heads packed into a CTA's rows, ordered (position, head); 1: one head per CTA
  Divisor row_blocks;       // per packed head: `group` query heads of one sequence
  Divisor splits;
  Divisor packed_heads;     // per sequence
  Divisor batch;
  Divisor heads_per_key;
  Divisor tiles_per_block;  // key tiles per key block of the list
  const int32_t* order;     // block list: work item of each CTA; null: its own index
  uint32_t decode_rows;     // sequences of at most this many (position, head) rows go to the decode kernels
  bool uniform;             // all sequences equal `seq` except for the batch index: no lengths in tensors
  Sequence seq;
  Problem problem;
  DenseArgs args;
  float* partial_out;       // [split][batch][head][query][dim_v], where splits > 1
  float* partial_lse;       // [split][batch][head][query]
  uint32_t* arrived;        // [batch][packed head][row block], 0 before and after
};

// The rows and keys of a CTA. Moves to shared memory once the first loads are in flight: it is read only at the edges
// of the loop, where registers are scarce.
struct ForwardPlace {
  Sequence seq;
  int64_t from, until;        // query i sees keys [i + from, i + until) if k_step is 1
  int b, packed_head, split, block;
  int head_q, head_kv;
  int first, rows;            // range within the rows of the packed head
  int first_tile, tiles;      // key tiles of this split
  int open_first, open_last;  // range of keys that every row of the CTA sees
  const int32_t* column;      // block list: key blocks of the rows
  const char *k, *v;          // address of key 0 of the sequence, unless keys are paged
  char *q, *out;              // address of row `first`; rows are contiguous unless heads share the CTA
};

}  // namespace attune::sm80
