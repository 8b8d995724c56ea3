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

constexpr int kMostWidth = 1 << 24, kMostLayers = 1 << 16;
constexpr double kMostParameters = 0x1p48;

// In double: sizes of 2^30 each would overflow.
double parameters_about(const Config& c) {
  const double heads = (2. * c.heads + 2. * c.heads_kv) * c.dim, ffn = (c.gated ? 3. : 2.) * c.ffn;
  return (2. * c.vocab + (c.learned_positions ? c.positions : 0) + c.layers * (heads + ffn)) * c.embed;
}

void check_sizes(Fields& f, const Config& c) {
  const auto most = [&](const char* what, double size, int limit) {
    if (size > limit) f.refuse(what, " of ", size, " given; at most ", limit, " are accepted");
  };
  most("a width", c.embed, kMostWidth), most("a feed-forward width", c.ffn, kMostWidth);
  most("heads x head_dim", double(c.heads) * c.dim, kMostWidth), most("layers", c.layers, kMostLayers);
  if (const double all = parameters_about(c); all > kMostParameters)
    f.refuse("about ", all, " parameters given; at most 2^48 are accepted");
}

void check(Fields& f, const Config& c) {
  if (c.heads % c.heads_kv) f.refuse(c.heads, " heads are not a multiple of ", c.heads_kv, " key and value heads");
  if (c.rotary.dims % 2 || c.rotary.dims > c.dim)
    f.refuse(c.rotary.dims, " rotary dims are not an even number of ", c.dim, " at most");
  if (!(c.eps >= 0) || !(c.softcap >= 0) || !(c.final_softcap >= 0)) f.refuse("eps or a softcap is below 0");
  if (!(c.rotary.theta > 0) || !(c.rotary.factor > 0)) f.refuse("theta or the factor of rotary is not above 0");
  if (f.has("quantization_config")) f.refuse("quantization_config is not accepted; weights are f32, f16 or bf16");
  check_sizes(f, c);
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

int divided_width(Fields& f, const Config& c) {
  if (f.failed.ok() && c.embed % c.heads) f.refuse("width ", c.embed, " is not divisible by ", c.heads, " heads");
  const int dim = std::max(1, c.embed / c.heads), given = f.integer("head_dim", 1, dim);
  if (given != dim) f.refuse("head_dim = ", given, " is not width ", c.embed, " / ", c.heads, " heads");
  return dim;
}

int size_of_either(Fields& f, std::string_view name, std::string_view other, int64_t otherwise) {
  if (!f.has(name)) return f.integer(other, 1, otherwise);
  const int size = f.integer(name, 1, otherwise), same = f.integer(other, 1, size);
  if (size != same) f.refuse(name, " = ", size, " disagrees with ", other, " = ", same);
  return size;
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

namespace {

// A number that a file may give in several places, where all agree.
struct Agreed {
  Fields& file;
  double value;
  std::string_view first{};
  void take(Fields& from, std::string_view name) {
    if (name.empty() || !from.has(name)) return;
    const double x = from.number(name, value);
    if (!first.empty() && x != value) file.refuse(name, " = ", x, " disagrees with ", first, " = ", value);
    first = name, value = x;
  }
  // For a name that transformers does not read here.
  void is_what_they_say(Fields& from, std::string_view name) {
    const double x = from.number(name, value);
    if (x != value) file.refuse(name, " = ", x, " is not accepted; it is ", value);
  }
};

void scaling_of(Fields& f, Fields& r, const Config& c, RotaryShape& all) {
  const std::string type = r.text("rope_type", r.text("type", "default"));
  if (type == "linear") all.scaling = Scaling::linear;
  else if (type == "llama3") all.scaling = Scaling::llama3;
  else if (type != "default") f.refuse("rope_type '", type, "' is not one of default, linear, llama3");
  if (const std::string other = r.text("type", type); other != type)
    f.refuse("rope_type '", type, "' disagrees with type '", other, "'");
  constexpr std::string_view kKnown[] = {
      "rope_theta", "partial_rotary_factor", "rope_type",        "type",
      "factor",     "low_freq_factor",       "high_freq_factor", "original_max_position_embeddings"};
  for (const auto& [name, value] : r.members())
    if (std::find(std::begin(kKnown), std::end(kKnown), name) == std::end(kKnown))
      r.refuse("'", name, "' is not accepted");
  const bool llama3 = all.scaling == Scaling::llama3;
  for (const std::string_view name : {"factor", "low_freq_factor", "high_freq_factor"})
    if (all.scaling != Scaling::none && !r.has(name) && (llama3 || name == "factor")) r.refuse(name, " is missing");
  all.factor = r.number("factor", 1);
  if (all.scaling == Scaling::none && all.factor != 1)
    r.refuse("factor = ", all.factor, " is for a rope_type of linear or llama3");
  all.low_factor = r.number("low_freq_factor", 1), all.high_factor = r.number("high_freq_factor", 4);
  Agreed original{f, double(c.positions)};
  original.take(r, "original_max_position_embeddings"), original.take(f, "original_max_position_embeddings");
  all.original = original.value;
  if (llama3 && !(all.high_factor > all.low_factor && all.low_factor > 0))
    f.refuse("high_freq_factor is not above low_freq_factor");
  if (llama3 && !(all.original > 0)) f.refuse("original_max_position_embeddings is not above 0");
}

}  // namespace

RotaryShape rotary_of(Fields& f, const Config& c, const RotaryNames& older) {
  if (f.has("rope_parameters") && f.has("rope_scaling")) f.refuse("rope_parameters and rope_scaling are both given");
  Fields r = f.object(f.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  RotaryShape all{.pairs = Pairs::halves};
  scaling_of(f, r, c, all);
  Agreed theta{f, all.theta}, part{f, older.otherwise};
  theta.take(r, "rope_theta"), part.take(r, "partial_rotary_factor");
  if (older.theta.empty()) theta.take(f, "rope_theta");
  theta.take(f, older.theta), part.take(f, older.share);
  theta.is_what_they_say(f, "rope_theta"), part.is_what_they_say(f, "partial_rotary_factor");
  all.theta = theta.value;
  if (older.share.empty() && part.value != 1)
    f.refuse("partial_rotary_factor = ", part.value, " is not accepted; it is 1");
  all.dims = part.value > 0 && part.value <= 1 ? int(c.dim * part.value) : 0;
  if (!all.dims) f.refuse("a rotary fraction of ", part.value, " is not above 0 and at most 1");
  if (!r.failed.ok() && f.failed.ok()) f.failed = r.failed;
  return all;
}

void windows_of(Fields& f, Config& c, Windows kind) {
  constexpr int kWindow = 4096;
  const bool used = kind != Windows::late || f.truth("use_sliding_window", false);
  c.window = used && !f.is_null("sliding_window") ? f.integer("sliding_window", 1, kWindow) : 0;
  const int late = kind == Windows::late ? f.integer("max_window_layers", 0, 28) : 0;
  c.windowed.assign(size_t(c.layers), false);
  for (int n = 0; c.window && n < c.layers; ++n)
    c.windowed[size_t(n)] = kind == Windows::all || (kind == Windows::late ? n >= late : n % 2 == 0);
  const Json* const types = f.list("layer_types");
  if (!types) return;
  if (types->items.size() != size_t(c.layers))
    f.refuse("layer_types has ", types->items.size(), " entries for ", c.layers, " layers");
  for (size_t n = 0; f.failed.ok() && n < types->items.size(); ++n) {
    const std::string& type = types->items[n].text;
    const bool windowed = type == "sliding_attention";
    if (type != "full_attention" && !windowed)
      f.refuse("layer_types has '", type, "', not full_attention or sliding_attention");
    if (windowed && !c.window) f.refuse("layer_types has sliding_attention, and there is no sliding_window");
    if (kind == Windows::all && windowed != c.windowed[n])
      f.refuse("layer_types and sliding_window disagree about layer ", n);
    c.windowed[n] = windowed;
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

bool is_known_model(std::string_view name) {
  for (const Family* f : kFamilies)
    for (const KnownModel& k : f->known)
      if (k.name == name) return true;
  return false;
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
