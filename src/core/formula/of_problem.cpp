// SPDX-License-Identifier: Apache-2.0
#include "core/formula/of_problem.h"

#include <algorithm>

namespace attune {
namespace {

Status no(const auto&... why) { return Status::no("formula: ", why...); }

Status read(std::string_view mask, std::string_view score, Formula& out, std::string_view& wrong,
            FormulaPlace& place) {
  out = {};
  wrong = mask;
  if (!mask.empty())
    if (Status s = read_mask(mask, out, place); !s.ok()) return s;
  wrong = score;
  if (!score.empty())
    if (Status s = read_score(score, out, place); !s.ok()) return s;
  return Status::good();
}

constexpr int32_t kMostExtent = 1 << 20, kMostElements = 1 << 26;

}  // namespace

Status read_formula(const Problem& p, Formula& out) {
  std::string_view wrong;
  FormulaPlace place;
  return read(value(p.variant, "mask"), value(p.variant, "score"), out, wrong, place);
}

Status assign_formula(std::string_view mask, std::string_view score, Variant& out, std::string_view& wrong,
                      FormulaPlace& place) {
  Formula f;
  if (Status s = read(mask, score, f, wrong, place); !s.ok()) return s;
  std::string text = "formula";
  if (f.mask >= 0) text += join(" mask=", text_of(f, f.mask));
  if (f.score >= 0) text += join(" score=", text_of(f, f.score));
  if (text.size() >= sizeof out.text)
    return no("'mask=... score=...' has ", text.size() - 8, " characters without spaces; at most ",
              sizeof out.text - 9, " are accepted");
  return assign(out, text);
}

void canonicalize_formula(Variant& v) {
  if (word(v) != "formula") return;
  Variant canonical{};
  std::string_view wrong;
  FormulaPlace place;
  if (assign_formula(value(v, "mask"), value(v, "score"), canonical, wrong, place).ok()) v = canonical;
}

Status valid_formula(const Problem& p) {
  Variant again{};
  const std::string_view mask = value(p.variant, "mask"), score = value(p.variant, "score");
  std::string_view wrong;
  FormulaPlace place;
  if (mask.empty() && score.empty()) return no("neither a mask nor a score is given");
  if (Status s = assign_formula(mask, score, again, wrong, place); !s.ok()) return s;
  if (std::string_view(again.text) != p.variant.text)
    return no("'", p.variant.text, "' is not in canonical form; expected '", again.text, "'");
  return Status::good();
}

PairBox all_pairs(const Problem& p) {
  const int64_t most = int64_t(std::max(p.len_q, p.len_k)) * p.mask.k_step + p.mask.k_phase;
  return {.q_first = 0, .q_last = std::max<int64_t>(most - 1, 0), .k_first = 0,
          .k_last = std::max<int64_t>(most - 1, 0), .h_first = 0, .h_last = p.heads_q - 1, .b = p.batch - 1,
          .group = p.heads_q / p.heads_kv, .len_q = p.len_q, .len_k = p.len_k};
}

Extents extents_of(const Problem& p, const Formula& f, int array) {
  NumberRange value[kMostNodes];
  int32_t extent[kMostIndices] = {1, 1, 1, 1};  // of the last axes, last axis last
  const auto element = [&](int of, NumberRange* index) {
    const int indices = f.array[of].indices;
    for (int i = 0; of == array && i < indices; ++i) {
      const double most = index[i].hi;
      int32_t& e = extent[kMostIndices - indices + i];
      e = std::max(e, most >= kMostExtent ? kMostExtent : int32_t(element_index(most, kMostExtent) + 1));
    }
    return NumberRange{0, 1023, false, true};
  };
  const int last = std::max(f.mask, f.score);
  if (last >= 0) (void)bound(f, last, all_pairs(p), element, value);
  int32_t room = kMostElements;
  for (int i = kMostIndices - 1; i >= 0; --i) extent[i] = std::min(extent[i], room), room /= extent[i];
  return {extent[0], extent[1], extent[2], extent[3]};
}

void declare_formula(const Problem& p, const Args& a, Declared& d) {
  const Formula f = formula_of(p);
  for (int n = 0; n < f.arrays; ++n) {
    VariantTensor& t = d.tensor[n];
    const Tensor& given = a[variant_tensor(n)];
    t.name = f.array[n].name;
    t.dtype = f.array[n].in_score ? DType::f32 : DType::i32;
    if (given.data && (given.dtype == DType::i32 || given.dtype == DType::i64 || given.dtype == DType::f32))
      t.dtype = given.dtype;
    t.use = t.dtype == DType::f32 ? Use::input : Use::list;
    if (!given.data) {
      t.extent = extents_of(p, f, n);
      continue;
    }
    // Any extents, of the axes that the indices name.
    const int indices = f.array[n].indices;
    const Extents e = given.extent;
    t.extent = {indices > 3 ? std::max(e.batch, 1) : 1, indices > 2 ? std::max(e.seq, 1) : 1,
                indices > 1 ? std::max(e.head, 1) : 1, std::max(e.dim, 1)};
  }
}

}  // namespace attune
