// SPDX-License-Identifier: Apache-2.0
// Properties of problem lines over random problems: every field from its whole range, valid by construction.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/problem.h"

using namespace attune;

namespace {

template <class T>
T element(std::initializer_list<T> values) { return *rc::gen::elementOf(std::vector<T>(values)); }
int size(int most) { return *rc::gen::oneOf(rc::gen::inRange(1, 9), rc::gen::inRange(1, most), rc::gen::just(most)); }

std::string letters(const char* from, int most) {
  const auto one = rc::gen::elementOf(std::string(from));
  return *rc::gen::resize(most, rc::gen::nonEmpty(rc::gen::container<std::string>(one)));
}

Mask draw_mask() {
  Mask m;
  m.kind = element({MaskKind::full, MaskKind::causal, MaskKind::window});
  m.align = element({Align::bottom_right, Align::top_left, Align::absolute});
  if (m.kind == MaskKind::window) {
    m.left = *rc::gen::oneOf(rc::gen::inRange(0, INT32_MAX), rc::gen::just(kNoLimit));
    m.right = *rc::gen::oneOf(rc::gen::arbitrary<int32_t>(), rc::gen::just(kNoLimit));
  }
  if (*rc::gen::arbitrary<bool>()) m.k_step = size(kMaxStep), m.k_phase = *rc::gen::arbitrary<int32_t>();
  if (*rc::gen::arbitrary<bool>()) m.blocks = {size(INT32_MAX), size(INT32_MAX), size(INT32_MAX)};
  return m;
}

Problem draw() {
  Problem p;
  const auto dtype = [] { return element({DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3}); };
  p.pass = element({Pass::forward, Pass::backward});
  p.dtype = {dtype(), dtype(), dtype(), p.pass == Pass::backward ? dtype() : DType::none, DType::none};
  p.batch = size(1 << 30), p.heads_kv = size(1 << 10), p.heads_q = p.heads_kv * size(1 << 10);
  p.len_q = size(INT32_MAX), p.len_k = size(INT32_MAX), p.dim_qk = size(1 << 16), p.dim_v = size(1 << 16);
  p.mask = draw_mask();
  p.keys = element({KeySource::linear, KeySource::ragged, KeySource::paged});
  if (p.keys == KeySource::paged) p.page = size(INT32_MAX);
  p.options = *rc::gen::inRange(0u, 1u << int(Option::count));
  if (p.pass == Pass::backward) p.clear(Option::append);
  if (p.keys == KeySource::ragged) p.clear(Option::append);
  if (!p.has(Option::append)) p.clear(Option::rotary), p.clear(Option::rotary_half);
  if (p.has(Option::rotary)) p.clear(Option::rotary_half);
  if (!p.mask.blocks.q || p.has(Option::bias)) p.clear(Option::block_bias);
  if (p.has(Option::accumulate))
    (p.pass == Pass::backward ? p.dtype.grad : p.dtype.out) = element({DType::f32, DType::f64});
  if (p.has(Option::bias)) p.dtype.bias = element({DType::f64, DType::f32, DType::f16, DType::bf16});
  p.reproducible = element({Reproducible::no, Reproducible::run, Reproducible::batch});
  p.precision = element({Precision::full, Precision::tf32, Precision::tf32x3});
  if (*rc::gen::arbitrary<bool>()) {
    std::string text = letters("abcdefghijklmnopqrstuvwxyz0123456789_", 8);
    for (int n = *rc::gen::inRange(0, 4); n > 0; --n)
      text += join(" ", char('a' + n), letters("abc_09", 4), "=", letters("abcz0129_,.-", 8));
    RC_ASSERT(assign(p.variant, text).ok());
  }
  RC_ASSERT(valid(p).ok());
  return p;
}

// Deterministic draws, unless the environment overrides the seed.
template <class F>
void check(const char* what, F property) {
  setenv("RC_PARAMS", "seed=1 max_success=1000", 0);
  EXPECT_TRUE(rc::check(what, property));
}

TEST(ProblemProperty, parse_of_print_is_the_identity) {
  check("parse(name(p)) == p", [] {
    const Problem p = draw();
    Problem back;
    const Status s = parse(name(p), back);
    RC_LOG() << name(p) << "\n" << s.message;
    RC_ASSERT(s.ok());
    RC_ASSERT(back == p);
  });
}

TEST(ProblemProperty, different_problems_print_different_lines) {
  check("a != b implies name(a) != name(b)", [] {
    const Problem a = draw();
    Problem b = a;
    const Problem other = draw();
    switch (*rc::gen::inRange(0, 8)) {  // replaces one field
      case 0: b.dtype = other.dtype; break;
      case 1: b.mask = other.mask; break;
      case 2: b.options = other.options; break;
      case 3: b.keys = other.keys, b.page = other.page; break;
      case 4: b.variant = other.variant; break;
      case 5: b.precision = other.precision, b.reproducible = other.reproducible; break;
      case 6: b.len_q = other.len_q, b.dim_v = other.dim_v; break;
      default: b = other;
    }
    RC_PRE(valid(b).ok());
    RC_LOG() << name(a) << "\n" << name(b);
    RC_ASSERT((name(a) == name(b)) == (a == b));
  });
}

TEST(ProblemProperty, lines_with_a_changed_character_are_refused_or_say_something_valid) {
  check("a damaged line never lies", [] {
    std::string line = name(draw());
    const size_t at = *rc::gen::inRange<size_t>(0, line.size());
    line[at] = *rc::gen::arbitrary<char>();
    Problem p, again;
    if (!parse(line, p).ok()) return;
    RC_LOG() << line;
    RC_ASSERT(valid(p).ok());
    RC_ASSERT(parse(name(p), again).ok());
    RC_ASSERT(again == p);
  });
}

TEST(ProblemProperty, any_text_is_refused_with_a_sentence_or_read) {
  check("parse answers", [] {
    const std::string text = *rc::gen::arbitrary<std::string>();
    Problem p;
    const Status s = parse(text, p);
    RC_ASSERT(s.ok() || s.message.starts_with("problem line: "));
  });
}

TEST(ProblemProperty, filled_problems_stay_as_they_are) {
  check("filled is the identity on complete problems", [] {
    const Problem p = draw();
    RC_ASSERT(filled(p) == p);
  });
}

}  // namespace
