// SPDX-License-Identifier: Apache-2.0
// What a row of a problem and a row of a module share: the machine, the readings, the samples, and a record before its
// row is measured.
#include <algorithm>

#include "core/work.h"
#include "plan/plan.h"
#include "tool/bench/estimate.h"
#include "tool/bench/row.h"
#include "tool/record/provenance.h"
#include "tool/subjects/ring_run.h"

namespace attune {

std::string one_line(std::string text) {
  for (size_t at; (at = text.find("\n  ")) != std::string::npos;) text.replace(at, 3, "; ");
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

void know_machine(Bench& bench) {
  const bool gpu = bench.timer != nullptr;
  constexpr double kLeastSeconds = 0.03, kMostSeconds = 0.15;  // of a ceiling: not more than of a subject
  if (!bench.ceilings)
    bench.ceilings = gpu ? measure_gpu_ceilings(*bench.timer)
                         : measure_ceilings(bench.device, bench.device.units,
                                            std::clamp(bench.timing.max_seconds, kLeastSeconds, kMostSeconds));
  if (!bench.floor_ns) {
    const Subject empty = gpu ? bench.timer->empty_kernel() : Subject{};
    bench.floor_ns = floor_ns(bench.timing, host_clock(), gpu ? &empty : nullptr);
  }
}

void know_spread(Bench& bench, const Subject& subject, double call_s) {
  TimingSettings set = bench.timing;
  set.max_seconds = std::min(set.max_seconds, 3.0);
  constexpr double kMostSeconds = 10;
  const int calls = 2 * (kFewestSamples + 1);
  if (bench.aa_spread || calls * call_s > kMostSeconds || (set.stop && *set.stop)) return;
  const Ratio itself = against_itself(subject, set, host_clock());
  if (itself.interval.is_sure()) bench.aa_spread = spread(itself);
}

void note_readings(Record& r, const Subject& subject, const Bench& bench) {
  if (!bench.timer) return;
  const Readings seen = bench.timer->readings(subject);
  r.watts = seen.watts, r.celsius = seen.celsius, r.slowed_by = cuda::slowed_by(seen.reasons);
  constexpr uint64_t kSetByUser = 0x02;  // nvmlClocksEventReasonApplicationsClocksSetting
  if (!r.provenance.clocks.empty())
    r.provenance.clocks = join(seen.reasons & kSetByUser ? kClocksSet : kClocksFree, r.provenance.clocks);
}

void sustain(Record& r, const Subject& subject, Bench& bench) {
  if (!bench.timer || bench.energy_seconds <= 0 || r.status != RecordStatus::ok) return;
  Sustained s;
  if (const Status ran = bench.timer->sustain(subject, bench.energy_seconds, s); !ran.ok()) {
    r.status = RecordStatus::failed, r.message = one_line(join(r.subject, ": ", ran.message));
    return;
  }
  r.sustained_ns = s.ns, r.joules = s.joules, r.sustained_watts = s.watts;
}

void note_amount(Record& r, const Problem& p, const Args* args) {
  r.sequences = p.batch, r.tokens = 0;
  for (int b = 0; b < p.batch; ++b) r.tokens += args ? sequence(p, *args, b).len_q : p.len_q;
  r.queries = r.tokens * p.heads_q;
}

void note_timing(Record& r, const Timing& t, const Cost& c, DType of_keys, const Bench& bench, bool peer) {
  r.samples_ns = t.samples, r.samples_mhz = t.mhz;
  r.calls = t.calls, r.late_batches = t.late_batches, r.load = t.load;
  r.ended_by = t.ended_by, r.precision = bench.timing.precision, r.most_samples = bench.timing.max_samples;
  r.warm_up_s = t.warm_up_s;
  r.flops = c.flops, r.bytes = c.bytes;
  const Ceiling& ceiling = bench.ceilings->of(of_keys);
  r.ceiling = ceiling.instruction, r.ceiling_gflops = ceiling.gflops, r.copy_gbs = bench.ceilings->copy_gbs;
  r.floor_ns = peer ? *bench.peer_floor_ns : *bench.floor_ns;
  r.aa_spread = bench.aa_spread;
  if (!t.status.ok()) { r.status = RecordStatus::failed, r.message = one_line(t.status.message); return; }
  if (t.ended_by == "interrupt") r.status = RecordStatus::interrupted;
  derive(r);
}

std::vector<std::string> wanted_backends(const Problem& p, const Bench& bench) {
  std::vector<std::string> wanted;
  for (const std::string& word : bench.backends) {
    if (word != "all") { wanted.push_back(word); continue; }
    for (const Backend* b : backends())
      if (!b->only_by_name && b->supports(p, bench.device).ok()) wanted.emplace_back(b->name);
  }
  if (wanted.empty()) {
    wanted.emplace_back();
    if (bench.beside)
      for (const Backend* b : backends())
        if (bench.beside(p, b->name) && b->supports(p, bench.device).ok()) wanted.emplace_back(b->name);
  }
  // The baseline of the ratios is always measured too.
  if (const Backend* base = find_backend(bench.baseline); base && base->supports(p, bench.device).ok())
    if (std::find(wanted.begin(), wanted.end(), base->name) == wanted.end()) wanted.emplace_back(base->name);
  return wanted;
}

RecordStatus status_of(const Status& s, RecordStatus otherwise) {
  return s.code == Code::out_of_memory ? RecordStatus::oom : otherwise;
}

Record blank_record(const BenchRow& row, const Bench& bench) {
  Record r;
  r.run = bench.run;
  r.problem = row.label.empty() ? name(row.problem) : row.label, r.pattern = row.pattern;
  r.device = bench.device_word;
  r.mode = name(bench.mode), r.rest_s = bench.timing.rest_seconds, r.heat_s = bench.timing.heat_seconds;
  r.layout = name(bench.layout), r.distribution = name(bench.distribution);
  r.seed = bench.seed;
  r.threads = bench.device.kind == DeviceKind::cuda ? 0 : bench.device.units;
  const Problem whole = whole_problem(row.problem);
  r.tensor_bytes = estimated_bytes(whole), r.scores_bytes = scores_bytes(whole), r.cache_bytes = cache_bytes(whole);
  r.provenance = bench.provenance;
  r.provenance.time = utc_now();
  return r;
}

}  // namespace attune
