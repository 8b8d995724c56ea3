// SPDX-License-Identifier: Apache-2.0
// From records to pages: contents, order, and that no record can inject markup.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/tool/report/reports.h"
#include "tests/tool/report/typical.h"
#include "tests/tool/spawn.h"
#include "tool/report/model.h"
#include "tool/report/script.h"

namespace attune {
namespace {

const Chart& chart(const Figure& f, size_t n) { return std::get<Chart>(f.plots.at(n).drawing); }

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Checks that tags close in order, except void tags and those of cells and rows.
std::string unbalanced(const std::string& html) {
  std::vector<std::string> open;
  const size_t style = html.find("<style>"), style_end = html.find("</style>"), script = html.find("<script>");
  const std::string body = html.substr(0, style) + html.substr(style_end + 8, script - style_end - 8);
  const std::regex tag("<(/?)([a-zA-Z0-9]+)[^>]*?(/?)>");
  for (std::sregex_iterator it(body.begin(), body.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if ((*it)[3] == "/" || has(" meta link tr td th ", " " + name + " ")) continue;
    if ((*it)[1] != "/") open.push_back(name);
    else if (open.empty() || open.back() != name) return "</" + name + "> at " + std::to_string(it->position());
    else open.pop_back();
  }
  return open == std::vector<std::string>{"html", "body"} ? "" : "left open: " + (open.empty() ? "" : open.back());
}

TEST(Report, verdict_counts_every_kind_and_means_geometrically) {
  EXPECT_EQ(report_of(typical()).verdicts.front(),
            "cpu_forward against torch:sdpa: faster at 1 of 3 problems, the same at 1, slower at 1; "
            "geometric mean 1.00x, from 0.500x to 2.00x.");
}

TEST(Report, lengths_make_one_figure_with_two_charts_and_a_table) {
  const Report r = report_of(typical());
  ASSERT_EQ(section(r, "lengths").figures.size(), 1u);
  const Figure& f = section(r, "lengths").figures[0];
  EXPECT_EQ(f.title, "forward f32 b1 h8 d64 causal");
  ASSERT_EQ(f.plots.size(), 2u);
  EXPECT_EQ(chart(f, 0).series.size(), 2u);
  EXPECT_EQ(chart(f, 0).series[0].points.size(), 3u);
  EXPECT_EQ(chart(f, 1).levels.size(), 1u);  // the ceiling
  EXPECT_EQ(f.table.rows.size(), 6u);
}

TEST(Report, rate_interval_is_the_time_interval_turned_over) {
  const Report r = report_of(typical());
  const Point p = chart(section(r, "lengths").figures[0], 1).series[0].points[0];
  EXPECT_LT(p.low, p.y);
  EXPECT_GT(p.high, p.y);
  EXPECT_NEAR(p.high, 512e3 / (2e4 * 0.99), 1e-9);
}

TEST(Report, of_equal_rows_the_newest_is_drawn_and_all_are_listed) {
  auto records = typical();
  records.push_back(record("cpu_forward", 512, 5e3, 4.0));
  const Report r = report_of(records);
  EXPECT_DOUBLE_EQ(chart(section(r, "lengths").figures[0], 0).series[1].points[0].y, 5e3);
  EXPECT_EQ(section(r, "lengths").figures[0].table.rows.size(), 7u);
}

TEST(Report, single_lengths_share_a_table_without_charts) {
  auto records = typical();
  Record decode = record("cpu_forward", 512, 1e4);
  decode.problem = "forward bf16 b8 h32/8 q1 k8192 d128 full paged64";
  records.push_back(decode);
  const Report r = report_of(records);
  ASSERT_EQ(section(r, "lengths").figures.size(), 2u);
  EXPECT_TRUE(section(r, "lengths").figures[1].plots.empty());
  EXPECT_EQ(section(r, "lengths").figures[1].table.rows[0][0].text, decode.problem);
}

TEST(Report, a_sweep_of_constant_batch_x_length_is_one_family) {
  std::vector<Record> records;
  for (const auto& [batch, length] : {std::pair(4, 512), {2, 1024}, {1, 2048}}) {
    records.push_back(record("cpu_forward", length, 1e4 * length));
    records.back().problem = join("forward f32 b", batch, " h8 q", length, " k", length, " d64 causal");
  }
  const Report r = report_of(records);
  ASSERT_EQ(section(r, "lengths").figures.size(), 1u);
  EXPECT_EQ(section(r, "lengths").figures[0].title, "forward f32 h8 d64 causal, batch x length 2048");
  EXPECT_EQ(chart(section(r, "lengths").figures[0], 0).series[0].points.size(), 3u);
}

TEST(Report, heat_map_has_a_row_a_family_and_a_column_a_length) {
  const Report r = report_of(typical());
  const HeatMap& map = std::get<HeatMap>(section(r, "against").figures.at(0).plots.at(0).drawing);
  EXPECT_EQ(map.rows, std::vector<std::string>{"forward f32 b1 h8 d64 causal"});
  EXPECT_EQ(map.columns, (std::vector<std::string>{"512", "1K", "2K"}));
  EXPECT_DOUBLE_EQ(map.cells[0][0].ratio, 2.0);
  EXPECT_EQ(map.cells[0][2].text, "0.500x \u25BC");
  EXPECT_TRUE(map.lines.empty());
}

TEST(Report, tuned_threshold_is_a_line_before_the_first_length_it_holds_for) {
  Rule rule{.dtype = DType::f32, .dim_qk = 64, .dim_v = 64, .mask = MaskKind::causal};
  rule.min_len = 700, rule.backend = "cpu_forward", rule.source = "mine.tsv:4";
  Rule other = rule;
  other.dim_qk = other.dim_v = 128;
  const Report r = make_report({.records = typical(), .rules = {other, rule}});
  const HeatMap& map = std::get<HeatMap>(section(r, "against").figures.at(0).plots.at(0).drawing);
  ASSERT_EQ(map.lines.size(), 1u);
  EXPECT_EQ(map.lines[0].column, 1u);  // 1K
  EXPECT_TRUE(has(map.lines[0].label, "cpu_forward from 700 keys on (mine.tsv:4)")) << map.lines[0].label;
  EXPECT_EQ(count(to_html(r), "<g class=\"threshold\">"), 1);
  EXPECT_EQ(section(r, "against").figures[0].table.rows.at(0).back().text, "700");
  rule.min_work = 8 * 1500;  // for 8 heads: from 1500 keys
  const Report by_work = make_report({.records = typical(), .rules = {rule}});
  const HeatMap& later = std::get<HeatMap>(section(by_work, "against").figures.at(0).plots.at(0).drawing);
  EXPECT_EQ(later.lines.at(0).column, 2u);
  EXPECT_TRUE(has(later.lines[0].label, "cpu_forward from 1500 keys on")) << later.lines[0].label;
}

TEST(Report, advice_names_the_fastest_and_where_another_is) {
  const Report r = report_of(typical());
  ASSERT_EQ(r.advice.size(), 1u);
  EXPECT_EQ(r.advice[0].use, "Prefill and training: the forward");
  EXPECT_EQ(r.advice[0].sentence, "Use cpu_forward: fastest at 1 of 3 problems, 2.00x as fast as the next best there "
                                  "(geometric mean); at 1 the first two are too close to call.");
  EXPECT_EQ(r.advice[0].exceptions, std::vector<std::string>{
      "torch:sdpa for f32 d64 causal at 2K keys: 1 problem, up to 2.00x as fast as cpu_forward"});
}

TEST(Report, advice_claims_nothing_where_the_first_two_are_close) {
  const Report r = report_of({record("torch:sdpa", 512, 1e4), record("cpu_forward", 512, 1.001e4, 1.0)});
  EXPECT_EQ(r.advice.at(0).sentence,
            "No clear winner: at all of 1 problem the first two of cpu_forward, torch:sdpa are too close to call.");
}

TEST(Report, advice_never_names_what_was_wrong_and_says_where_nothing_compares) {
  auto records = typical();
  for (Record& r : records)
    if (r.subject == "torch:sdpa") r.parity.verdict = CheckVerdict::fail;
  const Report r = report_of(records);
  ASSERT_EQ(r.advice.size(), 1u);
  EXPECT_EQ(r.advice[0].sentence,
            "Only cpu_forward was measured, at 3 problems: no comparison is possible.");
}

TEST(Report, what_was_not_checked_is_not_recommended_and_is_counted) {
  auto records = typical();
  records[1].parity.verdict = CheckVerdict::unchecked, records[4].parity.verdict = CheckVerdict::none;
  Report r = report_of(records);
  EXPECT_EQ(r.advice.at(0).sentence,
            "No clear winner: at all of 1 problem the first two of cpu_forward, torch:sdpa are too close to call. "
            "Left out: 2 rows whose result was not checked.");
  const auto right = [&]() -> Fact {
    for (const Fact& f : r.facts)
      if (f.name == "results correct") return f;
    return {};
  };
  EXPECT_EQ(right().value, "4 of 6");
  EXPECT_EQ(right().detail, "2 not checked, the others on the timed buffers");
  EXPECT_EQ(right().tone, Tone::plain);
  for (Record& one : records) one.parity.verdict = CheckVerdict::unchecked;
  r = report_of(records);
  EXPECT_EQ(r.advice.at(0).sentence, "No recommendation: none of 6 rows has a checked result.");
  EXPECT_EQ(right().value, "0 of 6");
}

TEST(Report, uses_are_told_apart_by_their_problem) {
  std::vector<Record> records;
  for (const char* line : {"backward f32 b1 h8 q64 k64 d64 causal", "forward f32 b1 h8 q1 k64 d64 full",
                           "forward f32 b1 h8 q32 k64 d64 causal", "forward f32 b1 h8 q64 k64 d64 full blocks8x8x64"}) {
    records.push_back(record("cpu_forward", 64, 1e4));
    records.back().problem = line;
  }
  std::vector<std::string> uses;
  for (const Advice& a : report_of(records).advice) uses.push_back(a.use);
  EXPECT_EQ(uses, (std::vector<std::string>{"Training: the backward", "Decoding from a cache", "Prefill behind a cache",
                                            "Block-sparse, forward"}));
}

TEST(Report, roofline_bends_where_the_measured_ceilings_meet) {
  auto records = typical();
  for (Record& r : records) r.copy_gbs = 20, r.bytes = r.flops / 100;
  const Report r = report_of(records);
  const Chart& c = chart(section(r, "roofline").figures.at(0), 0);
  ASSERT_EQ(c.bounds.size(), 2u);
  EXPECT_DOUBLE_EQ(c.bounds[0].points[0].x, 4);  // 80 GFLOP/s divided by 20 GB/s
  EXPECT_DOUBLE_EQ(c.bounds[0].points[0].y, 80);
  EXPECT_DOUBLE_EQ(c.bounds[1].points[1].x, 4);
  EXPECT_DOUBLE_EQ(c.series[0].points[0].x, 100);
  EXPECT_EQ(section(r, "roofline").figures[0].table.rows[0][5].text, "arithmetic");
  EXPECT_EQ(find_section(report_of(typical()), "roofline"), nullptr);  // the copy rate was not measured
}

TEST(Report, scaling_fits_the_exponent_of_every_subject) {
  const Report r = report_of(typical());
  const Table& t = section(r, "scaling").figures.at(0).table;
  ASSERT_EQ(t.rows.size(), 2u);
  EXPECT_EQ(t.rows[0][1].text, "torch:sdpa");
  EXPECT_EQ(t.rows[0][3].text, "1.00");
  EXPECT_EQ(t.rows[1][3].text, "2.00");
}

TEST(Report, memory_a_token_counts_tensors_and_workspace_of_ours_alone) {
  auto records = typical();
  for (Record& r : records) r.bytes = 4096e3, r.workspace_bytes = 1024e3;
  const Report r = report_of(records);
  const Table& t = section(r, "memory").figures.at(0).table;
  ASSERT_EQ(t.rows.size(), 3u);  // torch's workspace is unknown
  EXPECT_EQ(t.rows[0][2].text, "cpu_forward");
  EXPECT_EQ(t.rows[0][5].text, "-");
  EXPECT_EQ(t.rows[0][6].text, "0.0100");  // 5.12 MB divided by 512 tokens
  EXPECT_EQ(chart(section(r, "memory").figures[0], 0).bounds.at(0).points.size(), 3u);
}

TEST(Report, memory_shows_what_was_measured_and_peers_that_say_it) {
  auto records = typical();
  for (Record& r : records) r.bytes = 4096e3, r.workspace_bytes = 1024e3, r.taken_bytes = 2048e3;
  const Report r = report_of(records);
  const Table& t = section(r, "memory").figures.at(0).table;
  ASSERT_EQ(t.rows.size(), records.size());
  bool peer = false;
  for (const auto& row : t.rows) {
    EXPECT_EQ(row[5].text, "1.95 MiB");
    if (row[2].text == "cpu_forward") continue;
    peer = true;
    EXPECT_EQ(row[4].text, "-") << "a peer has no plan";
  }
  EXPECT_TRUE(peer);
}

TEST(Report, parity_table_counts_and_names_the_worst) {
  auto records = typical();
  records[3].parity.error = 0.7;
  // A wrong result as `bench` writes it: never timed.
  records[5].parity = {.verdict = CheckVerdict::fail, .error = 3, .rows = 8, .message = "row 3 is zero"};
  records[5].status = RecordStatus::failed, records[5].samples_ns.clear(), records[5].median_ns = 0;
  const Report report = report_of(records);
  const Section& s = section(report, "parity");
  ASSERT_EQ(s.figures.size(), 2u);
  EXPECT_EQ(s.figures[0].table.rows[1][1].text, "1 FAIL, 2 PASS");
  EXPECT_EQ(s.figures[0].table.rows[1][4].text, records[5].problem);
  EXPECT_EQ(s.figures[1].table.rows.at(0)[3].text, "row 3 is zero");
  const auto right = std::find_if(report.facts.begin(), report.facts.end(),
                                  [](const Fact& f) { return f.name == "results correct"; });
  ASSERT_NE(right, report.facts.end());
  EXPECT_EQ(right->value, "5 of 6");
  EXPECT_EQ(right->tone, Tone::bad);
  EXPECT_TRUE(std::count(report.verdicts.begin(), report.verdicts.end(),
                         "Checked on the timed buffers: 1 FAIL, 5 PASS."));
}

TEST(Report, clock_and_power_are_traced_by_row) {
  auto records = typical();
  EXPECT_EQ(find_section(report_of(records), "trace"), nullptr);
  records[1].mhz = 1500, records[1].samples_mhz = {1400, 1600}, records[1].watts = 300;
  records[1].slowed_by = "power cap";
  const Report r = report_of(records);
  const Figure& f = section(r, "trace").figures.at(0);
  ASSERT_EQ(f.plots.size(), 2u);
  EXPECT_DOUBLE_EQ(chart(f, 0).series.at(0).points.at(0).x, 2);
  EXPECT_DOUBLE_EQ(chart(f, 0).series[0].points[0].low, 1400);
  EXPECT_DOUBLE_EQ(chart(f, 1).series.at(0).points.at(0).y, 300);
  EXPECT_EQ(f.table.rows.at(0)[7].text, "power cap");
}

TEST(Report, cost_is_what_the_offers_say) {
  const std::vector<Offer> offers = {{.name = "here", .device = "Test CPU", .usd_an_hour = 3.6},
                                     {.name = "elsewhere", .device = "Another CPU", .usd_an_hour = 1}};
  const Report r = make_report({.records = typical(), .offers = offers});
  const Section& s = section(r, "cost");
  ASSERT_EQ(s.figures.size(), 2u);
  EXPECT_EQ(s.figures[0].table.rows.size(), 1u);                // no offer for a CPU that was not measured
  EXPECT_EQ(s.figures[1].table.rows.at(0)[3].text, "$0.0200");  // 20 us per call, $0.001 per second, a million calls
  EXPECT_EQ(find_section(report_of(typical()), "cost"), nullptr);
}

TEST(Report, caveats_name_what_limits_the_numbers) {
  auto records = typical();
  records[0].parity.verdict = CheckVerdict::fail;
  records[1].ended_by = "time";
  records[2].near_floor = true;
  records[3].provenance.dirty = true;
  records[4].provenance.governor = "powersave";
  records[5].status = RecordStatus::failed;
  records[5].aa_spread = 0.021;
  std::string all;
  for (const std::string& s : report_of(records).caveats) all += s + "\n";
  for (const char* part : {"1 row computed a wrong result", "ran out of time", "cost of an empty call",
                           "uncommitted changes", "governor", "ended as 'failed'", "up to 2.1 %"})
    EXPECT_TRUE(has(all, part)) << part << "\n" << all;
}

TEST(Report, a_gpu_is_named_with_what_held_it_back) {
  Record r = record("sm80_forward", 512, 1e4);
  r.threads = 0, r.mode = "cold", r.near_floor = true, r.slowed_by = "power cap", r.late_batches = 1;
  r.mhz = 1200;
  r.provenance.gpu = "Test GPU", r.provenance.gpu_uuid = "GPU-1", r.provenance.gpu_most_mhz = 1980;
  r.provenance.gpu_power_limit_w = 700, r.provenance.gpu_ecc = 1, r.provenance.governor = "powersave";
  Record warm = r;
  warm.mode = "warm", warm.near_floor = false, warm.slowed_by = "", warm.late_batches = 0, warm.mhz = 1900;
  const Report report = report_of({r, warm});
  EXPECT_EQ(report.subtitle, "on Test GPU, 2 of 2 rows measured");
  std::string caveats;
  for (const std::string& c : report.caveats) caveats += c + "\n";
  EXPECT_TRUE(has(caveats, "1 row are within five times the cost of an empty kernel: launch-bound")) << caveats;
  EXPECT_TRUE(has(caveats, "1 row ran while the GPU throttled its clock")) << caveats;
  EXPECT_TRUE(has(caveats, "1 row ran at less than three quarters of the GPU's highest clock: THROTTLED")) << caveats;
  EXPECT_TRUE(has(caveats, "1 row include launch time of the host in some samples")) << caveats;
  EXPECT_FALSE(has(caveats, "governor")) << caveats;  // of the host's clock, which does not count here
  const std::string page = to_markdown(report);
  EXPECT_TRUE(has(page, "Test GPU, GPU-1, 700 W, ECC on")) << page;
  EXPECT_TRUE(has(page, "sm80\\_forward warm")) << page;
  EXPECT_FALSE(has(page, "forward cold")) << page;  // not part of the headline
}

TEST(Html, page_is_whole_and_asks_nobody) {
  const std::string html = to_html(report_of(typical()));
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_TRUE(has(html, "content=\"default-src 'none'; style-src 'sha256-"));
  EXPECT_FALSE(has(html, "unsafe"));
  EXPECT_FALSE(has(html, "connect-src"));
  EXPECT_FALSE(has(html, " style=\""));  // forbidden by the content security policy
  EXPECT_EQ(count(html, "<svg"), 4);
  EXPECT_EQ(count(html, "The same as a table"), 3);  // for the heat map, for the two charts, for the samples
  EXPECT_EQ(count(html, "http://") - count(html, "http://www.w3.org/2000/svg"), 0);
  EXPECT_FALSE(has(html, "https://"));
  EXPECT_FALSE(has(html, " src="));
  EXPECT_FALSE(has(html, "@import"));
  EXPECT_TRUE(has(html, "prefers-color-scheme: dark"));
  EXPECT_TRUE(has(html, "@media print"));
  EXPECT_LT(std::string_view(kPageScript).size(), 20u * 1024);
}

TEST(Html, served_page_may_ask_its_own_origin_and_says_its_revision) {
  const std::string html = to_html(report_of(typical()), "6-1234");
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_TRUE(has(html, "connect-src 'self';"));
  EXPECT_TRUE(has(html, "<html lang=\"en\" data-revision=\"6-1234\">"));
  EXPECT_TRUE(has(html, "fetch(\"/revision\""));
}

TEST(Html, verdict_comes_first_and_caveats_last) {
  const std::string html = to_html(report_of(typical()));
  std::vector<size_t> at;
  for (const char* heading : {"<h2>Verdict", "<h2>What to use", "<h2>Against", "<h2>Time against", "<h2>Samples",
                              "<h2>Scaling", "<h2>Parity", "<h2>Every row", "<h2>Provenance", "<h2>Caveats"})
    at.push_back(html.find(heading));
  EXPECT_TRUE(std::is_sorted(at.begin(), at.end()));
  EXPECT_LT(at.back(), html.size());
}

// 63 families of four lengths, two subjects each.
std::vector<Record> many() {
  std::vector<Record> records;
  for (int heads = 1; heads <= 63; ++heads)
    for (const int length : {512, 1024, 2048, 4096})
      for (const bool ours : {false, true}) {
        Record r = record(ours ? "sm90_forward" : "torch:cudnn", length, 17.31 * length * heads, ours ? 1.1 : 0);
        r.problem = join("forward bf16 b2 h", heads, " q", length, " k", length, " d128 causal");
        r.threads = 0, r.mode = "cold", r.mhz = 1700, r.samples_mhz.assign(30, 1700), r.watts = 500;
        r.copy_gbs = 4000, r.bytes = 1e4 * length, r.provenance.gpu = "Test GPU";
        records.push_back(std::move(r));
      }
  return records;
}

TEST(Html, five_hundred_rows_are_below_a_megabyte_and_a_half) {
  const auto records = many();
  ASSERT_GE(records.size(), 500u);
  const std::vector<Offer> offers = {{.name = "a cloud", .device = "*", .usd_an_hour = 3}};
  const std::string html = to_html(make_report({.records = records, .baseline = records, .offers = offers}));
  EXPECT_LT(html.size(), 1500u * 1000) << "bytes";
}

TEST(Html, samples_show_where_they_lie_and_of_many_rows_those_that_differ_most) {
  auto records = typical();
  records[1].samples_ns = {9e3, 1e4, 1e4, 1e4, 1e4, 1e4, 1.5e4};
  const Report small = report_of(records);
  const Section* const section = find_section(small, "samples");
  ASSERT_TRUE(section);
  const auto& strips = std::get<Strips>(section->figures.at(0).plots.at(0).drawing);
  ASSERT_EQ(strips.rows.size(), records.size());
  const auto row = std::find_if(strips.rows.begin(), strips.rows.end(), [](const Strips::Row& r) {
    return r.values.size() == 7;
  });
  ASSERT_NE(row, strips.rows.end());
  EXPECT_DOUBLE_EQ(row->values.front(), 0.9);
  EXPECT_DOUBLE_EQ(row->values.back(), 1.5);
  EXPECT_TRUE(has(row->label, "7 samples, 9.00 us ... 15.0 us, median 10.0 us")) << row->label;
  EXPECT_EQ(section->figures[0].table.rows.size(), records.size());

  auto rows = many();
  for (size_t n = 0; n < 10; ++n) rows[50 * n].samples_ns[3] *= 0.5, rows[50 * n].samples_ns[4] *= 0.5;
  const Report large = report_of(rows);
  const Section* const few = find_section(large, "samples");
  ASSERT_TRUE(few);
  size_t shown = 0;
  for (const Figure& f : few->figures) shown += f.table.rows.size();
  EXPECT_EQ(shown, 10u);
  EXPECT_TRUE(has(few->notes.at(1), "494 rows whose samples differ less")) << few->notes.at(1);
}

TEST(Csv, a_line_a_record_with_as_many_fields_as_its_head) {
  auto records = typical();
  records[0].message = "a \"quoted\", comma";
  records[1].message = "=1+1";
  const std::string csv = to_csv(records);
  EXPECT_EQ(count(csv, "\r\n"), 7);
  EXPECT_TRUE(has(csv, ",\"a \"\"quoted\"\", comma\","));
  EXPECT_TRUE(has(csv, ",'=1+1,"));  // not a formula
  const std::string head = csv.substr(0, csv.find("\r\n")), last = csv.substr(csv.rfind("\r\n", csv.size() - 3) + 2);
  EXPECT_EQ(count(head, ","), count(last, ","));
  EXPECT_TRUE(has(last, "forward f32 b1 h8 q2048 k2048 d64 causal,forward,f32,1,8,8,2048,2048,64,64,cpu_forward,"));
}

// Sets every text field of a record to markup.
std::vector<Record> hostile() {
  const std::string evil =
      "\"><img src=x onerror=alert(1)></title></svg><script>alert('1')</script> | `x` [a](javascript:1) \x01 \xff";
  auto records = typical();
  for (Record& r : records) {
    r.subject += evil, r.message = evil, r.device = evil, r.mode = evil, r.ceiling = evil;
    r.parity.verdict = Word<CheckVerdict>(evil), r.note = evil;
    if (!r.baseline.empty()) r.baseline = evil, r.verdict = evil;
    Provenance& p = r.provenance;
    p.time = p.commit = p.version = p.compiler = p.flags = p.cpu = p.features = p.governor = p.kernel = p.peers = evil;
    p.gpu = p.gpu_uuid = evil, r.slowed_by = evil, r.mhz = 1000, r.watts = 100, r.copy_gbs = 1e3, r.bytes = 1e3;
  }
  records[0].problem = evil;
  records[1].status = Word<RecordStatus>(evil);
  return records;
}

TEST(Html, extreme_numbers_stay_numbers_that_sort) {
  auto records = typical();
  for (Record& r : records) r.flops = r.gflops = 1e308, r.bytes = 1e-308, r.copy_gbs = 1, r.watts = 1e308, r.mhz = 1;
  const std::vector<Offer> offers = {{.name = "a cloud", .device = "*", .usd_an_hour = 1e-9}};
  const std::string html = to_html(make_report({.records = records, .offers = offers}));
  EXPECT_EQ(unbalanced(html), "");
  for (const char* bad : {"=\"inf\"", "=\"-inf\"", "=\"nan\"", "=\"-nan\"", "Mnan", "Lnan", "Linf", " nan", ",nan"})
    EXPECT_FALSE(has(html, bad)) << bad;
}

TEST(Html, hostile_records_stay_text) {
  const std::string html = to_html(report_of(hostile()));
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_FALSE(has(html, "<img"));
  EXPECT_EQ(count(html, "<script"), 1);  // our own
  EXPECT_EQ(count(html, "</script"), 1);
  EXPECT_FALSE(has(html, "\x01"));
  EXPECT_TRUE(has(html, "&lt;script&gt;alert(&#39;1&#39;)"));
}

TEST(Markdown, hostile_records_stay_text) {
  const std::string md = to_markdown(report_of(hostile()));
  EXPECT_FALSE(has(md, "<"));
  EXPECT_FALSE(has(md, "[a]")) << "a link";
  // Every table row has as many cells as its header.
  const std::regex unescaped(R"((^|[^\\])\|)");
  std::istringstream lines(md);
  ptrdiff_t columns = 0;
  for (std::string line; std::getline(lines, line);) {
    const ptrdiff_t here =
        std::distance(std::sregex_iterator(line.begin(), line.end(), unescaped), std::sregex_iterator());
    const bool in_table = line.starts_with("|");
    if (in_table && columns) { EXPECT_EQ(here, columns) << line; }
    columns = in_table ? here : 0;
  }
}

TEST(Markdown, says_the_verdict_and_every_row) {
  const std::string md = to_markdown(report_of(typical()));
  EXPECT_TRUE(has(md, "faster at 1 of 3 problems"));
  EXPECT_TRUE(has(md, "| 512 | cpu\\_forward | 10.0 us |")) << md;
  EXPECT_TRUE(has(md, "2.00x FASTER"));
  EXPECT_TRUE(has(md, "- **Prefill and training: the forward.** Use "));
}

std::string written(const std::vector<Record>& records, const std::string& name) {
  std::ofstream file(temporary(name));
  for (const Record& r : records) file << to_json(r) << "\n";
  return temporary(name);
}

TEST(Command, writes_both_files_and_says_so) {
  const std::string in = written(typical(), "records.jsonl"), html = temporary("r.html"), md = temporary("r.md");
  const std::string csv = temporary("r.csv");
  const Ran r = attune_says({"report", in, "--out", html, "--markdown", md, "--csv", csv});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "faster at 1 of 3"));
  EXPECT_TRUE(has(r.out, "wrote " + html));
  EXPECT_EQ(text_of(html), to_html(report_of(typical())));
  EXPECT_EQ(text_of(md), to_markdown(report_of(typical())));
  EXPECT_EQ(text_of(csv), to_csv(typical()));
}

TEST(Command, files_beside_the_records_are_read_and_a_wrong_one_is_named) {
  const std::string in = written(typical(), "records.jsonl"), out = temporary("r.html");
  std::ofstream(temporary("mine.tsv")) << "attune-tuned 1\ndevice\tTest CPU\nmeasured\ttoday\n"
                                          "rule\tforward\tf32\td64\tcausal\theads 1-*\tlen 1024\tcpu_forward\n"
                                          "rule\tforward\tbf16\td64\tcausal\theads 1-*\tlen 1\tsm999_forward\n";
  std::ofstream(temporary("prices.tsv"))
      << "attune-prices 1\noffer\ta cloud\t*\t3.60 an hour\tby the second\tminimum 0\n";
  const Ran r = attune_says({"report", in, "--out", out, "--baseline", in, "--tuned", temporary("mine.tsv"),
                             "--prices", temporary("prices.tsv")});
  EXPECT_EQ(r.code, 0) << r.err;
  const std::string html = text_of(out);
  for (const char* part : {"class=\"threshold\"", "id=\"cost\"", "id=\"regressions\"", "Against records.jsonl: 6 SAME"})
    EXPECT_TRUE(has(html, part)) << part;
  EXPECT_TRUE(has(html, "cpu_forward from 1024 keys on (mine.tsv:4)"));
  for (const char* rule : {"rule\tforward\tbf17\td64\tcausal\theads 1-*\tlen 1\tcpu_forward\n",
                           "rule\tforward\tbf16\td64\tcausal\theads 1-*\tlen 1\tNo Backend\n"}) {
    std::ofstream(temporary("bad.tsv")) << "attune-tuned 1\ndevice\tTest CPU\nmeasured\ttoday\n" << rule;
    const Ran bad = attune_says({"report", in, "--tuned", temporary("bad.tsv")});
    EXPECT_EQ(bad.code, 1) << rule;
    EXPECT_TRUE(has(bad.err, "bad.tsv:4: ")) << bad.err;
  }
  for (const char* option : {"--baseline", "--tuned", "--prices"}) {
    const Ran missing = attune_says({"report", in, option, temporary("nowhere")});
    EXPECT_EQ(missing.code, 3) << option;
    EXPECT_TRUE(has(missing.err, "nowhere") && has(missing.err, "cannot be read")) << missing.err;
    const Ran folder = attune_says({"report", in, option, temporary("")});
    EXPECT_EQ(folder.code, 3) << option;
    EXPECT_TRUE(has(folder.err, "' cannot be read: Is a directory\n")) << folder.err;
  }
}

TEST(Command, markdown_goes_to_stdout_where_no_file_is_named) {
  const Ran r = attune_says({"report", written(typical(), "records.jsonl")});
  EXPECT_EQ(r.code, 0);
  EXPECT_EQ(r.out, to_markdown(report_of(typical())));
}

TEST(Command, json_says_the_verdicts) {
  const Ran r = attune_says({"report", written(typical(), "records.jsonl"), "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_EQ(j["records"], 6);
  EXPECT_TRUE(has(j["verdicts"][0], "faster at 1 of 3"));
}

TEST(Command, hostile_records_are_still_json) {
  const Ran r = attune_says({"report", written(hostile(), "hostile.jsonl"), "--json"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(nlohmann::json::accept(r.out));
}

TEST(Command, file_that_is_missing_empty_or_wrong_is_a_failure_that_names_it) {
  const Ran missing = attune_says({"report", temporary("none.jsonl")});
  EXPECT_EQ(missing.code, 3);
  EXPECT_TRUE(has(missing.err, "none.jsonl")) << missing.err;
  const Ran empty = attune_says({"report", written({}, "empty.jsonl")});
  EXPECT_EQ(empty.code, 1);
  EXPECT_TRUE(has(empty.err, "hold no record")) << empty.err;
  std::ofstream(temporary("wrong.jsonl")) << to_json(typical()[0]) << "\nnot json\n" << to_json(typical()[0]) << "\n";
  const Ran wrong = attune_says({"report", temporary("wrong.jsonl")});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_TRUE(has(wrong.err, "wrong.jsonl:2")) << wrong.err;
}

TEST(Command, page_that_cannot_be_written_is_the_machines_fault) {
  const Ran r = attune_says({"report", written(typical(), "records.jsonl"), "--out", temporary("no/such/folder.html")});
  EXPECT_EQ(r.code, 3);
  EXPECT_TRUE(has(r.err, "cannot be written")) << r.err;
}

}  // namespace
}  // namespace attune
