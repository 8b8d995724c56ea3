// Forward attention for Hopper: what a launch is given, and how a kernel divides registers and shared memory.
#pragma once
#include <cuda.h>

#include "core/tensor.h"

namespace attune::sm90 {

struct ForwardParams {
  CUtensorMap q, k, v, out;
  float scale;                        // of the products, in base 2
  int rows, keys, heads, batch;       // queries and keys of a sequence
  int heads_per_key;
  int left, right, offset;            // key j is seen by query i where i + offset - left <= j <= i + offset + right
  int tiles_of_head, tiles;           // of queries
  int section_heads;                  // tiles are taken section by section of heads, so that their keys stay in cache
  bool longest_first;
  unsigned long long epoch;           // of this launch, in the upper bits of both counters
  unsigned long long* counters;       // [2]: tiles taken and blocks gone, in memory of any content
  float* lse;                         // null: not wanted
  Strides lse_stride;
  const float* sinks;                 // of a query head, natural; null: none
  int64_t sink_stride;
  float* wide;                        // out in f32
  Strides wide_stride;
  int dim_v;
  bool accumulate;                    // merge with the rows that are there
};

inline constexpr int kCountBits = 24;  // of a counter; the rest is the epoch

// InPlace: scores become weights where they are, and every key tile looks for its maximum: fewer registers.
// Turns: warpgroups issue products one after the other. Wide: out in f32, straight from registers.
template <class T_, int Dim, int DimV, int TileK, int Groups, int QStages, int Stages, bool InPlace, bool Turns,
          bool Wide>
struct ForwardShape {
  using T = T_;
  static constexpr bool kWide = Wide;
  static constexpr int kDim = Dim, kDimV = DimV, kTileK = TileK, kGroups = Groups, kQStages = QStages, kStages = Stages;
  static constexpr bool kInPlace = InPlace, kTurns = Turns;
  static constexpr int kTileQ = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kPanels = (kDim + 63) / 64, kPanelsV = (kDimV + 63) / 64;  // of 96 columns: one and a half
  static constexpr int kProducerRegisters = kGroups == 3 ? 32 : 24, kConsumerRegisters = kGroups == 3 ? 160 : 240;
  static constexpr int kReleases = kGroups * 4;  // arrivals that give a buffer back: a warp each
  // Shared memory: q, k, v, out, barriers, query tiles. A tile is panels of 64 columns, rows 128 bytes apart.
  static constexpr int kPanelQ = kTileQ * 128, kPanelK = kTileK * 128;
  static constexpr int kBytesQ = kPanelQ * kPanels, kBytesK = kPanelK * kPanels, kBytesV = kPanelK * kPanelsV;
  // Out leaves so many panels at a time.
  static constexpr int kPanelsOut = kDim <= 128 ? kPanelsV : kPanelsV == 4 ? 2 : 1;
  static constexpr int kQ = 0, kK = kQ + kQStages * kBytesQ, kV = kK + kStages * kBytesK,
                       kOut = kV + kStages * kBytesV, kBarriers = kOut + kPanelsOut * kPanelQ, kTiles = kBarriers + 256,
                       kSharedBytes = kTiles + 32 * 4;
  static constexpr int kQFull = kBarriers, kQEmpty = kQFull + 8 * kQStages, kKFull = kQEmpty + 8 * kQStages,
                       kKEmpty = kKFull + 8 * kStages, kVFull = kKEmpty + 8 * kStages, kVEmpty = kVFull + 8 * kStages;
  static_assert(kSharedBytes <= 227 * 1024);
  static_assert(kInPlace || kStages % 2 == 0, "the two P take turns with the slots");
};

// What the producer says of one tile of queries. Key tiles run from last down to first; last < 0: there are no more.
struct QueryTile { int row, head, batch, first, last; };

}  // namespace attune::sm90
