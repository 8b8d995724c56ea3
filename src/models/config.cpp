// SPDX-License-Identifier: Apache-2.0
#include "models/config.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "machine/files.h"
#include "models/families.h"
#include "models/json.h"

namespace attune::models {
namespace {

constexpr size_t kMostConfig = 1 << 20;  // bytes

bool is_folder(const std::string& path) {
  struct stat about{};
  return !stat(path.c_str(), &about) && S_ISDIR(about.st_mode);
}

const Family* family_of(std::string_view word) {
  for (const Family* f : kFamilies)
    if (f->word == word) return f;
  return nullptr;
}

void check(Fields& f, const Config& c) {
  if (c.heads % c.heads_kv) f.refuse(c.heads, " heads are not a multiple of ", c.heads_kv, " key and value heads");
  if (c.rotary.dims % 2 || c.rotary.dims > c.dim)
    f.refuse(c.rotary.dims, " rotary dims are not an even number of ", c.dim, " at most");
  if (!(c.eps >= 0) || !(c.softcap >= 0) || !(c.final_softcap >= 0)) f.refuse("eps or a softcap is below 0");
  if (!(c.rotary.theta > 0) || !(c.rotary.factor > 0)) f.refuse("theta or the factor of rotary is not above 0");
  if (c.window < 0) f.refuse("sliding_window is below 0");
  if (f.has("quantization_config")) f.refuse("quantization_config is not accepted; weights are f32, f16 or bf16");
}

}  // namespace

int64_t Config::layer_parameters() const {
  const int64_t e = embed, q = int64_t(heads) * dim, k = int64_t(heads_kv) * dim, up = int64_t(gated ? 2 : 1) * ffn;
  const int64_t norm_width = norm == NormKind::layer ? 2 * e : e;
  const int norms = (residual == Residual::parallel_one_norm ? 1 : 2) + (post_norms ? 2 : 0);
  int64_t all = e * (q + 2 * k) + q * e + e * up + e * ffn + norms * norm_width;
  if (bias_qkv) all += q + 2 * k;
  if (bias_out) all += e;
  if (bias_mlp) all += up + e;
  return all;
}

int64_t Config::parameters() const {
  int64_t all = int64_t(vocab) * embed * (tied ? 1 : 2) + layers * layer_parameters();
  if (learned_positions) all += int64_t(positions) * embed;
  all += norm == NormKind::layer ? 2 * embed : embed;
  return bias_head ? all + vocab : all;
}

int head_dim_of(Fields& f, const Config& c) {
  if (f.has("head_dim")) return f.integer("head_dim", 1, 64);
  if (f.failed.ok() && c.embed % c.heads) f.refuse("width ", c.embed, " is not divisible by ", c.heads, " heads");
  return std::max(1, c.embed / std::max(1, c.heads));
}

Act act_of(Fields& f, std::string_view name, std::string_view otherwise) {
  const std::string word = f.text(name, otherwise);
  if (word == "gelu") return Act::gelu;
  if (word == "gelu_new" || word == "gelu_fast" || word == "gelu_pytorch_tanh") return Act::gelu_tanh;
  if (word == "silu" || word == "swish") return Act::silu;
  if (word != "relu")
    f.refuse(name, " = '", word, "' is not one of gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, silu, relu");
  return Act::relu;
}

RotaryShape rotary_of(Fields& f, int dim, double fraction, Pairs pairs) {
  const bool modern = f.has("rope_parameters");
  Fields r = f.object(modern ? "rope_parameters" : "rope_scaling");
  RotaryShape all{.pairs = pairs, .theta = modern ? r.number("rope_theta", 10000) : f.number("rope_theta", 10000)};
  const double part = modern ? r.number("partial_rotary_factor", fraction) : fraction;
  all.dims = part > 0 && part <= 1 ? int(dim * part) : 0;
  if (!all.dims) f.refuse("a rotary fraction of ", part, " is not above 0 and at most 1");
  const std::string type = r.text("rope_type", r.text("type", "default"));
  all.factor = r.number("factor", 1);
  if (type == "linear") all.scaling = Scaling::linear;
  else if (type == "llama3") all.scaling = Scaling::llama3;
  else if (type != "default") f.refuse("rope_type '", type, "' is not one of default, linear, llama3");
  all.low_factor = r.number("low_freq_factor", 1), all.high_factor = r.number("high_freq_factor", 4);
  all.original = r.number("original_max_position_embeddings", 8192);
  if (all.scaling == Scaling::llama3 && !(all.high_factor > all.low_factor && all.low_factor > 0 && all.original > 0))
    f.refuse("high_freq_factor is not above low_freq_factor");
  if (!r.failed.ok() && f.failed.ok()) f.failed = r.failed;
  return all;
}

void windows_of(Fields& f, Config& c, Windows kind) {
  c.window = f.integer("sliding_window", 0, 0);
  c.windowed.assign(size_t(c.layers), kind == Windows::all && c.window > 0);
  if (kind == Windows::alternating && c.window)
    for (int n = 0; n < c.layers; n += 2) c.windowed[size_t(n)] = true;
  const Json* const types = f.list("layer_types");
  if (!types) return;
  if (types->items.size() != size_t(c.layers))
    f.refuse("layer_types has ", types->items.size(), " entries for ", c.layers, " layers");
  for (size_t n = 0; f.failed.ok() && n < types->items.size(); ++n) {
    const std::string& type = types->items[n].text;
    if (type != "full_attention" && type != "sliding_attention")
      f.refuse("layer_types has '", type, "', not full_attention or sliding_attention");
    c.windowed[n] = type == "sliding_attention" && c.window > 0;
  }
}

Status read_config(std::string_view text, const std::string& who, Config& out) {
  Json json;
  if (Status s = read_json(text, json); !s.ok()) return s.after(who, ": ");
  if (json.kind != JsonKind::object) return Status::no(who, ": is not a JSON object");
  Fields f(json, who);
  Config c;
  c.family = f.text("model_type", "");
  const Family* const family = family_of(c.family);
  if (!family) {
    std::string all;
    for (const Family* one : kFamilies) all += join(all.empty() ? "" : ", ", one->word);
    return Status::no(who, ": model_type '", c.family, "' is not one of ", all);
  }
  c.names = family->names, c.json = text;
  if (f.failed.ok()) family->read(f, c);
  if (f.failed.ok()) check(f, c);
  if (!f.failed.ok()) return f.failed;
  c.windowed.resize(size_t(c.layers), false);
  if (const Json* const ends = json.find("eos_token_id")) {
    if (ends->kind == JsonKind::number) c.ends = {int(ends->number)};
    for (const Json& one : ends->items) c.ends.push_back(int(one.number));
  }
  out = std::move(c);
  return Status::good();
}

Status find_config(const std::string& what, Config& out) {
  for (const Family* f : kFamilies)
    for (const KnownModel& k : f->known)
      if (k.name == what) {
        Status s = read_config(k.json, what, out);
        return out.name = what, s;
      }
  const std::string path = is_folder(what) ? join(what, "/config.json") : what;
  if (what.find_first_of("/.") == what.npos && path == what)
    return Status::no("model: '", what, "' is not one of ", known_models(), ", a config.json or a folder with one");
  std::string text;
  if (Status s = read_limited(path, {.most_bytes = kMostConfig}, text); !s.ok()) return s.after(path, ": ");
  Status s = read_config(text, path, out);
  return out.name = what, s;
}

std::string known_models() {
  std::string all;
  for (const Family* f : kFamilies)
    for (const KnownModel& k : f->known) all += join(all.empty() ? "" : ", ", k.name);
  return all;
}

std::vector<Config> all_known() {
  std::vector<Config> all;
  for (const Family* f : kFamilies)
    for (const KnownModel& k : f->known)
      if (Config c; find_config(std::string(k.name), c).ok()) all.push_back(std::move(c));
  return all;
}

void rotary_tables(const RotaryShape& r, int positions, std::vector<float>& cos, std::vector<float>& sin) {
  const int half = r.dims / 2;
  std::vector<float> frequency(static_cast<size_t>(half));
  for (int i = 0; i < half; ++i) {
    float f = 1.f / std::pow(float(r.theta), float(2 * i) / float(r.dims));
    if (r.scaling == Scaling::linear) f /= float(r.factor);
    if (r.scaling == Scaling::llama3) {
      const double wave = 2 * std::numbers::pi / f;
      const double most = r.original / r.low_factor, least = r.original / r.high_factor;
      const double smooth = (r.original / wave - r.low_factor) / (r.high_factor - r.low_factor);
      if (wave > most) f = float(f / r.factor);
      else if (wave >= least) f = float((1 - smooth) * f / r.factor + smooth * f);
    }
    frequency[size_t(i)] = f;
  }
  cos.resize(size_t(positions) * size_t(half)), sin.resize(cos.size());
  for (int p = 0; p < positions; ++p)
    for (int i = 0; i < half; ++i) {
      const float angle = float(p) * frequency[size_t(i)];
      cos[size_t(p) * size_t(half) + size_t(i)] = float(std::cos(double(angle)));
      sin[size_t(p) * size_t(half) + size_t(i)] = float(std::sin(double(angle)));
    }
}

}  // namespace attune::models
