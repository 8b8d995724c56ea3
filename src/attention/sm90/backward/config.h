// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper (fused kernel): the parameters of a launch, the compile-time configuration of a kernel,
// and how the kernel divides registers and shared memory.
#pragma once
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "attention/sm90/backward/combine.h"
#include "attention/sm90/backward/roles.h"
#include "attention/tile/key_tile.h"
#include "attention/sm90/end_boxes.h"
#include "attention/sm90/score_options.h"
#include "attention/tile/transposed_tile.h"
#include "machine/sm90/barrier.h"

namespace attune::sm90 {

constexpr int kTicketRows = 32;  // equals sm80::kTicketRows of the preprocessing

// Lists: a query tile of a head. A query of -1: none.
struct KeyVisit { int query, head; };
// The same for persistent CTAs. kNothing: none.
struct alignas(16) ListedVisit {
  static constexpr int kBegins = 1, kListEnd = 2, kNothing = 4;  // first of its key tile; last; no queries
  int query, head, marks;
};
// Message from the thread that walks lists to the thread that loads.
struct WalkedVisit : ListedVisit {
  int batch, tile, round;  // of the key tile; round: key tiles this CTA had before
};
inline constexpr int kVisitsAhead = 4;
// The fields of a key tile that the walk needs.
struct WalkedKeys { int head, batch, number, start, stop; };

// Rows of a gradient in f32, stored straight from registers, by kernels with a table.
struct F32Rows {
  float* data;  // null: in the dtype of q
  int64_t batch, seq, head;
};
inline F32Rows f32_rows(const Tensor& t) {
  if (t.dtype != DType::f32) return {};
  return {static_cast<float*>(t.data), t.stride.batch, t.stride.seq, t.stride.head};
}

// Persistent CTAs: offsets of the counts that follow the number of tiles taken, and the padded rows of a head that an
// idle warp prepares at a time (sm90/backward/prepare_ahead.h).
inline constexpr int kJobsTaken = 1, kJobsDone = 2;  // kJobsDone: one per head
inline constexpr int kJobRows = 32;

// Prepare ahead, without GQA or with head splits. `ready`: heads of all sequences that the preprocessing covers. jobs =
// 0: it covers all.
struct AheadParams {
  int ready, jobs, dim_v;
  int64_t out_step, d_out_step;  // in bytes, over the rows that a warp has at once: 256 / kDqPitch
  float2* stats;
  Tensor out, d_out, lse, d_lse;  // d_lse only if given
};

enum class Share { all, heads, queries };

// Query splits. If key tiles do not fill their waves, some are divided: a split has some of the query tiles that see
// the keys. It stores its sums of dK and dV at sums_offset(), and the last split of a tile adds all of them.
struct QuerySplits {
  int begin, divided, each;  // tiles before the divided ones; divided tiles; splits of each
  float4* sums;              // [tile][split]
  int* arrived;              // [tile][kSplitWarps]: splits whose sums are stored; 0 at first
};

// Parameters of every kernel. Kernels without a table or lists have no others.
struct BackwardParams {
  CUtensorMap q, d_out;    // boxes of kTileQ rows
  CUtensorMap k, v;        // of kTileK rows
  CUtensorMap dk, dv;      // of 16 rows
  CUtensorMap stats;       // of kTileQ rows
  float scale2;            // of the products, in base 2
  float kept, scale_k;     // power of two that multiplies dS; factor of dK, which removes it
  int rows, keys;          // of a sequence
  int heads, heads_kv, group;
  int low, high;           // as in KeyTile
  int tiles;               // key tiles per sequence; with a table: per head
  int heads_total;         // KV heads of all sequences; with a table: of one sequence
  int section;             // CTAs go section by section of these heads, tile by tile
  int padded;              // rows per head in dQ and in the statistics, in whole tiles
  float* dq;               // [batch][head][padded / 16][kDqPitch / 8] fragments of 16 x 8: sums; or transposed
  int rows_of_dq;          // rows of a sequence that dQ has at most; 0 if dQ is not requested
  int* tickets;            // deterministic: [0] CTAs started, [1 + padded row / 32] CTAs that added to the tile
  uint64_t* large_logits;  // equals `launch` if a prepared row has large logits; otherwise arbitrary
  uint64_t launch;
  // Head splits: `heads_kv` and `heads_total` count splits, and `group` is the query heads of one.
  uint32_t inverse_splits;  // 2^32 / splits of a KV head, rounded up
  float4* sums;             // their dK and dV: sums_offset()
  // Persistent CTAs: tiles taken; without the first one of each CTA, unless deterministic. With jobs, kJobsTaken and
  // kJobsDone follow. All are 0 at first.
  int* taken;
  AheadParams ahead;
  QuerySplits query_splits;
};

// Lists by key block, whose size is kTileK.
struct ListedParams : BackwardParams {
  const int32_t *list_begin, *list_row;
  int64_t list_batch, list_head;  // strides of list_begin
  Blocks blocks;
  int most_entries;               // persistent: key tiles with more entries start first; INT32_MAX: none has more
};

struct TabledParams : ListedParams {
  const KeyTile* table;  // key tiles of a head
  // Boxes at the end of a sequence inside the tensors.
  CUtensorMap q_end[kEndBoxes], d_out_end[kEndBoxes], k_end[kEndBoxes];
  CUtensorMap dk_row, dv_row;
  int rows_q, rows_k;   // of the tensors
  F32Rows f32_dk, f32_dv;
  int dim_qk, dim_v;
  bool has_dk, has_dv;  // requested; a kernel without a table stores both
  bool accumulate;      // dK and dV are added to the existing values, in f32
  bool cleared;         // dK and dV are already 0 for keys that no query sees
  // Kernels with options.
  ScoreOptions score;
  Tensor d_bias;   // f32, added to; no data: not requested
  float kept_out;  // 1 / kept
};

// Compile-time configuration of a kernel.
struct BackwardConfig {
  int dim = 128;
  int tile_q = 64;  // queries per step; 80: computes dQ^T, so that it need only be a multiple of 16
  // The warpgroups need not be in step: dQ of a query tile is computed one step later and added from registers, and dV
  // is issued before dS is ready.
  bool independent = dim == 64;
  bool tabled = false;  // lengths in tensors, gradients in f32, or not all gradients requested
  // CTAs add to a query tile of dQ one after another, from its last keys on. Dedicated threads wait for their ticket.
  bool deterministic = false;
  bool options = false;   // options that change scores; requires tabled
  bool listed = false;    // query tiles come from lists by key block; requires tabled or persistent
  bool persistent = false;
  Share share = Share::all;
};

// Division of registers and shared memory. The statistics of a row are lse_of_weights(), base 2, +inf if it sees
// nothing, and delta * kept.
//
// Persistent: a CTA may have many key tiles; without lists, each is seen by some query. The next keys load while dK and
// dV leave. A CTA takes the next free tile, and the thread that loads announces it. Keys have two buffers if those fit,
// so that the next keys are there when their tile starts. With independent warpgroups, dQ of a tile's last step is
// computed in the first step of the next. If also deterministic, one thread tells the warps that they may add it, and
// another tells the next CTA (TicketKeeper).
//
// Share: a CTA's share of a tile's work. heads: head splits, some heads of the GQA group; the CTA stores its sums of dK
// and dV in f32. queries: query splits of some tiles (see QuerySplits); requires persistent.
//
// Transposed: dQ^T = K^T dS^T (tile/transposed_tile.h). The sums of a head form one tile, so a query tile may start at
// any multiple of 16. Statistics are paired (tile/row_statistics.h), and `kept` is 1. dP starts at -delta instead of 0,
// so that deltas occupy no registers.
template <class Number, BackwardConfig C>
struct BackwardLayout {
  using T = Number;
  using Params = std::conditional_t<C.tabled, TabledParams, std::conditional_t<C.listed, ListedParams, BackwardParams>>;
  static constexpr bool kIndependent = C.independent, kTabled = C.tabled, kDeterministic = C.deterministic;
  static constexpr bool kOptions = C.options, kListed = C.listed, kPersistent = C.persistent;
  static constexpr int kDim = C.dim, kTileQ = C.tile_q, kTileK = 128, kStages = 2;
  static constexpr int kBuffers = kIndependent ? 3 : 2;  // of dS
  static constexpr bool kTransposed = kTileQ % 64 != 0, kWalks = kListed && kPersistent;
  static constexpr bool kHeadSplits = C.share == Share::heads, kQuerySplits = C.share == Share::queries;
  static constexpr bool kSkips = kPersistent && !(kIndependent || kTransposed || kListed);  // the first step, if masked
  static constexpr bool kCarries = kPersistent && kIndependent;      // dQ from key tile to key tile
  static constexpr bool kTakesTickets = kCarries && kDeterministic;  // dQ is added from registers
  // True: checks whether the launch has a row with large logits. False: checks the weights of each tile. With options
  // there is no check, because weights are limited to 1 anyway. Kernels that are independent and deterministic, but not
  // persistent, have no registers for it: 4 to 36 bytes would spill.
  static constexpr bool kAsksLaunch = !kOptions && (kTakesTickets || !(kIndependent && kDeterministic));
  static_assert(!kTransposed || !(kIndependent || kTabled || kDeterministic));
  static_assert(kTabled || !(kOptions || (kListed && !kPersistent)));
  static_assert(!kWalks || !(kIndependent || kDeterministic || kTransposed));
  static_assert(!kPersistent || !kTabled);
  static_assert(!kHeadSplits || !kTabled);
  static_assert(!kHeadSplits || kPersistent == kTransposed);
  static_assert(!kQuerySplits || (kPersistent && !kDeterministic));
  static constexpr int kGroups = 2, kThreads = 128 * (1 + kGroups), kWarps = 4 * kGroups;
  static constexpr int kGrain = kTransposed ? 16 : kTileQ;  // query tiles start at multiples of it
  static constexpr int kRowsAhead = 4;  // transposed: pairs of log-sum-exps loaded with the deltas; 6 fit, 7 spill
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static constexpr int kPanels = (kDim + 63) / 64, kDqPitch = kPanels * 64, kPanelQ = kTileQ * 128,
                       kPanelK = kTileK * 128;
  static constexpr int kBytesQ = kPanels * kPanelQ, kBytesK = kPanels * kPanelK, kBytesStats = kTileQ * 8;
  // dS is [key][query], in panels of 64 queries. A warp's dQ is 16 rows of 64 columns, in eight fragments.
  static ATTUNE_HD constexpr TransposedTile tile() { return {kTileQ}; }
  static constexpr int kBytesDs = kTransposed ? 2 * TransposedTile{kTileQ}.panel() : kTileQ / 64 * kPanelK;
  static constexpr int kBytesDq = 16 * (kTransposed ? kTileQ : 64) * 4,
                       kSumsDq = kBytesDq / 128;  // per warp; per lane
  static constexpr int kPlacesDq = kTakesTickets                 ? 0
                                   : !kDeterministic             ? !kIndependent
                                   : kIndependent || kPersistent ? 1
                                                                 : 2;  // buffers of all warps
  static constexpr int kAdders = kDeterministic ? 2 : 0;               // threads that add dQ to memory, or keep tickets
  static_assert(kAdders >= kPlacesDq || !kDeterministic);
  static_assert(kTileQ / 64 * kPanels == kGroups, "a warpgroup has 64 columns of dQ, or 64 x 64");
  static constexpr int kPlacesK = kPersistent && !kTransposed ? 2 : 1, kPlacesV = kCarries ? 2 : 1;
  struct Shared {
    char k[kPlacesK][kBytesK], v[kPlacesV][kBytesK], q[kStages][kBytesQ], d_out[kStages][kBytesQ];
    char ds[kBuffers][kBytesDs], dq[kPlacesDq][kWarps][kBytesDq];
    float2 stats[kStages][kTileQ];
    Mbarrier k_full[kPlacesK], q_full[kStages], q_empty[kStages], o_full[kStages], o_empty[kStages];
    Mbarrier ds_full[kBuffers], ds_empty[kBuffers], dq_full[2], dq_empty[2];
    int block[4];
    KeyVisit visits[kStages];
    Mbarrier k_empty[kPersistent * kPlacesK], v_full[kPersistent * kPlacesV], v_empty[kPersistent * kPlacesV];
    Mbarrier tile_full[kPersistent * kPlacesK];  // the tile of each K buffer
    int tile[kPersistent * 2];
    int large_logits_of_tile[kPersistent * 2];   // nonzero: some row has large logits
    int large_logits_of_warp[kWarps];            // the same
    Mbarrier ticket[kTakesTickets * 2];          // of two steps
    alignas(16) char listed_visits[kWalks * kStages][sizeof(ListedVisit)];
    alignas(16) char walked_visits[kWalks * kVisitsAhead][sizeof(WalkedVisit)];
    Mbarrier visit_full[kWalks * kVisitsAhead], visit_empty[kWalks * kVisitsAhead];
    WalkedKeys walked[kWalks];
  };
  static constexpr int kK = offsetof(Shared, k), kV = offsetof(Shared, v), kQ = offsetof(Shared, q);
  static constexpr int kO = offsetof(Shared, d_out), kDs = offsetof(Shared, ds), kDq = offsetof(Shared, dq);
  static constexpr int kStats = offsetof(Shared, stats);
  static constexpr int kKFull = offsetof(Shared, k_full), kKEmpty = offsetof(Shared, k_empty);
  static constexpr int kVFull = offsetof(Shared, v_full), kVEmpty = offsetof(Shared, v_empty);
  static constexpr int kQFull = offsetof(Shared, q_full), kQEmpty = offsetof(Shared, q_empty);
  static constexpr int kOFull = offsetof(Shared, o_full), kOEmpty = offsetof(Shared, o_empty);
  static constexpr int kDsFull = offsetof(Shared, ds_full), kDsEmpty = offsetof(Shared, ds_empty);
  static constexpr int kDqFull = offsetof(Shared, dq_full), kDqEmpty = offsetof(Shared, dq_empty);
  static constexpr int kBlock = offsetof(Shared, block), kVisits = offsetof(Shared, visits);
  static constexpr int kTileFull = offsetof(Shared, tile_full), kTile = offsetof(Shared, tile);
  static constexpr int kLargeLogitsOfTile = offsetof(Shared, large_logits_of_tile);
  static constexpr int kLargeLogitsOfWarp = offsetof(Shared, large_logits_of_warp);
  static constexpr int kTicket = offsetof(Shared, ticket);
  static constexpr int kListedVisits = offsetof(Shared, listed_visits);
  static constexpr int kWalkedVisits = offsetof(Shared, walked_visits);
  static constexpr int kVisitFull = offsetof(Shared, visit_full), kVisitEmpty = offsetof(Shared, visit_empty);
  static constexpr int kWalked = offsetof(Shared, walked);
  static constexpr int kSharedBytes =
      kWalks ? kWalked + int(sizeof(WalkedKeys)) : kTicket + int(sizeof(Shared::ticket));
  static_assert(!kSkips || kPlacesK == 2);  // one phase of kDsFull per buffer
  static_assert(kSharedBytes <= 227 * 1024);
};

}  // namespace attune::sm90
