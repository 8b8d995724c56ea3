// Backward attention for Hopper: what a launch is given, and how a kernel divides registers and shared memory.
#pragma once
#include <cuda.h>

#include <type_traits>

#include "attention/sm90/backward/combine.h"
#include "attention/tile/key_tile.h"
#include "attention/sm90/score_options.h"
#include "attention/tile/transposed_tile.h"

namespace attune::sm90 {

constexpr int kTicketRows = 32;  // as prepare has it, sm80::kTicketRows

// Boxes of rows at the end of a sequence within a tensor.
inline constexpr int kEndParts = 3;
ATTUNE_HD constexpr int rows_of_end_part(int part) { return part == 0 ? 32 : part == 1 ? 8 : 1; }

// Of a list: a query tile of a head. None: a query of -1.
struct KeyVisit { int query, head; };
// Of a list by blocks that stay. None: kNothing.
struct alignas(16) ListedVisit {
  static constexpr int kBegins = 1, kListEnd = 2, kNothing = 4;  // the tile; it has no query
  int query, head, marks;
};
// What the thread that walks lists tells the one that loads.
struct WalkedVisit : ListedVisit {
  int batch, tile, round;  // of the tile of keys; how many the block had before
};
inline constexpr int kVisitsAhead = 4;
// What is walked of a tile of keys.
struct WalkedKeys { int head, batch, number, start, stop; };

// A gradient of keys in f32, straight from registers: of kernels with a table.
struct F32Rows {
  float* data;  // null: in the dtype of q
  int64_t batch, seq, head;
};
inline F32Rows f32_rows(const Tensor& t) {
  if (t.dtype != DType::f32) return {};
  return {static_cast<float*>(t.data), t.stride.batch, t.stride.seq, t.stride.head};
}

// Where blocks stay: counts behind that of tiles taken, and what a warp without other work prepares at a time, padded
// rows of a head (sm90/backward/prepare_ahead.h).
inline constexpr int kJobsTaken = 1, kJobsDone = 2;  // the latter of each head
inline constexpr int kJobRows = 32;

// Of heads that share no keys. `ready`: those that prepare has, of all sequences; no jobs: all.
struct AheadParams {
  int ready, jobs, dim_v;
  int64_t out_step, d_out_step;  // bytes, of as many rows as a warp has at once: 256 / kWide
  float2* stats;
  Tensor out, d_out, lse, d_lse;  // the last if it is given
};

enum class Share { all, parts, pieces };

// Where tiles of keys do not fill their waves, some are divided: a piece has some of the query tiles that see the keys.
// It leaves its sums of dK and dV, key_part(), and the last of a tile adds all of them up.
struct Pieces {
  int begin, divided, each;  // tiles before those that are; those; pieces of each
  float4* sums;              // [tile][piece]
  int* arrived;              // [tile][kPartWarps]: pieces whose sums are there; 0 at first
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
  float* dq;                // [batch][head][padded / 16][kWide / 8] fragments of 16 x 8: sums; or turned
  int rows_of_dq;           // those of a sequence that it has at most: 0 where it is not wanted
  int* tickets;               // of a fixed order: [0] blocks begun, [1 + padded row / 32] blocks that added to the tile
  uint64_t* large_logits;            // has the number of the launch if a row that is ready is far, else anything
  uint64_t launch;
  // Of kernels with parts, where `heads_kv` and `units` count parts, and `group` is the query heads of one.
  uint32_t of_part;         // 2^32 / parts of a head of keys, rounded up
  float4* sums;             // their dK and dV: key_part()
  // Of blocks that stay: tiles taken, in no order but the first of each; with jobs kJobsTaken and kJobsDone too.
  // All are 0 at first.
  int* taken;
  AheadParams ahead;
  Pieces pieces;
};

// Lists by key block, whose size is kTileK.
struct ListedParams : BackwardParams {
  const int32_t *list_begin, *list_row;
  int64_t list_batch, list_head;  // strides of list_begin
  Blocks blocks;
  int most_entries;               // staying: tiles of keys that have more are begun first; INT32_MAX: none has
};

struct TabledParams : ListedParams {
  const KeyTile* table;     // the tiles of a head
  // The end of a sequence within the tensors.
  CUtensorMap q_part[kEndParts], d_out_part[kEndParts], k_part[kEndParts];
  CUtensorMap dk_row, dv_row;
  int rows_q, rows_k;       // of the tensors
  F32Rows f32_dk, f32_dv;
  int dim_qk, dim_v;
  bool has_dk, has_dv;      // wanted; a kernel without a table stores both
  bool accumulate;          // dK and dV are added to what is there, in f32
  bool cleared;             // dK and dV are 0 where nobody sees a key
  // Of kernels with options.
  ScoreOptions score;
  Tensor d_bias;            // f32, added to; no data: not wanted
  float kept_out;           // 1 / kept
};

// What a kernel is compiled for.
struct BackwardConfig {
  int dim = 128;
  int tile_q = 64;        // queries of a step; 80: dQ^T is multiplied, so a tile is any multiple of 16 queries
  // The warpgroups need not be in step: dQ of a query tile is multiplied a step later and added from registers, dV is
  // issued before dS is there.
  bool independent = dim == 64;
  bool tabled = false;    // lengths are in tensors, gradients in f32 or not all wanted
  // Blocks add to a query tile of dQ from its last keys on, one after the other; threads of their own wait for that.
  bool deterministic = false;
  bool options = false;   // those that change scores; then it is tabled too
  bool listed = false;    // query tiles come from lists by key block; then it is tabled, or persistent
  bool persistent = false;
  Share share = Share::all;
};

// How it divides registers and shared memory.
// Statistics of a row are lse_of_weights(), base 2, +inf where it sees nothing, and delta * kept.
// Persistent: a block may have many tiles of keys, each of which, without lists, some query sees; the next keys are
// loaded while dK and dV leave. It takes the next tile that no block has, and the thread that loads tells which. Keys
// have two places where those fit, so that the next are there when it begins. With independent warpgroups dQ of a
// tile's last step is multiplied in the first of the next; deterministic, one thread tells the warps that they may add
// it, and another tells the next block (TicketKeeper).
// Share: what a block has of a tile's work. Parts: some of the heads that share its keys; it leaves its sums of dK and
// dV in f32. Pieces: of some tiles some of the queries (see Pieces); then it is persistent.
// Transposed: dQ^T = K^T dS^T (tile/transposed_tile.h). Sums of a head lie as one tile, so a tile may begin at any 16
// queries, statistics are paired (tile/row_statistics.h), `kept` is 1, and dP begins at -delta instead of 0, so that
// deltas wait in no register.
template <class Number, BackwardConfig C>
struct BackwardLayout {
  using T = Number;
  using Params = std::conditional_t<C.tabled, TabledParams, std::conditional_t<C.listed, ListedParams, BackwardParams>>;
  static constexpr bool kIndependent = C.independent, kTabled = C.tabled, kDeterministic = C.deterministic;
  static constexpr bool kOptions = C.options, kListed = C.listed, kPersistent = C.persistent;
  static constexpr int kDim = C.dim, kTileQ = C.tile_q, kTileK = 128, kStages = 2;
  static constexpr int kBuffers = kIndependent ? 3 : 2;  // of dS
  static constexpr bool kTransposed = kTileQ % 64 != 0, kWalks = kListed && kPersistent;
  static constexpr bool kParts = C.share == Share::parts, kPieces = C.share == Share::pieces;
  static constexpr bool kSkips = kPersistent && !(kIndependent || kTransposed || kListed);  // the first step, if hidden
  static constexpr bool kCarries = kPersistent && kIndependent;          // dQ from keys to keys
  static constexpr bool kTakesTickets = kCarries && kDeterministic;  // dQ leaves from registers
  // Whether a row of the launch is far; else of each tile's weights. With options nobody asks, weights end at 1 anyway.
  // kIndependent and in order there are no registers for it: 4 to 36 bytes would be spilled.
  static constexpr bool kAsksLaunch = !kOptions && (kTakesTickets || !(kIndependent && kDeterministic));
  static_assert(!kTransposed || !(kIndependent || kTabled || kDeterministic));
  static_assert(kTabled || !(kOptions || (kListed && !kPersistent)));
  static_assert(!kWalks || !(kIndependent || kDeterministic || kTransposed));
  static_assert(!kPersistent || !kTabled);
  static_assert(!kParts || !kTabled);
  static_assert(!kParts || kPersistent == kTransposed);
  static_assert(!kPieces || (kPersistent && !kDeterministic));
  static constexpr int kGroups = 2, kThreads = 128 * (1 + kGroups), kWarps = 4 * kGroups;
  static constexpr int kGrain = kTransposed ? 16 : kTileQ;  // query tiles begin at multiples of it
  static constexpr int kRowsAhead = 4;  // turned: pairs of log-sum-exps that are loaded with deltas; 6 fit, 7 spill
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static constexpr int kPanels = (kDim + 63) / 64, kDqPitch = kPanels * 64, kPanelQ = kTileQ * 128,
                       kPanelK = kTileK * 128;
  static constexpr int kBytesQ = kPanels * kPanelQ, kBytesK = kPanels * kPanelK, kBytesStats = kTileQ * 8;
  // dS lies [key][query], in panels of 64 queries. A warp's dQ is 16 rows of 64 columns, in eight fragments.
  static ATTUNE_HD constexpr TransposedTile tile() { return {kTileQ}; }
  static constexpr int kBytesDs = kTransposed ? 2 * TransposedTile{kTileQ}.panel() : kTileQ / 64 * kPanelK;
  static constexpr int kBytesDq = 16 * (kTransposed ? kTileQ : 64) * 4,
                       kSumsDq = kBytesDq / 128;  // of a warp, of a lane
  static constexpr int kPlacesDq = kTakesTickets                 ? 0
                                   : !kDeterministic             ? !kIndependent
                                   : kIndependent || kPersistent ? 1
                                                                 : 2;  // of all warps
  static constexpr int kAdders = kDeterministic ? 2 : 0;  // threads that take them to memory, or keep turns
  static_assert(kAdders >= kPlacesDq || !kDeterministic);
  static_assert(kTileQ / 64 * kPanels == kGroups, "a warpgroup has 64 columns of dQ, or 64 x 64");
  static constexpr int kPlacesK = kPersistent && !kTransposed ? 2 : 1, kPlacesV = kCarries ? 2 : 1;
  static constexpr int kK = 0, kV = kPlacesK * kBytesK, kQ = kV + kPlacesV * kBytesK, kO = kQ + kStages * kBytesQ;
  static constexpr int kDs = kO + kStages * kBytesQ, kDq = kDs + kBuffers * kBytesDs;
  static constexpr int kStats = kDq + kPlacesDq * kWarps * kBytesDq;
  static constexpr int kKFull = kStats + kStages * kBytesStats, kQFull = kKFull + 8 * kPlacesK;
  static constexpr int kQEmpty = kQFull + 8 * kStages;
  static constexpr int kOFull = kQEmpty + 8 * kStages, kOEmpty = kOFull + 8 * kStages;
  static constexpr int kDsFull = kOEmpty + 8 * kStages, kDsEmpty = kDsFull + 8 * kBuffers;
  static constexpr int kDqFull = kDsEmpty + 8 * kBuffers, kDqEmpty = kDqFull + 16;
  static constexpr int kBlock = kDqEmpty + 16, kVisits = kBlock + 16, kKEmpty = kVisits + 8 * kStages;
  static constexpr int kVFull = kKEmpty + 8 * kPersistent * kPlacesK, kVEmpty = kVFull + 8 * kPersistent * kPlacesV;
  static constexpr int kTileFull = kVEmpty + 8 * kPersistent * kPlacesV;  // the tile of each place of K
  static constexpr int kTile = kTileFull + 8 * kPersistent * kPlacesK;
  static constexpr int kLargeLogitsOfTile = kTile + 8 * kPersistent;  // not 0 if a row of the launch is far
  static constexpr int kLargeLogitsOfWarp = kLargeLogitsOfTile + 8 * kPersistent;  // [kWarps]: the same
  static constexpr int kTicket = kLargeLogitsOfWarp + 4 * kWarps;  // of two steps
  static constexpr int kEnd = kTicket + 16 * kTakesTickets;
  static constexpr int kListedVisits = (kEnd + 15) / 16 * 16;
  static constexpr int kWalkedVisits = kListedVisits + kStages * int(sizeof(ListedVisit));
  static constexpr int kVisitFull = kWalkedVisits + kVisitsAhead * int(sizeof(WalkedVisit));
  static constexpr int kVisitEmpty = kVisitFull + 8 * kVisitsAhead;
  static constexpr int kWalked = kVisitEmpty + 8 * kVisitsAhead;
  static constexpr int kSharedBytes = kWalks ? kWalked + int(sizeof(WalkedKeys)) : kEnd;
  static_assert(!kSkips || kPlacesK == 2);  // a phase of kDsFull for each place
  static_assert(kSharedBytes <= 227 * 1024);
};

}  // namespace attune::sm90
