// SPDX-License-Identifier: Apache-2.0
#include "tool/profile/counters.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <utility>

#include "tool/profile/cubin.h"

namespace attune {
namespace {

using Cells = std::vector<std::string>;

// Splits one line of CSV; a quote inside quotes is doubled.
Cells cells_of(std::string_view line) {
  Cells all(1);
  bool quoted = false;
  for (size_t n = 0; n < line.size(); ++n) {
    const char c = line[n];
    if (c == '"' && quoted && n + 1 < line.size() && line[n + 1] == '"') all.back() += line[++n];
    else if (c == '"') quoted = !quoted;
    else if (c == ',' && !quoted) all.emplace_back();
    else if (c != '\r') all.back() += c;
  }
  return all;
}

// Parses "1,234.5"; below 0 if it is not a number.
double number(std::string text) {
  std::erase(text, ',');
  char* end = nullptr;
  const double x = std::strtod(text.c_str(), &end);
  return end == text.c_str() || !std::isfinite(x) ? -1 : x;
}

// "(132, 1, 1)" as "132 x 1 x 1".
std::string size_text(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (c == ',') out += " x";
    else if (c != '(' && c != ')') out += c;
  return out;
}

constexpr std::string_view kWaits = "smsp__average_warps_issue_stalled_", kEachIssue = "_per_issue_active.ratio";

KernelCounters counters_of(const std::map<std::string, std::string>& said) {
  const auto text = [&](const char* name) {
    const auto it = said.find(name);
    return it == said.end() ? std::string() : it->second;
  };
  const auto value = [&](const char* name) { return number(text(name)); };
  const auto bytes = [&](const char* name) { return std::max(0.0, value(name)); };
  KernelCounters k;
  k.kernel = short_name(text("Kernel Name"));
  k.grid = size_text(text("Grid Size")), k.block = size_text(text("Block Size"));
  k.us = std::max(0.0, value("gpu__time_duration.sum")) * 1e-3;
  k.registers = int(std::max(0.0, value("launch__registers_per_thread")));
  k.shared_bytes = bytes("launch__shared_mem_per_block_static") + bytes("launch__shared_mem_per_block_dynamic");
  k.sm = value("sm__throughput.avg.pct_of_peak_sustained_elapsed");
  k.dram = value("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed");
  k.l2 = value("lts__throughput.avg.pct_of_peak_sustained_elapsed");
  k.occupancy = value("sm__warps_active.avg.pct_of_peak_sustained_active");
  k.most_occupancy = value("sm__maximum_warps_per_active_cycle_pct");
  for (const auto& [name, cell] : said) {
    // Tensor pipes have different names on every architecture; the busiest one counts.
    if (name.find("pipe_tensor") != name.npos && name.ends_with(".avg.pct_of_peak_sustained_active"))
      k.tensor = std::max(k.tensor, number(cell));
    if (!name.starts_with(kWaits) || !name.ends_with(kEachIssue)) continue;
    const std::string reason = name.substr(kWaits.size(), name.size() - kWaits.size() - kEachIssue.size());
    if (const double x = number(cell); reason != "selected" && x > 0) k.waits.emplace_back(reason, x);
  }
  std::sort(k.waits.begin(), k.waits.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return k;
}

}  // namespace

std::vector<std::string> ncu_command(const std::vector<std::string>& program) {
  // Profiles only what runs between cuProfilerStart and cuProfilerStop, without changing the GPU's clocks.
  std::vector<std::string> words = {"ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control",
                                    "none", "--profile-from-start", "off", "--print-kernel-base", "mangled"};
  for (const char* section : {"SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats", "ComputeWorkloadAnalysis"})
    words.emplace_back("--section"), words.emplace_back(section);
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

Status read_ncu(std::string_view text, std::vector<KernelCounters>& out) {
  Cells names;
  bool units = false;  // the line below the names holds units
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.starts_with("\"ID\",")) {
      names = cells_of(line), units = true;
    } else if (!names.empty() && line.starts_with('"')) {
      const Cells cells = cells_of(line);
      if (std::exchange(units, false) && cells[0].empty()) continue;
      if (cells.size() != names.size())
        return Status::no("ncu: a line has ", cells.size(), " cells for ", names.size(), " columns");
      std::map<std::string, std::string> said;
      for (size_t n = 0; n < cells.size(); ++n) said[names[n]] = cells[n];
      out.push_back(counters_of(said));
    }
  }
  if (names.empty()) return Status::no("ncu printed no table");
  return Status::good();
}

}  // namespace attune
