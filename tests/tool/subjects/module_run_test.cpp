// SPDX-License-Identifier: Apache-2.0
// Modules as rows of a measurement: timed as a whole, and compared with themselves in f32.
#include "tool/subjects/module_run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "machine/host.h"
#include "tool/check/audit.h"
#include "tool/bench/suites.h"
#include "tool/bench/sweep.h"

namespace attune {
namespace {

constexpr const char* kDilated = "multihead f16 b2 s24 e32 h2 norm=1 | causal : dilated mode=headgroup norm=divide "
                                 "rates=1,2 segments=8,16";

BenchRow row_of(const std::string& text) {
  BenchRow row;
  EXPECT_EQ(parse_row(text, row).message, "") << text;
  return row;
}

Record measured(const std::string& text, const Device& device = this_cpu(), DeviceTimer* timer = nullptr,
                Mode mode = Mode::warm) {
  Sweep s;
  Bench b;
  b.device = device, b.timer = timer, b.mode = mode;
  if (timer) b.device_word = "cuda:0";
  b.timing.max_seconds = 0.004, b.timing.warm_up_seconds = 0.0005, b.timing.min_samples = 3;
  b.ceilings = Ceilings{.threads = 2, .f32 = {"none", 1e9}, .f16 = {"none", 1e9}, .bf16 = {"none", 1e9},
                        .copy_gbs = 1e9};
  b.floor_ns = 1, b.aa_spread = 0.05;
  s.benches.push_back(std::move(b));
  s.rows.push_back(row_of(text));
  std::vector<Record> made;
  EXPECT_EQ(s.run(made).message, "");
  EXPECT_EQ(made.size(), 1u);
  return made.at(0);
}

TEST(ModuleRun, both_passes_are_compared_and_timed) {
  for (const char* pass : {"forward ", "backward "})
    for (const char* line :
         {kDilated, "multihead bf16 b1 s20 e32 h4/2 | full", "multihead f16 b1 s20 e32 h2 | causal"}) {
      const std::string text = join(pass, line);
      const Record r = measured(text);
      EXPECT_EQ(r.status, RecordStatus::ok) << text << ": " << r.message;
      EXPECT_EQ(r.parity.verdict, CheckVerdict::pass) << text;
      EXPECT_GT(r.parity.error, 0) << text;
      EXPECT_EQ(r.problem, name(row_of(text)));
      EXPECT_EQ(r.subject, "attune");
      EXPECT_GE(r.samples_ns.size(), 3u);
      EXPECT_EQ(r.flops, module_cost(row_of(text)).flops);
    }
}

// Its flops are those of the blocks in its lists, which the record states and an auditor recounts.
TEST(ModuleRun, block_lists_are_compared_timed_and_counted) {
  for (const char* pass : {"forward ", "backward "}) {
    const auto line = [&](const char* pattern) {
      return join(pass, "multihead bf16 b2 s128 e32 h2 | causal | 16x16 ", pattern);
    };
    const Record half = measured(line("random density=0.5 seed=1")), window = measured(line("local_window window=32"));
    EXPECT_EQ(half.status, RecordStatus::ok) << half.message;
    EXPECT_EQ(half.parity.verdict, CheckVerdict::pass) << half.parity.message;
    EXPECT_EQ(half.shown_blocks, 2 * 36);  // lists of two heads, for both sequences
    EXPECT_EQ(half.active_blocks, 2 * 18);
    EXPECT_EQ(half.density, 0.5);
    EXPECT_EQ(window.status, RecordStatus::ok) << window.message;
    EXPECT_EQ(window.shown_blocks, 36);  // one list for all
    EXPECT_EQ(window.active_blocks, 8 + 7);
    const double products = module_cost(row_of(join(pass, "multihead bf16 b2 s128 e32 h2 | causal"))).flops -
                            cost(row_of(join(pass, "multihead bf16 b2 s128 e32 h2 | causal")).problem).flops;
    // Two sequences and two heads: half of each diagonal block plus half of its own diagonal, and whole blocks beside
    // it.
    const double pairs = 2. * 2 * (8 * 16 * 17 / 2 + 7 * 16 * 16);
    EXPECT_EQ(window.flops, products + 2 * pairs * (pass[0] == 'f' ? 2 : 5) * 16);
  }
}

TEST(ModuleRun, every_kind_is_compared_and_timed) {
  for (const char* pass : {"forward ", "backward "})
    for (const char* line :
         {"llama bf16 b1 s40 e64 h4/2 | causal", "feed_forward f16 b2 s20 e32 ffn=64",
          "longnet_encoder f16 b1 s32 e32 h2 ffn=64 dropout=0.1 | causal : dilated rates=1,2 segments=8,16",
          "longnet_decoder f16 b1 s32 e32 h2 memory=9 ffn=64 | causal", "multihead f16 b1 s20 e32 h2 memory=9 | full",
          "multihead bf16 b1 s64 e32 h4/2 | causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=8 w=16"}) {
      const std::string text = join(pass, line);
      const Record r = measured(text);
      EXPECT_EQ(r.status, RecordStatus::ok) << text << ": " << r.message;
      EXPECT_EQ(r.parity.verdict, CheckVerdict::pass) << text;
      EXPECT_GT(r.parity.error, 0) << text;
      EXPECT_EQ(r.flops, module_cost(row_of(text)).flops) << text;
    }
}

// Ranks are threads; tokens and gradients are those of the whole module in f32.
TEST(ModuleRun, modules_over_ranks_are_compared_and_timed) {
  for (const char* pass : {"forward ", "backward "})
    for (const char* line :
         {"multihead f16 b2 s20 e32 h4 | causal : ring layout=zigzag ranks=2 tokens=40",
          "multihead bf16 b1 s32 e32 h4/2 rope=half | causal : ring inner=dilated rates=1,2 segments=8,16 layout=ring "
          "ranks=2 tokens=64",
          "multihead f16 b1 s64 e32 h4 norm=1 | causal : ring layout=ulysses ranks=2 tokens=128 | 16x16 random "
          "density=0.5 seed=0",
          "llama f16 b1 s14 e32 h4 | causal : ring layout=zigzag ranks=3 tokens=41"}) {
      const std::string text = join(pass, line);
      const Record r = measured(text);
      EXPECT_EQ(r.status, RecordStatus::ok) << text << ": " << r.message;
      EXPECT_EQ(r.parity.verdict, CheckVerdict::pass) << text;
      EXPECT_GT(r.parity.error, 0) << text;
      EXPECT_NE(r.why.find(" ranks are threads of this process"), std::string::npos) << r.why;
    }
  // All ranks together do what the whole module does.
  EXPECT_EQ(module_cost(row_of("forward multihead f16 b2 s20 e32 h4 | causal : ring layout=zigzag ranks=2 tokens=40"))
                .flops, module_cost(row_of("forward multihead f16 b2 s40 e32 h4 | causal")).flops);
}

// The first n blocks of s tokens are compared, for native sparse attention: later queries select by scores.
TEST(ModuleRun, what_cannot_be_compared_in_f32_is_unchecked_or_left_out) {
  const auto exact = [](const char* line) {
    ModuleRun run;
    EXPECT_EQ(run.make(row_of(line), {}).message, "");
    return run.exact_rows();
  };
  EXPECT_EQ(exact("forward multihead f16 b1 s64 e32 h2 | causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=8 w=16"), 32);
  EXPECT_EQ(exact("forward multihead f16 b1 s20 e32 h2 | causal"), 20);
  for (const char* line : {"forward multihead f32 b1 s20 e32 h2 | causal",
                           "forward multihead f16 b1 s128 e32 h2 | causal : adaptive block=16 density=0.5"}) {
    const Record r = measured(line);
    EXPECT_EQ(r.status, RecordStatus::ok) << r.message;
    EXPECT_EQ(r.parity.verdict, CheckVerdict::unchecked);
    EXPECT_FALSE(r.parity.message.empty());
  }
}

TEST(ModuleRun, flops_are_of_all_matrices) {
  const auto products = [](const char* line) {
    return module_cost(row_of(line)).flops - cost(row_of(line).problem).flops;
  };
  const double tokens = 2 * 20, e = 32;
  EXPECT_EQ(products("forward feed_forward f16 b2 s20 e32 ffn=64") + cost(row_of("forward feed_forward f16 b2 s20 e32 "
                     "ffn=64").problem).flops, 2 * tokens * 2 * e * 64);
  EXPECT_EQ(products("forward llama f16 b2 s20 e32 h2 ffn=64 | causal"), 2 * tokens * (4 * e * e + 3 * e * 64));
  EXPECT_EQ(products("backward llama f16 b2 s20 e32 h2 ffn=64 | causal"), 4 * tokens * (4 * e * e + 3 * e * 64));
  EXPECT_EQ(products("forward multihead f16 b2 s20 e32 h2 memory=9 | full"), 2 * (tokens * 2 + 18 * 2) * e * e);
}

TEST(ModuleRun, what_is_not_timed_says_so) {
  BenchRow row;
  EXPECT_NE(parse_row("forward multihead f16 b1 s20", row).message, "");
  Device gpu = this_cpu();
  gpu.kind = DeviceKind::cuda;
  const BenchRow dilated = row_of(join("forward ", kDilated));
  EXPECT_EQ(can_time_module(dilated, gpu, Mode::graph).message,
            "not built: modules are timed warm or cold, not in graphs");
  EXPECT_EQ(can_time_module(dilated, gpu, Mode::cold).message, "");
  Device more = this_cpu();
  ++more.units;
  EXPECT_TRUE(can_time_module(dilated, more, Mode::warm).message.starts_with("not built: modules are timed with all "));
}

TEST(ModuleRun, parameters_that_do_not_fit_are_out_of_memory) {
  // Exceeds the address space.
  const Record r = measured("forward multihead f16 b1 s16 e268435456 h16384 dim=64 | full");
  EXPECT_EQ(r.status, RecordStatus::oom) << r.message;
  EXPECT_TRUE(r.message.ends_with(" bytes could not be allocated")) << r.message;
}

TEST(ModuleRun, on_a_gpu_both_passes_are_compared_and_timed) {
  Device gpu;
  if (const Status s = cuda::device(0, gpu); !s.ok()) GTEST_SKIP() << s.message;
  DeviceTimer timer;
  ASSERT_EQ(timer.open(0).message, "");
  for (const Mode mode : {Mode::cold, Mode::warm})
    for (const char* pass : {"forward ", "backward "})
      for (const char* line : {"multihead f16 b2 s256 e512 h8 norm=1 | causal : dilated mode=headgroup norm=divide "
                               "rates=1,2 segments=64,128",
                               "multihead bf16 b1 s200 e256 h4/2 | full", "multihead f16 b1 s200 e512 h8 | causal",
                               "multihead f16 b2 s200 e512 h8 | causal | 64x64 random density=0.5 seed=1",
                               "llama bf16 b1 s200 e256 h4/2 | causal",
                               "multihead f16 b2 s100 e512 h8 | causal : ring layout=zigzag ranks=2 tokens=200"}) {
        const std::string text = join(pass, line);
        const Record r = measured(text, gpu, &timer, mode);
        EXPECT_EQ(r.status, RecordStatus::ok) << text << ": " << r.message;
        EXPECT_EQ(r.parity.verdict, CheckVerdict::pass) << text << ": " << r.parity.message;
        EXPECT_GE(r.samples_ns.size(), 3u);
        EXPECT_GT(r.workspace_bytes, 0u);
      }
}

TEST(ModuleRun, what_it_takes_beside_its_tensors_is_measured) {
  // Large, because a system with many cores counts hundreds of resident pages per core.
  const Record r = measured("forward multihead f16 b2 s1024 e256 h4 | causal");
  ASSERT_EQ(r.status, RecordStatus::ok) << r.message;
  if (r.taken_bytes < 0) GTEST_SKIP() << "this system does not say what is resident";
  EXPECT_GT(r.taken_bytes, 0.5 * double(r.workspace_bytes));
}

TEST(ModuleRun, results_of_other_inputs_are_found) {
  for (const char* pass : {"forward ", "backward "}) {
    ModuleRun run, wide;
    ASSERT_EQ(run.make(row_of(join(pass, kDilated)), {}).message, "");
    ASSERT_EQ(wide.make_f32(run).message, "");
    ASSERT_EQ(run.open().message, "");
    ASSERT_EQ(wide.open().message, "");
    double error = 9, rms = 0;
    ASSERT_EQ(run.fill(Distribution::normal, 3, rms).message, "");
    EXPECT_NEAR(rms, 1, 0.1);
    ASSERT_EQ(wide.take_inputs(run).message, "");
    std::string where;
    ASSERT_EQ(run.once().message, "");
    ASSERT_EQ(wide.once().message, "");
    ASSERT_EQ(run.compare(wide, error, where).message, "");
    EXPECT_LT(error, 1) << where;
    ASSERT_EQ(wide.negate_input().message, "");
    ASSERT_EQ(wide.once().message, "");
    ASSERT_EQ(run.compare(wide, error, where).message, "");
    EXPECT_GT(error, 1) << pass;
  }
}

TEST(ModuleRun, flops_are_of_projections_and_attention) {
  const double tokens = 2 * 24, matrices = 4 * 32 * 32;
  const BenchRow forward = row_of(join("forward ", kDilated)), backward = row_of(join("backward ", kDilated));
  EXPECT_EQ(module_cost(forward).flops, cost(forward.problem).flops + 2 * tokens * matrices);
  EXPECT_EQ(module_cost(backward).flops, cost(backward.problem).flops + 4 * tokens * matrices);
  Record r = measured(join("forward ", kDilated));
  const auto found = [](const Record& record, std::string_view what) {
    Line line;
    std::vector<Finding> all;
    EXPECT_TRUE(audit_line(to_json(record), line, all));
    audit({&line, 1}, all);
    return std::any_of(all.begin(), all.end(), [&](const Finding& f) { return f.name == what; });
  };
  EXPECT_FALSE(found(r, "forged-flops"));
  EXPECT_FALSE(found(r, "bad-problem"));
  r.flops *= 1.5;
  EXPECT_TRUE(found(r, "forged-flops"));
}

TEST(ModuleRun, the_dilated_suite_has_those_of_the_factory) {
  std::vector<BenchRow> rows;
  ASSERT_EQ(suite_rows("dilated", rows).message, "");
  Axes axes;
  axes.pass = "backward", axes.len = "4096";
  ASSERT_EQ(keep_rows(axes, {"--pass", "--len"}, rows).message, "");
  const auto modules = std::count_if(rows.begin(), rows.end(), [](const BenchRow& r) {
    return name(r).starts_with("backward multihead f16 b") && name(r).find(" s4096 e512 h8 ") != std::string::npos;
  });
  EXPECT_EQ(modules, 4 * 3) << "four of each batch";
  const auto over_ranks = std::count_if(rows.begin(), rows.end(), [](const BenchRow& r) {
    return name(r).starts_with("backward multihead f16 b") && name(r).find(" s1024 e512 h8 ") != std::string::npos;
  });
  EXPECT_EQ(over_ranks, 3 * 3) << "three of each batch";
}

}  // namespace
}  // namespace attune
