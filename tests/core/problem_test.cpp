// SPDX-License-Identifier: Apache-2.0
// A problem and its line are equivalent: parsing a printed line returns the problem, no two problems print alike, and a
// damaged line that still parses is a valid problem with its own line.
#include "core/problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/problem_line.h"

using namespace attune;

namespace {

using Change = void (*)(Problem&);
using P = Problem&;

std::vector<Problem> spread(const std::vector<Problem>& from, std::initializer_list<Change> changes) {
  std::vector<Problem> all = from;
  for (const Problem& p : from)
    for (const Change f : changes) f(all.emplace_back(p));
  return all;
}

// The cross product of two or more settings of every field; some combinations are invalid.
std::vector<Problem> everything() {
  std::vector<Problem> all{Problem{}};
  all = spread(all, {[](P p) { p.dtype = {DType::bf16, DType::e4m3, DType::f32, DType::none, DType::none}; },
                     [](P p) { p.pass = Pass::backward, p.dtype.grad = DType::f32; },
                     [](P p) { p.pass = Pass::backward, p.dtype.grad = DType::f64; }});
  all = spread(all, {[](P p) { p.batch = 7; }});
  all = spread(all, {[](P p) { p.heads_q = 8, p.heads_kv = 2; }, [](P p) { p.heads_q = p.heads_kv = 8; }});
  all = spread(all, {[](P p) { p.len_q = INT32_MAX; }, [](P p) { p.len_k = 12; }});
  all = spread(all, {[](P p) { p.dim_qk = 192, p.dim_v = 128; }});
  all = spread(all, {[](P p) { p.mask.kind = MaskKind::causal; }, [](P p) { p.mask.kind = MaskKind::window; },
                     [](P p) { p.mask = {.kind = MaskKind::window, .left = kNoLimit, .right = -3}; },
                     [](P p) { p.mask = {.kind = MaskKind::window, .left = 7, .right = kNoLimit}; }});
  all = spread(all, {[](P p) { p.mask.align = Align::top_left; }, [](P p) { p.mask.align = Align::absolute; }});
  all = spread(all, {[](P p) { p.mask.k_step = 16; }, [](P p) { p.mask.k_phase = -5; }});
  all = spread(all, {[](P p) { p.mask.blocks = {64, 32, 9}; }});
  all = spread(all, {[](P p) { p.keys = KeySource::ragged; }, [](P p) { p.keys = KeySource::paged, p.page = 16; }});
  all = spread(all, {[](P p) { p.set(Option::bias), p.dtype.bias = DType::f32; },
                     [](P p) { p.set(Option::bias), p.dtype.bias = DType::bf16; }});
  return all;
}

// Settings outside the cross product, each with a few related problems.
std::vector<Problem> corners() {
  std::vector<Problem> all{Problem{}, Problem{.keys = KeySource::paged, .page = 4}};
  all = spread(all, {[](P p) { p.reproducible = Reproducible::run; },
                     [](P p) { p.reproducible = Reproducible::batch; }});
  all = spread(all, {[](P p) { p.precision = Precision::tf32; }, [](P p) { p.precision = Precision::tf32x3; }});
  all = spread(all, {[](P p) { (void)assign(p.variant, "other l=32 d=16 gate=softmax"); },
                     [](P p) { (void)assign(p.variant, "other l=32 d=1"); },
                     [](P p) { (void)assign(p.variant, "ring"); }});
  std::vector<Problem> with_options;
  for (const Problem& p : all)
    for (uint32_t bits = 0; bits < 1u << int(Option::count); ++bits) {
      with_options.push_back(p), with_options.back().options = bits;
      if (with_options.back().has(Option::bias)) with_options.back().dtype.bias = DType::f32;
    }
  return with_options;
}

TEST(ProblemLine, reads_back_as_the_problem_and_is_its_alone) {
  for (const std::vector<Problem>& all : {everything(), corners()}) {
    std::unordered_set<std::string> lines;
    std::unordered_set<size_t> hashes;
    for (const Problem& p : all) {
      if (!valid(p).ok()) continue;
      const std::string line = name(p);
      Problem back;
      const Status s = parse(line, back);
      ASSERT_TRUE(s.ok() && back == p) << line << ": " << s.message;
      ASSERT_TRUE(lines.insert(line).second) << "printed twice: " << line;
      hashes.insert(HashBytes{}(p));
    }
    EXPECT_GT(lines.size(), 5000u);
    EXPECT_GE(hashes.size() + 1, lines.size()) << "hashes of 64 bits hardly ever meet";
  }
}

TEST(ProblemLine, is_the_line_people_write) {
  Problem p{.dtype = {DType::bf16, DType::bf16, DType::bf16, DType::none, DType::none}, .batch = 2, .heads_q = 32,
            .heads_kv = 8, .len_q = 4096, .len_k = 4096, .dim_qk = 128, .dim_v = 128};
  p.mask.kind = MaskKind::causal;
  EXPECT_EQ(name(p), "forward bf16 b2 h32/8 q4096 k4096 d128 causal");
  p.pass = Pass::backward, p.dtype.grad = DType::f32, p.dim_qk = 192;
  p.mask = {.kind = MaskKind::window, .align = Align::absolute, .left = 128, .right = kNoLimit,
            .k_step = 16, .k_phase = 31, .blocks = {64, 32, 100}};
  p.set(Option::bias), p.set(Option::sink), p.dtype.bias = DType::f16;
  p.keys = KeySource::paged, p.page = 64, p.reproducible = Reproducible::batch, p.precision = Precision::tf32x3;
  ASSERT_TRUE(assign(p.variant, "nsa l=32 d=16").ok());
  EXPECT_EQ(name(p), "backward bf16/bf16/bf16/f32 b2 h32/8 q4096 k4096 d192/128 window128,*@absolute/16+31 "
                     "blocks64x32x100 bias.f16 sink paged64 repro=batch precision=tf32x3 : nsa d=16 l=32");
}

TEST(ProblemLine, damaged_lines_never_lie) {
  const std::string whole = "forward bf16/e4m3/f32 b2 h32/8 q4096 k4096 d192/128 window*,-1@absolute/16+31 "
                            "softcap bias.f16 sink paged16 repro=batch precision=tf32 : other d=16 l=32";
  std::mt19937 random(1);
  int read = 0;
  for (int n = 0; n < 100000; ++n) {
    std::string line = whole;
    for (unsigned cuts = 1 + random() % 3; cuts && !line.empty(); --cuts) {
      const size_t at = random() % line.size();
      if (random() % 2) line.erase(at, 1 + random() % 6);
      else line[at] = whole[random() % whole.size()];
    }
    Problem p, again;
    if (!parse(line, p).ok()) continue;
    ASSERT_TRUE(valid(p).ok() && parse(name(p), again).ok() && p == again) << line;
    ++read;
  }
  EXPECT_GT(read, 1000) << "most damage is refused, some still says something";
}

TEST(ProblemLine, refused_line_leaves_the_problem_alone) {
  Problem p{.batch = 77};
  EXPECT_FALSE(parse("forward f32 b2 h5/2 q1 k1 d64 full", p).ok());
  EXPECT_EQ(p, Problem{.batch = 77});
}

struct Refused { const char *line, *words; };

void expect_refused(std::span<const Refused> all) {
  for (const auto& [line, words] : all) {
    Problem p;
    const Status s = parse(line, p);
    EXPECT_NE(s.message.find(words), std::string::npos) << line << " -> " << s.message;
  }
}

TEST(ProblemLine, refusals_are_sentences) {
  const Refused all[] = {
      {"sideways bf16 b2 h8 q1 k1 d64 full",
       "problem line: 'sideways' is not a pass, with which a line begins;"},
      {"forward i32 b2 h8 q1 k1 d64 full", "problem: dtype i32 is not one of f64, f32, f16, bf16, e4m3"},
      {"backward bf16/bf16/f32 b2 h8 q1 k1 d64 full", "has 3 dtypes; accepted are one for all, or four: q/kv/out/grad"},
      {"forward float32 b2 h8 q1 k1 d64 full",
       "'float32' is not a dtype; accepted are f64, f32, f16, bf16 and e4m3; did"},
      {"forward fp8 b2 h8 q1 k1 d64 full", "did you mean 'e4m3'?"},
      {"forward b16 b2 h8 q1 k1 d64 full",
       "'b16' is not a dtype; accepted are f64, f32, f16, bf16 and e4m3; did you mean 'bf16'?"},
      {"forward bf16/bf16 b2 h8 q1 k1 d64 full",
       "'bf16/bf16' has 2 dtypes; accepted are one for all, or three: q/kv/out"},
      {"forward bf16 b2 h32/5 q1 k1 d64 full", "heads_kv = 5 does not divide heads_q = 32"},
      {"forward bf16 b2 h8 q1 k1 d64 casual", "'casual' is not a word of a problem line; did you mean 'causal'?"},
      {"forward bf16 b2 h8 q1 k1 d64 fuller", "'fuller' is not a word of a problem line; did you mean 'full'?"},
      {"forward bf16 b2 h8 q99999999999 k1 d64 full", "'q99999999999': a number is not below 2^31"},
      {"forward bf16 b0 h8 q1 k1 d64 full", "batch = 0 is not in 1 ... 1073741824"},
      {"forward bf16 b1000000 h64 q2000000 k2000000 d128 full : dilated rates=1 segments=64",
       "problem: dilated tensors have 1.6384e+16 elements, over the limit of 2^48"},
      {"forward bf16 b2 h8 q1 k-1 d64 full", "len_k = -1 is not in 1 ... 2147483647"},
      {"forward bf16 b2 h8 q1 k1 d65537 full", "dim_qk = 65537 is not in 1 ... 65536"},
      {"forward bf16 b2 h8 q1 k1 d64 window-1,0",
       "'window-1,0': the left side is below 0; * means no limit, as in window*,0"},
      {"forward bf16 b2 h8 q1 k1 d64 causal/1048577+0", "k_step = 1048577 is not in 1 ... 2^20"},
      {"forward bf16 b2 h8 q1 k1 d64 full blocks8x0x1", "blocks 8x0x1: all three must be above 0"},
      {"forward bf16 b2 h8 q1 k1 d64 full blocks0x0x0", "blocks0x0x0: all three must be above 0"},
      {"forward bf16 b2 h8 q1 k1 d64 full accumulate", "accumulate requires out in f32 or f64, not bf16"},
      {"backward bf16 b2 h8 q1 k1 d64 full accumulate", "accumulate requires gradients in f32 or f64, not bf16"},
      {"backward f32 b2 h8 q1 k1 d64 full append", "a backward cannot have option append"},
      {"forward f32 b2 h8 q1 k1 d64 full append ragged", "append requires linear or paged keys, not ragged"},
      {"forward f32 b2 h8 q1 k1 d64 full rotary", "rotary requires append"},
      {"forward f32 b2 h8 q1 k1 d64 full append rotary rotary_half", "rotary and rotary_half exclude each other"},
      {"forward f32 b2 h8 q1 k1 d64 full block_bias", "block_bias requires a block list"},
      {"forward f32 b2 h8 q1 k1 d64 full blocks8x8x8 bias block_bias", "bias and block_bias exclude each other"},
      {"forward f32 b2 h8 q1 k1 d64 full bias.e4m3", "bias dtype e4m3 is not one of f64, f32, f16, bf16"},
      {"backward f32/f32/f32/i32 b2 h8 q1 k1 d64 full", "grad dtype i32 is not one of f64, f32, f16, bf16, e4m3"},
      {"forward bf16 b2 h8 q1 k1 d64 full paged0", "page = 0 given; paged keys require at least 1, other keys 0"},
      {"forward bf16 b2 h8 q1 k1 d64 full paged",
       "'paged' lacks a number; accepted is paged<keys in a page>, such as paged16"},
      {"forward bf16 b2 h8 q1 k1 d64 full : nsa l=1 l=2", "variant 'nsa l=1 l=2': 'l' is given twice"},
      {"forward bf16 b2 h8 q1 k1 d64 full : nsa l", "'l' is not name=value"},
      {"forward bf16 b2 h8 q1 k1 d64 full : NSA", "the name has characters other than a-z, 0-9 and _"},
      {"forward bf16 b2 h8 q1 k1 d64 full : nsa ", "variant: ends in a space"},
  };
  expect_refused(all);
}

TEST(ProblemLine, refusals_say_what_is_accepted_at_the_word) {
  const Refused all[] = {
      {"", "the line is empty; expected a pass next: forward or backward"},
      {"  ", "the line is empty; expected a pass next"},
      {"forward", "the line ends after 'forward'; expected a dtype next: f64, f32, f16, bf16 and e4m3"},
      {"forward f32", "the line ends after 'f32'; expected a batch next: b2"},
      {"forward f32 b1 h8 q1 d64", "the line ends after 'd64'; expected keys next: k4096"},
      {"forward f32 b1 h8 q1 k1 d64",
       "the line ends after 'd64'; expected a mask next: full, causal or window<left>,<right>"},
      {"forward f32 b1 h8 q1 k1 d64 : nsa l=32", "':' begins a variant; expected a mask before it: full, causal"},
      {"forward f32 b1 h8 q1 k1 d64 full :",
       "the line ends after ':'; expected a variant next: its name, then name=value"},
      {"forward f32 b1 h8 q1 k1 d64 full :nsa", "':nsa' lacks a space behind its colon"},
      {"forward f32 b h8 q1 k1 d64 full", "'b' lacks a number; accepted is b2"},
      {"forward f32 b1 h8/ q1 k1 d64 full", "'h8/' lacks a number; accepted is h32, or h32/8 with 8 KV heads"},
      {"forward f32 b1 h8x q1 k1 d64 full", "'h8x': 'x' is left over; accepted is h32, or h32/8"},
      {"forward f32 b1 h8 h9 q1 k1 d64 full", "'h9' comes after 'h8'; accepted is one of them"},
      {"forward f32 b1 h8 q1 k1 d64 full causal",
       "'causal' comes after 'full'; accepted is one of them; a causal window of 128 keys is window127,0"},
      {"forward f32 b1 h8 q1 k1 d64 full sink sink", "'sink' is given twice"},
      {"forward f32 b1 h8 q1 k1 d64 full ragged paged16", "'paged16' comes after 'ragged'; accepted is one of them"},
      {"forward f32 b1 h8 q1 k1 d64 window128", "accepted is window<left>,<right>: window127,0 shows 128 keys"},
      {"forward f32 b1 h8 q1 k1 d64 window", "'window' lacks a number; accepted is window<left>,<right>"},
      {"forward f32 b1 h8 q1 k1 d64 causal@top_lft", "'@top_lft' is left over; accepted is a mask, then @top_left"},
      {"forward f32 b1 h8 q1 k1 d64 causal@top_left@absolute", "'@absolute' is left over; accepted is a mask, then"},
      {"forward f32 b1 h8 q1 k1 d64 full@bottom_right@top_left", "'@top_left' is left over; accepted is a mask, then"},
      {"forward f32 b1 h8 q1 k1 d64 causal @top_left", "'@top_left' belongs to the mask, without a space: causal@top_"},
      {"forward f32 b1 h8 q1 k1 d64 full softcap=30", "its value is an argument of the call, so write 'softcap'"},
      {"forward f32 b1 h8 q1 k1 d64 full sofcap", "did you mean 'softcap'?"},
      {"forward f32 b1 h8 q1 k1 d64 full varlen", "did you mean 'ragged'?"},
      {"forward f32 b1 h8 q1 k1 d64 full rope", "did you mean 'rotary'?"},
      {"forward f32 b1 h8 q1 k1 d64 full xyzzy",
       "'xyzzy' is not a word of a problem line; accepted are softcap, alibi"},
      {"forward f32 b1 h8 xyzzy", "'xyzzy' is not a word of a problem line; expected queries next: q4096"},
      {"fwd f32 b1 h8 q1 k1 d64 full",
       "accepted are forward and backward; did you mean 'forward'?"},
  };
  expect_refused(all);
}

TEST(ProblemLine, words_after_the_dtype_come_in_any_order) {
  const std::string whole = "forward bf16 b2 h32/8 q4 k4096 d192/128 window*,-1 blocks64x64x9 softcap sink paged16 "
                            "repro=batch precision=tf32";
  Problem expected, p;
  ASSERT_TRUE(parse(whole, expected).ok());
  ASSERT_EQ(name(expected), whole);
  std::vector<std::string> words;
  std::istringstream in(whole);
  for (std::string word; in >> word;) words.push_back(word);
  std::mt19937 random(1);
  for (int n = 0; n < 100; ++n) {
    std::shuffle(words.begin() + 2, words.end(), random);
    std::string line;
    for (const std::string& word : words) line += word + (n % 2 ? " " : " \t ");
    ASSERT_EQ(parse(line, p).message, "") << line;
    EXPECT_EQ(p, expected) << line;
  }
}

TEST(ProblemLine, mistake_has_a_place) {
  const struct { const char *line, *word; } all[] = {{"forward f32 b1 h8 q1 k1 d64 casual", "casual"},
                                                     {"forward fp32 b1 h8 q1 k1 d64 full", "fp32"},
                                                     {"forward f32 b1 h8x q1 k1 d64 full", "h8x"},
                                                     {"forward f32 b1 h8 q1 k1 d64", ""}};
  for (const auto& [line, word] : all) {
    Problem p;
    LinePlace place;
    EXPECT_FALSE(parse(line, p, place).ok());
    EXPECT_TRUE(place.known);
    EXPECT_EQ(std::string_view(line).substr(place.at, place.length), word);
    EXPECT_EQ(place.at, std::string_view(line).find(word, *word ? 0 : place.at));
  }
  Problem p;
  LinePlace place;
  EXPECT_FALSE(parse("forward f32 b1 h8/3 q1 k1 d64 full", p, place).ok());
  EXPECT_FALSE(place.known) << "heads that do not divide are no misspelt word";
}

TEST(Words, closest_word_allows_a_third_of_the_letters) {
  constexpr std::string_view all[] = {"doctor", "plan", "parity", "bench"};
  EXPECT_EQ(closest_word("doctr", all), "doctor");
  EXPECT_EQ(closest_word("plna", all), "plan") << "two neighbours swapped are one mistake";
  EXPECT_EQ(closest_word("pairty", all), "parity");
  EXPECT_EQ(closest_word("plenum", all), "");
  EXPECT_EQ(closest_word("", all), "");
}

TEST(Problem, validity_needs_what_a_line_cannot_break) {
  const struct { Change change; const char* words; } all[] = {
      {[](P p) { p.pass = Pass(2); }, "an enum or an option bit is unknown to this version"},
      {[](P p) { p.mask.align = Align(-1); }, "an enum or an option bit is unknown"},
      {[](P p) { p.precision = Precision(3); }, "an enum or an option bit is unknown"},
      {[](P p) { p.options = 1u << int(Option::count); }, "an enum or an option bit is unknown"},
      {[](P p) { p.dtype.out = DType::none; }, "dtype none is not one of"},
      {[](P p) { p.dtype.q = DType(99); }, "dtype ? is not one of"},
      {[](P p) { p.dtype.grad = DType::f32; }, "grad dtype f32 given for a forward; a backward has one"},
      {[](P p) { p.pass = Pass::backward; }, "grad dtype none given for a backward; a backward has one"},
      {[](P p) { p.dtype.bias = DType::f32; }, "bias dtype f32 given, but the problem does not have option bias"},
      {[](P p) { p.set(Option::bias); }, "bias dtype none given, but the problem has option bias"},
      {[](P p) { p.mask.right = 3; }, "only a window has them"},
      {[](P p) { p.page = 8; }, "page = 8 given; paged keys require"},
      {[](P p) { p.page = -1; }, "page = -1 given; paged keys require"},
      {[](P p) { p.heads_kv = 0; }, "heads_kv = 0 is not in 1"},
      {[](P p) { std::memset(p.variant.text, 'a', sizeof p.variant.text); }, "variant is not null-terminated"},
      {[](P p) { std::memcpy(p.variant.text, "x b=1 a=1", 9); },
       "variant is not in canonical form; expected 'x a=1 b=1'"},
      {[](P p) { p.variant.text[5] = 'x'; }, "variant is not in canonical form; expected ''"},
  };
  for (const auto& [change, words] : all) {
    Problem p;
    change(p);
    EXPECT_NE(valid(p).message.find(words), std::string::npos) << words << " -> " << valid(p).message;
  }
  EXPECT_TRUE(valid(Problem{}).ok());
}

TEST(Problem, zero_fields_take_their_natural_value) {
  Problem p{.pass = Pass::backward, .dtype = {DType::bf16, DType::none, DType::none, DType::none, DType::none},
            .heads_q = 6, .heads_kv = 0, .dim_qk = 96, .dim_v = 0};
  p.mask.k_step = 0;
  p.set(Option::bias);
  const Problem full = filled(p);
  EXPECT_TRUE(valid(full).ok()) << valid(full).message;
  EXPECT_EQ(name(full), "backward bf16 b1 h6 q1 k1 d96 full bias");
  EXPECT_EQ(filled(full), full);
}

TEST(Problem, equal_bytes_hash_alike_and_every_field_counts) {
  std::unordered_set<size_t> hashes;
  Problem p;
  auto* bytes = reinterpret_cast<unsigned char*>(&p);
  for (size_t n = 0; n < sizeof p; ++n) {
    bytes[n] ^= 1;
    hashes.insert(HashBytes{}(p));
    EXPECT_FALSE(p == Problem{});
    bytes[n] ^= 1;
  }
  EXPECT_EQ(hashes.size(), sizeof p);
  EXPECT_EQ(HashBytes{}(p), HashBytes{}(Problem{}));
}

TEST(Problem, options_are_set_and_cleared_one_by_one) {
  Problem p;
  p.set(Option::sink), p.set(Option::alibi);
  EXPECT_TRUE(p.has(Option::sink) && p.has(Option::alibi) && !p.has(Option::bias));
  p.clear(Option::sink);
  EXPECT_TRUE(!p.has(Option::sink) && p.has(Option::alibi));
}

TEST(Words, dtypes_and_enums_have_names) {
  DType t = DType::none;
  for (const char* word : {"f64", "f32", "f16", "bf16", "e4m3", "i32", "i64"})
    EXPECT_TRUE(parse(word, t).ok() && name(t) == word) << word;
  EXPECT_EQ(parse("fp16", t).message, "dtype 'fp16' is not one of f64, f32, f16, bf16, e4m3");
  EXPECT_EQ(name(KeySource::paged), "paged");
  EXPECT_EQ(name(Option::rotary_half), "rotary_half");
  EXPECT_EQ(name(Pass::backward), "backward");
  EXPECT_EQ(name(Option::count), "?");
}

}  // namespace
