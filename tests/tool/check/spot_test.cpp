// SPDX-License-Identifier: Apache-2.0
// The check of timed buffers: it must accept correct results in every dtype and option, and detect errors in few rows.
#include "tool/check/spot.h"

#include <malloc.h>

#include <cmath>

#include "core/variant/nsa.h"
#include "core/forward_of.h"
#include "machine/host.h"
#include "plan/plan.h"
#include "tests/asked.h"
#include "tool/timing/peak.h"
#include "tool/bench/row.h"
#include "tool/subjects/workload.h"

namespace attune {
namespace {

struct Filled {
  Problem problem{};
  std::unique_ptr<Workload> work{};

  explicit Filled(const std::string& line, Layout layout = Layout::bhsd, Distribution dist = Distribution::normal) {
    EXPECT_EQ(parse(line, problem).message, "") << line;
    work = std::make_unique<Workload>(problem, layout, 3, dist);
    if (problem.pass == Pass::backward) run(forward_of(problem));
    run(problem);
  }
  void run(const Problem& p) {
    const Planner planner{.device = this_cpu(), .forced = "reference"};
    Plan plan;
    ASSERT_EQ(planner.plan(p, plan).message, "");
    const Memory workspace(plan.workspace_bytes);
    ASSERT_EQ(plan.backend->run(plan, work->args, Workspace{workspace.data()}, nullptr).message, "");
  }
  Checked check(int rows = 24) const { return spot_check(problem, work->args, 5, rows); }
  // Scales every element of an output, or swaps two of its heads.
  void scale(Role r, double factor) {
    const Tensor& t = work->args[r];
    for (int b = 0; b < t.extent.batch; ++b)
      for (int s = 0; s < t.extent.seq; ++s)
        for (int h = 0; h < t.extent.head; ++h)
          for (int d = 0; d < t.extent.dim; ++d) store(t, b, s, h, d, factor * load(t, b, s, h, d));
  }
};

TEST(Spot, passes_the_reference_with_every_option_it_knows) {
  for (const char* line :
       {"forward f32 b2 h4/2 q65 k65 d64 causal", "forward f64 b1 h2 q33 k70 d32/16 full",
        "forward bf16 b2 h4 q65 k129 d64 window31,0", "forward f16 b1 h2 q40 k40 d64 full softcap sink",
        "forward f32 b1 h2 q40 k50 d64 causal alibi bias dropout", "forward f32 b3 h2 q17 k33 d64 causal ragged",
        "forward bf16 b2 h4/2 q3 k65 d64 causal paged16", "forward f32 b1 h2 q64 k64 d32 causal blocks16x16x64",
        "forward f32 b1 h2 q9 k5 d32 causal", "backward f32 b2 h4/2 q65 k65 d64 causal",
        "backward bf16 b1 h2 q65 k129 d64 full", "backward f16 b1 h2 q40 k40 d64 window7,0 softcap sink",
        "backward f32 b1 h2 q40 k50 d64 causal alibi bias dropout",
        "forward f32 b2 h4/2 q65 k65 d32 causal mask{doc[q] == doc[k]} score{s + slope[h] * (k - q)}",
        "forward bf16 b1 h4/2 q65 k65 d32 full softcap score{q - k > 20 ? -inf : 9 * s}",
        "backward f32 b2 h4/2 q65 k65 d32 causal mask{doc[q] == doc[k] && (q + h) % 3 != 1}",
        "backward bf16 b1 h4/2 q65 k65 d32 full score{q - k > 20 ? -inf : 5 * tanh(s / 5)}"}) {
    const Checked c = Filled(line).check();
    EXPECT_EQ(c.verdict, CheckVerdict::pass) << line << ": " << c.message;
    EXPECT_GE(c.rows, 24) << line;
    EXPECT_LE(c.error, 1) << line;
  }
}

TEST(Spot, both_layouts_and_every_distribution_pass) {
  for (const Layout layout : {Layout::bhsd, Layout::bshd})
    for (const Distribution d : {Distribution::normal, Distribution::uniform, Distribution::zeros})
      EXPECT_EQ(Filled("forward f32 b2 h4 q33 k33 d64 causal", layout, d).check().verdict, CheckVerdict::pass);
}

TEST(Spot, sees_a_relative_error_of_the_size_of_a_few_roundings) {
  Filled f32("forward f32 b1 h4 q128 k128 d64 full");
  f32.scale(Role::out, 1 + 1e-4);
  EXPECT_EQ(f32.check().verdict, CheckVerdict::fail);
  Filled bf16("forward bf16 b1 h4 q128 k128 d64 full");
  bf16.scale(Role::out, 1.05);
  const Checked c = bf16.check();
  EXPECT_EQ(c.verdict, CheckVerdict::fail);
  EXPECT_NE(c.message.find("out row "), std::string::npos) << c.message;
  EXPECT_GT(c.error, 1);
}

TEST(Spot, sees_each_gradient) {
  for (const char* dtype : {"f32", "bf16"})
    for (const Role r : {Role::dq, Role::dk, Role::dv}) {
      Filled c(join("backward ", dtype, " b1 h4/2 q64 k64 d64 causal"));
      c.scale(r, 1.1);
      EXPECT_EQ(c.check().verdict, CheckVerdict::fail) << dtype << " role " << int(r);
    }
}

TEST(Spot, sees_a_layout_read_as_the_other) {
  Filled c("forward f32 b1 h8 q64 k64 d64 full", Layout::bhsd);
  Args wrong = c.work->args;
  wrong[Role::q].stride = {64 * 8 * 64, 8 * 64, 64};  // bshd strides on bhsd memory
  EXPECT_EQ(spot_check(c.problem, wrong, 5).verdict, CheckVerdict::fail);
}

TEST(Spot, sees_poison_and_a_wrong_lse) {
  Filled c("forward f32 b1 h2 q64 k64 d64 causal");
  c.scale(Role::lse, 1.01);
  EXPECT_EQ(c.check().verdict, CheckVerdict::fail);
  Filled poisoned("forward bf16 b1 h2 q64 k64 d64 causal");
  poisoned.work->poison_outputs();
  EXPECT_EQ(poisoned.check().verdict, CheckVerdict::fail);
}

TEST(Spot, sees_what_is_not_written_beside_what_is_right) {
  const auto spoil = [](const Filled& c, Role r) {
    const Tensor& t = c.work->args[r];
    for (int b = 0; b < t.extent.batch; ++b)
      for (int s = 0; s < t.extent.seq; ++s)
        for (int h = 0; h < t.extent.head; ++h) store(t, b, s, h, 0, NAN);
  };
  Filled forward("forward f32 b1 h2 q64 k64 d64 causal");
  spoil(forward, Role::lse);
  EXPECT_EQ(forward.check().verdict, CheckVerdict::fail);
  for (const Role r : {Role::dq, Role::dk, Role::dv}) {
    Filled backward("backward f32 b1 h2 q64 k64 d64 causal");
    spoil(backward, r);
    EXPECT_EQ(backward.check().verdict, CheckVerdict::fail) << "role " << int(r);
  }
  for (int n = 0; n < 4; ++n) {  // keys and values of the selected and window branches
    Filled nsa("backward f32 b1 h4/2 q130 k130 d32/16 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=16 w=24");
    spoil(nsa, d_variant_tensor(n));
    EXPECT_EQ(nsa.check().verdict, CheckVerdict::fail) << "tensor " << n;
  }
}

constexpr const char* kVariants[] = {
    "forward f32 b1 h4/2 q96 k96 d32 causal : dilated rates=1,2,4 segments=16,32,64",
    "forward bf16 b2 h4 q70 k70 d64 full : dilated rates=1,3 segments=24,48",
    "forward f16 b1 h8 q96 k96 d32 causal : dilated mode=headgroup norm=divide rates=1,2,4 segments=16,32,64",
    "forward f32 b1 h6/2 q96 k96 d32 causal : dilated offsets=contiguous rates=2,4 segments=16,64",
    "backward f32 b1 h4/2 q96 k96 d32 causal : dilated rates=1,2,4 segments=16,32,64",
    "backward f32 b1 h6/2 q96 k96 d32 causal : dilated offsets=contiguous rates=2,4 segments=16,64",
    "backward bf16 b1 h8 q96 k96 d32 causal : dilated mode=headgroup norm=divide rates=1,2,4 segments=16,32,64",
    "forward f32 b1 h4/2 q200 k200 d32/16 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=16 w=24",
    "forward bf16 b2 h4/1 q130 k130 d32 causal : nsa d=4 gate=softmax l=8 n=4 phi=mean s=16 w=24",
    "forward bf16 b1 h4/1 q130 k130 d32 causal : nsa d=4 gate=none l=8 n=4 only=cmp phi=mean s=16 w=24",
    "forward bf16 b1 h4/1 q130 k130 d32 causal : nsa d=4 gate=none l=8 n=4 only=sel phi=mean s=16 w=24",
    "forward f32 b1 h4/1 q130 k130 d32 causal : nsa d=4 gate=none l=8 n=4 only=win phi=mean s=16 w=24",
    "forward bf16 b2 h4/1 q1 k150 d32 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=16 w=24",
    "backward f32 b1 h4/2 q130 k130 d32/16 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=16 w=24",
    "backward bf16 b1 h4/1 q130 k130 d32 causal : nsa d=4 gate=none l=8 n=4 only=sel phi=mean s=16 w=24",
    "forward f32 b1 h2 q100 k100 d32 causal : adaptive block=16 density=0.4 hidden=8",
    "forward f32 b1 h2 q64 k64 d32 causal blocks16x16x64 block_bias"};

TEST(Spot, draws_rows_of_variants) {
  for (const char* line : kVariants) {
    const Checked c = Filled(line).check();
    EXPECT_EQ(c.verdict, CheckVerdict::pass) << line << ": " << c.message;
    EXPECT_GE(c.rows, 24) << line;
  }
}

TEST(Spot, sees_gradients_that_pass_through_the_compression) {
  for (const char* line :
       {"backward f32 b1 h4/1 q130 k130 d32 causal : nsa d=4 gate=none l=8 n=4 only=cmp phi=mean s=16 w=24",
        "backward bf16 b2 h4/2 q130 k130 d32/16 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=16 w=24"})
    for (const Role r : {Role::dk, Role::dv}) {
      Filled nsa(line);
      const Checked right = nsa.check(24);
      EXPECT_EQ(right.verdict, CheckVerdict::pass) << line << ": " << right.message;
      EXPECT_EQ(right.rows, 36);  // of dq, and of keys
      nsa.scale(r, 1.2);
      const Checked c = nsa.check(24);
      EXPECT_EQ(c.verdict, CheckVerdict::fail) << line;
      EXPECT_EQ(c.message.rfind("dk or dv through the compression, row ", 0), 0u) << c.message;
    }
}

TEST(Spot, sees_a_wrong_row_of_a_variant) {
  for (const char* line : kVariants) {
    Filled c(line);
    const Role outputs[] = {Role::dq, Role::dk};
    const bool backward = c.problem.pass == Pass::backward;
    const bool own_keys = backward && word(c.problem.variant) == "nsa";
    c.scale(backward ? outputs[0] : Role::out, 1.1);
    EXPECT_EQ(c.check().verdict, CheckVerdict::fail) << line;
    if (!backward) continue;
    c.scale(outputs[0], 1 / 1.1), c.scale(own_keys ? d_variant_tensor(1) : outputs[1], 1.2);
    EXPECT_EQ(c.check().verdict, CheckVerdict::fail) << line;
  }
}

TEST(Spot, sees_another_formula) {
  for (const std::string pass : {"forward", "backward"})
    for (const char* wrong : {"mask{q - k < 32 && q >= k}", "mask{q - k < 30 && q >= k}",
                              "mask{q - k < 31 && q >= k} score{1.01 * s}"}) {
      Filled c(pass + " f32 b1 h2 q80 k80 d32 full mask{q - k < 31 && q >= k}");
      EXPECT_EQ(c.check().verdict, CheckVerdict::pass) << c.check().message;
      c.run(problem(pass + " f32 b1 h2 q80 k80 d32 full " + wrong));
      EXPECT_EQ(c.check().verdict, CheckVerdict::fail) << pass << ' ' << wrong;
    }
  const Checked none = Filled("forward f32 b1 h2 q8 k8 d32 full mask{q < 0}").check();
  EXPECT_EQ(none.verdict, CheckVerdict::empty) << none.message;
  const Checked hidden = Filled("forward f32 b1 h2 q8 k8 d32 full score{-inf}").check();
  EXPECT_EQ(hidden.verdict, CheckVerdict::empty) << hidden.message;
}

TEST(Spot, sees_a_branch_too_few_and_blocks_that_no_score_chose) {
  Filled dilated("forward f32 b1 h4/2 q96 k96 d32 causal : dilated rates=1,2,4 segments=16,32,64");
  Problem fewer = problem("forward f32 b1 h4/2 q96 k96 d32 causal : dilated rates=1,2 segments=16,32");
  dilated.run(fewer);
  EXPECT_EQ(dilated.check().verdict, CheckVerdict::fail);

  Filled nsa("forward f32 b1 h4/2 q200 k200 d32 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=16 w=24");
  const Tensor& blocks = nsa.work->args[variant_tensor(kNsaBlocks)];
  for (int i = 0; i < 200; ++i)  // the first of the candidates, whatever its score
    for (int g = 0; g < 2; ++g)
      if (load(blocks, 0, i, g, 3) > 3) store(blocks, 0, i, g, 1, 1);
  const Checked c = nsa.check();
  EXPECT_EQ(c.verdict, CheckVerdict::fail);
  EXPECT_EQ(c.message.rfind("selected blocks of row ", 0), 0u) << c.message;
}

TEST(Spot, the_first_and_the_last_row_are_always_drawn) {
  Filled c("forward f32 b2 h4 q256 k256 d64 full");
  const Tensor& out = c.work->args[Role::out];
  store(out, 1, 255, 3, 0, 9);
  EXPECT_EQ(c.check(2).verdict, CheckVerdict::fail);
  c.run(c.problem);
  EXPECT_EQ(c.check(2).verdict, CheckVerdict::pass);
  store(out, 0, 0, 0, 63, 9);
  EXPECT_EQ(c.check(1).verdict, CheckVerdict::fail);
}

TEST(Spot, reads_no_other_rows_than_it_says) {
  for (const char* line : {"forward f32 b2 h4/2 q65 k65 d64 causal", "forward bf16 b3 h2 q17 k33 d64 causal ragged",
                           "forward f32 b1 h2 q64 k64 d32 causal blocks16x16x64",
                           "backward f32 b2 h4/2 q65 k65 d64 window9,0", "backward f16 b3 h2 q33 k17 d32 full ragged"})
    for (const int rows : {1, 3, 24}) {
      const Filled c(line);
      const auto read = rows_read(c.problem, c.work->args, 5, rows);
      ASSERT_FALSE(read.empty()) << line;
      const auto bytes = [&](const ResultRow& r) {
        const Tensor& t = c.work->args[r.role];
        return std::span(row_address(t, r.batch, r.seq, r.head), size_t(t.extent.dim) * size_t(size_of(t.dtype)));
      };
      std::vector<std::vector<char>> kept;
      for (const ResultRow& r : read) kept.emplace_back(bytes(r).begin(), bytes(r).end());
      c.work->poison_outputs();
      for (size_t n = 0; n < read.size(); ++n) std::copy(kept[n].begin(), kept[n].end(), bytes(read[n]).begin());
      EXPECT_EQ(c.check(rows).verdict, CheckVerdict::pass)
          << line << ", rows " << rows << ": " << c.check(rows).message;
      std::fill(bytes(read.back()).begin(), bytes(read.back()).end(), char(-1));
      EXPECT_EQ(c.check(rows).verdict, CheckVerdict::fail) << line << ", rows " << rows;
    }
  for (const char* line : {"forward bf16 b2 h4/2 q3 k65 d64 causal paged16", kVariants[0], kVariants[5],
                           "forward f32 b1 h2 q8 k8 d64 full accumulate"}) {
    const Filled c(line);
    EXPECT_TRUE(rows_read(c.problem, c.work->args, 5, 24).empty()) << line;
  }
}

TEST(Spot, says_what_it_cannot_check) {
  Problem p;
  ASSERT_TRUE(parse("forward f32 b1 h2 q8 k8 d64 full accumulate", p).ok());
  const Checked c = spot_check(p, {}, 1);
  EXPECT_EQ(c.verdict, CheckVerdict::unchecked);
  EXPECT_NE(c.message.find("accumulate"), std::string::npos);
  for (const char* line : {"forward f32 b1 h2 q64 k64 d32 causal : dilated norm=divide rates=1,2 segments=16,32",
                           "forward f32 b1 h2 q64 k64 d32 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=conv s=16 w=24",
                           "backward f32 b1 h2 q100 k100 d32 causal : adaptive block=16 density=0.4 hidden=8",
                           "backward f32 b1 h2 q100 k100 d32 causal score{s + slope[h] * (k - q)}"}) {
    const Checked variant = spot_check(problem(line), {}, 1);
    EXPECT_EQ(variant.verdict, CheckVerdict::unchecked);
    EXPECT_NE(variant.message.find("cannot be drawn"), std::string::npos) << variant.message;
  }
}

Bench small() {
  Bench b;
  b.device = this_cpu();
  b.timing.max_seconds = 0.05, b.timing.warm_up_seconds = 0.001, b.timing.precision = 0.5, b.timing.min_samples = 5;
  b.ceilings = Ceilings{.threads = 1, .f32 = {"none", 1e9}, .bf16 = {}, .copy_gbs = 1e9};
  b.floor_ns = 1;
  return b;
}

TEST(Row, is_a_checked_record_with_every_sample) {
  Bench b = small();
  b.backends = {"reference"};
  const auto records = measure_row(problem("forward f32 b1 h2 q32 k32 d16 causal"), b);
  ASSERT_EQ(records.size(), 1u);
  const Record& r = records[0];
  EXPECT_EQ(r.status, RecordStatus::ok) << r.message;
  EXPECT_EQ(r.subject, "reference");
  EXPECT_EQ(r.parity.verdict, CheckVerdict::pass);
  EXPECT_GE(r.samples_ns.size(), 3u);
  EXPECT_EQ(r.flops, 4 * 2 * (32 * 33 / 2) * 16);
  EXPECT_EQ(r.why, "selected by name");
  EXPECT_EQ(r.row_records, 1);
  EXPECT_NEAR(r.input_rms, 1, 0.1);
  EXPECT_EQ(r.scores_bytes, 2 * 32 * 32 * 4);
  EXPECT_TRUE(r.verdict.empty());
}

TEST(Row, measures_what_a_call_takes_beside_its_tensors) {
  Bench b = small();
  b.backends = {"cpu_standard"};
  const auto records = measure_row(problem("forward f32 b1 h4 q1024 k1024 d64 full"), b);
  ASSERT_EQ(records.size(), 1u);
  ASSERT_EQ(records[0].status, RecordStatus::ok) << records[0].message;
  if (records[0].taken_bytes < 0) GTEST_SKIP() << "this system does not say what is resident";
  const double said = double(records[0].workspace_bytes);  // of unfused attention: whole rows of scores
  EXPECT_GT(said, 4e6);
  EXPECT_GT(records[0].taken_bytes, 0.5 * said);
  EXPECT_LT(records[0].taken_bytes, 10 * said);  // a sanitizer adds bytes to each allocation
}

TEST(PeakMemory, that_was_freed_and_kept_is_not_taken_unseen) {
  constexpr size_t kBytes = 16 << 20;
  // Freed memory is not returned to the system.
  mallopt(M_MMAP_THRESHOLD, 2 * kBytes), mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const auto touched = [] {
    const std::unique_ptr<char[]> block(new char[kBytes]);
    for (size_t at = 0; at < kBytes; at += 1024) const_cast<volatile char*>(block.get())[at] = 1;
  };
  touched();
  const PeakMemory taken;
  touched();
  const double bytes = taken.bytes();
  mallopt(M_MMAP_THRESHOLD, 128 << 10), mallopt(M_TRIM_THRESHOLD, 128 << 10);
  if (bytes < 0) GTEST_SKIP() << "this system does not say what is resident";
  EXPECT_GT(bytes, 0.9 * kBytes);
}

TEST(Row, of_nsa_says_how_many_tokens_it_read) {
  Bench b = small();
  const char* const line = "forward f32 b1 h4/1 q1 k150 d32 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=16 w=24";
  const auto records = measure_row(problem(line), b);
  ASSERT_EQ(records.size(), 1u);
  ASSERT_EQ(records[0].status, RecordStatus::ok) << records[0].message;
  // The query at 149 sees 36 compressed tokens and 24 in its window; it selects 3 blocks of 16 and 6 tokens of its own.
  ASSERT_EQ(records[0].tokens_read.size(), 4u);
  EXPECT_EQ(records[0].tokens_read[0], 36);
  EXPECT_EQ(records[0].tokens_read[1], 54);
  EXPECT_EQ(records[0].tokens_read[2], 24);
  EXPECT_EQ(records[0].parity.verdict, CheckVerdict::pass);
}

TEST(Row, compares_subjects_with_the_first) {
  Bench b = small();
  b.backends = {"reference", "cpu_standard"};
  const auto records = measure_row(problem("backward f32 b1 h2 q16 k16 d16 causal"), b);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].baseline, "");
  EXPECT_EQ(records[1].baseline, "reference");
  EXPECT_FALSE(records[1].verdict.empty());
  EXPECT_GT(records[1].ratio.value, 0);
}

TEST(Row, what_no_backend_takes_is_a_record_with_its_sentence) {
  Bench b = small();
  const auto records = measure_row(problem("forward e4m3 b1 h2 q16 k16 d16 causal : dilated rates=1 segments=8"), b);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].status, RecordStatus::unsupported);
  EXPECT_NE(records[0].message.find("no backend supports"), std::string::npos);
  EXPECT_EQ(records[0].message.find('\n'), std::string::npos);
}

TEST(Row, too_large_a_problem_is_a_record_of_it) {
  Bench b = small();
  b.backends = {"reference"};
  const auto records = measure_row(problem("forward f32 b4096 h128 q1048576 k1048576 d128 causal"), b);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].status, RecordStatus::oom);
  EXPECT_NE(records[0].message.find("not enough memory"), std::string::npos) << records[0].message;
}

TEST(Row, longer_than_what_did_not_fit_is_not_tried) {
  Bench b = small();
  b.backends = {"reference"};
  const auto row = [&](const char* line) { return measure_row(problem(line), b).at(0); };
  EXPECT_EQ(row("forward f32 b4096 h128 q524288 k524288 d128 causal").status, RecordStatus::oom);
  const Record longer = row("forward f32 b4096 h128 q1048576 k1048576 d128 causal");
  EXPECT_EQ(longer.status, RecordStatus::oom);
  EXPECT_EQ(longer.message,
            "attune: not tried: not enough memory for the shorter forward f32 b4096 h128 q524288 k524288 d128 causal");
  for (const char* line : {"forward f32 b4096 h128 q1048576 k1048576 d64 causal",  // another shape, and a shorter one
                           "forward f32 b4096 h128 q262144 k262144 d128 causal"})
    EXPECT_EQ(row(line).message.rfind("not enough memory: ", 0), 0u) << row(line).message;
  EXPECT_EQ(row("forward f32 b1 h2 q32 k32 d16 causal").status, RecordStatus::ok);
  b.too_long = {{problem("forward f32 b1 h2 q32 k32 d16 causal"), "cpu_standard"}};  // for one backend only
  b.backends = {"reference", "cpu_standard"};
  const auto both = measure_row(problem("forward f32 b1 h2 q64 k64 d16 causal"), b);
  ASSERT_EQ(both.size(), 2u);
  for (const Record& r : both)
    EXPECT_EQ(r.status, r.subject == "cpu_standard" ? RecordStatus::oom : RecordStatus::ok) << r.message;
}

TEST(Row, above_the_ceiling_it_is_refused) {
  Bench b = small();
  b.backends = {"reference"};
  b.ceilings->f32.gflops = 1e-9;
  EXPECT_EQ(measure_row(problem("forward f32 b1 h2 q32 k32 d16 causal"), b)[0].status, RecordStatus::refused);
}

TEST(Row, only_a_lack_of_memory_is_out_of_memory) {
  EXPECT_EQ(status_of(Status::failure(Code::out_of_memory, "for 9 bytes on cuda:0")), RecordStatus::oom);
  EXPECT_EQ(status_of(Status::failure(Code::device, "out of memory")), RecordStatus::failed) << "a code, not a word";
  EXPECT_EQ(status_of(Status::unsupported("no"), RecordStatus::unsupported), RecordStatus::unsupported);
}

}  // namespace
}  // namespace attune
