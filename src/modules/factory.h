// Attention and modules by the name of an implementation: a name and some sizes become a problem line or a module's
// line, with the reason in a sentence. Every name of the tables of dilated-attention-pytorch has its counterpart here;
// where several of its classes compute the same thing by other means, they are one line, because how it is computed is
// the planner's choice. docs/modules.md has the table.
#pragma once
#include <string>

#include "core/device.h"
#include "core/problem.h"

namespace attune {

struct MakeOptions {
  DType dtype = DType::f32;
  int batch = 1, len = 1024;                        // tokens of the whole sequence, whatever ranks have of it
  int heads = 8, heads_kv = 0, dim = 64, dim_v = 0; // 0: as the one before
  int embed = 0;                                    // of modules; 0: heads * dim
  bool causal = false, backward = false;            // backward: of a problem; a module has both passes
  int ranks = 1, rank = 0;                          // rank: whose shard a module over ranks has
  int block = 64;                                   // tokens of a block, of block lists
  double density = 0;                               // kept fraction of blocks; 0: 0.25 where there are lists
  std::string segments{}, rates{};                  // "2048,4096" and "1,2"; "": by len
  std::string pattern{};                            // of block lists: "local_window window=512"; "": random by density
  std::string nsa{};                                // parameters of nsa; "": the paper's
};

struct Choice {
  std::string name{};      // of the implementation: what `auto` became
  bool module = false;     // `line` is a module's, and else a problem's
  std::string line{};
  std::string pattern{};   // of a problem with block lists: what they are built from
  std::string why{};       // a sentence, then what the planner says
};

Status choose(std::string_view name, const MakeOptions&, const Device&, Choice& out);
std::string implementation_names();  // "dense, dilated, ..."

}  // namespace attune
