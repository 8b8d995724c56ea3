// SPDX-License-Identifier: Apache-2.0
// The cache of native sparse attention as a user sees it. A model of plain vectors records the tokens of every
// sequence. Prefill, chunks and single tokens through the cache, in any order, must give the same result as one prefill
// over all tokens.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "expect.h"

namespace {

constexpr int kHeads = 4, kGroups = 2, kDim = 16, kDimV = 8, kSequences = 3, kCapacity = 90;
constexpr int kD = 4, kL = 8, kS = 8, kN = 4, kW = 9;
constexpr float kClose = 1e-5f;

std::string variant(const std::string& phi, int w = kW) {
  const std::string hidden = phi == "mlp" ? " hidden=6" : "";
  return "nsa d=4 gate=softmax" + hidden + " l=8 n=4 phi=" + phi + " s=8 w=" + std::to_string(w);
}
int compressed(int tokens) { return tokens < kL ? 0 : (tokens - kL) / kD + 1; }

uint32_t state = 1;
int below(int n) { return int((state = state * 1664525u + 1013904223u) >> 8) % n; }
std::vector<float> numbers(size_t n) {
  std::vector<float> x(n);
  for (float& one : x) one = float(below(2001) - 1000) / 500.f;
  return x;
}
float worst(const std::vector<float>& a, const std::vector<float>& b) {
  float most = a.size() == b.size() ? 0.f : INFINITY;
  for (size_t n = 0; n < std::min(a.size(), b.size()); ++n) {
    const float error = std::fabs(a[n] - b[n]);
    if (!(error <= most)) most = error;  // a NaN counts as an error
  }
  return most;
}

// The tensors of a token: q, k, v of the compression branch, k and v of the other two branches, gates.
enum Stream { kQ, kK, kV, kKs, kVs, kKw, kVw, kGates, kStreams };
constexpr int kWidth[kStreams] = {kHeads * kDim,   kGroups * kDim, kGroups * kDimV, kGroups * kDim,
                                  kGroups * kDimV, kGroups * kDim, kGroups * kDimV, kHeads * 3};
constexpr int kHeadsOf[kStreams] = {kHeads, kGroups, kGroups, kGroups, kGroups, kGroups, kGroups, kHeads};

// Weights of phi, for keys and for values: taps; or position, w1, b1, w2, b2.
struct Weights {
  static constexpr int kHidden = 6;
  std::vector<float> taps[2], mlp[2][5];
  Weights() {
    for (const int n : {0, 1}) {
      const int dim = n ? kDimV : kDim;
      taps[n] = numbers(size_t(kL * dim));
      const int sizes[5] = {kL * dim, kHidden * kL * dim, kHidden, dim * kHidden, dim};
      for (int w = 0; w < 5; ++w) mlp[n][w] = numbers(size_t(sizes[w]));
      for (float& x : mlp[n][1]) x /= 8;  // keeps sums of kL * dim products near 1
    }
  }
  void give(attune::Args& a, const std::string& phi, int n, int role) {
    const int dim = n ? kDimV : kDim;
    if (phi == "conv") a.set(role, {taps[n].data(), "bshd", {1, kL, 1, dim}});
    if (phi != "mlp") return;
    a.set(role, {mlp[n][0].data(), "bshd", {1, kL, 1, dim}});
    a.set(role + 1, {mlp[n][1].data(), "bshd", {1, kHidden, kL, dim}});
    a.set(role + 2, {mlp[n][2].data(), "bshd", {1, 1, 1, kHidden}});
    a.set(role + 3, {mlp[n][3].data(), "bshd", {1, dim, 1, kHidden}});
    a.set(role + 4, {mlp[n][4].data(), "bshd", {1, 1, 1, dim}});
  }
  void give(attune::Args& a, const std::string& phi) {
    give(a, phi, 0, ATTUNE_VARIANT + 5), give(a, phi, 1, ATTUNE_VARIANT + 10);
  }
};

struct Tokens {
  int batch, count;
  std::vector<float> of[kStreams];
  Tokens(int b, int n, bool fresh) : batch(b), count(n) {
    for (int s = 0; fresh && s < kStreams; ++s) of[s] = numbers(size_t(b * n * kWidth[s]));
  }
  attune::Tensor tensor(int s) {
    return {of[s].data(), "bshd", {batch, count, kHeadsOf[s], kWidth[s] / kHeadsOf[s]}};
  }
  // The arguments of a prefill, or of new tokens for a cache.
  attune::Args args(bool fresh, bool window) {
    attune::Args a;
    a.set(ATTUNE_Q, tensor(kQ));
    a.set(fresh ? ATTUNE_K_NEW : ATTUNE_K, tensor(kK)).set(fresh ? ATTUNE_V_NEW : ATTUNE_V, tensor(kV));
    a.set(ATTUNE_VARIANT, tensor(kKs)).set(ATTUNE_VARIANT + 1, tensor(kVs)).set(ATTUNE_VARIANT + 4, tensor(kGates));
    if (window) a.set(ATTUNE_VARIANT + 2, tensor(kKw)).set(ATTUNE_VARIANT + 3, tensor(kVw));
    return a;
  }
};

struct Result {
  std::vector<float> out;
  std::vector<int32_t> blocks;
  std::vector<int64_t> read = std::vector<int64_t>(4, -1);
  Result(int batch, int count)
      : out(size_t(batch * count * kHeads * kDimV), NAN), blocks(size_t(batch * count * kGroups * kN), -9) {}
  void give(attune::Args& a, int batch, int count) {
    a.set(ATTUNE_OUT, {out.data(), "bshd", {batch, count, kHeads, kDimV}});
    a.set(ATTUNE_VARIANT + 17, {blocks.data(), "bshd", {batch, count, kGroups, kN}});
    a.set(ATTUNE_VARIANT + 18, {read.data(), "bshd", {1, 1, 1, 4}});
  }
};

attune::Problem problem(int batch, int count, const std::string& rest) {
  return attune::Problem("forward f32 b" + std::to_string(batch) + " h4/2 q" + std::to_string(count) + " k" +
                         std::to_string(count) + " d16/8 causal" + rest);
}

// The contents of the sequences, and the result of a prefill over them.
struct Model {
  std::string phi;
  int w;
  Weights& weights;
  std::vector<Tokens> held = std::vector<Tokens>(kSequences, Tokens(1, 0, false));

  void append(const Tokens& fresh, const std::vector<int32_t>& order) {
    for (size_t b = 0; b < order.size(); ++b) {
      Tokens& to = held[size_t(order[b])];
      to.count += fresh.count;
      for (int s = 0; s < kStreams; ++s) {
        const auto n = std::ptrdiff_t(fresh.count * kWidth[s]), at = std::ptrdiff_t(b) * n;
        to.of[s].insert(to.of[s].end(), fresh.of[s].begin() + at, fresh.of[s].begin() + at + n);
      }
    }
  }
  void shorten(int s, int length) {
    held[size_t(s)].count = length;
    for (int n = 0; n < kStreams; ++n) held[size_t(s)].of[n].resize(size_t(length * kWidth[n]));
  }
  Result prefill(int s) {
    Tokens& all = held[size_t(s)];
    Result r(1, all.count);
    attune::Args a = all.args(false, w > 0);
    weights.give(a, phi);
    r.give(a, 1, all.count);
    attune::call(problem(1, all.count, " : " + variant(phi, w)), a);
    return r;
  }
  std::vector<float> compress(int s, bool key) {
    Tokens& all = held[size_t(s)];
    const int dim = key ? kDim : kDimV, rows = compressed(all.count);
    std::vector<float> out(size_t(rows * kGroups * dim), NAN);
    if (!rows) return out;
    attune::Args a;
    a.set(ATTUNE_Q, all.tensor(key ? kK : kV)).set(ATTUNE_OUT, {out.data(), "bshd", {1, rows, kGroups, dim}});
    weights.give(a, phi, key ? 0 : 1, ATTUNE_VARIANT);
    const std::string size = "q" + std::to_string(all.count) + " k" + std::to_string(rows) + " d" + std::to_string(dim);
    attune::call(attune::Problem("forward f32 b1 h2 " + size + " full : compress d=4" +
                                 (phi == "mlp" ? " hidden=6" : "") + " l=8 phi=" + phi), a);
    return out;
  }
};

attune_nsa_cache_options options(const std::string& text) {
  attune_nsa_cache_options o{};
  o.dtype = ATTUNE_F32, o.heads = kGroups, o.dim_qk = kDim, o.dim_v = kDimV;
  o.sequences = kSequences, o.capacity = kCapacity, o.variant = text.c_str();
  return o;
}

// The kernels' read counters, compared with explicit sets of tokens.
std::vector<int64_t> reads(const Result& r, int batch, int count, const std::vector<int>& first, int w) {
  std::vector<int64_t> sum(4, 0);
  for (int b = 0; b < batch; ++b)
    for (int i = 0; i < count; ++i)
      for (int g = 0; g < kGroups; ++g) {
        const int t = first[size_t(b)] + i;
        std::set<int> selected, all;
        for (int n = 0; n < kN; ++n) {
          const int m = r.blocks[size_t(((b * count + i) * kGroups + g) * kN + n)];
          for (int j = m * kS; m >= 0 && j < (m + 1) * kS && j <= t; ++j) selected.insert(j);
        }
        all = selected;
        for (int j = std::max(0, t - w + 1); j <= t && w > 0; ++j) all.insert(j);
        sum[0] += compressed(t + 1), sum[1] += int64_t(selected.size());
        sum[2] += std::min(w, t + 1), sum[3] += int64_t(all.size());
      }
  return sum;
}

struct Cached {
  std::string text, phi;
  int w;
  Weights weights{};
  attune::NsaCache cache;
  Model model;

  Cached(const std::string& how, int window)
      : text(variant(how, window)), phi(how), w(window), cache(options(text)), model{how, window, weights} {}

  // Appends `count` tokens to each given sequence; every row must equal a prefill over all tokens.
  void step(const std::vector<int32_t>& order, int count) {
    const int batch = int(order.size());
    Tokens fresh(batch, count, true);
    Result r(batch, count);
    attune::Args a = fresh.args(true, w > 0);
    weights.give(a, phi);
    r.give(a, batch, count);
    attune::Problem p = problem(batch, count, "");
    p.c.len_k = 0;
    std::vector<int> first;
    for (const int32_t s : order) first.push_back(cache.length(s));
    cache.attend(p, a, order);
    model.append(fresh, order);
    const std::string what = phi + " w=" + std::to_string(w) + ", " + std::to_string(count) + " tokens";
    for (int b = 0; b < batch; ++b) {
      const Result whole = model.prefill(order[size_t(b)]);
      const auto rows = [&](const auto& from, int width, int at) {
        return std::vector(from.begin() + at * width, from.begin() + (at + count) * width);
      };
      const int at = first[size_t(b)];
      expect(cache.length(order[size_t(b)]) == at + count, what + ": length");
      const float error = worst(rows(r.out, kHeads * kDimV, b * count), rows(whole.out, kHeads * kDimV, at));
      expect(error < kClose, what + " after " + std::to_string(at) + ": out is off by " + std::to_string(error));
      expect(rows(r.blocks, kGroups * kN, b * count) == rows(whole.blocks, kGroups * kN, at),
             what + " after " + std::to_string(at) + ": other blocks than a prefill's");
      streams(order[size_t(b)], what);
    }
    expect(r.read == reads(r, batch, count, first, w), what + ": tokens read");
  }
  // The compressed streams equal the compression of all raw tokens at once.
  void streams(int s, const std::string& what) {
    expect(cache.compressed(s) == compressed(cache.length(s)), what + ": compressed tokens");
    for (const bool key : {true, false}) {
      const attune_tensor t = cache.view(key ? ATTUNE_NSA_K_COMPRESSED : ATTUNE_NSA_V_COMPRESSED);
      const float* first = static_cast<const float*>(t.data) + s * t.shape[1] * t.shape[2] * t.shape[3];
      const std::vector<float> whole = model.compress(s, key);
      expect(worst({first, first + whole.size()}, whole) < 1e-6f, what + ": a compressed stream");
    }
  }
};

void prefill_chunks_and_single_tokens_agree() {
  for (const std::string phi : {"mean", "conv", "mlp"})
    for (const int w : {kW, 0}) {
      Cached prefilled(phi, w), single(phi, w), chunks(phi, w);
      prefilled.step({0}, kCapacity);
      for (int n = 0; n < 40; ++n) single.step({0}, 1);
      for (const int count : {1, 7, 8, 3, 20, 1, 1, 30, 5}) chunks.step({2}, count);
    }
}

// Each branch alone, configured to see all tokens, compared with explicit attention in a prefill and at every token.
void a_branch_that_sees_everything_is_attention_at_every_step() {
  constexpr int kAll = 40, kPrefill = 11;
  const std::string text = "nsa d=1 gate=none l=1 n=40 phi=mean s=1 w=40";
  for (int branch = 0; branch < 3; ++branch) {
    attune::NsaCache cache(options(text));
    Tokens all(1, kAll, true);
    for (size_t n = 0; n < all.of[kGates].size(); ++n) all.of[kGates][n] = int(n % 3) == branch;
    std::vector<float> out(size_t(kAll * kHeads * kDimV), NAN);
    for (int first = 0, count = kPrefill; first < kAll; first += count, count = 1) {
      Tokens fresh(1, count, false);
      for (int s = 0; s < kStreams; ++s)
        fresh.of[s].assign(all.of[s].begin() + first * kWidth[s], all.of[s].begin() + (first + count) * kWidth[s]);
      attune::Args a = fresh.args(true, true);
      a.set(ATTUNE_OUT, {out.data() + first * kHeads * kDimV, "bshd", {1, count, kHeads, kDimV}});
      attune::Problem p = problem(1, count, "");
      p.c.len_k = 0;
      cache.attend(p, a, {0});
    }
    const std::vector<float>&q = all.of[kQ], &k = all.of[kK + 2 * branch], &v = all.of[kV + 2 * branch];
    std::vector<float> want(out.size());
    for (int t = 0; t < kAll; ++t)
      for (int h = 0; h < kHeads; ++h) {
        const int g = h / (kHeads / kGroups);
        double sum = 0, rows[kDimV] = {};
        for (int j = 0; j <= t; ++j) {
          double score = 0;
          for (int d = 0; d < kDim; ++d)
            score += double(q[size_t((t * kHeads + h) * kDim + d)]) * double(k[size_t((j * kGroups + g) * kDim + d)]);
          const double weight = std::exp(score / std::sqrt(double(kDim)));
          sum += weight;
          for (int d = 0; d < kDimV; ++d) rows[d] += weight * double(v[size_t((j * kGroups + g) * kDimV + d)]);
        }
        for (int d = 0; d < kDimV; ++d) want[size_t((t * kHeads + h) * kDimV + d)] = float(rows[d] / sum);
      }
    const float error = worst(out, want);
    expect(error < kClose, "branch " + std::to_string(branch) + " alone is off by " + std::to_string(error));
  }
}

void sequences_of_different_lengths_share_a_call() {
  Cached c("mean", kW);
  c.step({1}, 13);
  c.step({0, 1, 2}, 9);
  for (int n = 0; n < 12; ++n) c.step({2, 0}, 1), c.step({1, 2, 0}, 1 + below(3));
}

void a_shorter_sequence_goes_on_where_it_was_cut() {
  Cached c("conv", kW);
  c.step({0}, 50);
  for (const int length : {37, 8, 7, 0}) {
    c.cache.shorten(0, length), c.model.shorten(0, length);
    expect(c.cache.compressed(0) == compressed(length), "compressed tokens of a shorter sequence");
    c.step({0}, 6);
  }
}

// Without q a call only appends; without new tokens it only attends.
void appending_and_attending_may_be_two_calls() {
  Cached one("mean", kW);
  Tokens fresh(1, 30, true);
  attune::Problem p = problem(1, 30, "");
  p.c.len_k = 0;
  attune::Args append;
  append.set(ATTUNE_K_NEW, fresh.tensor(kK)).set(ATTUNE_V_NEW, fresh.tensor(kV));
  for (int n = 0; n < 4; ++n) append.set(ATTUNE_VARIANT + n, fresh.tensor(kKs + n));
  one.cache.attend(p, append);
  one.model.append(fresh, {0});
  expect(one.cache.length(0) == 30, "appended without q");
  Result r(1, 30);
  attune::Args attend;
  attend.set(ATTUNE_Q, fresh.tensor(kQ)).set(ATTUNE_VARIANT + 4, fresh.tensor(kGates));
  r.give(attend, 1, 30);
  one.cache.attend(p, attend);
  expect(one.cache.length(0) == 30 && worst(r.out, one.model.prefill(0).out) < kClose, "attended without new tokens");
}

void what_does_not_fit_is_refused_and_changes_nothing() {
  Cached c("mean", kW);
  c.step({0}, 80);
  Tokens fresh(1, 11, true);
  Result r(1, 11);
  attune::Args a = fresh.args(true, true);
  r.give(a, 1, 11);
  attune::Problem p = problem(1, 11, "");
  p.c.len_k = 0;
  refused([&] { c.cache.attend(p, a); }, "sequence 0 has 80 tokens, and 11 new tokens do not fit in 90");
  expect(c.cache.length(0) == 80, "length after a refusal");
  refused([&] { c.cache.attend(p, a, {3}); }, "sequence 3 is not in 0 ... 2");
  attune::Problem two = p;
  two.c.batch = 2;
  refused([&] { c.cache.attend(two, a, {1, 1}); }, "nsa cache: sequence 1 is given twice");
  two.c.batch = 4;
  refused([&] { c.cache.attend(two, a); }, "nsa cache: batch = 4 is not in 1 ... 3");
  attune::Problem other = problem(1, 11, " : " + variant("mean", 4));
  refused([&] { c.cache.attend(other, a, {1}); }, "its variant is 'nsa d=4 gate=softmax l=8 n=4 phi=mean s=8 w=9'");
  attune::Args both = a, few;
  both.set(ATTUNE_K, fresh.tensor(kK));
  refused([&] { c.cache.attend(p, both, {1}); }, "k given, but the cache provides it");
  few.set(ATTUNE_K_NEW, fresh.tensor(kK));
  refused([&] { c.cache.attend(p, few, {1}); }, "1 of the 6 streams have new tokens; give all or none");
  attune::Args wrong = a;
  wrong.set(ATTUNE_V_NEW, fresh.tensor(kK));
  refused([&] { c.cache.attend(p, wrong, {1}); }, "are [1, 11, 2, 16], not [1, 11, 2, 8]");
  refused([&] { c.cache.shorten(0, 81); }, "length 81 is not in 0 ... 80");
  refused([&] { c.cache.view(8); }, "stream 8 is not in this cache");
  refused([&] { attune::NsaCache bad(options("nsa d=4 gate=none l=8 n=4 phi=none s=8 w=9")); }, "phi=none");
  refused([&] { attune::NsaCache bad(options("dilated rates=1 segments=8")); }, "is not nsa");
  refused([&] { attune::NsaCache bad(options("nsa d=3 gate=none l=8 n=4 phi=mean s=8 w=9")); }, "does not divide");
  attune_nsa_cache_options o = options("");
  o.heads = 0;
  refused([&] { attune::NsaCache bad(o); }, "heads = 0 is below 1");
  const std::string good = variant("mean");
  o = options(good), o.device = "h200";
  refused([&] { attune::NsaCache bad(o); }, "nsa cache: device 'h200' is not present");
  attune_nsa_cache* made = nullptr;
  o.size = 8;  // smaller than the struct's first version
  refused(attune_nsa_cache_create(&o, &made), "options.size = 8 is not sizeof(attune_nsa_cache_options)");
  refused(attune_nsa_cache_create(nullptr, &made), "options is null");
  refused(attune_nsa_cache_create(&o, nullptr), "out is null");
  expect(!made, "nothing was made");
  c.step({0}, 10);
}

}  // namespace

int main() {
  prefill_chunks_and_single_tokens_agree();
  a_branch_that_sees_everything_is_attention_at_every_step();
  sequences_of_different_lengths_share_a_call();
  a_shorter_sequence_goes_on_where_it_was_cut();
  appending_and_attending_may_be_two_calls();
  what_does_not_fit_is_refused_and_changes_nothing();
  return finish("nsa_cache");
}
