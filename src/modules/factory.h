// SPDX-License-Identifier: Apache-2.0
// Attention and modules by name: the name of an implementation and some sizes become a problem line or a module line,
// with the reason in a sentence. Every name in the tables of dilated-attention-pytorch has a counterpart here. Classes
// that compute the same thing in different ways share one line, because the method is the planner's choice.
// docs/modules.md has the table.
#pragma once
#include <string>

#include "core/device.h"
#include "core/problem.h"

namespace attune {

struct MakeOptions {
  DType dtype = DType::f32;
  int batch = 1, len = 1024;                        // len: tokens of the whole sequence over all ranks
  int heads = 8, heads_kv = 0, dim = 64, dim_v = 0; // 0: as the one before
  int embed = 0;                                    // modules; 0: heads * dim
  bool causal = false, backward = false;            // backward: for a problem; a module has both passes
  int ranks = 1, rank = 0;                          // rank: whose shard a module over ranks has
  int block = 64;                                   // tokens per block of block lists
  double density = 0;                               // kept fraction of blocks; 0: 0.25 if there are lists
  std::string segments{}, rates{};                  // "2048,4096" and "1,2"; "": from len
  std::string pattern{};                            // block lists: "local_window window=512"; "": random by density
  std::string nsa{};                                // parameters of nsa; "": the paper's
};

struct MakeChoice {
  std::string name{};      // the implementation; for `auto`, the selected one
  bool module = false;     // `line` is a module line; otherwise a problem line
  std::string line{};
  std::string pattern{};   // for a problem with block lists: their pattern
  std::string why{};       // a sentence, then the planner's explanation
};

Status choose(std::string_view name, const MakeOptions&, const Device&, MakeChoice& out);
std::string implementation_names();  // "dense, dilated, ..."

}  // namespace attune
