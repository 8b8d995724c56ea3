// SPDX-License-Identifier: Apache-2.0
// Planted frauds, each of which the tool must catch and name. Frauds visible at run time are planted as peers and
// measured; frauds in records are written into a file.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "machine/host.h"
#include "tests/asked.h"
#include "tests/tool/check/honest.h"
#include "tests/tool/spawn.h"
#include "tool/bench/row.h"

namespace attune {
namespace {

using nlohmann::json;

// A peer that computes full f32 attention on [batch 1, head, seq, dim], and cheats in one way.
enum class Cheat { none, layout, one_key, half, cached, enqueue };
struct Fraud {
  Cheat cheat = Cheat::none;
  json asked{};
  std::vector<float> kept{};
  std::thread late{};
} fraud;

struct View {
  float* data;
  int seq, heads, dim;
  int64_t at_seq, at_head;
  View(const json& j)
      : data(reinterpret_cast<float*>(j["data"].get<uintptr_t>())), seq(j["extent"][1]), heads(j["extent"][2]),
        dim(j["extent"][3]), at_seq(j["stride"][1]), at_head(j["stride"][2]) {}
  float& at(int s, int h, int d) const { return data[s * at_seq + h * at_head + d]; }
};

void attend() {
  const json &t = fraud.asked["tensors"];
  View q(t["q"]), k(t["k"]), v(t["v"]), out(fraud.asked["results"]["out"]);
  if (fraud.cheat == Cheat::layout)  // takes the axes by position, as a kernel for the other layout
    for (View* x : {&q, &k, &v, &out}) std::swap(x->seq, x->heads), std::swap(x->at_seq, x->at_head);
  const int last = fraud.cheat == Cheat::half ? q.seq / 2 : q.seq, keys = fraud.cheat == Cheat::one_key ? 1 : k.seq;
  for (int h = 0; h < q.heads; ++h)
    for (int i = 0; i < last; ++i) {
      std::vector<double> sum(size_t(v.dim));
      double total = 0;
      for (int j = 0; j < keys; ++j) {
        double x = 0;
        for (int d = 0; d < q.dim; ++d) x += double(q.at(i, h, d)) * double(k.at(j, h, d));
        const double weight = std::exp(x / std::sqrt(double(q.dim)));
        total += weight;
        for (int d = 0; d < v.dim; ++d) sum[size_t(d)] += weight * double(v.at(j, h, d));
      }
      for (int d = 0; d < v.dim; ++d) out.at(i, h, d) = float(sum[size_t(d)] / total);
    }
  if (t.contains("lse") || fraud.asked["results"].contains("lse")) return;
}

size_t out_floats() {
  const json& e = fraud.asked["results"]["out"]["extent"];
  return size_t(e[1].get<int>()) * size_t(e[2].get<int>()) * size_t(e[3].get<int>());
}
float* out_data() { return reinterpret_cast<float*>(fraud.asked["results"]["out"]["data"].get<uintptr_t>()); }

void join_late() {
  if (fraud.late.joinable()) fraud.late.join();
}
int64_t set_up(const char* problem) { return fraud.asked = json::parse(problem), fraud.kept.clear(), 1; }
int32_t run(int64_t handle) {
  if (!handle) return 0;
  if (fraud.cheat == Cheat::enqueue) {
    join_late();
    fraud.late = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      attend();
    });
  } else if (fraud.cheat == Cheat::cached && !fraud.kept.empty()) {
    std::memcpy(out_data(), fraud.kept.data(), fraud.kept.size() * sizeof(float));
  } else {
    attend();
    fraud.kept.assign(out_data(), out_data() + out_floats());
  }
  return 0;
}
int32_t fetch(int64_t) { return 0; }
void tear_down(int64_t) { join_late(); }
void message(char* text, int64_t room) { std::strncpy(text, "", size_t(room)); }

std::vector<Record> row_of(Cheat cheat) {
  static const attune_peer peer{"planted", "0", set_up, run, fetch, tear_down, message};
  fraud.cheat = cheat;
  Bench b{.backends = {"reference"}, .peers = {&peer}, .device = this_cpu()};
  b.device.units = 1;
  b.timing.max_seconds = 0.02, b.timing.warm_up_seconds = 0.001;
  b.ceilings = Ceilings{}, b.floor_ns = b.peer_floor_ns = 1, b.aa_spread = 0.02;
  return measure_row(problem("forward f32 b1 h4 q24 k24 d16 full"), b);
}
Record measured(Cheat cheat) {
  for (const Record& r : row_of(cheat))
    if (r.subject == "planted") return r;
  return {};
}

TEST(Honesty, an_honest_peer_is_ok) {
  const Record r = measured(Cheat::none);
  EXPECT_EQ(r.status, RecordStatus::ok) << r.message;
  EXPECT_EQ(r.parity.verdict, CheckVerdict::pass);
}

TEST(Honesty, what_cheats_while_it_runs_is_caught_by_name) {
  const struct { Cheat cheat; const char* name; } all[] = {{Cheat::layout, "swapped-layout"},
                                                           {Cheat::one_key, "one-key"},
                                                           {Cheat::half, "unwritten-output"},
                                                           {Cheat::cached, "cached-result"},
                                                           {Cheat::enqueue, "enqueue-only"}};
  for (const auto& [cheat, name] : all) {
    const Record r = measured(cheat);
    EXPECT_EQ(r.status, RecordStatus::failed) << name;
    EXPECT_EQ(r.parity.mistake, name) << r.message;
    EXPECT_TRUE(has(r.message, name)) << r.message;
    EXPECT_TRUE(r.verdict.empty()) << name;
  }
}

TEST(Honesty, nothing_is_compared_with_one_that_is_caught) {
  for (const Cheat cheat : {Cheat::cached, Cheat::one_key})
    for (const Record& r : row_of(cheat)) EXPECT_EQ(r.baseline, "") << r.subject;
}

TEST(Honesty, an_honest_file_has_no_findings) {
  EXPECT_EQ(text(findings(honest())), "");
  EXPECT_EQ(text(findings(honest(true))), "");
}

struct Forgery {
  const char* name;
  bool gpu;
  std::function<void(std::vector<Record>&)> forge;
};
const std::vector<Forgery>& forgeries() {
  static const std::vector<Forgery> all = {
      {"cpu-on-gpu", true, [](auto& r) { r[2].samples_mhz.clear(), r[2].mhz = 0; }},
      {"cpu-on-gpu", true, [](auto& r) { r[2].provenance.gpu.clear(); }},
      {"gpu-on-cpu", false, [](auto& r) { r[2].threads = 0; }},
      {"zero-inputs", false, [](auto& r) { r[2].distribution = "zeros"; }},
      {"zero-inputs", false, [](auto& r) { r[2].input_rms = 0; }},
      {"slow-baseline", false,
       [](auto& r) {  // faster than math, slower than flash, which the row hides
         for (double& s : r[2].samples_ns) s *= 2;
         derive(r[2]);
         r[2].baseline = "torch:math", r[2].ratio = median_ratio(r[1].samples_ns, r[2].samples_ns);
         r[2].verdict = "FASTER";
       }},
      {"forged-rate", false, [](auto& r) { r[2].gflops *= 1.5; }},
      {"forged-rate", false, [](auto& r) { r[2].gbs *= 1.01; }},
      {"forged-rate", false, [](auto& r) { r[2].queries_s *= 1.1; }},
      {"forged-rate", false, [](auto& r) { r[2].tokens_s *= 1.1; }},
      {"forged-rate", false, [](auto& r) { r[2].sequences_s *= 1.1; }},
      {"forged-work", false, [](auto& r) { r[2].queries *= 2, r[2].queries_s *= 2; }},
      {"forged-work", false, [](auto& r) {
         r[2].tokens *= 2, r[2].tokens_s *= 2, r[2].queries *= 2, r[2].queries_s *= 2;
       }},
      {"forged-work", false, [](auto& r) { r[2].sequences *= 2, r[2].sequences_s *= 2; }},
      {"forged-summary", false, [](auto& r) { r[2].mean_ns *= 0.99; }},
      {"forged-summary", false, [](auto& r) { r[2].deviation_ns /= 2; }},
      {"forged-summary", false, [](auto& r) { r[2].p95_ns *= 0.99; }},
      {"forged-summary", false, [](auto& r) { r[2].p99_ns *= 0.99; }},
      {"forged-end", false, [](auto& r) { r[2].most_samples = 30; }},
      {"forged-end", false, [](auto& r) { r[2].most_samples = 31; }},
      {"forged-end", false, [](auto& r) { r[2].ended_by = "samples"; }},
      {"unknown-word", false, [](auto& r) { for (auto& one : r) one.provenance.command = "attune parity"; }},
      {"unknown-word", false, [](auto& r) { for (auto& one : r) one.provenance.command.reset(); }},
      {"unknown-word", true, [](auto& r) { for (auto& one : r) one.provenance.cudnn = "nine"; }},
      {"unknown-word", false, [](auto& r) { for (auto& one : r) one.provenance.os = ""; }},
      {"unequal-run", false, [](auto& r) { r[2].provenance.command = "attune bench --seed 2"; }},
      {"unequal-run", false, [](auto& r) { r[2].provenance.os = "Another"; }},
      {"unequal-run", true, [](auto& r) { r[2].provenance.gpu_sms = 99; }},
      {"unequal-run", true, [](auto& r) { r[2].provenance.cudnn = "9.1.0"; }},
      {"impossible-count", true, [](auto& r) { for (auto& one : r) one.provenance.gpu_memory_bytes = -1; }},
      {"impossible-count", true, [](auto& r) { for (auto& one : r) one.provenance.gpu_sms = 1.5; }},
      {"gpu-on-cpu", false, [](auto& r) { for (auto& one : r) one.provenance.gpu_bandwidth_gbs = 4800; }},
      {"gpu-on-cpu", false, [](auto& r) { for (auto& one : r) one.provenance.cudnn = "9.1.0"; }},
      {"forged-flops", false, [](auto& r) { r[2].flops *= 2, r[2].gflops *= 2; }},
      {"missing-baseline", false, [](auto& r) { r.erase(r.begin()); }},
      {"missing-baseline", false, [](auto& r) { r[2].baseline.clear(); }},
      {"skipped-parity", false, [](auto& r) { r[2].parity = {CheckVerdict::unchecked, 0, 0, "not asked for", ""}; }},
      {"skipped-parity", false, [](auto& r) { r[2].parity = {Word<CheckVerdict>("skipped"), 0, 0, "", ""}; }},
      {"skipped-parity", false, [](auto& r) { r[2].parity.rows = 0; }},
      {"skipped-parity", false,  // an excuse that does not apply to this problem
       [](auto& r) { r[2].parity = {CheckVerdict::unchecked, 0, 0, "rows cannot be drawn from a variant", ""}; }},
      {"forged-parity", false, [](auto& r) { r[2].parity.error = 3; }},
      {"forged-parity", false, [](auto& r) { r[2].parity.verdict = CheckVerdict::fail; }},
      {"throttled", true,
       [](auto& r) {
         r[2].samples_mhz.assign(31, 900);
         derive(r[2]);
       }},
      {"throttled", true, [](auto& r) { r[2].slowed_by = "thermal slowdown"; }},
      {"enqueue-only", true,
       [](auto& r) {  // the time of a launch
         for (double& s : r[2].samples_ns) s /= 350;
         derive(r[2]);
         r[2].status = RecordStatus::ok, r[2].message = "", r[2].ratio = median_ratio(r[0].samples_ns, r[2].samples_ns);
       }},
      {"above-roofline", false,
       [](auto& r) {
         for (double& s : r[2].samples_ns) s /= 60;
         derive(r[2]);
         r[2].status = RecordStatus::ok, r[2].message = "", r[2].ratio = median_ratio(r[0].samples_ns, r[2].samples_ns);
       }},
      {"forged-ceiling", false, [](auto& r) { r[2].ceiling_gflops = 1e6; }},
      {"forged-summary", false, [](auto& r) { r[2].median_ns *= 0.9, r[2].gflops /= 0.9, r[2].gbs /= 0.9; }},
      {"forged-summary", false, [](auto& r) { r[2].interval.high = r[2].median_ns; }},
      {"forged-ratio", false, [](auto& r) { r[2].ratio.value *= 1.2; }},
      {"forged-ratio", false, [](auto& r) { r[2].ratio.interval.low *= 1.1; }},
      {"forged-verdict", false, [](auto& r) { r[1].verdict = "SAME"; }},
      {"copied-samples", false,
       [](auto& r) {
         r[2].samples_ns.assign(31, r[2].median_ns);
         derive(r[2]);
       }},
      {"copied-samples", false, [](auto& r) { r[1].samples_ns = r[2].samples_ns; }},
      {"impossible-sample", false, [](auto& r) { r[2].samples_ns[3] = -1; }},
      {"no-samples", false, [](auto& r) { r[2].samples_ns.clear(); }},
      {"no-reason", false,
       [](auto& r) { r[2].status = RecordStatus::failed, r[2].baseline.clear(), r[2].verdict.clear(); }},
      {"unknown-status", false, [](auto& r) { r[2].status = Word<RecordStatus>("fine"); }},
      {"bad-problem", false, [](auto& r) { r[2].problem = "a fast one"; }},
      {"bad-time", false, [](auto& r) { r[2].provenance.time = "today"; }},
      {"forged-summary", false,
       [](auto& r) {  // two execution modes labelled as one
         for (size_t n = 0; n < r[2].samples_ns.size(); n += 2) r[2].samples_ns[n] *= 2;
         derive(r[2]);
         r[2].ratio = median_ratio(r[0].samples_ns, r[2].samples_ns), r[2].verdict = name(verdict(r[2].ratio, 0.01));
         r[2].modes = 1;
       }},
      {"forged-density", false, [](auto& r) { r[2].active_blocks = 10, r[2].shown_blocks = 100, r[2].density = 0.5; }},
      {"forged-density", false, [](auto& r) { r[2].active_blocks = 10, r[2].shown_blocks = 5, r[2].density = 2; }},
      {"forged-memory", false, [](auto& r) { r[2].tensor_bytes /= 2; }},
      {"forged-memory", false, [](auto& r) { r[2].scores_bytes *= 2; }},
      {"forged-memory", false, [](auto& r) { r[2].cache_bytes /= 2; }},
      {"missing-kernels", true, [](auto& r) { r[2].kernels.clear(); }},
  };
  return all;
}
// True as written, but not reliable.
const std::vector<Forgery>& doubts() {
  static const std::vector<Forgery> all = {
      {"skipped-parity", false,
       [](auto& r) {
         for (Record& x : r) {
           x.problem += " accumulate", x.parity = {CheckVerdict::unchecked, 0, 0, "rows cannot be drawn with it", ""};
           const Cost c = cost(problem(x.problem));
           x.flops = c.flops, x.bytes = x.tensor_bytes = c.bytes;
           derive(x);
         }
       }},
      {"throttled", true,
       [](auto& r) {
         r[2].samples_mhz.assign(31, 1000), r[2].slowed_by = "power cap";
         derive(r[2]);
       }},
      {"slow-baseline", false,
       [](auto& r) { r[2].baseline = "torch:math", r[2].ratio = median_ratio(r[1].samples_ns, r[2].samples_ns); }},
      {"missing-roofline", false, [](auto& r) { for (Record& x : r) x.ceiling_gflops = x.copy_gbs = 0; }},
      {"late-launches", true, [](auto& r) { r[2].late_batches = 1; }},
      {"late-launches", true, [](auto& r) { r[2].late_batches = std::numeric_limits<int>::max(); }},
      {"few-samples", false,
       [](auto& r) {
         r[2].samples_ns.resize(5);
         derive(r[2]);
         r[2].ratio = median_ratio(r[0].samples_ns, r[2].samples_ns), r[2].verdict = name(verdict(r[2].ratio, 0.01));
       }},
      {"unfinished-row", false, [](auto& r) { r.erase(r.begin() + 1); }},
      // Ctrl-C, with other subjects done
      {"unfinished-row", false, [](auto& r) { r[0].status = RecordStatus::interrupted, r[0].ended_by = "interrupt"; }},
      {"busy-machine", false, [](auto& r) { r[2].load = {.seconds = 2, .cpus = 2, .waited = 0.4, .others = 0.48}; }},
      {"unknown-source", false, [](auto& r) { for (Record& x : r) x.provenance.commit = "unknown"; }},
      {"dirty-source", false, [](auto& r) { for (Record& x : r) x.provenance.dirty = true; }},
  };
  return all;
}

TEST(Honesty, what_is_forged_in_a_file_is_caught_by_name) {
  for (const Forgery& f : forgeries()) {
    std::vector<Record> records = honest(f.gpu);
    f.forge(records);
    const std::vector<Finding> found = findings(records);
    const auto is_it = [&](const Finding& x) { return x.wrong && x.name == f.name; };
    EXPECT_TRUE(std::any_of(found.begin(), found.end(), is_it)) << f.name << ":\n" << text(found);
  }
}

TEST(Honesty, what_calls_for_care_is_named_and_not_called_wrong) {
  for (const Forgery& f : doubts()) {
    std::vector<Record> records = honest(f.gpu);
    f.forge(records);
    const std::vector<Finding> found = findings(records);
    const auto is_it = [&](const Finding& x) { return x.name == f.name; };
    EXPECT_TRUE(std::any_of(found.begin(), found.end(), is_it)) << f.name << ":\n" << text(found);
    EXPECT_TRUE(std::none_of(found.begin(), found.end(), [](const Finding& x) { return x.wrong; })) << text(found);
  }
}

TEST(Honesty, older_records_are_judged_by_the_rule_that_wrote_them) {
  std::vector<Record> old = honest();
  for (Record& r : old) r.version = 2, r.samples_ns.resize(3), derive(r);
  for (Record& r : old)
    if (!r.baseline.empty())
      r.ratio = resampled_ratio(old[0].samples_ns, r.samples_ns), r.verdict = name(verdict(r.ratio, 0.01, {}, 0));
  EXPECT_EQ(old[2].verdict, "FASTER");
  EXPECT_EQ(verdict_text(old[2]), "UNCLEAR");  // what readers show
  const auto wrong = [&] {
    std::vector<std::string> names;
    for (const Finding& f : findings(old))
      if (f.wrong) names.push_back(f.name);
    return names;
  };
  EXPECT_TRUE(wrong().empty()) << text(findings(old));
  for (Record& r : old) r.version = 3;
  EXPECT_EQ(wrong(), (std::vector<std::string>{"forged-verdict", "forged-verdict"})) << text(findings(old));
}

TEST(Honesty, a_confidence_that_the_samples_do_not_have_is_forged) {
  std::vector<Record> records = honest();
  records[2].samples_ns.resize(5), derive(records[2]);
  records[2].ratio = median_ratio(records[0].samples_ns, records[2].samples_ns);
  records[2].ratio.interval.confidence = 0.95;
  const std::vector<Finding> found = findings(records);
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), [](const Finding& f) {
    return f.name == "forged-ratio" && has(f.sentence, "the confidence of the ratio is recorded as 0.95");
  })) << text(found);
}

TEST(Honesty, every_name_is_planted_and_every_planted_one_is_a_name) {
  // Lines that are not records, see below, and what concerns a run or a file, see forgery_test.cpp.
  std::vector<std::string> planted = {
      "unreadable",   "missing-field",  "newer-version",   "unknown-word",    "impossible-count", "impossible-time",
      "unequal-run",  "forged-status",  "forged-end",      "forged-energy",   "forged-version",   "broken-seal",
      "missing-seal", "dropped-record", "moved-record",    "copied-record",   "unfinished-run",   "unsealed",
      "extract",      "bad-signature",  "impossible-load"};
  for (const Forgery& f : forgeries()) planted.push_back(f.name);
  for (const Forgery& f : doubts()) planted.push_back(f.name);
  const std::vector<std::string> all = finding_names();
  const std::set<std::string> names(all.begin(), all.end());
  EXPECT_EQ(std::set<std::string>(planted.begin(), planted.end()), names);
}

TEST(Honesty, kernels_are_missed_only_where_somebody_could_name_them) {
  std::vector<Record> records = honest(true);
  records[0].kernels.clear();  // a peer
  EXPECT_EQ(text(findings(records)), "");
  records[2].kernels.clear();
  for (Record& r : records) r.provenance.cuda = "12.2, driver for 12.2";
  EXPECT_EQ(text(findings(records)), "");
}

TEST(Honesty, the_command_names_file_line_and_fraud_and_fails) {
  std::vector<Record> records = honest();
  records[2].gflops *= 1.5;
  seal(records);
  const std::string path = temporary("forged.jsonl");
  std::ofstream(path) << text_of(records);
  const Ran r = attune_says({"verify", path});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.out, path + ":3: forged-rate: cpu_forward: ")) << r.out;
  EXPECT_TRUE(has(r.err, "is not trustworthy: 1 wrong")) << r.err;
  const Ran as_json = attune_says({"verify", path, "--json"});
  EXPECT_EQ(json::parse(as_json.out)[0]["findings"][0]["name"], "forged-rate");
}

TEST(Honesty, the_command_is_content_with_an_honest_file_and_strict_where_asked) {
  std::vector<Record> records = honest();
  const std::string path = temporary("honest.jsonl");
  const auto write = [&] {
    seal(records);
    std::ofstream(path) << text_of(records);
  };
  write();
  EXPECT_EQ(attune_says({"verify", "--strict", path}).code, 0);
  for (Record& r : records) r.provenance.dirty = true;
  write();
  EXPECT_EQ(attune_says({"verify", path}).code, 0);
  const Ran strict = attune_says({"verify", "--strict", path});
  EXPECT_EQ(strict.code, 1);
  EXPECT_TRUE(has(strict.out, "warning: dirty-source")) << strict.out;
}

TEST(Honesty, a_byte_that_is_no_text_is_still_one_document) {
  const std::string path = temporary("byte.jsonl");
  std::ofstream(path) << "{\"attune_record\":2,\"status\":\"\xff\"}\n";
  const Ran r = attune_says({"verify", path, "--json"});
  EXPECT_EQ(r.code, 1) << r.err;
  ASSERT_TRUE(json::accept(r.out)) << r.out << r.err;
  EXPECT_EQ(json::parse(r.out)[0]["findings"][0]["name"], "unreadable");
}

TEST(Honesty, the_command_says_what_it_cannot_read) {
  const std::string path = temporary("bad.jsonl");
  std::ofstream(path) << "{\"attune_record\":2}\nnot json\n" << to_json(honest()[0]).substr(0, 60);
  const Ran r = attune_says({"verify", path});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.out, path + ":1: missing-field: record: field status is missing")) << r.out;
  EXPECT_TRUE(has(r.out, path + ":2: unreadable: record: ")) << r.out;
  EXPECT_TRUE(has(r.out, path + ":3: warning: unfinished-row: the last line is incomplete")) << r.out;
  EXPECT_EQ(attune_says({"verify", temporary("none.jsonl")}).code, 3);
  std::ofstream(path).close();
  EXPECT_TRUE(has(attune_says({"verify", path}).err, "holds no records"));
}

}  // namespace
}  // namespace attune
