// SPDX-License-Identifier: Apache-2.0
// What shape() of sm90_forward decides beside the kernel, the tiles and the splits of a plan (Plan::choice).
#pragma once
#include "attention/tile/stream_k.h"

namespace attune::sm90 {

// How the CTAs of a launch find their query tiles.
struct ForwardSchedule {
  bool tabled;         // from a table that another kernel builds: lengths or block lists are in tensors
  bool longest_first;  // of a section of heads
  bool fixed;          // static tiles, without a counter
  int packed;          // heads of a GQA group per query tile
  StreamK stream_k;    // of the last tiles, or of all
};

struct ForwardChoice {
  bool split_kv;            // calls with plain arguments run sm90/forward/split_kv.h
  int partial_tiles;        // query tiles whose partial results have space in the workspace
  ForwardSchedule planned;  // of a call with the planned lengths
};

}  // namespace attune::sm90
