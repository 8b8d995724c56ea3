// SPDX-License-Identifier: Apache-2.0
// Every number of a record is the same in JSON, CSV, Markdown and HTML: over random records, and for every name that a
// record has, so that a new number without a column fails here.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "tests/tool/report/reports.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

using nlohmann::json;

// Anything from 1e-3 to 1e12, in all its digits.
struct Draw {
  std::mt19937_64 random;
  double real(double least = 1e-3, double most = 1e12) {
    return std::exp(std::uniform_real_distribution<double>(std::log(least), std::log(most))(random));
  }
  int whole(int most) { return std::uniform_int_distribution<int>(1, most)(random); }
};

Record drawn(uint64_t seed) {
  Draw d{std::mt19937_64(seed)};
  Record r;
  const int length = 1 << d.whole(12);
  r.problem = join("forward f32 b", d.whole(64), " h8 q", length, " k", length, " d64 causal");
  r.subject = "cpu_forward", r.device = "cpu", r.threads = d.whole(64), r.status = RecordStatus::ok;
  const double middle = d.real(10, 1e11);
  for (int n = d.whole(40); n >= 0; --n) r.samples_ns.push_back(middle * d.real(0.9, 1.2));
  r.flops = d.real(), r.bytes = d.real(), r.sequences = d.whole(64), r.tokens = d.whole(1 << 20);
  r.queries = r.tokens * d.whole(64), r.most_samples = d.whole(10000), r.floor_ns = d.real(1, 100);
  derive(r);
  r.status = RecordStatus::ok;
  r.baseline = "torch:sdpa", r.ratio = {d.real(0.01, 100), {d.real(0.01, 1), d.real(1, 100), 0.95}};
  r.verdict = "FASTER", r.aa_spread = d.real(1e-4, 0.3), r.parity = {CheckVerdict::pass, d.real(1e-6, 1), d.whole(99)};
  r.ceiling_gflops = d.real(), r.copy_gbs = d.real(), r.workspace_bytes = uint64_t(d.real()), r.taken_bytes = d.real();
  r.mhz = d.real(1, 3000), r.watts = d.real(1, 900), r.celsius = d.whole(99), r.late_batches = d.whole(9);
  r.sustained_ns = d.real(), r.joules = d.real(), r.sustained_watts = d.real(), r.calls = d.whole(1000);
  r.warm_up_s = d.real(0.01, 9), r.rest_s = d.real(), r.heat_s = d.real(), r.seed = uint64_t(d.whole(1 << 30));
  r.sets = d.whole(9), r.input_rms = d.real(), r.tensor_bytes = d.real(), r.scores_bytes = d.real();
  r.cache_bytes = d.real(), r.precision = d.real(1e-4, 0.5), r.row_records = d.whole(9), r.planned_rows = d.whole(99);
  r.shown_blocks = d.whole(1 << 20), r.active_blocks = d.whole(int(r.shown_blocks));
  r.density = double(r.active_blocks) / double(r.shown_blocks), r.pattern = "random density=0.1";
  for (double* x : {&r.load.seconds, &r.load.waited, &r.load.used, &r.load.others, &r.load.steal, &r.load.average,
                    &r.load.cpu_mhz, &r.load.gpu_others})
    *x = d.real();
  r.load.cpus = d.whole(64), r.load.runnable = d.whole(64), r.load.gpu_processes = d.whole(4);
  Provenance& p = r.provenance;
  p.cores = d.whole(99), p.gpu_power_limit_w = d.real(), p.gpu_most_mhz = d.real(), p.gpu_memory_bytes = d.real();
  p.gpu_sms = d.whole(200), p.gpu_bandwidth_gbs = d.real();
  p.time = "2026-01-31T12:00:00Z", p.command = "attune bench";
  return r;
}

std::vector<std::string> cells(std::string line, char separator) {
  std::vector<std::string> all;
  bool quoted = false;  // CSV: a separator inside quotes separates nothing
  for (char& c : line) {
    if (c == '"') quoted = !quoted;
    else if (quoted && c == separator) c = ';';
  }
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, separator);) {
    const size_t first = cell.find_first_not_of(" \r");
    all.push_back(first == cell.npos ? "" : cell.substr(first, cell.find_last_not_of(" \r") - first + 1));
  }
  return all;
}

std::map<std::string, std::string> csv_of(const Record& r) {
  const std::string csv = to_csv({r});
  const size_t end = csv.find("\r\n");
  std::vector<std::string> head = cells(csv.substr(0, end), ','), row = cells(csv.substr(end + 2), ',');
  std::map<std::string, std::string> all;
  EXPECT_EQ(head.size(), row.size()) << csv;
  for (size_t n = 0; n < head.size() && n < row.size(); ++n) all[head[n]] = row[n];
  return all;
}

// The column of a name in the record: those that are not just its name, inside an object behind that object's.
std::string column(const std::string& object, const std::string& name) {
  static const std::map<std::string, std::string> other = {
      {"interval_ns.low", "low_ns"},        {"interval_ns.high", "high_ns"},       {"ratio.value", "times_as_fast"},
      {"ratio.low", "times_low"},           {"ratio.high", "times_high"},          {"load.waited", "waited"},
      {"load.others", "others"},            {"load.steal", "steal"},               {"load.cpu_mhz", "cpu_mhz"},
      {"load.gpu_others", "gpu_others"}};
  if (const auto it = other.find(object + "." + name); it != other.end()) return it->second;
  return object.empty() || object == "provenance" ? name : object + "_" + name;
}

TEST(Numbers, of_json_are_those_of_csv) {
  int compared = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const Record r = drawn(seed);
    const json j = json::parse(to_json(r));
    const auto csv = csv_of(r);
    const auto judge = [&](const std::string& object, const json& members) {
      for (const auto& [name, value] : members.items()) {
        if (!value.is_number() || name == "attune_record") continue;
        const auto it = csv.find(column(object, name));
        ASSERT_NE(it, csv.end()) << object << "." << name << " has no column";
        if (it->second.empty()) EXPECT_LT(value.get<double>(), 0) << object << "." << name << ": unknown";
        else EXPECT_EQ(std::strtod(it->second.c_str(), nullptr), value.get<double>()) << object << "." << name;
        ++compared;
      }
    };
    judge("", j);
    for (const char* object : {"interval_ns", "outliers", "parity", "ratio", "load", "provenance"})
      judge(object, j.at(object));
    EXPECT_EQ(csv.at("samples"), std::to_string(j["samples_ns"].size()));
    if (HasFailure()) return;
  }
  EXPECT_GT(compared, 300 * 75);
}

// "1.23 ms" is 1.23e6 ns; `half` is half of the last digit.
double read(std::string text, double& half) {
  static const std::map<std::string, double> units = {
      {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"", 1}, {"x", 1}, {"%", 0.01}, {"B", 1}, {"KiB", 0x1p10},
      {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PiB", 0x1p50}};
  // Behind it may stand the confidence of an interval, or a verdict.
  for (const char* mark : {" at ", " FASTER", " SLOWER", " SAME", " UNCLEAR"}) text = text.substr(0, text.find(mark));
  const size_t end = std::min(text.find_first_not_of("0123456789.e+-"), text.size());
  const std::string digits = text.substr(0, end);
  text.erase(0, std::min(text.find_first_not_of(' ', end), text.size()));
  const auto unit = units.find(text);
  if (digits.empty() || unit == units.end()) return half = 0, NAN;
  const double scale = unit->second, value = std::strtod(digits.c_str(), nullptr);
  const size_t point = digits.find('.'), e = digits.find('e');
  const double places = point == digits.npos ? 0 : double(std::min(e, digits.size()) - point - 1);
  half = 0.5 * std::pow(10.0, -places) * scale * (e == digits.npos ? 1 : std::pow(10, std::atoi(&digits[e + 1])));
  return value * scale;
}

struct Grid {
  std::vector<std::string> head{};
  std::vector<std::vector<std::string>> rows{};
};

std::string without(std::string text, const std::vector<std::pair<const char*, const char*>>& marks) {
  for (const auto& [from, to] : marks)
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += std::strlen(to))
      text.replace(at, std::strlen(from), to);
  return text;
}

// Every table of a Markdown page but that of the provenance, which is a list on the HTML page.
std::vector<Grid> grids_of_markdown(const std::string& page) {
  std::vector<Grid> all;
  bool inside = false;
  std::istringstream lines(page.substr(0, page.find("## Provenance")));
  for (std::string line; std::getline(lines, line);) {
    const bool row = line.starts_with("|");
    if (row && line.starts_with("|---")) continue;
    if (row && !inside) all.emplace_back();
    if (row) {
      line.pop_back();  // the last bar
      std::vector<std::string> texts = cells(without(line.substr(1), {{"\\|", "\1"}, {"\"", "\2"}}), '|');
      for (std::string& text : texts)
        text = without(text, {{"\1", "|"}, {"\2", "\""}, {"\\", ""}, {"&lt;", "<"}, {"&gt;", ">"}, {"&amp;", "&"}});
      inside ? void(all.back().rows.push_back(texts)) : void(all.back().head = texts);
    }
    inside = row;
  }
  return all;
}

std::vector<Grid> grids_of_html(const std::string& page) {
  std::vector<Grid> all;
  const auto texts = [&](size_t from, size_t to, const std::string& tag) {
    std::vector<std::string> found;
    for (size_t n = page.find(tag, from); n < to; n = page.find(tag, n + 1)) {
      const size_t begin = page.find('>', n) + 1;
      found.push_back(without(page.substr(begin, page.find_first_of("<\n", begin) - begin),
                              {{"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}}));
    }
    return found;
  };
  for (size_t at = page.find("<thead>"); at != page.npos; at = page.find("<thead>", at + 1)) {
    const size_t body = page.find("<tbody>", at), end = page.find("</tbody>", at);
    Grid& grid = all.emplace_back(Grid{.head = texts(at, page.find("</thead>", at), "<th ")});
    for (size_t row = page.find("<tr>", body); row < end; row = page.find("<tr>", row + 1))
      grid.rows.push_back(texts(row, std::min(page.find('\n', row), end), "<td"));
  }
  return all;
}

// What a column of a table that has a row for each record holds, from the JSON alone.
double expected(const std::string& head, const json& j) {
  static const std::map<std::string, const char*> fields = {
      {"mean", "mean_ns"}, {"standard deviation", "deviation_ns"}, {"95th percentile", "p95_ns"},
      {"99th percentile", "p99_ns"}, {"queries/s", "queries_s"}, {"sequences/s", "sequences_s"},
      {"tokens/s", "tokens_s"}, {"median", "median_ns"}, {"GFLOP/s", "gflops"}, {"GB/s", "gbs"},
      {"density", "density"}, {"MHz", "mhz"}, {"W", "watts"}, {"\u00B0C", "celsius"}, {"tensors", "tensor_bytes"},
      {"workspace", "workspace_bytes"}, {"measured", "taken_bytes"}, {"scores, not stored", "scores_bytes"},
      {"keys and values", "cache_bytes"}};
  if (const auto it = fields.find(head); it != fields.end()) return j[it->second].get<double>();
  const std::vector<double> samples = j["samples_ns"].get<std::vector<double>>();
  const double median = j["median_ns"].get<double>();
  if (head == "TFLOP/s") return j["gflops"].get<double>() / 1e3;
  if (head == "samples") return double(samples.size());
  if (head == "fastest") return *std::min_element(samples.begin(), samples.end());
  if (head == "slowest") return *std::max_element(samples.begin(), samples.end());
  if (head == "half interval")
    return (j["interval_ns"]["high"].get<double>() - j["interval_ns"]["low"].get<double>()) / (2 * median);
  if (head == "against baseline" || head == "times as fast") return j["ratio"]["value"].get<double>();
  if (head == "operations per byte") return j["flops"].get<double>() / j["bytes"].get<double>();
  if (head == "of ceiling") return j["gflops"].get<double>() / j["ceiling_gflops"].get<double>();
  return NAN;
}

TEST(Numbers, of_json_are_those_of_markdown_and_html) {
  // Columns of texts, of several numbers, and of numbers that follow from several records.
  const std::set<std::string> others = {"pass", "dtype", "problem", "subject", "status", "verdict", "parity", "busy",
                                        "length", "5 %", "95 %", "95 % interval", "interval", "bound by",
                                        "of the roof", "MB per token", "row", "MHz, least ... most", "held back by"};
  std::map<std::string, int> compared;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::vector<Record> records;
    std::map<std::string, json> by_problem;
    for (uint64_t n = 0; n <= seed % 5; ++n) {
      Record r = drawn(100 * seed + n);
      const json j = json::parse(to_json(r));
      if (by_problem.emplace(line_text(r), j).second) records.push_back(std::move(r));
    }
    const Report report = report_of(records);
    const std::vector<Grid> markdown = grids_of_markdown(to_markdown(report)), html = grids_of_html(to_html(report));
    ASSERT_EQ(markdown.size(), html.size());
    ASSERT_GT(markdown.size(), 4u);
    for (size_t n = 0; n < html.size(); ++n) {
      const Grid& grid = html[n];
      EXPECT_EQ(markdown[n].head, grid.head);
      EXPECT_EQ(markdown[n].rows, grid.rows);
      const auto problem = std::find(grid.head.begin(), grid.head.end(), "problem") - grid.head.begin();
      if (size_t(problem) == grid.head.size()) continue;
      for (const auto& row : grid.rows) {
        ASSERT_EQ(row.size(), grid.head.size());
        const auto found = by_problem.find(row[size_t(problem)]);
        ASSERT_NE(found, by_problem.end()) << row[size_t(problem)];
        for (size_t c = 0; c < row.size(); ++c) {
          if (others.count(grid.head[c]) || row[c].empty() || row[c] == "-") continue;
          double half = 0;
          const double said = read(row[c], half), is = expected(grid.head[c], found->second);
          EXPECT_NEAR(said, is, half * (1 + 1e-9)) << seed << ": '" << grid.head[c] << "' says " << row[c];
          ++compared[grid.head[c]];
        }
      }
    }
    if (HasFailure()) return;
  }
  for (const char* head : {"median", "mean", "GB/s", "workspace", "tensors", "W", "density", "half interval", "slowest",
                           "against baseline", "times as fast", "queries/s", "operations per byte"})
    EXPECT_GT(compared[head], 100) << head;
}

}  // namespace
}  // namespace attune
