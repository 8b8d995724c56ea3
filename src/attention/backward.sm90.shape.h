// Backward attention for Hopper: what a launch is given, and how a kernel divides registers and shared memory.
#pragma once
#include <cuda.h>

#include <type_traits>

#include "attention/key_tile.h"
#include "attention/score_options.sm90.h"
#include "attention/turned_tile.h"

namespace attune::sm90 {

constexpr int kTurnRows = 32;  // as prepare has it, sm80::kTurnRows

// Boxes of rows at the end of a sequence within a tensor.
inline constexpr int kEndParts = 3;
ATTUNE_HD constexpr int rows_of_end_part(int part) { return part == 0 ? 32 : part == 1 ? 8 : 1; }

// Of a list: a query tile of a head. None: a query of -1.
struct KeyVisit { int query, head; };

// A gradient of keys in f32, straight from registers: of kernels with a table.
struct WideRows {
  float* data;  // null: in the dtype of q
  int64_t batch, seq, head;
};
inline WideRows wide_rows(const Tensor& t) {
  if (t.dtype != DType::f32) return {};
  return {static_cast<float*>(t.data), t.stride.batch, t.stride.seq, t.stride.head};
}

// What a kernel may do otherwise than those of the library, a bit each: bench/backward_tricks.cu times them.
enum Trick {
  kTrickBand = 1,   // turned tiles with a band: they begin at any 16 queries, and sums of a head lie as one such tile
  kTrickKeep = 2,   // sums of dQ are the last to leave the second-level cache
  kTrickSplit = 4,  // the first scores do not wait for v
  kTrickPairs = 8,  // statistics lie as two log-sum-exps and two deltas: half as many loads
  kTrickLots = 16,  // prepare and finish of all heads but the first and last are blocks of this launch
  kTrickAhead = 32,  // apart: some log-sum-exps are loaded before scores are waited for
};

// What every kernel is given; those without a table no more.
struct BackwardParams {
  CUtensorMap q, d_out;     // boxes of kTileQ rows
  CUtensorMap k, v;         // of kTileK rows
  CUtensorMap dk, dv;       // of 16 rows
  CUtensorMap stats;        // of kTileQ rows
  float scale2;             // of the products, in base 2
  float kept, scale_k;      // a power of two that dS is kept times; the scale of dK, without it
  int rows, keys;           // of a sequence
  int heads, heads_kv, group;
  int low, high;            // as KeyTile has them
  int tiles;                // of keys, in a sequence; of a table: of a head
  int units, section;       // heads of keys, of all sequences; blocks go section by section of them, tile by tile
  int padded;               // rows of a head in dQ and in the statistics: all of whole tiles
  float* dq;                // [batch][head][padded / 16][kWide / 8] fragments of 16 x 8: sums; or turned tiles
  int rows_of_dq;           // those of a sequence that it has at most: 0 where it is not wanted
  int* turns;               // of a fixed order: [0] blocks begun, [1 + padded row / 32] blocks that added to the tile
  const uint64_t* far;      // has the number of the launch if prepare met a far row, else anything
  uint64_t launch;
};

// Of kernels whose launch has blocks of prepare and finish too: heads of keys go in lots. While one is multiplied, rows
// of the next are prepared and dQ of the last but one leaves.
struct StridedRows {
  void* data;
  int64_t batch, seq, head;
};
inline StridedRows strided_rows(const Tensor& t) { return {t.data, t.stride.batch, t.stride.seq, t.stride.head}; }
struct LotParams : BackwardParams {
  int lots, lot_units;       // heads of keys of a lot
  int lot_chunks, chunk;     // so many blocks prepare a lot, rows of each; likewise finish
  uint32_t span, by_span;    // blocks of a lot, with those others; 2^32 / span, rounded up
  uint32_t others;           // 2^16 * others of a block, rounded up
  int* counts;               // [2][lots]: blocks that have prepared a lot, warps that have added all of theirs
  StridedRows from_out, from_d_out, from_lse, to_dq;
  float2* stats_rows;
  float scale;               // of dQ
  int dim_qk, dim_v;
  uint64_t* far_found;
};

struct TabledParams : BackwardParams {
  const KeyTile* table;     // the tiles of a head
  // The end of a sequence within the tensors.
  CUtensorMap q_part[kEndParts], d_out_part[kEndParts], k_part[kEndParts];
  CUtensorMap dk_row, dv_row;
  int rows_q, rows_k;       // of the tensors
  WideRows wide_dk, wide_dv;
  int dim_qk, dim_v;
  bool has_dk, has_dv;      // wanted; a kernel without a table stores both
  bool accumulate;          // dK and dV are added to what is there, in f32
  bool cleared;             // dK and dV are 0 where nobody sees a key
  // Of kernels with lists: by key block, whose size is kTileK.
  const int32_t *list_begin, *list_row;
  int64_t list_batch, list_head;  // strides of list_begin
  Blocks blocks;
  // Of kernels with options.
  ScoreOptions score;
  Tensor d_bias;            // f32, added to; no data: not wanted
  float kept_out;           // 1 / kept
};

// Statistics of a row are lse_of_weights(), base 2, +inf where it sees nothing, and delta * kept.
// Apart: the warpgroups need not be in step. dQ of a query tile is multiplied a step later and added from registers, dV
// is issued before dS is there.
// Tabled: lengths are in tensors, gradients in f32 or not all wanted. Options: those that change scores; then there is
// a table too. Ordered: blocks add to a query tile of dQ from its last keys on, one after the other; threads of their
// own wait for that. Listed: query tiles come from lists by key block; then there is a table too. Stays: a block takes
// each gridDim.x-th tile of keys, every one of which some query sees; the next keys are loaded while dK and dV leave.
// If ordered too, it takes each gridDim.x-th head with all its tiles, so that nobody waits for another.
// Turned: dQ is multiplied turned (turned_tile.h), so a tile is any multiple of 16 queries. There `kept` is 1, and dP
// begins at -delta instead of 0, so that deltas wait in no register; every query sees every key, unless with a trick.
// Tricks: of kTrick...
template <class Number, int Dim, int TileQ, bool Apart, bool Tabled = false, bool Ordered = false,
          bool Options = false, bool Listed = false, bool Stays = false, int Tricks = 0>
struct BackwardShape {
  using T = Number;
  static constexpr bool kLots = Tricks & kTrickLots, kPairs = Tricks & kTrickPairs;
  using Params = std::conditional_t<Tabled, TabledParams, std::conditional_t<kLots, LotParams, BackwardParams>>;
  static constexpr int kDim = Dim, kTileQ = TileQ, kTileK = 128, kStages = 2, kBuffers = Apart ? 3 : 2;  // of dS
  static constexpr bool kApart = Apart, kTabled = Tabled, kOrdered = Ordered, kOptions = Options;
  static constexpr bool kListed = Listed, kStays = Stays, kTurned = TileQ % 64 != 0;
  static constexpr bool kTurnedBand = kTurned && (Tricks & kTrickBand), kKeepsDq = Tricks & kTrickKeep;
  static constexpr bool kSplit = Tricks & kTrickSplit;
  // Whether a row of the launch is far; else of each tile's weights. With options nobody asks, weights end at 1 anyway.
  // Apart and in order there are no registers for it: 4 to 36 bytes would be spilled.
  static constexpr bool kAsksLaunch = !Options && !(Apart && Ordered);
  static_assert(!kTurned || !(Apart || Tabled || Ordered || Stays));
  static_assert(Tabled || !(Options || Listed));
  static_assert(!Stays || !(Tabled || (Ordered && !Apart)));
  static_assert(!kLots || !(Tabled || Ordered || Stays));
  static constexpr int kGroups = 2, kThreads = 128 * (1 + kGroups), kWarps = 4 * kGroups;
  // Of eight queries each: those whose log-sum-exps are loaded before scores are waited for.
  static constexpr int kSumsAhead = Options || kTurned ? 0 : !Apart ? TileQ / 8 : Tricks & kTrickAhead ? 8 : 0;
  static constexpr int kRowsAhead = 4;  // turned: pairs of log-sum-exps that are loaded with deltas; 6 fit, 7 spill
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static constexpr int kPanels = (Dim + 63) / 64, kWide = kPanels * 64, kPanelQ = TileQ * 128, kPanelK = kTileK * 128;
  static constexpr int kBytesQ = kPanels * kPanelQ, kBytesK = kPanels * kPanelK, kBytesStats = TileQ * 8;
  // dS lies [key][query], in panels of 64 queries. A warp's dQ is 16 rows of 64 columns, in eight fragments.
  static ATTUNE_HD constexpr TurnedTile tile() { return {TileQ}; }
  static constexpr int kBytesDs = kTurned ? 2 * TurnedTile{TileQ}.panel() : TileQ / 64 * kPanelK;
  static constexpr int kBytesDq = 16 * (kTurned ? TileQ : 64) * 4, kSumsDq = kBytesDq / 128;  // of a warp, of a lane
  static constexpr int kPlacesDq = !Ordered ? !Apart : Apart ? 1 : 2;  // of all warps
  static_assert(TileQ / 64 * kPanels == kGroups, "a warpgroup has 64 columns of dQ, or 64 x 64");
  static constexpr int kK = 0, kV = kBytesK, kQ = 2 * kBytesK, kO = kQ + kStages * kBytesQ;
  static constexpr int kDs = kO + kStages * kBytesQ, kDq = kDs + kBuffers * kBytesDs;
  static constexpr int kStats = kDq + kPlacesDq * kWarps * kBytesDq;
  static constexpr int kKFull = kStats + kStages * kBytesStats, kQFull = kKFull + 8, kQEmpty = kQFull + 8 * kStages;
  static constexpr int kOFull = kQEmpty + 8 * kStages, kOEmpty = kOFull + 8 * kStages;
  static constexpr int kDsFull = kOEmpty + 8 * kStages, kDsEmpty = kDsFull + 8 * kBuffers;
  static constexpr int kDqFull = kDsEmpty + 8 * kBuffers, kDqEmpty = kDqFull + 16;
  static constexpr int kBlock = kDqEmpty + 16, kVisits = kBlock + 16, kKEmpty = kVisits + 8 * kStages;
  static constexpr int kVFull = kKEmpty + 8 * Stays;  // where v is waited for by itself
  static constexpr int kFarOfWarp = kVFull + 8 * kSplit;  // [kWarps]: not 0 if a row of the launch is far
  static constexpr int kSharedBytes = kFarOfWarp + 4 * kWarps;
  static_assert(kSharedBytes <= 227 * 1024);
};

}  // namespace attune::sm90
