// Backward attention for Hopper: what a launch is given, and how a kernel divides registers and shared memory.
#pragma once
#include <cuda.h>

#include "core/tensor.h"

namespace attune::sm90 {

struct BackwardParams {
  CUtensorMap q, d_out;     // boxes of kTileQ rows
  CUtensorMap k, v;         // of kTileK rows
  CUtensorMap dk, dv;       // of 16 rows
  CUtensorMap stats;        // of kTileQ rows
  float scale2;             // of the products, in base 2
  float kept, scale_k;      // a power of two that dS is kept times; the scale of dK, without it
  int rows, keys;           // of a sequence
  int heads, heads_kv, group;
  int left, right, offset;  // key j is seen by query i where i + offset - left <= j <= i + offset + right
  int tiles;                // of keys, in a sequence
  int units, section;       // heads of keys, of all sequences; blocks go section by section of them, tile by tile
  int padded;               // rows of a head in dQ and in the statistics, a multiple of kTileQ
  float* dq;                // [batch][head][padded / 16][kDim / 8] fragments of 16 x 8: sums
};

// Statistics of a row are its log-sum-exp in base 2, +inf where it sees nothing, and delta * kept.
// Apart: the warpgroups need not be in step. dQ of a query tile is multiplied a step later and added from registers, dV
// is issued before dS is there.
template <class Number, int Dim, int TileQ, bool Apart>
struct BackwardShape {
  using T = Number;
  static constexpr int kDim = Dim, kTileQ = TileQ, kTileK = 128, kStages = 2, kBuffers = Apart ? 3 : 2;  // of dS
  static constexpr bool kApart = Apart;
  static constexpr int kGroups = 2, kThreads = 128 * (1 + kGroups), kWarps = 4 * kGroups;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static constexpr int kPanels = Dim / 64, kPanelQ = TileQ * 128, kPanelK = kTileK * 128;
  static constexpr int kBytesQ = kPanels * kPanelQ, kBytesK = kPanels * kPanelK, kBytesStats = TileQ * 8;
  // dS lies turned: [key][query], in panels of 64 queries. A warp's dQ is 16 rows of 64 columns, in eight fragments.
  static constexpr int kBytesDs = TileQ / 64 * kPanelK, kBytesDq = 16 * 64 * 4;
  static_assert(TileQ / 64 * kPanels == kGroups, "a warpgroup has 64 x 64 of dQ");
  static constexpr int kK = 0, kV = kBytesK, kQ = 2 * kBytesK, kO = kQ + kStages * kBytesQ;
  static constexpr int kDs = kO + kStages * kBytesQ, kDq = kDs + kBuffers * kBytesDs;
  static constexpr int kStats = kDq + (Apart ? 0 : kWarps * kBytesDq);
  static constexpr int kKFull = kStats + kStages * kBytesStats, kQFull = kKFull + 8, kQEmpty = kQFull + 8 * kStages;
  static constexpr int kOFull = kQEmpty + 8 * kStages, kOEmpty = kOFull + 8 * kStages;
  static constexpr int kDsFull = kOEmpty + 8 * kStages, kDsEmpty = kDsFull + 8 * kBuffers;
  static constexpr int kSharedBytes = kDsEmpty + 8 * kBuffers;
  static_assert(kSharedBytes <= 227 * 1024);
};

}  // namespace attune::sm90
