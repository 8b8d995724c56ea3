// SPDX-License-Identifier: Apache-2.0
// The tuned-file format: what is parsed, what is refused with which message, and which rule decides.
#include "plan/rules.h"

#include "plan/plan.h"
#include "tests/asked.h"

namespace attune {
namespace {

const std::string kHead = "attune-tuned 1\ndevice\tNVIDIA H200\nmeasured\t2026-11-14 commit abc1234\n";
const std::string kRule = "rule\tforward\tbf16\td128\tcausal\theads 1-16\tlen 512\tcpu_forward\n";

Tuned good(const std::string& text) {
  Tuned t;
  const Status s = read_tuned(text, "h200.tsv", t);
  EXPECT_TRUE(s.ok()) << s.message;
  return t;
}

std::string refusal(const std::string& text) {
  Tuned t{.device = "untouched"};
  const Status s = read_tuned(text, "h200.tsv", t);
  EXPECT_EQ(t.device, "untouched") << "a refused file must not change the output";
  return s.message;
}

Rule rule(const std::string& text) {
  const Tuned t = good(kHead + text);
  return t.rules.empty() ? Rule{} : t.rules[0];
}

TEST(Rules, every_field_of_a_rule_is_read) {
  const Tuned t = good(kHead + "# from a Monday\n\n" + kRule);
  EXPECT_EQ(t.device, "NVIDIA H200");
  EXPECT_EQ(t.measured, "2026-11-14 commit abc1234");
  ASSERT_EQ(t.rules.size(), 1u);
  const Rule& r = t.rules[0];
  EXPECT_EQ(r.pass, Pass::forward);
  EXPECT_EQ(r.dtype, DType::bf16);
  EXPECT_EQ(r.dim_qk, 128);
  EXPECT_EQ(r.dim_v, 128);
  EXPECT_EQ(r.mask, MaskKind::causal);
  EXPECT_EQ(r.min_heads, 1);
  EXPECT_EQ(r.max_heads, 16);
  EXPECT_EQ(r.min_len, 512);
  EXPECT_EQ(r.backend, "cpu_forward");
  EXPECT_EQ(r.source, "h200.tsv:6");
}

TEST(Rules, two_head_dims_and_open_ends) {
  const Rule r = rule("rule\tbackward\tf16\td192/128\twindow\theads 17-*\tlen 1\tcpu_backward\n");
  EXPECT_EQ(r.pass, Pass::backward);
  EXPECT_EQ(r.dim_qk, 192);
  EXPECT_EQ(r.dim_v, 128);
  EXPECT_EQ(r.mask, MaskKind::window);
  EXPECT_EQ(r.min_heads, 17);
  EXPECT_EQ(r.max_heads, INT64_MAX);
}

TEST(Rules, largest_numbers_are_read) {
  const Rule r = rule("rule\tforward\tf32\td65536\tfull\theads 1-9223372036854775806\tlen 2147483647\tcpu_forward\n");
  EXPECT_EQ(r.dim_qk, 65536);
  EXPECT_EQ(r.max_heads, INT64_MAX - 1);
  EXPECT_EQ(r.min_len, INT32_MAX);
}

TEST(Rules, turned_line_ends_and_a_missing_last_one_are_read) {
  std::string crlf;
  for (const char c : kHead + kRule) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(write_tuned(good(crlf)), kHead + kRule);
  EXPECT_EQ(write_tuned(good((kHead + kRule).substr(0, (kHead + kRule).size() - 1))), kHead + kRule);
}

TEST(Rules, a_file_without_rules_is_good) { EXPECT_TRUE(good(kHead).rules.empty()); }

TEST(Rules, written_and_read_again_is_the_same) {
  Tuned t{.device = "Neoverse-V1 (2 cores)", .measured = "2026-11-14, commit abc1234"};
  for (const Pass pass : {Pass::forward, Pass::backward})
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3})
      for (const MaskKind mask : {MaskKind::full, MaskKind::causal, MaskKind::window})
        for (const int64_t heads : {int64_t(1), int64_t(77), INT64_MAX})
          t.rules.push_back({.pass = pass, .dtype = dtype, .dim_qk = 192, .dim_v = mask == MaskKind::full ? 192 : 128,
                             .mask = mask, .min_heads = heads == 77 ? 5 : 1, .max_heads = heads,
                             .decode = heads == 77, .min_len = 4096, .min_work = heads == 1 ? 0 : 123456789012,
                             .backend = "cpu_forward"});
  const std::string text = write_tuned(t);
  const Tuned again = good(text);
  EXPECT_EQ(write_tuned(again), text);
  EXPECT_EQ(again.device, t.device);
  EXPECT_EQ(again.measured, t.measured);
  ASSERT_EQ(again.rules.size(), t.rules.size());
  for (size_t n = 0; n < t.rules.size(); ++n) {
    const Rule &a = t.rules[n], &b = again.rules[n];
    EXPECT_TRUE(a.pass == b.pass && a.dtype == b.dtype && a.dim_qk == b.dim_qk && a.dim_v == b.dim_v &&
                a.mask == b.mask && a.min_heads == b.min_heads && a.max_heads == b.max_heads &&
                a.min_len == b.min_len && a.min_work == b.min_work && a.decode == b.decode && a.backend == b.backend)
        << b.source;
  }
}

TEST(Rules, text_that_would_break_a_line_is_written_on_one) {
  const Tuned t = good(write_tuned({.device = "a\tb\nc\x7F", .measured = "x\r\ny"}));
  EXPECT_EQ(t.device, "a b c ");
  EXPECT_EQ(t.measured, "x  y");
}

TEST(Rules, mistakes_name_line_what_was_given_and_what_is_accepted) {
  const std::string long_word(100, 'x');
  const struct { std::string text, message; } cases[] = {
      {"", "h200.tsv:1: the file is empty; its first line is 'attune-tuned 1'"},
      {"\n", "h200.tsv:1: the first line is '', not 'attune-tuned 1'"},
      {"attune-tuned 2\n", "h200.tsv:1: the first line is 'attune-tuned 2', not 'attune-tuned 1'"},
      {"attune-tuned 1", "h200.tsv:1: the file ends without a device line"},
      {"attune-tuned 1\ndevice\tX\n\n", "h200.tsv:3: the file ends without a measured line"},
      {"attune-tuned 1\ndevice\n", "h200.tsv:2: device is followed by ''; it takes one tab and a text without tabs"},
      {"attune-tuned 1\ndevice\ta\tb\n",
       "h200.tsv:2: device is followed by 'a?b'; it takes one tab and a text without tabs"},
      {kHead + "device\tother\n", "h200.tsv:4: a second device line; the first is line 2"},
      {kHead + "measured\tother\n", "h200.tsv:4: a second measured line; the first is line 3"},
      {"attune-tuned 1\n" + kRule, "h200.tsv:2: a rule before the device line; device and measured come first"},
      {"attune-tuned 1\ndevice\tX\n" + kRule,
       "h200.tsv:3: a rule before the measured line; device and measured come first"},
      {kHead + "rules\tforward\n", "h200.tsv:4: the line begins with 'rules', not with device, measured, rule or #"},
      {kHead + long_word + "\n", "h200.tsv:4: the line begins with '" + long_word.substr(0, 60) +
                                     "...', not with device, measured, rule or #"},
      {kHead + "# a" + '\0' + "b\n", "h200.tsv:4: byte 0 at column 4; a tuned file is text"},
      {kHead + "# \x7F\n", "h200.tsv:4: byte 127 at column 3; a tuned file is text"},
      {kHead + "# one\rtwo\n", "h200.tsv:4: byte 13 at column 6; a tuned file is text"},
      {kHead + "rule\tforward\tbf16\n",
       "h200.tsv:4: 3 fields given; a rule has 8, separated by one tab: rule, pass, dtype, d#, mask, heads #-#, "
       "len # or few #, backend"},
      {kHead + "rule\tforward\tbf16\td128\tcausal\theads 1-16\tlen 512\tcpu_forward\t\n",
       "h200.tsv:4: 9 fields given; a rule has 8, separated by one tab: rule, pass, dtype, d#, mask, heads #-#, "
       "len # or few #, backend"},
      {kHead + kRule + kRule, "h200.tsv:5: has the same condition as line 4; conditions must differ"},
  };
  for (const auto& c : cases) EXPECT_EQ(refusal(c.text), c.message);
}

// Replaces one field of a valid rule by an invalid one.
TEST(Rules, every_field_is_checked) {
  const struct { int field; std::string text, message; } cases[] = {
      {1, "sideways", "pass 'sideways' is not one of forward, backward"},
      {2, "bf17", "dtype 'bf17' is not one of f64, f32, f16, bf16, e4m3"},
      {2, "i32", "dtype 'i32' is not one of f64, f32, f16, bf16, e4m3"},
      {2, "none", "dtype 'none' is not one of f64, f32, f16, bf16, e4m3"},
      {3, "128", "head dim '128' is not d# or d#/#, each in 1 ... 65536"},
      {3, "d0", "head dim 'd0' is not d# or d#/#, each in 1 ... 65536"},
      {3, "d64/", "head dim 'd64/' is not d# or d#/#, each in 1 ... 65536"},
      {3, "d64/65537", "head dim 'd64/65537' is not d# or d#/#, each in 1 ... 65536"},
      {3, "d64x", "head dim 'd64x' is not d# or d#/#, each in 1 ... 65536"},
      {4, "diagonal", "mask 'diagonal' is not one of full, causal, window"},
      {5, "heads 4", "'heads 4' is not 'heads #-#' or 'heads #-*', each in 1 ... 2^63 - 1"},
      {5, "heads 0-4", "'heads 0-4' is not 'heads #-#' or 'heads #-*', each in 1 ... 2^63 - 1"},
      {5, "heads *-4", "'heads *-4' is not 'heads #-#' or 'heads #-*', each in 1 ... 2^63 - 1"},
      {5, "heads 1-9223372036854775808",
       "'heads 1-9223372036854775808' is not 'heads #-#' or 'heads #-*', each in 1 ... 2^63 - 1"},
      {5, "heads 5-4", "'heads 5-4' is empty: the second number is below the first"},
      {6, "512", "'512' is not 'len #' or 'few #' with a number in 1 ... 2^31 - 1"},
      {6, "len 0", "'len 0' is not 'len #' or 'few #' with a number in 1 ... 2^31 - 1"},
      {6, "len 2147483648", "'len 2147483648' is not 'len #' or 'few #' with a number in 1 ... 2^31 - 1"},
      {6, "len 99999999999999999999",
       "'len 99999999999999999999' is not 'len #' or 'few #' with a number in 1 ... 2^31 - 1"},
      {6, "len 512 work", "'len 512 work' is not 'len #' or 'few #' with a number in 1 ... 2^31 - 1"},
      {6, "len 512 work ", "'len 512 work ' has no number in 1 ... 2^63 - 1 after 'work'"},
      {6, "few 512 work 0", "'few 512 work 0' has no number in 1 ... 2^63 - 1 after 'work'"},
      {6, "len 0 work 5", "'len 0 work 5' is not 'len #' or 'few #' with a number in 1 ... 2^31 - 1"},
      {7, "sm91_forward", "backend 'sm91_forward' is not one of " + backend_names()},
      {7, "", "backend '' is not one of " + backend_names()},
      {7, "reference", "backend 'reference' is for checking and is never chosen"},
  };
  for (const auto& c : cases) {
    std::string field[] = {"rule", "forward", "bf16", "d128", "causal", "heads 1-16", "len 512", "cpu_forward"};
    field[c.field] = c.text;
    std::string line = field[0];
    for (int n = 1; n < 8; ++n) line += "\t" + field[n];
    EXPECT_EQ(refusal(kHead + line + "\n"), "h200.tsv:4: " + c.message);
  }
}

TEST(Match, every_part_of_the_condition_counts) {
  const Rule r = rule("rule\tforward\tbf16\td192/128\tcausal\theads 8-16\tlen 512\tcpu_forward\n");
  const auto matches = [&](const char* line) { return match(problem(line), std::span(&r, 1)) == &r; };
  EXPECT_TRUE(matches("forward bf16 b2 h4 q64 k512 d192/128 causal"));
  EXPECT_TRUE(matches("forward bf16 b1 h16/2 q64 k4096 d192/128 causal@top_left softcap paged16"));
  EXPECT_TRUE(matches("forward bf16/e4m3/f32 b1 h8 q64 k512 d192/128 causal"));
  EXPECT_FALSE(matches("backward bf16 b2 h4 q64 k512 d192/128 causal"));
  EXPECT_FALSE(matches("forward f16 b2 h4 q64 k512 d192/128 causal"));
  EXPECT_FALSE(matches("forward bf16 b2 h4 q64 k512 d128 causal"));
  EXPECT_FALSE(matches("forward bf16 b2 h4 q64 k512 d192 causal"));
  EXPECT_FALSE(matches("forward bf16 b2 h4 q64 k512 d192/128 full"));
  EXPECT_FALSE(matches("forward bf16 b1 h7 q64 k512 d192/128 causal"));
  EXPECT_FALSE(matches("forward bf16 b1 h17 q64 k512 d192/128 causal"));
  EXPECT_FALSE(matches("forward bf16 b2 h4 q512 k511 d192/128 causal"));
}

TEST(Match, a_decode_step_has_rules_of_its_own) {
  const Rule rules[] = {rule("rule\tforward\tbf16\td64\tfull\theads 1-*\tlen 1\tcpu_forward\n"),
                        rule("rule\tforward\tbf16\td64\tfull\theads 1-*\tfew 512\tcpu_standard\n")};
  EXPECT_FALSE(rules[0].decode);
  EXPECT_TRUE(rules[1].decode);
  EXPECT_EQ(match(problem("forward bf16 b1 h8 q17 k4096 d64 full"), rules), &rules[0]);
  EXPECT_EQ(match(problem("forward bf16 b1 h8 q16 k4096 d64 full"), rules), &rules[1]);
  EXPECT_EQ(match(problem("forward bf16 b1 h8 q1 k512 d64 full"), rules), &rules[1]);
  EXPECT_EQ(match(problem("forward bf16 b1 h8 q1 k511 d64 full"), rules), nullptr);
}

TEST(Match, block_lists_keys_apart_and_variants_have_no_rules) {
  const Rule r = rule("rule\tforward\tbf16\td64\tcausal\theads 1-*\tlen 1\tcpu_forward\n");
  for (const char* line : {"forward bf16 b1 h8 q512 k512 d64 causal blocks64x64x4",
                           "forward bf16 b1 h8 q512 k32 d64 causal/16+15",
                           "forward bf16 b1 h8 q512 k512 d64 causal : dilated rates=1,2 segments=128,256"})
    EXPECT_EQ(match(problem(line), std::span(&r, 1)), nullptr) << line;
}

TEST(Match, many_heads_do_not_overflow) {
  const Rule r = rule("rule\tforward\tf32\td64\tfull\theads 2147483648-*\tfew 1\tcpu_forward\n");
  EXPECT_EQ(match(problem("forward f32 b1073741824 h1048576 q1 k1 d64 full"), std::span(&r, 1)), &r);
}

TEST(Match, work_is_batch_by_heads_by_keys) {
  const Rule r = rule("rule\tforward\tbf16\td64\tfull\theads 1-*\tlen 512 work 16384\tcpu_forward\n");
  EXPECT_EQ(r.min_work, 16384);
  const auto matches = [&](const char* line) { return match(problem(line), std::span(&r, 1)) == &r; };
  EXPECT_TRUE(matches("forward bf16 b2 h8/2 q64 k1024 d64 full"));
  EXPECT_FALSE(matches("forward bf16 b2 h8/2 q64 k1023 d64 full"));
  EXPECT_TRUE(matches("forward bf16 b1 h3 q64 k5462 d64 full"));
  EXPECT_FALSE(matches("forward bf16 b1 h3 q64 k5461 d64 full"));
  EXPECT_FALSE(matches("forward bf16 b8 h8 q64 k511 d64 full"));  // enough work, but too few keys
  EXPECT_TRUE(matches("forward bf16 b1073741824 h1048576 q64 k1073741824 d64 full"));
  EXPECT_EQ(least_keys(r, 3), 5462);
  EXPECT_EQ(least_keys(r, 64), 512);
}

TEST(Match, of_equal_lengths_the_largest_work_decides) {
  std::vector<Rule> rules(3, rule(kRule));
  rules[0].min_work = 32768, rules[1].min_work = 8192, rules[2].min_len = 1024;
  EXPECT_EQ(match(problem("forward bf16 b1 h16 q64 k1023 d128 causal"), rules), &rules[1]);
  rules[2].min_len = 4096;
  EXPECT_EQ(match(problem("forward bf16 b1 h16 q64 k2048 d128 causal"), rules), &rules[0]);
  EXPECT_EQ(match(problem("forward bf16 b1 h16 q64 k2047 d128 causal"), rules), &rules[1]);
  // Length takes precedence over work.
  EXPECT_EQ(match(problem("forward bf16 b1 h16 q64 k4096 d128 causal"), rules), &rules[2]);
}

TEST(Match, the_longest_min_len_decides_and_of_equals_the_last) {
  std::vector<Rule> rules(4, rule(kRule));
  rules[0].min_len = 1024, rules[1].min_len = 512, rules[2].min_len = 512, rules[3].min_len = 8192;
  EXPECT_EQ(match(problem("forward bf16 b1 h8 q64 k4096 d128 causal"), rules), &rules[0]);
  EXPECT_EQ(match(problem("forward bf16 b1 h8 q64 k1024 d128 causal"), rules), &rules[0]);
  EXPECT_EQ(match(problem("forward bf16 b1 h8 q64 k1023 d128 causal"), rules), &rules[2]);
  EXPECT_EQ(match(problem("forward bf16 b1 h8 q64 k8192 d128 causal"), rules), &rules[3]);
  EXPECT_EQ(match(problem("forward bf16 b1 h8 q64 k511 d128 causal"), rules), nullptr);
}

}  // namespace
}  // namespace attune
