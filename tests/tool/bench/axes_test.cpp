// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/axes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "machine/host.h"
#include "tool/bench/estimate.h"
#include "tool/bench/suites.h"
#include "tool/subjects/module_run.h"
#include "tool/subjects/ring_run.h"

namespace attune {
namespace {

std::vector<int32_t> numbers(std::string_view text) {
  std::vector<int32_t> n;
  EXPECT_EQ(numbers_of("len", text, n).message, "") << text;
  return n;
}

std::vector<std::string> lines(const Axes& a) {
  std::vector<BenchRow> rows;
  EXPECT_EQ(problems_of(a, rows).message, "");
  std::vector<std::string> names;
  for (const BenchRow& row : rows) names.push_back(name(row.problem));
  return names;
}

using Lines = std::vector<std::string>;
using Numbers = std::vector<int32_t>;

TEST(ThreadCounts, of_a_gpu_are_its_units_and_of_a_cpu_at_most_its_cpus) {
  const Device gpu{.kind = DeviceKind::cuda, .units = 132}, cpu{.units = 16};
  const auto counts = [](std::string_view asked, const Device& device) {
    Numbers out;
    const Status s = thread_counts(asked, device, 16, out);
    if (s.ok()) return out;
    EXPECT_EQ(s.message, "--threads: 17 is not from 1 to 16, the CPUs that this process may use");
    return Numbers{};
  };
  EXPECT_EQ(counts("", gpu), (Numbers{132}));
  EXPECT_EQ(counts("", cpu), (Numbers{16}));
  EXPECT_EQ(counts("4,1,4,2-4+1", cpu), (Numbers{4, 1, 2, 3}));
  EXPECT_EQ(counts("1,17", cpu), (Numbers{}));
}

TEST(Numbers, values_ranges_and_both) {
  EXPECT_EQ(numbers("512"), (Numbers{512}));
  EXPECT_EQ(numbers("512,1024"), (Numbers{512, 1024}));
  EXPECT_EQ(numbers("512-8192*2"), (Numbers{512, 1024, 2048, 4096, 8192}));
  EXPECT_EQ(numbers("512-8191*2"), (Numbers{512, 1024, 2048, 4096}));
  EXPECT_EQ(numbers("512-2048+512"), (Numbers{512, 1024, 1536, 2048}));
  EXPECT_EQ(numbers("1,31-33+1,1024-4096*4"), (Numbers{1, 31, 32, 33, 1024, 4096}));
  EXPECT_EQ(numbers("1000000000-2147483647*2"), (Numbers{1000000000, 2000000000}));
}

TEST(Numbers, mistakes_are_sentences) {
  for (const char* text : {"", "x", "0", "-5", "512-", "512-1024", "512-1024*", "512-1024*1", "512-1024*0",
                           "512-1024+0", "1024-512*2", "512,", "512-1024*2x", "99999999999", "512 "}) {
    std::vector<int32_t> n;
    const std::string message = numbers_of("len", text, n).message;
    EXPECT_EQ(message.rfind("--len: '", 0), 0u) << text << ": " << message;
  }
  std::vector<int32_t> n;
  EXPECT_NE(numbers_of("len", "1-2147483647+1", n).message.find("more than"), std::string::npos);
}

TEST(Masks, a_window_keeps_its_comma) {
  EXPECT_EQ(masks_of("full,causal,window1023,0"), (Lines{"full", "causal", "window1023,0"}));
  EXPECT_EQ(masks_of("window1,*@top_left,full"), (Lines{"window1,*@top_left", "full"}));
  EXPECT_EQ(masks_of("window1,2,window3,4"), (Lines{"window1,2", "window3,4"}));
}

TEST(Axes, every_combination_lengths_fastest) {
  Axes a;
  a.pass = "forward,backward", a.dtype = "f32,bf16", a.len = "512-1024*2", a.mask = "full,window7,0";
  const Lines all = lines(a);
  ASSERT_EQ(all.size(), 16u);
  EXPECT_EQ(all[0], "forward f32 b1 h8 q512 k512 d64 full");
  EXPECT_EQ(all[1], "forward f32 b1 h8 q1024 k1024 d64 full");
  EXPECT_EQ(all[2], "forward f32 b1 h8 q512 k512 d64 window7,0");
  EXPECT_EQ(all[4], "forward bf16 b1 h8 q512 k512 d64 full");
  EXPECT_EQ(all[15], "backward bf16 b1 h8 q1024 k1024 d64 window7,0");
}

TEST(Axes, grouped_heads_two_dims_decode_and_options) {
  Axes a;
  a.heads = "8/2,4", a.dim = "64-128*2,192/128", a.len = "256", a.len_q = "1", a.options = "softcap sink",
  a.batch = "2";
  EXPECT_EQ(lines(a), (Lines{"forward f32 b2 h8/2 q1 k256 d64 full softcap sink",
                             "forward f32 b2 h4 q1 k256 d64 full softcap sink",
                             "forward f32 b2 h8/2 q1 k256 d128 full softcap sink",
                             "forward f32 b2 h4 q1 k256 d128 full softcap sink",
                             "forward f32 b2 h8/2 q1 k256 d192/128 full softcap sink",
                             "forward f32 b2 h4 q1 k256 d192/128 full softcap sink"}));
}

TEST(Axes, mistakes_show_the_line_they_made) {
  const auto message = [](auto change) {
    Axes a;
    change(a);
    std::vector<BenchRow> p;
    return problems_of(a, p).message;
  };
  EXPECT_NE(message([](Axes& a) { a.dtype = "f31"; }).find("'forward f31 b1"), std::string::npos);
  EXPECT_NE(message([](Axes& a) { a.heads = "8/3"; }).find("heads_kv = 3"), std::string::npos);
  EXPECT_NE(message([](Axes& a) { a.mask = "window5"; }).find("window5"), std::string::npos);
  EXPECT_EQ(message([](Axes& a) { a.dim = "x"; }).rfind("--dim: 'x'", 0), 0u);
  EXPECT_NE(message([](Axes& a) { a.len = "1-1000+1", a.dim = "1-1000+1"; }).find("more than"), std::string::npos);
}

TEST(LinesFile, is_read_line_by_line) {
  const std::string path = (std::filesystem::temp_directory_path() / "attune_axes_test.txt").string();
  std::ofstream(path)
      << "# two problems\n\nforward f32 b1 h8 q512 k512 d64 causal\nbackward bf16 b1 h8 q16 k16 d64 full  \r\n";
  std::vector<BenchRow> p;
  EXPECT_EQ(problems_in(path, p).message, "");
  ASSERT_EQ(p.size(), 2u);
  EXPECT_EQ(name(p[1].problem), "backward bf16 b1 h8 q16 k16 d64 full");
  std::ofstream(path, std::ios::app) << "sideways f32\n";
  EXPECT_EQ(problems_in(path, p).message.rfind(path + ":5: problem line:", 0), 0u);
  std::ofstream(path) << "# nothing\n";
  EXPECT_EQ(problems_in(path, p).message, "--lines: '" + path + "' has no problem lines");
  std::filesystem::remove(path);
  EXPECT_NE(problems_in(path, p).message.find("cannot be read"), std::string::npos);
}

TEST(BenchRow, a_pattern_stands_behind_a_bar_and_gives_the_bound) {
  BenchRow row;
  EXPECT_EQ(parse_row("forward f32 b1 h2 q640 k640 d64 full blocks64x64x1 | random density=0.5", row).message, "");
  EXPECT_EQ(row.pattern, "random density=0.5");
  EXPECT_EQ(row.problem.mask.blocks.bound, 100);
  EXPECT_NE(parse_row("forward f32 b1 h2 q640 k640 d64 full blocks64x64x1 | spiral", row).message, "");
  // Every rank has the lists of all tokens: 2 heads of 20 x 20 blocks.
  constexpr std::string_view kRank = "forward f32 b1 h2 q160 k160 d64 full blocks32x32x1 : ring layout=striped ranks=4 "
                                     "tokens=640 | random density=0.5";
  EXPECT_EQ(parse_row(kRank, row).message, "");
  EXPECT_EQ(row.problem.mask.blocks.bound, 2 * 20 * 20 / 2);
  EXPECT_NE(parse_row("forward f32 b1 h2 q640 k640 d64 full | dense", row).message, "");
}

TEST(Suites, a_decode_of_native_sparse_attention_does_not_compress_its_cache_again) {
  std::vector<BenchRow> all;
  ASSERT_TRUE(suite_rows("nsa", all).ok());
  int many = 0;
  for (const BenchRow& row : all)
    if (row.problem.len_q == 1 && word(row.problem.variant) == "nsa") {
      EXPECT_NE(name(row.problem).find(" phi=none "), std::string::npos) << name(row.problem);
      ++many;
    }
  EXPECT_EQ(many, 21);
}

TEST(Suites, pass_and_length_choose_among_rows_and_other_axes_are_refused) {
  std::vector<BenchRow> all, rows;
  ASSERT_TRUE(suite_rows("nsa", all).ok());
  Axes axes;
  axes.pass = "backward", axes.len = "4096,8192";
  rows = all;
  EXPECT_EQ(keep_rows(axes, {"--pass", "--len"}, rows).message, "");
  EXPECT_FALSE(rows.empty());
  for (const BenchRow& row : rows) {
    EXPECT_EQ(row.problem.pass, Pass::backward);
    EXPECT_TRUE(row.problem.len_k == 4096 || row.problem.len_k == 8192) << row.problem.len_k;
  }
  rows = all;
  EXPECT_EQ(keep_rows(axes, {}, rows).message, "");
  EXPECT_EQ(rows.size(), all.size());
  EXPECT_EQ(keep_rows(axes, {"--dim"}, rows).message.rfind("--dim: given with a suite", 0), 0u);
  axes.len = "5";
  EXPECT_EQ(keep_rows(axes, {"--len"}, rows).message, "--pass, --len and --mask: no row matches");
  axes.pass = "sideways";
  EXPECT_NE(keep_rows(axes, {"--pass"}, rows).message, "");
}

TEST(Suites, a_mask_chooses_among_rows) {
  std::vector<BenchRow> all;
  for (const char* mask : {"full", "causal", "window127,0", "window*,0", "window255,0@absolute", "causal@top_left",
                           "causal@absolute/16+31", "window511,0@absolute/16+31", "causal blocks64x64x9"})
    ASSERT_EQ(parse_row(join("forward f16 b1 h8 q512 k512 d64 ", mask), all.emplace_back()).message, "");
  const auto kept = [&](const char* masks) {
    Axes axes;
    axes.mask = masks;
    std::vector<BenchRow> rows = all;
    EXPECT_EQ(keep_rows(axes, {"--mask"}, rows).message, "") << masks;
    std::string names;
    for (const BenchRow& r : rows) names += name(r.problem).substr(name(r.problem).find("d64 ") + 3);
    return names;
  };
  EXPECT_EQ(kept("full"), " full");
  EXPECT_EQ(kept("causal"), " causal causal blocks64x64x9");
  EXPECT_EQ(kept("window"), " window127,0 window*,0 window255,0@absolute");
  EXPECT_EQ(kept("window127,0,full"), " full window127,0");
  EXPECT_EQ(kept("compressed"), " causal@absolute/16+31 window511,0@absolute/16+31");
  EXPECT_EQ(kept("window,compressed,blocks"),
            " window127,0 window*,0 window255,0@absolute causal@absolute/16+31 window511,0@absolute/16+31 causal "
            "blocks64x64x9");
  Axes axes;
  axes.mask = "sideways";
  EXPECT_EQ(keep_rows(axes, {"--mask"}, all).message.rfind("--mask: 'sideways' is not one of full, causal, window", 0),
            0u);
}

TEST(Suites, fa2_vs_sdpa_has_windows_and_compressed_keys_in_both_passes) {
  std::vector<BenchRow> all;
  ASSERT_EQ(suite_rows("fa2-vs-sdpa", all).message, "");
  for (const auto& [mask, count] : {std::pair("window", 12), {"compressed", 10}}) {
    std::vector<BenchRow> rows = all;
    Axes axes;
    axes.mask = mask;
    ASSERT_EQ(keep_rows(axes, {"--mask"}, rows).message, "");
    EXPECT_EQ(int(rows.size()), count);
    const auto is_backward = [](const BenchRow& r) { return r.problem.pass == Pass::backward; };
    EXPECT_EQ(std::count_if(rows.begin(), rows.end(), is_backward), count / 2);
    EXPECT_EQ(rows.front().problem.mask.left, count == 12 ? 127 : 0);
  }
}

TEST(Suites, every_row_of_every_suite_is_a_problem) {
  size_t all = 0;
  std::istringstream suites(suite_names());
  int count = 0;
  for (std::string suite; std::getline(suites >> std::ws, suite, ','); ++count) {
    std::vector<BenchRow> rows;
    EXPECT_EQ(suite_rows(suite, rows).message, "") << suite;
    EXPECT_GE(rows.size(), 3u) << suite;
    all += rows.size();
  }
  EXPECT_GE(count, 16);
  EXPECT_GT(all, 600u);
  std::vector<BenchRow> none;
  EXPECT_EQ(suite_rows("sdpa", none).message.rfind("--suite: 'sdpa' is not one of sdpa-small", 0), 0u);
}

std::vector<BenchRow> rows_of_suite(const std::string& suite) {
  std::vector<BenchRow> rows;
  EXPECT_EQ(suite_rows(suite, rows).message, "") << suite;
  return rows;
}
std::vector<std::string> lines_of(const char* suite) {
  std::vector<std::string> all;
  for (const BenchRow& r : rows_of_suite(suite)) all.push_back(name(r));
  return all;
}
bool has_line(const char* suite, const std::string& line) {
  const auto all = lines_of(suite);
  return std::find(all.begin(), all.end(), line) != all.end();
}

TEST(Suites, have_the_matrices_of_the_reports) {
  EXPECT_EQ(lines_of("sdpa-small").size(), 8u);
  EXPECT_TRUE(has_line("sdpa-small", "forward bf16 b32 h8 q256 k256 d64 full"));
  EXPECT_EQ(lines_of("fa2-vs-sdpa").size(), 4u + 3u + 5u * 8u + 2u * (6u + 5u));
  EXPECT_EQ(lines_of("seq-sweep").size(), 3u * 5u + 2u * 5u + 2u * 2u * 3u * 6u);
  EXPECT_TRUE(has_line("seq-sweep", "forward f16 b4 h32 q2048 k2048 d64 full"));
  EXPECT_EQ(find_suite("seq-sweep")->rest_ms, 20);
  EXPECT_TRUE(has_line("seq-sweep", "forward f16 b8 h32 q8192 k8192 d64 full"));
  EXPECT_TRUE(has_line("seq-sweep", "backward bf16 b1 h16 q16384 k16384 d128 causal"));
  EXPECT_EQ(lines_of("decode").size(), 4u * 9u * 2u * 2u);
  EXPECT_TRUE(has_line("decode", "forward bf16 b128 h32/8 q1 k131072 d128 full paged64"));
  EXPECT_EQ(lines_of("train").size(), 10u);
  EXPECT_EQ(lines_of("scaling").size(), 6u);
  EXPECT_EQ(lines_of("versions").size(), 3u + 4u);
  for (const BenchRow& r : rows_of_suite("versions")) {
    const Problem& p = r.problem;
    EXPECT_EQ(double(p.batch) * p.heads_q * p.len_q * p.len_k, 8. * 32 * 4096 * 4096) << "work: " << name(r);
  }
  EXPECT_EQ(find_suite("sdpa-small")->samples, 500);
  EXPECT_EQ(find_suite("sdpa-small")->warm_up_calls, 200);
}

// An H200 has 150.8 GB; the last row of each kind does not fit, and the row before it does.
TEST(Suites, memory_and_extreme_go_on_to_where_the_memory_of_a_gpu_ends) {
  for (const char* suite : {"memory", "extreme"}) {
    std::vector<BenchRow> rows;
    ASSERT_EQ(suite_rows(suite, rows).message, "");
    std::map<std::string, std::vector<double>> kinds;  // bytes, by length
    for (const BenchRow& r : rows) {
      Problem p = r.problem;
      p.len_q = p.len_k = 1 << 18;
      kinds[name(p)].push_back(estimated_bytes(r.problem));
    }
    EXPECT_EQ(kinds.size(), suite == std::string("memory") ? 2u : 6u);
    for (const auto& [kind, bytes] : kinds) {
      EXPECT_TRUE(std::is_sorted(bytes.begin(), bytes.end())) << kind;
      EXPECT_LT(bytes.front(), 20e9) << kind;
      EXPECT_GT(bytes.back(), 150.8e9) << kind;
      for (size_t n = 1; n < bytes.size(); ++n) EXPECT_LT(bytes[n], 2.1 * bytes[n - 1]) << kind;
    }
    EXPECT_EQ(find_suite(suite)->min_early, 1) << "of calls that take half a minute";
  }
}

TEST(Suites, rows_of_a_suite_have_a_limit_and_lines_have_none) {
  std::vector<BenchRow> rows;
  ASSERT_EQ(suite_rows("memory", rows).message, "");
  for (const BenchRow& r : rows) EXPECT_EQ(r.most_call_s, kMostCallSeconds);
  BenchRow line;
  ASSERT_EQ(parse_row(name(rows[0]), line).message, "");
  EXPECT_EQ(line.most_call_s, 0);
}

TEST(Suites, nsa_has_the_slow_ways_beside_it_where_they_have_room) {
  const BenchSuite& nsa = *find_suite("nsa");
  Bench b;
  b.device = this_cpu(), b.beside = nsa.beside;
  const auto wanted = [&](const char* line) {
    BenchRow row;
    EXPECT_EQ(parse_row(line, row).message, "");
    return wanted_backends(row.problem, b);
  };
  using Names = std::vector<std::string>;
  constexpr const char* kNsa = " causal : nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512";
  const std::string sizes = "forward bf16 b1 h16/4 q4096 k4096 d128", longer = "forward bf16 b1 h16/4 q8192 k8192 d128";
  EXPECT_EQ(wanted((sizes + kNsa).c_str()), (Names{"", "masked_dense"}));
  EXPECT_EQ(wanted((sizes + " window127,0").c_str()), (Names{"", "masked_dense"}));
  EXPECT_EQ(wanted((longer + kNsa).c_str()), Names{""});
  EXPECT_EQ(wanted((longer + " causal").c_str()), Names{""});
  const Names dense = wanted((sizes + " causal").c_str());
  for (size_t n = 1; n < dense.size(); ++n) EXPECT_EQ(dense[n], "cpu_standard");  // if there is a BLAS
  b.backends = {"nsa"};
  EXPECT_EQ(wanted((sizes + kNsa).c_str()), Names{"nsa"});
}

TEST(Suites, dilated_has_rings_that_are_chosen_by_all_their_tokens) {
  std::vector<BenchRow> rows;
  ASSERT_EQ(suite_rows("dilated", rows).message, "");
  Axes axes;
  axes.pass = "backward", axes.len = "4096";
  ASSERT_EQ(keep_rows(axes, {"--pass", "--len"}, rows).message, "");
  size_t rings = 0;
  for (const BenchRow& r : rows) rings += name(r).find(" q1024 k1024 d64 causal : ring ") != std::string::npos;
  EXPECT_EQ(rings, 2u * 3u) << "two of each batch";
}

TEST(Suites, models_are_layers_of_llama) {
  std::vector<BenchRow> rows;
  ASSERT_EQ(suite_rows("models", rows).message, "");
  EXPECT_EQ(rows.size(), 10u);
  EXPECT_EQ(name(rows[0]), "forward llama bf16 b1 s2048 e4096 h32 ffn=11008 | causal");
}

TEST(Suites, long_and_dilated_have_head_groups_ranks_and_modules) {
  for (const char* suite : {"long", "dilated"}) {
    std::vector<BenchRow> rows;
    ASSERT_EQ(suite_rows(suite, rows).message, "");
    for (const char* part : {" : dilated mode=headgroup ", " : ring layout=zigzag ", " : ring inner=dilated ",
                             " multihead f16 "})
      EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [&](const BenchRow& r) {
        return name(r).find(part) != std::string::npos;
      })) << suite << part;
  }
}

std::vector<std::string> suites_of_all() {
  std::vector<std::string> all;
  std::istringstream suites(suite_names());
  for (std::string suite; std::getline(suites >> std::ws, suite, ',');) all.push_back(suite);
  return all;
}

// A row that nothing can serve would be a promise.
TEST(Suites, no_row_is_not_built) {
  Device gpu = this_cpu();
  gpu.kind = DeviceKind::cuda;
  for (const std::string& suite : suites_of_all())
    for (const BenchRow& r : rows_of_suite(suite))
      for (const auto& [device, mode] : {std::pair(this_cpu(), Mode::warm), {this_cpu(), Mode::cold},
                                         {gpu, Mode::warm}, {gpu, Mode::cold}}) {
        const Status s = r.module.empty() ? is_ring(r.problem) ? can_time_ring(r.problem, device, mode)
                                                               : Status::good()
                                          : can_time_module(r, device, mode);
        EXPECT_EQ(s.message, "") << suite << ": " << name(r);
      }
}

// On this machine every row has a plan, or each backend that was asked for refuses it in one sentence of its own.
TEST(Suites, every_row_is_measured_or_says_in_a_sentence_why_not) {
  size_t planned = 0, refused = 0;
  for (const std::string& suite : suites_of_all()) {
    const BenchSuite& about = *find_suite(suite);
    Bench b;
    b.device = this_cpu(), b.beside = about.beside;
    if (about.all_backends) b.backends = {"all"};
    for (const BenchRow& r : rows_of_suite(suite)) {
      if (!r.module.empty()) continue;  // its attention is planned as the module is made
      for (const std::string& word : wanted_backends(r.problem, b)) {
        Planner by{.device = this_cpu(), .rules = {}, .forced = word};
        if (is_ring(r.problem)) by.device = rank_device(by.device, r.problem);
        Plan plan;
        const Status s = by.plan(r.problem, plan);
        ++(s.ok() ? planned : refused);
        if (s.ok()) continue;
        EXPECT_GT(s.message.size(), 20u) << name(r);
        EXPECT_EQ(s.message.find("not built"), s.message.npos) << name(r) << ": " << s.message;
      }
    }
  }
  EXPECT_GT(planned, 1000u);
  EXPECT_GT(refused, 5u) << "fp8 on a CPU";
}

}  // namespace
}  // namespace attune
