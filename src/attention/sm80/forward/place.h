// What the forward kernels of sm80 are given, and which rows and keys a block of threads has.
#pragma once
#include "attention/gpu/byte_rows.h"
#include "core/args.h"
#include "core/divisor.h"

namespace attune::sm80 {

// What a block needs to find its place comes first, side by side: constants are fetched by the line, and a short
// sequence is mostly the way to its first load.
struct ForwardParams {
  ByteRows q, k, v, out;  // of paged keys: data only
  Divisor group;          // query heads that share a block's rows, ordered (position, head); 1: a block has one head
  Divisor row_blocks;     // of one unit; a unit is `group` heads of one sequence
  Divisor splits;
  Divisor units;          // of one sequence
  Divisor batch;
  Divisor heads_per_key;
  Divisor pieces;         // key tiles of a block of the list
  const int32_t* order;   // of a list: which place a block takes; null: its own
  uint32_t decode_rows;      // sequences of at most so many (position, head of a key head) rows are the decode kernels'
  bool uniform;           // every sequence is `seq` but for its place in the batch: no lengths in tensors
  Sequence seq;
  Problem problem;
  DenseArgs args;
  float* partial_out;     // [split][batch][head][query][dim_v], where splits > 1
  float* partial_lse;     // [split][batch][head][query]
  uint32_t* arrived;      // [batch][unit][row block], 0 before and after
};

// Which rows and keys a block has. In shared memory once the first loads are on their way: it is read at the edges of
// the loop, where registers are dear.
struct ForwardPlace {
  Sequence seq;
  int64_t from, until;        // query i sees the keys from i + from until i + until, where they stand one apart
  int b, unit, split, block;
  int head_q, head_kv;
  int first, rows;            // of the unit's rows
  int first_tile, tiles;      // key tiles of this split
  int open_first, open_last;  // keys that every row of the block sees
  const int32_t* column;      // of a list: the key blocks of the rows
  const char *k, *v;          // where key 0 of the sequence lies, unless keys are paged
  char *q, *out;              // where row `first` lies; rows follow each other unless heads share the block
};

}  // namespace attune::sm80
