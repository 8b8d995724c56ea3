// Forward attention for Hopper: what a launch is given, and how a kernel divides registers and shared memory.
#pragma once
#include <cuda.h>

#include "attention/sm90/forward/combine.h"
#include "attention/tile/query_tile.h"
#include "attention/sm90/score_options.h"

namespace attune::sm90 {

// Boxes of v at the end of a sequence within the tensor.
inline constexpr int kParts = 3;
ATTUNE_HD constexpr int rows_of_part(int part) { return part == 0 ? 32 : part == 1 ? 8 : 1; }

struct ForwardParams {
  CUtensorMap q, k, v, out;
  CUtensorMap v_part[kParts];
  CUtensorMap out_row;                // a box of one row
  float scale;                        // of the products, in base 2
  int rows, keys, heads;              // queries and keys of a sequence
  int units;                          // (sequence, head) pairs; of a table: heads, or 1 where it has all of them
  int heads_per_key;
  // Where queries are few, a tile has those of some heads that share keys: its row r is row r & row_mask of its head
  // r >> row_shift, and `heads`, `heads_per_key` and the heads of units count such tiles.
  int packed, row_mask, row_shift;
  int left, right, offset;            // key j is seen by query i where i + offset - left <= j <= i + offset + right
  int tiles_of_unit;                  // of queries
  int section_heads;                  // tiles are taken section by section of heads, so that their keys stay in cache
  bool longest_first;
  StreamK stream_k;                      // of the last tiles; their parts, where blocks leave them
  float4* parts;
  bool fixed;                         // block n has the tiles n, n + blocks, ...: no counter
  unsigned long long epoch;           // of this launch, in the upper bits of both counters
  unsigned long long* counters;       // [2]: tiles taken and blocks gone, in memory of any content
  const QueryTile* table;             // where lengths or lists are in tensors: the tiles of a unit, longest first
  const int* table_tiles;             // how many
  const int* column;                  // of lists
  int pieces_shift;                   // of a list for each warpgroup: log2 of the key tiles of a block
  bool one_list;                      // for both of them
  int k_rows, k_heads, k_batches;     // of the tensors of keys and values; 1 where all share one
  float* lse;                         // null: not wanted
  Strides lse_stride;
  const float* sinks;                 // of a query head, natural; null: none
  int64_t sink_stride;
  float* f32_out;                        // out in f32
  Strides f32_stride;
  int dim_v;
  bool accumulate;                    // merge with the rows that are there
  ScoreOptions score;
  ListTiles lists;                    // block n begins with the n-th of these, before the table is there; or none
};

inline constexpr int kCountBits = 24;  // of a counter; the rest is the epoch
// Where key tiles come from: the band; one list for all warpgroups, of blocks of 128 x 128; or a list for each
// warpgroup, of blocks of 64 or 128 queries and keys.
enum class Lists { none, one, each };
inline constexpr int kListBlock = 128;  // queries and keys of the blocks of one list

// What a kernel is compiled for.
struct ForwardConfig {
  int dim = 128, dim_v = dim;
  int tile_k = 128;           // keys of a tile
  int warpgroups = 2;         // that compute, of 64 queries each
  int q_stages = dim <= 128 ? 2 : 1;
  int kv_stages = 2;
  bool in_place = false;      // scores become weights where they are, and every key tile looks for its maximum
  bool ping_pong = false;     // warpgroups issue products one after the other
  bool f32_out = false;       // straight from registers
  Lists lists = Lists::none;  // where key tiles come from
  bool options = false;       // those that change scores
  bool own_key_tiles = false; // warpgroups walk key tiles of their own; three of them store out through q's place
  bool stream_k = dim == 128 || dim == 256;  // blocks may share the keys of a query tile
};

// How it divides registers and shared memory.
template <class T_, ForwardConfig C>
struct ForwardLayout {
  using T = T_;
  static constexpr int kDim = C.dim, kDimV = C.dim_v, kTileK = C.tile_k, kGroups = C.warpgroups;
  static constexpr int kQStages = C.q_stages, kStages = C.kv_stages;
  static constexpr Lists kLists = C.lists;
  static constexpr bool kListed = kLists != Lists::none, kOptions = C.options, kF32Out = C.f32_out;
  static constexpr bool kInPlace = C.in_place, kPingPong = C.ping_pong, kOwnKeyTiles = C.own_key_tiles;
  static constexpr bool kOutThroughQ = kOwnKeyTiles && kGroups == 3;
  // Out is what is asked at run time; with one list and dims over 128 there are no registers for both.
  static constexpr bool kRuntimeOutType = kOptions || kLists == Lists::each || (kListed && !kF32Out && kDim <= 128);
  static constexpr bool kStreamK = C.stream_k && kDimV == kDim && !kListed && !kF32Out && !kOptions && !kOutThroughQ;
  // A query tile's end is spread over the products of the next one; options leave no registers for that.
  static constexpr bool kSpread = !kOptions;
  // A block begins while the table of lists is being made: its first tile is not in there. Timed at d128 only.
  static constexpr bool kAhead = kLists == Lists::one && kDim == 128;
  // Steps that are products and softmax alone have a loop of their own.
  static constexpr bool kSteady =
      (kDim == 64 || kDim == 128) && kDimV == kDim && kLists != Lists::each && !kOptions && !kOwnKeyTiles;
  // Steps that are not plain are there once, and leave P where they found it: half of the code, 32 moves a step.
  static constexpr bool kMoves = (kSteady && kDim == 128) || (kOwnKeyTiles && !kOutThroughQ);
  // The first scores of a block are those of a step behind nothing: less code. With lists there are no registers for
  // that, and at d64 it costs 2 % of a short causal mask.
  static constexpr bool kBegins = kSteady && kDim == 128 && !kListed;
  // Exponentials of half a key tile are left out where no row sees it: at d64 a step is as much of them as of products.
  static constexpr bool kHalves = kPingPong && !kInPlace && !kListed && !kOptions;
  static constexpr int kTileQ = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kPanels = (kDim + 63) / 64, kPanelsV = (kDimV + 63) / 64;  // of 96 columns: one and a half
  static constexpr int kProducerRegisters = kLists == Lists::each ? 40 : kGroups == 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = kLists == Lists::each ? 232 : kGroups == 3 ? 160 : 240;
  static constexpr int kPieces = kListBlock / kTileK;  // key tiles of a block of a list
  static_assert(kLists != Lists::one || (kListBlock % kTileK == 0 && kListBlock % kTileQ == 0));
  static_assert(kLists != Lists::each || (kTileK == 64 && kGroups == 2 && !kInPlace && !kPingPong && !kF32Out));
  static constexpr int kReleases = kGroups * 4;  // arrivals that give a buffer back: a warp each
  // Shared memory: q, k, v, out, barriers, query tiles, numbers of key tiles. A tile is panels of 64
  // columns, rows 128 bytes apart.
  static constexpr int kPanelQ = kTileQ * 128, kPanelK = kTileK * 128;
  static constexpr int kBytesQ = kPanelQ * kPanels, kBytesK = kPanelK * kPanels, kBytesV = kPanelK * kPanelsV;
  // Out leaves so many panels at a time.
  static constexpr int kPanelsOut = kDim <= 128 ? kPanelsV : kPanelsV == 4 ? 2 : 1;
  static constexpr int kQ = 0, kK = kQ + kQStages * kBytesQ, kV = kK + kStages * kBytesK,
                       kOut = kV + kStages * kBytesV, kBarriers = kOut + (kOutThroughQ ? 0 : kPanelsOut * kPanelQ),
                       kTiles = kBarriers + 512,
                       kTileBytes = sizeof(QueryTile), kNumbers = kTiles + kTileBytes * 4,
                       kSharedBytes = kNumbers + 4 * kStages;
  static constexpr int kQFull = kBarriers, kQEmpty = kQFull + 8 * kQStages, kKFull = kQEmpty + 8 * kQStages,
                       kKEmpty = kKFull + 8 * kStages, kVFull = kKEmpty + 8 * kStages, kVEmpty = kVFull + 8 * kStages,
                       kTileReady = kVEmpty + 8 * kStages,  // a tile of queries, before q is there
                       kPrefetchNext = kTileReady + 8 * 4;         // its keys are nearly all asked for
  static_assert(kPrefetchNext + 8 * 4 <= kTiles);
  static_assert(kSharedBytes <= 227 * 1024);
  static_assert(!kOwnKeyTiles || (kTileK == 64 && kGroups <= kStages && !(kInPlace || kPingPong || kF32Out)));
  static_assert(!kOutThroughQ || (kQStages == 2 && kDim == kDimV));
  static_assert(kInPlace || kStages % 2 == 0, "the two P take turns with the slots");
  static_assert(!kBegins || (kMoves && kSpread && !kInPlace && kStages == 2));
};

}  // namespace attune::sm90
