// SPDX-License-Identifier: Apache-2.0
// Every number of a record is the same in JSON, CSV, Markdown and HTML: over random records, and for every name that a
// record has, so that a new number without a column fails here.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <map>
#include <random>
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
double read(const std::string& text, double& half) {
  static const std::map<std::string, double> units = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9},
                                                      {"", 1},   {"x", 1},    {"GFLOP/s", 1}};
  size_t end = text.find_first_not_of("0123456789.e+-");
  const std::string digits = text.substr(0, end),
                    unit = end == text.npos ? "" : text.substr(text.find_first_not_of(' ', end));
  const double scale = units.at(unit), value = std::strtod(digits.c_str(), nullptr);
  const size_t point = digits.find('.'), e = digits.find('e');
  const double places = point == digits.npos ? 0 : double(std::min(e, digits.size()) - point - 1);
  half = 0.5 * std::pow(10.0, -places) * scale * (e == digits.npos ? 1 : std::pow(10, std::atoi(&digits[e + 1])));
  return value * scale;
}

// The numbers of one row below this head, of a Markdown page.
std::map<std::string, std::string> markdown_of(const std::string& page, const std::string& first_number) {
  std::vector<std::string> head;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    for (size_t at; (at = line.find("\\|")) != line.npos;) line.replace(at, 2, "!");
    std::vector<std::string> row = cells(line, '|');
    if (std::find(row.begin(), row.end(), first_number) != row.end()) head = row;
    else if (!head.empty() && !line.starts_with("|---") && row.size() == head.size()) {
      std::map<std::string, std::string> all;
      for (size_t n = 0; n < head.size(); ++n) all[head[n]] = row[n];
      return all;
    }
  }
  return {};
}
std::map<std::string, std::string> html_of(const std::string& page, const std::string& first_number) {
  const size_t at = page.find("<th scope=col class=n>" + first_number + "<");
  std::map<std::string, std::string> all;
  if (at == page.npos) return all;
  const auto texts = [&](size_t from, size_t to, const std::string& tag) {
    std::vector<std::string> found;
    for (size_t n = page.find(tag, from); n < to; n = page.find(tag, n + 1)) {
      const size_t begin = page.find('>', n) + 1;
      found.push_back(page.substr(begin, page.find_first_of("<\n", begin) - begin));
    }
    return found;
  };
  const size_t begin = page.rfind("<thead", at), end = page.find("</thead>", at), row = page.find("<tr>", end);
  const auto head = texts(begin + 6, end, "<th "), row_cells = texts(row, page.find('\n', row), "<td");
  for (size_t n = 0; n < head.size() && n < row_cells.size(); ++n) all[head[n]] = row_cells[n];
  return all;
}

TEST(Numbers, of_json_are_those_of_markdown_and_html) {
  const std::pair<const char*, const char*> all[] = {
      {"mean", "mean_ns"},        {"standard deviation", "deviation_ns"}, {"95th percentile", "p95_ns"},
      {"99th percentile", "p99_ns"}, {"queries/s", "queries_s"},           {"sequences/s", "sequences_s"},
      {"tokens/s", "tokens_s"}};
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const Record r = drawn(seed);
    const json j = json::parse(to_json(r));
    const Report report = report_of({r});
    const std::string markdown = to_markdown(report), html = to_html(report);
    const auto judge = [&](const std::string& page, const std::map<std::string, std::string>& found) {
      for (const auto& [head, name] : all) {
        ASSERT_TRUE(found.count(head)) << head << " is not in " << page;
        double half = 0;
        const double said = read(found.at(head), half), is = j[name].get<double>();
        EXPECT_NEAR(said, is, half * (1 + 1e-9)) << seed << ": " << head << " in " << page << ": " << found.at(head);
      }
      ASSERT_TRUE(found.count("samples"));
      EXPECT_EQ(found.at("samples"), std::to_string(j["samples_ns"].size()));
    };
    judge("Markdown", markdown_of(markdown, "queries/s")), judge("HTML", html_of(html, "queries/s"));
    const auto median_of = [&](const std::map<std::string, std::string>& found, const char* page) {
      ASSERT_TRUE(found.count("median")) << page;
      double half = 0;
      const double said = read(found.at("median"), half);
      EXPECT_NEAR(said, j["median_ns"].get<double>(), half * (1 + 1e-9)) << page;
      EXPECT_NEAR(read(found.at("against baseline"), half), j["ratio"]["value"].get<double>(), half * (1 + 1e-9))
          << page;
    };
    median_of(markdown_of(markdown, "half interval"), "Markdown"), median_of(html_of(html, "half interval"), "HTML");
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace attune
