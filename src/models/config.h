// SPDX-License-Identifier: Apache-2.0
// A language model as data: its sizes, what its layers are made of, and the names of its parameters in a checkpoint. A
// family (families.h) fills it in from a config.json of Hugging Face.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "machine/layer_ops.h"

namespace attune::models {

enum class Act : int32_t { relu, gelu, gelu_tanh, silu };  // gelu: erf
// How attention and the feed-forward part join the residual:
//   serial            h = x + attention(norm1 x);  y = h + mlp(norm2 h)
//   parallel          y = x + attention(norm1 x) + mlp(norm2 x)
//   parallel_one_norm y = x + attention(norm1 x) + mlp(norm1 x)
enum class Residual : int32_t { serial, parallel, parallel_one_norm };
enum class Pairs : int32_t { adjacent, halves };           // rotary: (2i, 2i + 1), or (i, i + dims / 2)
enum class Scaling : int32_t { none, linear, llama3 };     // of rotary frequencies

struct RotaryShape {
  int dims = 0;  // of each head, the first; 0: none
  Pairs pairs = Pairs::halves;
  double theta = 10000;
  Scaling scaling = Scaling::none;
  double factor = 1, low_factor = 1, high_factor = 4, original = 8192;
};

// How a matrix lies in a checkpoint: [out, in] as here; [in, out]; or [heads, (q k v), dim, in].
enum class Layout : int32_t { as_here, transposed, by_head };

// Names in a checkpoint; "" for what the family does not have. Those of a layer follow `layer`, its number and a dot.
struct Names {
  std::string_view base{};  // "model.", which checkpoints of the bare model leave out
  std::string_view embed, positions, layer, final_norm, head;
  std::string_view norm1, qkv, q, k, v, out, norm2, post1, post2, gate, up, down;
  Layout matrices = Layout::as_here, fused = Layout::as_here;  // of a layer's matrices, and of qkv
};

struct Config {
  std::string name{}, family{};  // "gpt2-124m", or the folder; "gpt2"
  int vocab = 0, embed = 0, layers = 0, heads = 0, heads_kv = 0, dim = 0, ffn = 0;
  int positions = 0;             // the longest context; the rows of learned positions
  NormKind norm = NormKind::layer;
  bool norm_adds_one = false;    // the factor of a norm is 1 + weight
  double eps = 1e-5;
  Act act = Act::gelu_tanh;
  bool gated = false;            // act(gate x) * (up x)
  bool bias_qkv = false, bias_out = false, bias_mlp = false, bias_head = false;
  Residual residual = Residual::serial;
  bool post_norms = false;       // norms of the results of attention and mlp, before they join the residual
  bool learned_positions = false;
  RotaryShape rotary{};
  int window = 0;                // keys that a query sees, itself included; 0: all
  std::vector<bool> windowed{};  // by layer
  double scale = 0;              // of the scores; 0: 1 / sqrt(dim)
  double softcap = 0, final_softcap = 0;
  double embed_scale = 1;
  bool tied = false;  // the head is the embedding
  Names names{};
  std::string json{};            // the text it was read from, which a checkpoint keeps

  int window_of(int layer) const { return windowed[size_t(layer)] ? window : 0; }
  int64_t layer_parameters() const;
  int64_t parameters() const;
};

// From the text of a config.json. `who` begins the sentence of a refusal.
Status read_config(std::string_view text, const std::string& who, Config& out);
// A known name ("llama-2-7b"), a config.json, or a folder with one.
Status find_config(const std::string& what, Config& out);
bool is_known_model(std::string_view name);
std::string known_models();  // "gpt2-124m, gpt2-355m, ..."
std::vector<Config> all_known();

// cos and sin [positions, dims / 2] f32 of a model's rotary angles, with the roundings of Hugging Face: frequencies and
// angles are f32.
void rotary_tables(const RotaryShape&, int positions, std::vector<float>& cos, std::vector<float>& sin);

}  // namespace attune::models
