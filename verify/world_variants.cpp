// SPDX-License-Identifier: Apache-2.0
// The tensors of a variant, as core/variant/variants.h declares them: random inputs and lists, memory for saved
// tensors, and gradients of the inputs among the outputs.
#include <algorithm>
#include <cmath>

#include "core/formula/of_problem.h"
#include "verify/world.h"

namespace attune {
namespace {

// Numbers that ascend along the last axis, as those of documents; `back`: sometimes with a step back.
void draw_documents(bool back, Random& random, Owned& o) {
  const Extents& e = o.t.extent;
  const int often = std::max(2, e.dim / 5);
  for (int b = 0; b < e.batch; ++b)
    for (int s = 0; s < e.seq; ++s)
      for (int h = 0; h < e.head; ++h)
        for (int d = 0, x = random.below(2); d < e.dim; ++d) {
          if (random.below(often) == 0) x = std::min(x + 1, 8);
          if (back && random.below(3 * often) == 0) x = random.below(3) - 1;
          store(o.t, b, s, h, d, x);
        }
}

}  // namespace

void World::add_variant() {
  const Declared variant = declared(problem, args);
  const Extents q = args[Role::q].extent;
  const Roles optional = variation.lean ? variant.optional : 0;
  if ((variant.read & ~optional) >> int(Role::lse) & 1)
    normal(add(Role::lse, DType::f32, {q.batch, q.seq, q.head, 1}), 1);
  for (int n = 0; n < kVariantTensors; ++n) {
    const VariantTensor& t = variant.tensor[n];
    if (t.optional && variation.lean) continue;
    Extents e = t.extent;
    if (variation.seed % 2 == 0 && t.or_heads[0]) e.head = t.or_heads[0];
    if (t.use == Use::input)
      normal(add(variant_tensor(n), t.dtype, e), std::pow(10., variation.magnitude) / std::sqrt(t.inputs));
    if (t.use == Use::list) draw_list(add(variant_tensor(n), t.dtype, t.extent), t);
  }
}

// Block numbers, ascending, followed by -1; one row in eight is empty. With an even seed some entries are invalid:
// repetitions, nonexistent blocks, the smallest integer.
void World::draw_list(Owned& o, const VariantTensor& t) {
  if (has_formula(problem)) return draw_documents(variation.seed % 2 == 0, random_, o);
  const int size = std::max(1, numbers(problem.variant, "s").count ? numbers(problem.variant, "s")[0] : 1);
  const int blocks = int(ceil_div(problem.len_k, size));
  std::vector<int> row(size_t(t.extent.dim));
  for (int b = 0; b < t.extent.batch; ++b)
    for (int s = 0; s < t.extent.seq; ++s)
      for (int h = 0; h < t.extent.head; ++h) {
        const bool none = random_.below(8) == 0;
        std::fill(row.begin(), row.end(), -1);
        int last = -1;
        for (int& x : row) {
          const int next = last + 1 + random_.below(1 + blocks / t.extent.dim);
          if (none || next >= blocks) break;
          x = last = next;
        }
        for (size_t n = 1; variation.seed % 2 == 0 && n < row.size(); ++n) {
          const int wrong[] = {row[n - 1], row[0], blocks, INT32_MAX, INT32_MIN};
          if (random_.below(6) == 0) row[n] = wrong[random_.below(5)];
        }
        for (int d = 0; d < t.extent.dim; ++d) store(o.t, b, s, h, d, row[size_t(d)]);
      }
}

void World::add_saved() {
  const Declared variant = declared(problem, args);
  for (int n = 0; n < kVariantTensors; ++n)
    if (variant.tensor[n].use == Use::saved) add(variant_tensor(n), variant.tensor[n].dtype, variant.tensor[n].extent);
}

void add_variant_outputs(const World& world, Outputs& made, bool golden) {
  const Problem& p = world.problem;
  const Variation& v = world.variation;
  const Declared variant = declared(p, world.args);
  const auto add = [&](Role r, DType dtype, const Extents& e) {
    made.args[r] = made.owned.emplace_back(golden ? DType::f64 : dtype, e, Layout::bshd, v.pad, Owned::kUnwritten).t;
    made.roles.push_back(r);
  };
  for (int n = 0; n < kVariantTensors; ++n) {
    const VariantTensor& t = variant.tensor[n];
    const bool backward = p.pass == Pass::backward, written = t.use == Use::saved || t.use == Use::result;
    if (backward && t.use == Use::input && world.args.given(variant_tensor(n)))
      add(d_variant_tensor(n), t.dtype == DType::f32 ? DType::f32 : p.dtype.grad,
          world.args[variant_tensor(n)].extent);
    if (!backward && written && !(v.lean && (t.use == Use::saved || t.optional)))
      add(variant_tensor(n), t.dtype, t.extent);
  }
}

}  // namespace attune
