// From records to pages: what is said, in which order, and that no record can put markup into a page.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/tool/spawn.h"
#include "tool/report/model.h"
#include "tool/report/page.h"

namespace attune {
namespace {

Record record(const std::string& subject, int length, double ns, double ratio = 0) {
  Record r;
  r.problem = join("forward f32 b1 h8 q", length, " k", length, " d64 causal");
  r.subject = subject;
  r.threads = 2;
  r.samples_ns.assign(30, ns);
  r.median_ns = ns;
  r.interval = {ns * 0.99, ns * 1.01, 0.95};
  r.ended_by = "precision";
  r.flops = 1e3 * length;
  r.gflops = r.flops / ns;
  r.ceiling_gflops = 80;
  r.ceiling = "fmla";
  r.parity = {.verdict = "PASS", .error = 0.1, .rows = 8};
  r.provenance.cpu = "Test CPU";
  r.provenance.commit = "0123abc";
  if (ratio > 0) {
    r.baseline = "torch:sdpa";
    r.ratio = {ratio, {ratio * 0.98, ratio * 1.02, 0.95}};
    r.verdict = ratio > 1.03 ? "FASTER" : ratio < 0.97 ? "SLOWER" : "SAME";
  }
  return r;
}

std::vector<Record> typical() {
  return {record("torch:sdpa", 512, 2e4),       record("cpu_forward", 512, 1e4, 2.0),
          record("torch:sdpa", 1024, 4e4),      record("cpu_forward", 1024, 4e4, 1.0),
          record("torch:sdpa", 2048, 8e4),      record("cpu_forward", 2048, 16e4, 0.5)};
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Every tag that is opened is closed in its order, but for the void ones.
std::string unbalanced(const std::string& html) {
  std::vector<std::string> open;
  const size_t style = html.find("<style>"), style_end = html.find("</style>"), script = html.find("<script>");
  const std::string body = html.substr(0, style) + html.substr(style_end + 8, script - style_end - 8);
  const std::regex tag("<(/?)([a-zA-Z0-9]+)[^>]*?(/?)>");
  for (std::sregex_iterator it(body.begin(), body.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if ((*it)[3] == "/" || name == "meta") continue;
    if ((*it)[1] != "/") open.push_back(name);
    else if (open.empty() || open.back() != name) return "</" + name + "> at " + std::to_string(it->position());
    else open.pop_back();
  }
  return open == std::vector<std::string>{"html", "body"} ? "" : "left open: " + (open.empty() ? "" : open.back());
}

TEST(Report, verdict_counts_every_kind_and_means_geometrically) {
  const Report r = make_report(typical());
  ASSERT_EQ(r.comparisons.size(), 1u);
  EXPECT_EQ(r.verdicts.front(),
            "cpu_forward against torch:sdpa: faster at 1 of 3 problems, the same at 1, slower at 1; "
            "geometric mean 1.00x, from 0.500x to 2.00x.");
}

TEST(Report, lengths_make_one_group_with_two_charts_and_a_table) {
  const Report r = make_report(typical());
  ASSERT_EQ(r.groups.size(), 1u);
  EXPECT_EQ(r.groups[0].title, "forward f32 b1 h8 d64 causal");
  ASSERT_EQ(r.groups[0].charts.size(), 2u);
  EXPECT_EQ(r.groups[0].charts[0].series.size(), 2u);
  EXPECT_EQ(r.groups[0].charts[0].series[0].points.size(), 3u);
  EXPECT_EQ(r.groups[0].charts[1].levels.size(), 1u);  // the ceiling
  EXPECT_EQ(r.groups[0].table.rows.size(), 6u);
}

TEST(Report, rate_interval_is_the_time_interval_turned_over) {
  const Report r = make_report(typical());
  const Point p = r.groups[0].charts[1].series[0].points[0];
  EXPECT_LT(p.low, p.y);
  EXPECT_GT(p.high, p.y);
  EXPECT_NEAR(p.high, 512e3 / (2e4 * 0.99), 1e-9);
}

TEST(Report, of_equal_rows_the_newest_is_drawn_and_all_are_listed) {
  auto records = typical();
  records.push_back(record("cpu_forward", 512, 5e3, 4.0));
  const Report r = make_report(records);
  EXPECT_DOUBLE_EQ(r.groups[0].charts[0].series[1].points[0].y, 5e3);
  EXPECT_EQ(r.groups[0].table.rows.size(), 7u);
}

TEST(Report, single_lengths_share_a_table_without_charts) {
  auto records = typical();
  Record decode = record("cpu_forward", 512, 1e4);
  decode.problem = "forward bf16 b8 h32/8 q1 k8192 d128 full paged64";
  records.push_back(decode);
  const Report r = make_report(records);
  ASSERT_EQ(r.groups.size(), 2u);
  EXPECT_TRUE(r.groups[1].charts.empty());
  EXPECT_EQ(r.groups[1].table.rows[0][0].text, decode.problem);
}

TEST(Report, heat_map_has_a_row_a_family_and_a_column_a_length) {
  const Report r = make_report(typical());
  const HeatMap& map = r.comparisons[0].map;
  EXPECT_EQ(map.rows, std::vector<std::string>{"forward f32 b1 h8 d64 causal"});
  EXPECT_EQ(map.columns, (std::vector<std::string>{"512", "1K", "2K"}));
  EXPECT_DOUBLE_EQ(map.cells[0][0].ratio, 2.0);
  EXPECT_EQ(map.cells[0][2].text, "0.500x \u25BC");
}

TEST(Report, caveats_name_what_limits_the_numbers) {
  auto records = typical();
  records[0].parity.verdict = "FAIL";
  records[1].ended_by = "time";
  records[2].near_floor = true;
  records[3].provenance.dirty = true;
  records[4].provenance.governor = "powersave";
  records[5].status = "failed";
  records[5].aa_spread = 0.021;
  std::string all;
  for (const std::string& s : make_report(records).caveats) all += s + "\n";
  for (const char* part : {"1 row failed the check", "ran out of time", "cost of an empty call", "changed files",
                           "governor", "ended as 'failed'", "up to 2.1 %"})
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
  const Report report = make_report({r, warm});
  EXPECT_EQ(report.subtitle, "on Test GPU, 2 of 2 rows measured");
  std::string caveats;
  for (const std::string& c : report.caveats) caveats += c + "\n";
  EXPECT_TRUE(has(caveats, "1 row are within five times the cost of an empty kernel: launch-bound")) << caveats;
  EXPECT_TRUE(has(caveats, "1 row ran while the GPU held its clock back")) << caveats;
  EXPECT_TRUE(has(caveats, "1 row ran at less than three quarters of the GPU's highest clock: THROTTLED")) << caveats;
  EXPECT_TRUE(has(caveats, "1 row have launches of the host in some of their times")) << caveats;
  EXPECT_FALSE(has(caveats, "governor")) << caveats;  // of the host's clock, which does not count here
  const std::string page = to_markdown(report);
  EXPECT_TRUE(has(page, "Test GPU, GPU-1, 700 W, ECC on")) << page;
  EXPECT_TRUE(has(page, "sm80\\_forward warm")) << page;
  EXPECT_FALSE(has(page, "forward cold")) << page;  // the headline goes without
}

TEST(Html, page_is_whole_and_asks_nobody) {
  const std::string html = to_html(make_report(typical()));
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_TRUE(has(html, "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"));
  EXPECT_EQ(count(html, "<svg"), 3);
  EXPECT_EQ(count(html, "The same as a table"), 2);  // a twin for the heat map, one for the two charts
  EXPECT_EQ(count(html, "http://") - count(html, "http://www.w3.org/2000/svg"), 0);
  EXPECT_FALSE(has(html, "https://"));
  EXPECT_FALSE(has(html, " src="));
  EXPECT_FALSE(has(html, "@import"));
  EXPECT_TRUE(has(html, "prefers-color-scheme: dark"));
  EXPECT_TRUE(has(html, "@media print"));
  EXPECT_LT(std::string_view(kPageScript).size(), 20u * 1024);
}

TEST(Html, verdict_comes_first_and_caveats_last) {
  const std::string html = to_html(make_report(typical()));
  std::vector<size_t> at;
  for (const char* heading : {"<h2>Verdict", "<h2>Against", "<h2>Measurements", "<h2>Provenance", "<h2>Caveats"})
    at.push_back(html.find(heading));
  EXPECT_TRUE(std::is_sorted(at.begin(), at.end()));
  EXPECT_LT(at.back(), html.size());
}

// Every text of a record set to something that would be markup.
std::vector<Record> hostile() {
  const std::string evil =
      "\"><img src=x onerror=alert(1)></title></svg><script>alert('1')</script> | `x` [a](javascript:1) \x01 \xff";
  auto records = typical();
  for (Record& r : records) {
    r.subject += evil, r.message = evil, r.device = evil, r.mode = evil, r.ceiling = evil, r.parity.verdict = evil;
    if (!r.baseline.empty()) r.baseline = evil, r.verdict = evil;
    Provenance& p = r.provenance;
    p.time = p.commit = p.version = p.compiler = p.flags = p.cpu = p.features = p.governor = p.kernel = p.peers = evil;
  }
  records[0].problem = evil;
  records[1].status = evil;
  return records;
}

TEST(Html, hostile_records_stay_text) {
  const std::string html = to_html(make_report(hostile()));
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_FALSE(has(html, "<img"));
  EXPECT_EQ(count(html, "<script"), 1);  // ours
  EXPECT_EQ(count(html, "</script"), 1);
  EXPECT_FALSE(has(html, "\x01"));
  EXPECT_TRUE(has(html, "&lt;script&gt;alert(&#39;1&#39;)"));
}

TEST(Markdown, hostile_records_stay_text) {
  const std::string md = to_markdown(make_report(hostile()));
  EXPECT_FALSE(has(md, "<"));
  EXPECT_FALSE(has(md, "[a]")) << "a link";
  // Every row of a table has as many cells as its head.
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
  const std::string md = to_markdown(make_report(typical()));
  EXPECT_TRUE(has(md, "faster at 1 of 3 problems"));
  EXPECT_TRUE(has(md, "| 512 | cpu\\_forward | 10.0 us |")) << md;
  EXPECT_TRUE(has(md, "2.00x FASTER"));
}

std::string written(const std::vector<Record>& records, const std::string& name) {
  std::ofstream file(temporary(name));
  for (const Record& r : records) file << to_json(r) << "\n";
  return temporary(name);
}

TEST(Command, writes_both_files_and_says_so) {
  const std::string in = written(typical(), "records.jsonl"), html = temporary("r.html"), md = temporary("r.md");
  const Ran r = attune_says({"report", in, "--out", html, "--markdown", md});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "faster at 1 of 3"));
  EXPECT_TRUE(has(r.out, "wrote " + html));
  EXPECT_EQ(text_of(html), to_html(make_report(typical())));
  EXPECT_EQ(text_of(md), to_markdown(make_report(typical())));
}

TEST(Command, markdown_goes_to_stdout_where_no_file_is_named) {
  const Ran r = attune_says({"report", written(typical(), "records.jsonl")});
  EXPECT_EQ(r.code, 0);
  EXPECT_EQ(r.out, to_markdown(make_report(typical())));
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
  EXPECT_EQ(missing.code, 1);
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
