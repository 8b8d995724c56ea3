// SPDX-License-Identifier: Apache-2.0
// A corpus of forgeries, each made from an honest run by a function with a name. Three forgers are tried: one who edits
// the file, one who has the source and computes all seals anew, and either of them against a signature.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "tests/tool/check/honest.h"
#include "tests/tool/spawn.h"
#include "tool/check/signature.h"

namespace attune {
namespace {

using Records = std::vector<Record>;

constexpr const char* kEdited = "broken-seal";
constexpr const char* kPasses = "";
struct Forgery {
  const char* name;
  const char* edited;    // the finding in the file of the first forger
  const char* resealed;  // in that of the second; "": nothing is found, as docs/measuring.md says
  std::function<void(Records&)> forge;
  bool gpu = false;
};

Record& ours(Records& r, int n = 1) { return r[size_t(3 * n + 2)]; }
// Everything that follows from the samples of this row, computed anew by a careful forger.
void consistent(Records& r, int n = 1) { compare_row(row_of(r, n)); }
void take_samples(Records& r, const std::vector<double>& from, const std::function<double(double, size_t)>& change) {
  std::vector<double>& to = ours(r).samples_ns;
  to.resize(from.size());
  for (size_t n = 0; n < from.size(); ++n) to[n] = change(from[n], n);
  consistent(r);
}
void relabel_run(Records& r, const char* id, const std::string& day) {
  for (Record& x : r) x.run = id, x.provenance.time.replace(0, 10, day);
}
Records other_run() {
  Records other = honest_run();
  relabel_run(other, "20260130T120000Z-8", "2026-01-30");
  for (Record& x : other)
    for (double& s : x.samples_ns) s = std::round(s * (1.1 + 0.01 * std::sin(7919 * s)));
  for (int n = 0; n < 4; ++n) consistent(other, n);
  seal(other);
  return other;
}

void loaded(Record& r) {  // an honest load of two CPUs; samples take 0.02 s, warm-up 0.1 s
  r.load = {.seconds = 1, .cpus = 2, .waited = 0.01, .used = 0.9, .others = 0.02, .steal = 0, .average = 1.2,
            .runnable = 3, .cpu_mhz = 3000};
}
std::vector<Forgery> loads() {
  std::vector<Forgery> all;
  const auto add = [&](const char* name, void (*forge)(Record&, Load&), const char* resealed = "impossible-load") {
    all.push_back({name, kEdited, resealed, [forge](Records& r) { loaded(ours(r)), forge(ours(r), ours(r).load); }});
  };
  add("load_invented", [](Record&, Load&) {}, kPasses);
  add("load_used_twice_the_machine", [](Record&, Load& l) { l.used = 2; });
  add("load_use_and_steal_together", [](Record&, Load& l) { l.steal = 0.5; });
  add("load_waited_above_one", [](Record&, Load& l) { l.waited = 1.5; });
  add("load_without_cpus", [](Record&, Load& l) { l.cpus = -1; });
  add("load_on_fewer_cpus_than_threads", [](Record&, Load& l) { l.cpus = 1; });
  add("load_shorter_than_the_samples", [](Record&, Load& l) { l.seconds = 0.05; });
  add("load_without_work", [](Record& r, Load& l) { r.warm_up_s = 5, l.seconds = 6, l.used = 0; });
  add("load_of_waiting_alone",
      [](Record& r, Load& l) { r.warm_up_s = 5, l.seconds = 6, l.used = 0.001, l.waited = 0.999; }, kPasses);
  add("load_of_a_clock_of_terahertz", [](Record&, Load& l) { l.cpu_mhz = 3e6; });
  add("load_of_a_gpu", [](Record&, Load& l) { l.gpu_processes = 0; });
  return all;
}
std::vector<Forgery> numbers() {
  return {
      {"median_lowered", kEdited, "forged-summary",
       [](Records& r) { ours(r).median_ns *= 0.9, ours(r).gflops /= 0.9, ours(r).gbs /= 0.9; }},
      {"interval_narrowed", kEdited, "forged-summary",
       [](Records& r) { ours(r).interval.low = ours(r).interval.high = ours(r).median_ns; }},
      {"confidence_raised", kEdited, "forged-summary", [](Records& r) { ours(r).interval.confidence = 0.999; }},
      {"outliers_reclassed", kEdited, "forged-summary",
       [](Records& r) {
         for (int n = 0; n < 6; ++n) ours(r).samples_ns[size_t(n)] *= 3;
         consistent(r);
         std::swap(ours(r).outliers.high_severe, ours(r).outliers.high_mild);
       }},
      {"modes_hidden", kEdited, "forged-summary",
       [](Records& r) {
         for (size_t n = 0; n < 31; n += 2) ours(r).samples_ns[n] *= 2;
         consistent(r), ours(r).ended_by = "time", ours(r).modes = 1;
       }},
      {"rate_raised", kEdited, "forged-rate", [](Records& r) { ours(r).gflops *= 1.2; }},
      {"traffic_raised", kEdited, "forged-rate", [](Records& r) { ours(r).gbs *= 1.2; }},
      {"flops_doubled", kEdited, "forged-flops", [](Records& r) { ours(r).flops *= 2, consistent(r); }},
      {"bytes_halved", kEdited, "forged-flops", [](Records& r) { ours(r).bytes /= 2, consistent(r); }},
      {"tensors_shrunk", kEdited, "forged-memory", [](Records& r) { ours(r).tensor_bytes /= 2; }},
      {"scores_grown", kEdited, "forged-memory", [](Records& r) { ours(r).scores_bytes *= 2; }},
      {"cache_shrunk", kEdited, "forged-memory", [](Records& r) { ours(r).cache_bytes /= 2; }},
      {"ratio_raised", kEdited, "forged-ratio", [](Records& r) { ours(r).ratio.value *= 1.2; }},
      {"ratio_narrowed", kEdited, "forged-ratio",
       [](Records& r) { ours(r).ratio.interval.low = ours(r).ratio.interval.high; ours(r).ratio.interval.low *= 0.9; }},
      {"ratio_made_sure", kEdited, "forged-ratio", [](Records& r) { ours(r).ratio.interval.confidence = 0.99; }},
      {"verdict_changed", kEdited, "forged-verdict", [](Records& r) { r[4].verdict = "SAME"; }},
      {"baseline_removed", kEdited, "missing-baseline", [](Records& r) { ours(r).baseline.clear(); }},
      {"baseline_dropped", "missing-baseline", "missing-baseline", [](Records& r) { r.erase(r.begin() + 3); }},
      {"slower_baseline_named", kEdited, "slow-baseline",
       [](Records& r) {
         for (double& s : ours(r).samples_ns) s *= 2;
         consistent(r);
         ours(r).baseline = "torch:math", ours(r).ratio = median_ratio(r[4].samples_ns, ours(r).samples_ns);
         ours(r).verdict = name(verdict(ours(r).ratio, 0.01, 0.01));
       }},
      {"spread_of_a_row_lowered", kEdited, "unequal-run", [](Records& r) { ours(r).aa_spread = 0.001; }},
      {"ceiling_of_a_row_raised", kEdited, "forged-ceiling", [](Records& r) { ours(r).ceiling_gflops *= 2; }},
      {"copy_rate_of_a_row_raised", kEdited, "forged-ceiling", [](Records& r) { ours(r).copy_gbs *= 2; }},
      {"floor_of_a_row_lowered", kEdited, "unequal-run", [](Records& r) { ours(r).floor_ns = 1500; }},
      {"precision_of_a_row_widened", kEdited, "unequal-run", [](Records& r) { ours(r).precision = 0.05; }},
      {"too_fast", kEdited, "above-roofline",
       [](Records& r) {
         for (double& s : ours(r).samples_ns) s /= 60;
         consistent(r), ours(r).status = RecordStatus::ok, ours(r).message = "";
       }},
      {"density_doubled", kEdited, "forged-density",
       [](Records& r) { ours(r).active_blocks = 10, ours(r).shown_blocks = 100, ours(r).density = 0.2; }},
      {"energy_halved", kEdited, "forged-energy",
       [](Records& r) { ours(r).sustained_ns = 1e6, ours(r).sustained_watts = 400, ours(r).joules = 0.2; }, true},
      {"clock_above_the_card", kEdited, "impossible-count",
       [](Records& r) { ours(r).samples_mhz.assign(31, 2500), consistent(r); }, true},
      {"power_above_the_card", kEdited, "impossible-count", [](Records& r) { ours(r).watts = 2000; }, true},
      {"kernels_removed", kEdited, "missing-kernels", [](Records& r) { ours(r).kernels.clear(); }, true},
      {"throttling_hidden", kEdited, "throttled",
       [](Records& r) { ours(r).samples_mhz.assign(31, 900), consistent(r); }, true},
      {"gpu_removed", kEdited, "cpu-on-gpu", [](Records& r) { for (Record& x : r) x.provenance.gpu.clear(); }, true},
      {"gpu_clocks_on_a_cpu", kEdited, "gpu-on-cpu", [](Records& r) { ours(r).samples_mhz.assign(31, 1900); }},
      {"gpu_named_on_a_cpu", kEdited, "gpu-on-cpu",
       [](Records& r) { for (Record& x : r) x.provenance.gpu = "NVIDIA H200"; }},
      {"backend_of_gpus_on_a_cpu", kEdited, "gpu-on-cpu", [](Records& r) { ours(r).subject = "sm90_forward"; }},
      {"backend_of_cpus_on_a_gpu", kEdited, "cpu-on-gpu", [](Records& r) { ours(r).subject = "cpu_forward"; }, true},
  };
}

std::vector<Forgery> words() {
  return {
      {"device_tpu", kEdited, "unknown-word", [](Records& r) { ours(r).device = "tpu:0"; }},
      {"device_of_a_row_changed", kEdited, "unequal-run", [](Records& r) { ours(r).device = "cpu:avx2"; }},
      {"mode_hot", kEdited, "unknown-word", [](Records& r) { ours(r).mode = "hot"; }},
      {"mode_graph_on_a_cpu", kEdited, "gpu-on-cpu", [](Records& r) { for (Record& x : r) x.mode = "graph"; }},
      {"mode_cold_with_many_calls", kEdited, "impossible-count", [](Records& r) { ours(r).calls = 4; }},
      {"layout_unknown", kEdited, "unknown-word", [](Records& r) { ours(r).layout = "sbhd"; }},
      {"layout_of_a_row_changed", kEdited, "unequal-run",
       [](Records& r) { for (Record& x : row_of(r, 1)) x.layout = "bshd"; }},
      {"distribution_ones", kEdited, "unknown-word", [](Records& r) { ours(r).distribution = "ones"; }},
      {"distribution_of_a_row_changed", kEdited, "unequal-run",
       [](Records& r) { for (Record& x : row_of(r, 1)) x.distribution = "uniform", x.input_rms = 0.577; }},
      {"zeros_as_inputs", kEdited, "zero-inputs", [](Records& r) { for (Record& x : r) x.input_rms = 0; }},
      {"smaller_inputs", kEdited, "zero-inputs", [](Records& r) { for (Record& x : r) x.input_rms = 0.7; }},
      {"seed_of_a_row_changed", kEdited, "unequal-run", [](Records& r) { ours(r).seed = 7; }},
      {"problem_of_a_row_relabelled", kEdited, "forged-flops",
       [](Records& r) { for (Record& x : row_of(r, 1)) x.problem = "forward f32 b1 h8 q4096 k4096 d64 causal"; }},
      {"problem_that_is_none", kEdited, "bad-problem", [](Records& r) { ours(r).problem = "a fast one"; }},
      {"verdict_unknown", kEdited, "unknown-word", [](Records& r) { ours(r).verdict = "BEST"; }},
      {"check_unknown", kEdited, "unknown-word",
       [](Records& r) { ours(r).parity.verdict = Word<CheckVerdict>("GOOD"); }},
      {"check_of_no_rows", kEdited, "skipped-parity", [](Records& r) { ours(r).parity.rows = 0; }},
      {"check_beyond_its_tolerance", kEdited, "forged-parity", [](Records& r) { ours(r).parity.error = 3; }},
      {"check_failed_but_ok", kEdited, "forged-parity",
       [](Records& r) { ours(r).parity.verdict = CheckVerdict::fail; }},
      {"ended_by_luck", kEdited, "unknown-word", [](Records& r) { ours(r).ended_by = "luck"; }},
      {"ended_by_precision_it_lacks", kEdited, "forged-end",
       [](Records& r) {
         for (size_t n = 0; n < 31; ++n) ours(r).samples_ns[n] *= 1 + 0.01 * double(n);
         consistent(r);
       }},
      {"interrupt_hidden", kEdited, "forged-end", [](Records& r) { ours(r).ended_by = "interrupt"; }},
      {"governor_turbo", kEdited, "unknown-word",
       [](Records& r) { for (Record& x : r) x.provenance.governor = "turbo"; }},
      {"feature_unknown", kEdited, "unknown-word",
       [](Records& r) { for (Record& x : r) x.provenance.features = "neon avx9"; }},
      {"loops_unknown", kEdited, "unknown-word", [](Records& r) { ours(r).kernels = {"neon9"}; }},
      {"binary_of_letters", kEdited, "unknown-word",
       [](Records& r) { for (Record& x : r) x.provenance.binary = "trust me"; }},
      {"backend_unknown", kEdited, "unknown-word", [](Records& r) { ours(r).subject = "cpu_magic"; }},
      {"peer_unknown", kEdited, "unknown-word", [](Records& r) { r[4].subject = "mylib"; }},
      {"peer_called_ours", kEdited, "unknown-word", [](Records& r) { r[4].peer = false, r[4].why = ""; }},
      {"status_fine", kEdited, "unknown-status", [](Records& r) { ours(r).status = Word<RecordStatus>("fine"); }},
      {"unmeasured_with_samples", kEdited, "forged-status",
       [](Records& r) { ours(r).status = RecordStatus::oom, ours(r).message = "no room"; }},
      {"unmeasured_with_a_verdict", kEdited, "forged-status",
       [](Records& r) {
         ours(r).status = RecordStatus::unsupported, ours(r).message = "no", ours(r).samples_ns.clear();
         ours(r).median_ns = ours(r).gflops = ours(r).gbs = 0;
       }},
  };
}

std::vector<Forgery> machine_and_time() {
  const auto one = [](auto change) { return [change](Records& r) { change(ours(r).provenance); }; };
  return {
      {"another_cpu", kEdited, "unequal-run", one([](Provenance& p) { p.cpu = "a faster one"; })},
      {"another_commit", kEdited, "unequal-run", one([](Provenance& p) { p.commit = "def"; })},
      {"another_compiler", kEdited, "unequal-run", one([](Provenance& p) { p.compiler = "d"; })},
      {"another_binary", kEdited, "unequal-run", one([](Provenance& p) { p.binary = "fedcba9876543210"; })},
      {"another_version", kEdited, "unequal-run", one([](Provenance& p) { p.version = "9.9.9"; })},
      {"another_system", kEdited, "unequal-run", one([](Provenance& p) { p.kernel = "Linux 9"; })},
      {"other_peers", kEdited, "unequal-run", one([](Provenance& p) { p.peers = "torch 9"; })},
      {"more_cores", kEdited, "unequal-run", one([](Provenance& p) { p.cores = 64; })},
      {"dirt_of_a_row_hidden", kEdited, "unequal-run",
       [](Records& r) { for (Record& x : r) x.provenance.dirty = &x != &ours(r); }},
      {"threads_beyond_the_cores", kEdited, "impossible-count",
       [](Records& r) { for (Record& x : row_of(r, 1)) x.threads = 512; }},
      {"threads_below_zero", kEdited, "impossible-count", [](Records& r) { ours(r).threads = -1; }},
      {"calls_of_zero", kEdited, "impossible-count", [](Records& r) { ours(r).calls = 0; }},
      {"late_batches_below_zero", kEdited, "impossible-count", [](Records& r) { ours(r).late_batches = -1; }},
      {"warm_up_below_zero", kEdited, "impossible-count", [](Records& r) { ours(r).warm_up_s = -1; }},
      {"month_99", kEdited, "bad-time", one([](Provenance& p) { p.time = "2026-99-31T12:00:20Z"; })},
      {"february_30", kEdited, "bad-time", one([](Provenance& p) { p.time = "2026-02-30T12:00:20Z"; })},
      {"hour_25", kEdited, "bad-time", one([](Provenance& p) { p.time = "2026-01-31T25:00:20Z"; })},
      {"time_of_letters", kEdited, "bad-time", one([](Provenance& p) { p.time = "YYYY-MM-DDThh:mm:ssZ"; })},
      {"run_of_letters", kEdited, "bad-time", [](Records& r) { for (Record& x : r) x.run = "my best run"; }},
      {"before_its_run", kEdited, "impossible-time", one([](Provenance& p) { p.time = "2026-01-30T12:00:20Z"; })},
      {"backwards_in_its_run", kEdited, "impossible-time",
       [](Records& r) { for (Record& x : row_of(r, 2)) x.provenance.time = "2026-01-31T12:00:12Z"; }},
      {"in_the_future", kEdited, "impossible-time",
       [](Records& r) { relabel_run(r, "20990131T120000Z-7", "2099-01-31"); }},
      {"work_longer_than_the_row", kEdited, "impossible-time", [](Records& r) { ours(r).warm_up_s = 50; }},
      {"samples_longer_than_the_row", kEdited, "impossible-time",
       [](Records& r) {
         for (Record& x : row_of(r, 1)) for (double& s : x.samples_ns) s *= 1000;
         consistent(r);
       }},
  };
}

std::vector<Forgery> copies() {
  return {
      {"samples_of_the_same_row", kEdited, "copied-samples",
       [](Records& r) { take_samples(r, r[4].samples_ns, [](double s, size_t) { return s; }); }},
      {"three_samples_of_another_row", kEdited, "copied-samples",
       [](Records& r) {
         r[8].samples_ns.resize(3), consistent(r, 2);
         take_samples(r, r[8].samples_ns, [](double s, size_t) { return s; });
       }},
      {"samples_scaled", kEdited, "copied-samples",
       [](Records& r) { take_samples(r, r[8].samples_ns, [](double s, size_t) { return 0.3 * s; }); }},
      {"six_samples_scaled", kEdited, "copied-samples",
       [](Records& r) {
         r[8].samples_ns.resize(6), consistent(r, 2);
         take_samples(r, r[8].samples_ns, [](double s, size_t) { return 0.3 * s; });
       }},
      {"samples_shifted", kEdited, "copied-samples",
       [](Records& r) { take_samples(r, r[8].samples_ns, [](double s, size_t) { return s - 1e6; }); }},
      {"samples_nudged", kEdited, "copied-samples",
       [](Records& r) {
         take_samples(r, r[8].samples_ns, [](double s, size_t n) { return s + (n % 2 ? 15. : -15.); });
       }},
      {"some_samples_of_another_row", kEdited, "copied-samples",
       [](Records& r) {
         for (size_t n = 0; n < 20; ++n) ours(r).samples_ns[n] = r[8].samples_ns[30 - n];
         consistent(r);
       }},
      {"samples_all_equal", kEdited, "copied-samples",
       [](Records& r) { ours(r).samples_ns.assign(31, 7e5), consistent(r); }},
      {"samples_below_zero", kEdited, "impossible-sample", [](Records& r) { ours(r).samples_ns[3] = -1; }},
      {"samples_removed", kEdited, "no-samples", [](Records& r) { ours(r).samples_ns.clear(); }},
      {"row_copied", "copied-record", "copied-record", [](Records& r) {
         const Records one(r.begin() + 3, r.begin() + 6);
         r.insert(r.end(), one.begin(), one.end());
       }},
      {"record_copied", "copied-record", "copied-record", [](Records& r) { r.insert(r.begin() + 6, Record(r[5])); }},
      {"run_copied", "copied-record", "copied-record",
       [](Records& r) {
         const Records twice = r;
         r.insert(r.end(), twice.begin(), twice.end());
       }},
      {"row_of_another_run_with_its_label", kEdited, "impossible-time",
       [](Records& r) {
         const Records other = other_run();
         for (int n = 0; n < 3; ++n) r[size_t(3 + n)] = other[size_t(3 + n)], r[size_t(3 + n)].run = r[0].run;
       }},
      {"rows_in_another_order", "moved-record", "impossible-time",
       [](Records& r) { std::rotate(r.begin() + 3, r.begin() + 6, r.begin() + 9); }},
      {"first_record_moved_to_the_end", "moved-record", "impossible-time",
       [](Records& r) { std::rotate(r.begin(), r.begin() + 3, r.end()); }},
      {"version_of_a_record_relabelled", "unequal-run", "unequal-run", [](Records& r) { ours(r).version = 2; }},
  };
}

// With the seals computed anew, nothing in the file contradicts these.
std::vector<Forgery> beyond_rules() {
  return {
      {"all_samples_scaled", kEdited, kPasses,
       [](Records& r) {
         for (double& s : ours(r).samples_ns) s *= 0.8;
         consistent(r);
       }},
      {"slow_samples_dropped", kEdited, kPasses,
       [](Records& r) {
         const double median = ours(r).median_ns;
         std::erase_if(ours(r).samples_ns, [&](double s) { return s > 1.003 * median; });
         consistent(r);
       }},
      {"samples_invented", kEdited, kPasses,
       [](Records& r) {
         for (int n = 0; n < 5; ++n) ours(r).samples_ns.push_back(std::round(0.99 * ours(r).median_ns) + 3 * n);
         consistent(r);
       }},
      {"one_sample_edited", kEdited, kPasses,
       [](Records& r) { ours(r).samples_ns[3] *= 0.999, consistent(r); }},
      {"spread_of_all_rows_lowered", kEdited, kPasses,
       [](Records& r) {
         for (Record& x : r) x.aa_spread = 0.001;
         for (int n = 0; n < 4; ++n) consistent(r, n);
       }},
      {"commit_renamed", kEdited, kPasses, [](Records& r) { for (Record& x : r) x.provenance.commit = "clean"; }},
      {"machine_renamed", kEdited, kPasses, [](Records& r) { for (Record& x : r) x.provenance.cpu = "A slow one"; }},
      {"date_changed", kEdited, kPasses, [](Records& r) { relabel_run(r, "20251231T120000Z-7", "2025-12-31"); }},
      {"mode_of_a_row_relabelled", kEdited, kPasses,
       [](Records& r) { for (Record& x : row_of(r, 1)) x.mode = "warm"; }},
      {"threads_of_a_row_relabelled", kEdited, kPasses,
       [](Records& r) { for (Record& x : row_of(r, 1)) x.threads = 1; }},
      {"error_of_the_check_lowered", kEdited, kPasses, [](Records& r) { ours(r).parity.error = 0.01; }},
      {"planned_rows_lowered", kEdited, kPasses, [](Records& r) { r[0].planned_rows = 3; }},
      {"row_dropped", "dropped-record", kPasses, [](Records& r) { r.erase(r.begin() + 3, r.begin() + 6); }},
      {"first_row_dropped", "dropped-record", kPasses, [](Records& r) { r.erase(r.begin(), r.begin() + 3); }},
      {"last_row_dropped", "unfinished-run", kPasses, [](Records& r) { r.resize(9); }},
      {"last_row_dropped_and_closed", kEdited, kPasses, [](Records& r) { r.resize(9), r[8].closes = true; }},
      {"row_of_another_run", "dropped-record", kPasses,
       [](Records& r) {
         const Records other = other_run();
         r.insert(r.begin() + 12, other.begin() + 3, other.begin() + 6);
       }},
      {"version_of_all_records_relabelled", "unsealed", kPasses,
       [](Records& r) { for (Record& x : r) x.version = 2; }},
  };
}

std::vector<Forgery> corpus() {
  std::vector<Forgery> all;
  for (const std::vector<Forgery>& part : {numbers(), loads(), words(), machine_and_time(), copies(), beyond_rules()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Edits of the text. The seal, where there is one, is that of the honest line.
struct TextForgery {
  const char* name;
  const char* finding;
  std::function<std::string(std::string)> forge;  // of line 6
};
std::string replaced(std::string line, const std::string& part, const std::string& by) {
  const size_t at = line.find(part);
  EXPECT_NE(at, line.npos) << part;
  return at == line.npos ? line : line.replace(at, part.size(), by);
}
std::vector<TextForgery> text_corpus() {
  const auto edit = [](const char* part, const char* by) {
    return [=](const std::string& l) { return replaced(l, part, by); };
  };
  return {
      {"name_twice", "unreadable", edit("{\"attune_record\":4", "{\"attune_record\":4,\"gflops\":9")},
      {"name_twice_in_the_provenance", "unreadable", edit("\"provenance\":{", "\"provenance\":{\"cpu\":\"x\",")},
      {"name_twice_in_escapes", "unreadable", edit("\"cores\":2", "\"\\u0063pu\":\"x\",\"cores\":2")},
      {"seal_twice", "unreadable", edit("\"previous\"", "\"seal\":\"0\",\"previous\"")},
      {"number_out_of_range", "unreadable", edit("\"samples_ns\":[", "\"samples_ns\":[1e999,")},
      {"newer_version", "newer-version", edit("{\"attune_record\":4", "{\"attune_record\":5")},
      {"version_2_with_a_seal", "forged-version", edit("{\"attune_record\":4", "{\"attune_record\":2")},
      {"field_added", "broken-seal", edit(",\"planned_rows\"", ",\"note2\":1,\"planned_rows\"")},
      {"field_behind_the_seal", "broken-seal",
       [](const std::string& l) { return l.substr(0, l.size() - 1) + ",\"x\":1}"; }},
      {"field_removed", "missing-field", edit("\"closes\":false,", "")},
      {"seal_removed", "missing-seal",
       [](const std::string& l) { return l.substr(0, l.find(",\"seal\":")) + "}"; }},
      {"seal_of_zeros", "broken-seal",
       [](std::string l) { return l.replace(l.find(",\"seal\":\"") + 9, 64, std::string(64, '0')); }},
      {"previous_of_zeros", "dropped-record",
       [](std::string l) { return l.replace(l.find("\"previous\":\"") + 12, 64, std::string(64, '0')); }},
      {"written_anew_by_another_program", "broken-seal",
       [](const std::string& l) { return nlohmann::json::parse(l).dump(); }},
      {"written_anew_with_spaces", "broken-seal", edit("\"status\":\"ok\"", "\"status\": \"ok\"")},
      {"line_cut", "unreadable", [](const std::string& l) { return l.substr(0, 100); }},
  };
}

std::string text_forged(const TextForgery& f, const Records& r) {
  std::string all;
  for (size_t n = 0; n < r.size(); ++n) all += (n == 5 ? f.forge(to_json(r[n])) : to_json(r[n])) + "\n";
  return all;
}

const Records& sealed_run(bool gpu) {
  static const auto sealed = [](bool of_gpu) {
    Records r = honest_run(of_gpu);
    seal(r);
    return r;
  };
  static const Records runs[] = {sealed(false), sealed(true)};
  return runs[gpu];
}

TEST(Forgery, the_corpus_is_large_and_its_names_differ) {
  std::set<std::string> all;
  for (const Forgery& f : corpus()) EXPECT_TRUE(all.insert(f.name).second) << f.name;
  for (const TextForgery& f : text_corpus()) EXPECT_TRUE(all.insert(f.name).second) << f.name;
  EXPECT_GE(all.size(), 60u);
}

TEST(Forgery, starts_from_runs_without_findings) {
  for (const bool gpu : {false, true}) EXPECT_EQ(text(audited(text_of(sealed_run(gpu)))), "") << gpu;
  EXPECT_EQ(text(audited(text_of(other_run()))), "");
}

TEST(Forgery, by_edit_is_named) {
  for (const Forgery& f : corpus()) {
    Records r = sealed_run(f.gpu);
    f.forge(r);
    const std::vector<Finding> found = audited(text_of(r));
    EXPECT_TRUE(names(found, f.edited)) << f.name << " is not " << f.edited << ":\n" << text(found);
    // Honest where a run was killed, and in old files: warnings.
    const bool is_warning = f.edited == std::string("unfinished-run") || f.edited == std::string("unsealed");
    EXPECT_EQ(is_clean(found), is_warning) << f.name;
  }
  for (const TextForgery& f : text_corpus()) {
    const std::vector<Finding> found = audited(text_forged(f, sealed_run(false)));
    EXPECT_TRUE(names(found, f.finding)) << f.name << " is not " << f.finding << ":\n" << text(found);
    EXPECT_FALSE(is_clean(found)) << f.name;
  }
}

TEST(Forgery, sealed_anew_is_named_where_it_contradicts_itself_and_only_there) {
  for (const Forgery& f : corpus()) {
    Records r = sealed_run(f.gpu);
    f.forge(r);
    const std::vector<Finding> found = findings(r);
    if (f.resealed == std::string(kPasses)) EXPECT_TRUE(is_clean(found)) << f.name << ":\n" << text(found);
    else EXPECT_TRUE(names(found, f.resealed)) << f.name << " is not " << f.resealed << ":\n" << text(found);
  }
}

class Signed : public testing::Test {
 protected:
  void SetUp() override {
    if (spawn({"ssh-keygen", "-?"}).code == 127) GTEST_SKIP() << "requires ssh-keygen of OpenSSH; it is not in PATH";
    for (const char* const name : {"key", "other"}) {
      (void)spawn({"rm", "-f", temporary(name)});
      ASSERT_EQ(spawn({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", temporary(name)}).code, 0);
    }
    std::ofstream(temporary("signers")) << "ci@example.org " << text_of(temporary("key.pub"));
    std::ofstream(temporary("others")) << "ci@example.org " << text_of(temporary("other.pub"));
  }
  static std::string said(const std::string& file, const std::string& signers) {
    std::string who;
    return check_signature(text_of(file), file, signers, who).message;
  }
};

TEST_F(Signed, no_forgery_passes) {
  const std::string path = temporary("signed.jsonl");
  for (const bool gpu : {false, true}) {
    const std::string honest_text = text_of(sealed_run(gpu));
    std::string signature, who;
    ASSERT_EQ(sign(honest_text, temporary("key"), signature).message, "");
    std::ofstream(signature_path(path)) << signature;
    ASSERT_EQ(check_signature(honest_text, path, temporary("signers"), who).message, "");
    EXPECT_TRUE(who.starts_with("ci@example.org, ED25519 key SHA256:")) << who;
    const auto refused = [&](const char* name, const std::string& forged) {
      ASSERT_NE(forged, honest_text) << name;
      EXPECT_FALSE(check_signature(forged, path, temporary("signers"), who).ok()) << name;
    };
    for (const Forgery& f : corpus())
      for (const bool anew : {false, true}) {
        if (f.gpu != gpu) continue;
        Records r = sealed_run(gpu);
        f.forge(r);
        if (anew && f.name != std::string("planned_rows_lowered")) seal(r);  // that is undone by sealing anew
        refused(f.name, text_of(r));
      }
    if (gpu) continue;
    for (const TextForgery& f : text_corpus()) refused(f.name, text_forged(f, sealed_run(false)));
  }
}

TEST_F(Signed, what_is_wrong_with_a_signature_is_one_sentence) {
  const std::string path = temporary("one.jsonl"), sig = signature_path(path);
  std::ofstream(path) << text_of(sealed_run(false));
  EXPECT_EQ(said(path, temporary("signers")), "it is not signed: '" + sig + "' does not exist");
  std::ofstream(sig) << "nothing\n";
  EXPECT_TRUE(said(path, temporary("signers")).starts_with("'" + sig + "' is not its signature")) << said(path, "");
  std::string signature;
  EXPECT_TRUE(has(sign("x", temporary("no_key"), signature).message, "no_key' cannot be read")) << "";
  EXPECT_TRUE(has(sign("x", temporary("signers"), signature).message, "signers' cannot sign: ")) << "";
  ASSERT_EQ(sign(text_of(path), temporary("key"), signature).message, "");
  std::ofstream(sig) << signature;
  EXPECT_EQ(said(path, temporary("signers")), "");
  EXPECT_TRUE(has(said(path, temporary("others")), "which '" + temporary("others") + "' does not name"));
  EXPECT_TRUE(has(said(path, temporary("nobody")), "--signers: '" + temporary("nobody") + "' cannot be read"));
  std::ofstream(temporary("git")) << "ci@example.org namespaces=\"git\" " << text_of(temporary("key.pub"));
  EXPECT_TRUE(has(said(path, temporary("git")), "does not allow to sign records")) << said(path, temporary("git"));
}

TEST_F(Signed, the_commands_sign_and_check) {
  const std::string path = temporary("run.jsonl");
  (void)spawn({"rm", "-f", path, signature_path(path)});
  const std::vector<std::string> bench = {"bench", "forward f32 b1 h1 q16 k16 d8 full", "--max-seconds", "0.05",
                                          "--out", path, "--sign", temporary("key")};
  const Ran made = attune_says(bench);
  ASSERT_EQ(made.code, 0) << made.err;
  const Ran good = attune_says({"verify", path, "--signers", temporary("signers")});
  EXPECT_EQ(good.code, 0) << good.out << good.err;
  EXPECT_TRUE(has(good.out, ", signed by ci@example.org, ED25519 key SHA256:")) << good.out;
  const Ran unknown = attune_says({"verify", path, "--signers", temporary("others")});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_TRUE(has(unknown.out, path + ": bad-signature: it is signed by ED25519 key")) << unknown.out;
  const Ran again = attune_says(bench);
  EXPECT_EQ(again.code, 2);
  EXPECT_TRUE(has(again.err, "holds records of earlier runs")) << again.err;
  std::ofstream(path, std::ios::app) << "\n";
  EXPECT_EQ(attune_says({"verify", path, "--signers", temporary("signers")}).code, 1);
  const std::vector<std::string> nowhere = {"PATH=/nowhere"};
  const Ran none = attune_says({"verify", path, "--signers", temporary("signers")}, nowhere);
  EXPECT_EQ(none.code, 3);
  EXPECT_TRUE(has(none.err, "attune verify: ssh-keygen cannot be started: it is not in PATH")) << none.err;
  const Ran before =
      attune_says({"bench", bench[1], "--out", temporary("new.jsonl"), "--sign", temporary("key")}, nowhere);
  EXPECT_EQ(before.code, 3);
  EXPECT_FALSE(std::filesystem::exists(temporary("new.jsonl"))) << "nothing is measured or written without a signature";
  const Ran wrong =
      attune_says({"bench", bench[1], "--out", temporary("new.jsonl"), "--sign", temporary("signers")});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(has(wrong.err, "attune bench: --sign: the key '" + temporary("signers") + "' cannot sign: "));
  const Ran no_key = attune_says({"bench", bench[1], "--out", temporary("new.jsonl"), "--sign", temporary("no_key")});
  EXPECT_EQ(no_key.code, 3);
  EXPECT_TRUE(has(no_key.err, "attune bench: --sign: the key '" + temporary("no_key") + "' cannot be read: "));
  EXPECT_FALSE(std::filesystem::exists(temporary("new.jsonl")));
  EXPECT_EQ(attune_says({"bench", bench[1], "--sign", temporary("key")}).err,
            "attune bench: --sign: no file to sign; give one with --out\n");
}

}  // namespace
}  // namespace attune
