// SPDX-License-Identifier: Apache-2.0
// A module as one line of text, which is its name: "llama bf16 b1 s4096 e4096 h32/8 ffn=14336 | causal".
//   kind dtype b# s# e# [h#[/#]] {name=value} [| the part of a problem line after the head dim: mask, options, variant
//   [| block list: #x# and a pattern, "64x64 random density=0.1 seed=7"]]
// Sizes are exact, not bounds. Omitted settings have their defaults, and only settings that differ are printed.
#pragma once
#include <string>
#include <vector>

#include "core/variant/pattern.h"
#include "core/problem.h"
#include "machine/layer_ops.h"

namespace attune {

enum class ModuleKind : int32_t { multihead, feed_forward, longnet_encoder, longnet_decoder, llama };
enum class Rope : int32_t { no, pairs, half };

struct Settings {
  ModuleKind kind = ModuleKind::multihead;
  DType dtype = DType::f32;            // values and parameters
  int batch = 1, len = 1, embed = 1, heads = 1, heads_kv = 1;
  int dim = 0, dim_v = 0;              // per head
  int memory = 0;                      // tokens of the cross-attention memory; 0: none
  int ffn = 0;                         // width inside the feed-forward part
  Activation act = Activation::gelu;
  Rope rope = Rope::no;
  double theta = 10000, rope_scale = 1;
  bool norm = false;                   // LayerNorm between attention and its output projection
  bool bias = true;
  double eps = 1e-5;
  double gain = 1;                     // initial gain of v, out and both feed-forward matrices
  int encoder_layers = 0, decoder_layers = 0;  // MAGNETO: determine the gain
  double dropout = 0, softcap = 0;
  int64_t seed = 0;                    // for the initial parameters
  std::string attention{};             // "causal : dilated rates=1,2 segments=2048,4096"
  std::string pattern{};               // "64x64 local_window window=512"; "" without a block list
};

Status read_settings(std::string_view line, Settings& out);
std::string name(const Settings&);

// The problem of one of the module's attentions: queries of `len` tokens over `keys`. With a pattern, the bound of its
// block list is part of the problem, and `pattern` is its parsed form.
Status attention_of(const Settings&, std::string_view tail, int keys, Problem& out);
Status attention_of(const Settings&, std::string_view tail, std::string_view blocks, int keys, Problem& out,
                    Pattern& pattern);

// MAGNETO's gain for an encoder or a decoder with the given numbers of layers; 1 if both are 0.
double magneto_gain(bool decoder, int encoder_layers, int decoder_layers);

}  // namespace attune
