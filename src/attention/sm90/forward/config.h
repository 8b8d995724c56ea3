// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper: the parameters of a launch, the compile-time configuration of a kernel, and how the
// kernel divides registers and shared memory.
#pragma once
#include <cuda.h>

#include <cstddef>

#include "attention/sm90/forward/combine.h"
#include "attention/tile/query_tile.h"
#include "attention/sm90/end_boxes.h"
#include "attention/sm90/score_options.h"
#include "machine/sm90/barrier.h"

namespace attune::sm90 {

struct ForwardParams {
  CUtensorMap q, k, v, out;
  CUtensorMap v_end[kEndBoxes];  // for v at the end of a sequence inside the tensor
  CUtensorMap out_row;    // a box of one row
  float scale;            // of the products, in base 2
  int rows, keys, heads;  // queries and keys of a sequence; query heads
  int heads_total;        // (sequence, head) pairs; with a table: heads, or 1 if the table covers all heads
  int heads_per_key;
  // Packed GQA: with few queries, a tile holds the queries of several heads of a GQA group. Row r of the tile is row r
  // & row_mask of head r >> row_shift. `heads`, `heads_per_key` and `heads_total` count packed heads.
  int packed, row_mask, row_shift;
  int left, right, offset;         // query i sees key j if i + offset - left <= j <= i + offset + right
  int tiles_of_head;               // query tiles per head
  int section_heads;               // heads per section; a section's tiles run together, so that its keys stay in L2
  bool longest_first;
  StreamK stream_k;                // stream-K of the last tiles; CTAs store partial results in `partials`
  float4* partials;
  bool fixed;                      // static schedule: CTA n takes tiles n, n + CTAs, ...; no counter
  unsigned long long epoch;        // tag of this launch, in the upper bits of both counters
  unsigned long long* counters;    // [2]: tiles taken and CTAs finished; the initial content is arbitrary
  const QueryTile* table;          // tiles of a head, or of all, longest first, if lengths or lists are in tensors
  const int* table_tiles;          // number of tiles in the table
  const int* column;               // entries of the block lists
  int key_tiles_per_block_shift;   // list per warpgroup: log2 of the key tiles per block
  bool one_list;                   // both warpgroups share one list
  int k_rows, k_heads, k_batches;  // extents of the k and v tensors; 1 on a broadcast axis
  float* lse;                      // null: not requested
  Strides lse_stride;
  const float* sinks;              // logits per query head, base e; null: none
  int64_t sink_stride;
  float* f32_out;                  // output in f32
  Strides f32_stride;
  int dim_v;
  bool accumulate;                 // merge with the rows already there
  ScoreOptions score;
  ListTiles lists;                 // CTA n starts with tile n of these, before the table is ready; or none
};

inline constexpr int kCountBits = 24;  // bits of the count; the upper bits are the epoch
// Source of the key tiles: the band; one list for all warpgroups, with blocks of 128 x 128; or one list per warpgroup,
// with blocks of 64 or 128 queries and keys.
enum class Lists { none, one, each };
inline constexpr int kListBlock = 128;  // queries and keys per block of Lists::one

// Compile-time configuration of a kernel.
struct ForwardConfig {
  int dim = 128, dim_v = dim;
  int tile_k = 128;            // keys per tile
  int warpgroups = 2;          // consumer warpgroups, 64 queries each
  int q_stages = dim <= 128 ? 2 : 1;
  int kv_stages = 2;
  bool in_place = false;       // scores become weights in place, and every key tile computes its maximum
  bool ping_pong = false;      // warpgroups issue products alternately
  bool f32_out = false;        // stored directly from registers
  Lists lists = Lists::none;   // source of the key tiles
  bool options = false;        // options that change scores
  bool own_key_tiles = false;  // warpgroups walk key tiles of their own; three of them store out through q's buffer
  bool stream_k = dim == 128 || dim == 256;  // CTAs may share the keys of a query tile
};

// Division of registers and shared memory.
template <class T_, ForwardConfig C>
struct ForwardLayout {
  using T = T_;
  static constexpr int kDim = C.dim, kDimV = C.dim_v, kTileK = C.tile_k, kGroups = C.warpgroups;
  static constexpr int kQStages = C.q_stages, kStages = C.kv_stages;
  static constexpr Lists kLists = C.lists;
  static constexpr bool kListed = kLists != Lists::none, kOptions = C.options, kF32Out = C.f32_out;
  static constexpr bool kInPlace = C.in_place, kPingPong = C.ping_pong, kOwnKeyTiles = C.own_key_tiles;
  static constexpr bool kOutThroughQ = kOwnKeyTiles && kGroups == 3;
  // The output type is chosen at run time. With one list and head dims over 128 there are not enough registers for
  // both.
  static constexpr bool kRuntimeOutType = kOptions || kLists == Lists::each || (kListed && !kF32Out && kDim <= 128);
  static constexpr bool kStreamK = C.stream_k && kDimV == kDim && !kListed && !kF32Out && !kOptions && !kOutThroughQ;
  // A query tile's epilogue overlaps the products of the next tile. Options leave no registers for that.
  static constexpr bool kSpread = !kOptions;
  // A CTA starts while the table of block lists is being built: its first tile is not in the table. Timed at d128 only.
  static constexpr bool kAhead = kLists == Lists::one && kDim == 128;
  // Steps that consist of products and softmax alone have their own loop.
  static constexpr bool kSteady =
      (kDim == 64 || kDim == 128) && kDimV == kDim && kLists != Lists::each && !kOptions && !kOwnKeyTiles;
  // All other steps are compiled once and leave P in the same registers: half the code, 32 moves per step.
  static constexpr bool kMoves = (kSteady && kDim == 128) || (kOwnKeyTiles && !kOutThroughQ);
  // The first scores of a CTA come from a step without a preceding product: less code. With lists there are no
  // registers for that, and at d64 it costs 2 % of a short causal mask.
  static constexpr bool kBegins = kSteady && kDim == 128 && !kListed;
  // Exponentials of half a key tile are skipped if no row sees it: at d64 a step has as much of them as of products.
  static constexpr bool kHalves = kPingPong && !kInPlace && !kListed && !kOptions;
  static constexpr int kTileQ = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kPanels = (kDim + 63) / 64, kPanelsV = (kDimV + 63) / 64;  // 96 columns: one and a half
  static constexpr int kProducerRegisters = kLists == Lists::each ? 40 : kGroups == 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = kLists == Lists::each ? 232 : kGroups == 3 ? 160 : 240;
  static constexpr int kKeyTilesPerBlock = kListBlock / kTileK;  // key tiles per block of a list
  static_assert(kLists != Lists::one || (kListBlock % kTileK == 0 && kListBlock % kTileQ == 0));
  static_assert(kLists != Lists::each || (kTileK == 64 && kGroups == 2 && !kInPlace && !kPingPong && !kF32Out));
  static constexpr int kReleases = kGroups * 4;  // arrivals that release a buffer: one per warp
  // A tile in shared memory consists of panels of 64 columns, rows 128 bytes apart.
  static constexpr int kPanelQ = kTileQ * 128, kPanelK = kTileK * 128;
  static constexpr int kBytesQ = kPanelQ * kPanels, kBytesK = kPanelK * kPanels, kBytesV = kPanelK * kPanelsV;
  // Panels of out that leave at a time.
  static constexpr int kPanelsOut = kDim <= 128 ? kPanelsV : kPanelsV == 4 ? 2 : 1;
  struct Shared {
    char q[kQStages][kBytesQ], k[kStages][kBytesK], v[kStages][kBytesV];
    char out[kOutThroughQ ? 0 : kPanelsOut * kPanelQ];
    Mbarrier q_full[kQStages], q_empty[kQStages], k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
    Mbarrier tile_ready[4];     // a query tile is known, before its q arrives
    Mbarrier prefetch_next[4];  // its keys are nearly all requested
    Mbarrier unused[64 - 8 - 2 * kQStages - 4 * kStages];
    QueryTile tiles[4];
    int numbers[kStages];       // of key tiles
  };
  static constexpr int kQ = offsetof(Shared, q), kK = offsetof(Shared, k), kV = offsetof(Shared, v),
                       kOut = offsetof(Shared, out), kTiles = offsetof(Shared, tiles), kTileBytes = sizeof(QueryTile),
                       kNumbers = offsetof(Shared, numbers), kSharedBytes = kNumbers + int(sizeof(Shared::numbers));
  static constexpr int kQFull = offsetof(Shared, q_full), kQEmpty = offsetof(Shared, q_empty),
                       kKFull = offsetof(Shared, k_full), kKEmpty = offsetof(Shared, k_empty),
                       kVFull = offsetof(Shared, v_full), kVEmpty = offsetof(Shared, v_empty),
                       kTileReady = offsetof(Shared, tile_ready), kPrefetchNext = offsetof(Shared, prefetch_next);
  static_assert(kSharedBytes <= 227 * 1024);
  static_assert(!kOwnKeyTiles || (kTileK == 64 && kGroups <= kStages && !(kInPlace || kPingPong || kF32Out)));
  static_assert(!kOutThroughQ || (kQStages == 2 && kDim == kDimV));
  static_assert(kInPlace || kStages % 2 == 0, "the two P take turns with the slots");
  static_assert(!kBegins || (kMoves && kSpread && !kInPlace && kStages == 2));
};

}  // namespace attune::sm90
