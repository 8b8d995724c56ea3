// SPDX-License-Identifier: Apache-2.0
// Honest records, as `bench` writes them, to be forged: a row, a run of several rows, and what verify says of them.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/work.h"
#include "tests/asked.h"
#include "tool/check/audit.h"
#include "tool/record/seal.h"
#include "tool/subjects/workload.h"

namespace attune {

// Compares the records of a row with its first one, as compare() of bench/row.cpp does.
inline void compare_row(std::span<Record> row) {
  for (Record& r : row) derive(r);
  for (Record& r : row.subspan(1)) {
    if (r.status != RecordStatus::ok) continue;
    const bool resampled = r.version < 3;
    r.baseline = row[0].subject;
    r.ratio = (resampled ? resampled_ratio : median_ratio)(row[0].samples_ns, r.samples_ns);
    r.verdict = name(verdict(r.ratio, 0.01, r.aa_spread, resampled ? 0 : kConfidence));
  }
}

// Two peers and one of our backends; on a GPU or a CPU. `time` is of the form 12:00:00.
inline std::vector<Record> honest(bool gpu = false, const std::string& line = "forward f32 b1 h8 q512 k512 d64 causal",
                                  const std::string& time = "12:00:00", double factor = 1) {
  std::vector<Record> all;
  const struct { const char* subject; double ns; } subjects[] = {
      {"torch:flash", 1.0e6}, {"torch:math", 4.0e6}, {gpu ? "cuda_standard" : "cpu_forward", 0.7e6}};
  uint64_t state = uint64_t(factor * 1000) + gpu;
  const auto random = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return double(state >> 40) / (1 << 24);
  };
  for (const auto& [subject, ns] : subjects) {
    Record r;
    r.run = "20260131T120000Z-7", r.row_records = 3, r.problem = line, r.seed = 1;
    r.subject = subject, r.device = gpu ? "cuda:0" : "cpu", r.mode = "cold", r.threads = gpu ? 0 : 2;
    r.input_rms = 1.003, r.precision = 0.01;
    r.peer = all.size() < 2, r.why = r.peer ? "a peer" : "first in the list";
    for (int n = 0; n < 31; ++n) r.samples_ns.push_back(std::round(factor * ns * (0.99 + 0.02 * random())));
    if (gpu) r.samples_mhz.assign(31, 1900), r.watts = 300, r.kernels = {"kernel"};
    else if (!r.peer) r.kernels = {"neon"};
    const Problem p = problem(line);
    const Cost c = cost(p);
    r.sequences = p.batch, r.tokens = double(p.batch) * p.len_q, r.queries = r.tokens * p.heads_q;
    r.most_samples = 10000;
    r.tensor_bytes = c.bytes, r.scores_bytes = scores_bytes(p), r.cache_bytes = cache_bytes(p);
    r.flops = c.flops, r.bytes = c.bytes, r.ended_by = "precision", r.floor_ns = 2000, r.warm_up_s = 0.1;
    r.ceiling = "fmla", r.ceiling_gflops = 5000, r.copy_gbs = 100, r.aa_spread = 0.01;
    r.parity = {CheckVerdict::pass, 0.2, 24, "", ""};
    r.provenance = {.time = "2026-01-31T" + time + "Z", .commit = "abc", .version = "1", .compiler = "c", .cpu = "cpu"};
    r.provenance.version = "0.2.0", r.provenance.governor = "performance", r.provenance.cores = 2;
    r.provenance.features = "neon", r.provenance.binary = "0123456789abcdef";
    r.provenance.command = "attune bench --peer torch", r.provenance.os = "An OS";
    if (gpu) r.provenance.gpu_memory_bytes = 1e11, r.provenance.gpu_sms = 100, r.provenance.gpu_bandwidth_gbs = 3000;
    if (gpu) r.provenance.cudnn = "9.15.0";
    if (gpu) r.provenance.gpu = "A GPU", r.provenance.gpu_most_mhz = 1980, r.provenance.gpu_power_limit_w = 700;
    all.push_back(r);
  }
  compare_row(all);
  return all;
}

// Four rows, ten seconds apart.
inline std::vector<Record> honest_run(bool gpu = false) {
  std::vector<Record> all;
  for (int n = 0; n < 4; ++n) {
    const int length = 256 << n;
    const std::vector<Record> row =
        honest(gpu, join("forward f32 b1 h8 q", length, " k", length, " d64 causal"), join("12:00:", n + 1, "0"),
               0.25 * (1 << (2 * n)));
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

inline std::span<Record> row_of(std::vector<Record>& run, int n) { return std::span(run).subspan(size_t(3 * n), 3); }

// Seals runs anew, as bench does, and as anyone can who has its source. A run ends where the id changes.
inline void seal(std::vector<Record>& all, std::string after = "") {
  const auto end_of = [&](size_t first, const auto& key) {
    size_t last = first;
    while (last < all.size() && key(all[last]) == key(all[first])) ++last;
    return last;
  };
  for (size_t first = 0; first < all.size();) {
    const size_t end = end_of(first, [](const Record& r) { return r.run; });
    std::vector<std::span<Record>> rows;
    for (size_t n = first; n < end;) {
      const size_t last = std::min(end, end_of(n, row_key));
      rows.push_back(std::span(all).subspan(n, last - n)), n = last;
    }
    Chain chain(rows.size(), after);
    for (const std::span<Record> row : rows) chain.add(row);
    first = end, after = "";
  }
}

inline std::string text_of(const std::vector<Record>& all) {
  std::string text;
  for (const Record& r : all) text += to_json(r) + "\n";
  return text;
}

constexpr int64_t kNow = 1800000000;  // 2027-01-15
inline std::vector<Finding> audited(const std::string& text) {
  std::vector<Line> lines;
  std::vector<Finding> found;
  audit_text(text, lines, found, kNow);
  return found;
}
inline std::vector<Finding> findings(std::vector<Record> records) {
  seal(records);
  return audited(text_of(records));
}
inline std::string text(const std::vector<Finding>& all) {
  std::string out;
  for (const Finding& f : all) out += join(f.line, f.wrong ? " wrong " : " caution ", f.name, ": ", f.sentence, "\n");
  return out;
}
inline bool names(const std::vector<Finding>& all, std::string_view name) {
  return std::any_of(all.begin(), all.end(), [&](const Finding& f) { return f.name == name; });
}
inline bool is_clean(const std::vector<Finding>& all) {
  return std::none_of(all.begin(), all.end(), [](const Finding& f) { return f.wrong; });
}

}  // namespace attune
