// SPDX-License-Identifier: Apache-2.0
// One record alone: everything that follows from its samples, its problem line and its device.
#include <cstdio>

#include "core/forward_of.h"
#include "core/work.h"
#include "tool/check/parts.h"
#include "tool/check/spot.h"
#include "tool/record/busy.h"
#include "tool/subjects/module_run.h"
#include "tool/subjects/ring_run.h"
#include "tool/subjects/workload.h"

namespace attune {
namespace {

constexpr double kRounded = 0.051;    // ns; samples are stored to a tenth of a nanosecond
constexpr double kDigits = 1e-5;      // relative; extracts are rounded to six digits
constexpr double kSlow = 0.75;        // share of the highest clock below which a row is a warning
constexpr double kThrottled = 0.6;    // share below which a row without a recorded reason counts as throttled

// True if the driver could name the kernels of a call: cuFuncGetName needs CUDA 12.3.
bool names_kernels(const Provenance& p) {
  constexpr std::string_view kBefore = "driver for ";
  int major = 0, minor = 0;
  const size_t at = p.cuda.find(kBefore);
  if (at == p.cuda.npos || std::sscanf(p.cuda.c_str() + at + kBefore.size(), "%d.%d", &major, &minor) != 2) return true;
  return std::pair(major, minor) >= std::pair(12, 3);
}

struct Auditor : Reporter {
  // The problem of the line, the backward's for both passes as one row; false if it is a module or nothing readable.
  bool is_problem(Problem& p) const { return parse(r.problem, p).ok() || train_problem(r.problem, p); }

  // What a record of this status cannot have; null if there is nothing of the kind.
  const char* claim() const {
    if (was_timed(r) || r.status == RecordStatus::other) return nullptr;
    const bool none = r.status == RecordStatus::unsupported || r.status == RecordStatus::oom;
    if (none && !r.samples_ns.empty()) return "samples";
    if (none && (r.median_ns != 0 || r.gflops != 0 || r.gbs != 0)) return "a time";
    return !r.verdict.empty() || !r.baseline.empty() ? "a comparison" : nullptr;
  }

  void status() const {
    if (r.status == RecordStatus::other)
      wrong("unknown-status", "status '", r.status.text(), "' is not one of ok, unsupported, oom, failed, ",
            "interrupted, refused");
    else if (const char* const what = claim(); what)
      wrong("forged-status", "status ", r.status.text(), " with ", what);
    else if (r.status != RecordStatus::ok && r.status != RecordStatus::interrupted && r.message.empty())
      wrong("no-reason", "status ", r.status.text(), " without a message");
  }

  void source() const {
    const Provenance& p = r.provenance;
    if (seconds_of_time(p.time) < 0)
      wrong("bad-time", "time '", p.time, "' is not a time of the form 2026-01-31T12:00:00Z");
    if (r.version >= 3 && seconds_of_run(r.run) < 0)
      wrong("bad-time", "run '", r.run, "' does not have the form 20260131T120000Z-4711");
    if (p.commit.empty() || p.commit == "unknown") caution("unknown-source", "the commit of its sources is unknown");
    if (p.dirty) caution("dirty-source", "built from uncommitted changes");
  }

  void samples() const {
    const std::vector<double>& all = r.samples_ns;
    if (all.empty()) return wrong("no-samples", "status ", r.status.text(), " without samples");
    for (const double s : all)
      if (!(s > 0) || !std::isfinite(s)) return wrong("impossible-sample", "a sample of ", s, " ns");
    if (int(all.size()) < kFewestSamples)
      caution("few-samples", "the median of only ", all.size(), all.size() == 1 ? " sample" : " samples",
              "; 95 % confidence needs ", kFewestSamples);
    const bool same = std::all_of(all.begin(), all.end(), [&](double s) { return s == all[0]; });
    if (same && all.size() >= 10) {
      if (is_gpu(r)) caution("copied-samples", "all ", all.size(), " samples are equal");
      else wrong("copied-samples", "all ", all.size(), " samples are equal, which a CPU clock does not produce");
    }
    summary();
  }

  void summary() const {
    Record again = r;
    derive(again);
    const auto off = [&](const char* what, double said, double is) {
      wrong("forged-summary", what, " is recorded as ", said, ", but the samples give ", is);
    };
    if (!near(r.median_ns, again.median_ns, 1e-9, kRounded)) off("the median", r.median_ns, again.median_ns);
    if (!near(r.interval.low, again.interval.low, 1e-9, kRounded))
      off("the lower end of the interval", r.interval.low, again.interval.low);
    if (!near(r.interval.high, again.interval.high, 1e-9, kRounded))
      off("the upper end of the interval", r.interval.high, again.interval.high);
    if (!near(r.interval.confidence, again.interval.confidence, 1e-6))
      off("the confidence", r.interval.confidence, again.interval.confidence);
    if (r.version >= 4) {
      const auto judge = [&](const char* what, double said, double is) {
        if (!near(said, is, 1e-9, kRounded)) off(what, said, is);
      };
      judge("the mean", r.mean_ns, again.mean_ns), judge("the deviation", r.deviation_ns, again.deviation_ns);
      judge("the 95th percentile", r.p95_ns, again.p95_ns), judge("the 99th percentile", r.p99_ns, again.p99_ns);
    }
    // Rounding may move a sample across a fence, and on a GPU all those of its tick.
    const int room = std::max(2, int(r.samples_ns.size()) / 10);
    const Outliers &is = again.outliers, &said = r.outliers;
    const auto moved = [&](int a, int b) { return std::abs(a - b) > room; };
    if (std::abs(said.total() - is.total()) > 2 || moved(said.low_severe, is.low_severe) ||
        moved(said.low_mild, is.low_mild) || moved(said.high_mild, is.high_mild) ||
        moved(said.high_severe, is.high_severe))
      off("the number of outliers", said.total(), is.total());
    if (!r.samples_mhz.empty() && !near(r.mhz, again.mhz, 0, 1)) off("the clock", r.mhz, again.mhz);
    const bool at_the_edge = near(r.median_ns, 5 * r.floor_ns, 1e-3, kRounded);
    if (r.near_floor != again.near_floor && !at_the_edge) off("near_floor", r.near_floor, again.near_floor);
    if (r.version >= 2 && r.modes != again.modes) off("the number of modes", r.modes, again.modes);
  }

  void density() const {
    const double is = r.shown_blocks > 0 ? double(r.active_blocks) / double(r.shown_blocks) : 0;
    if (r.active_blocks < 0 || r.active_blocks > r.shown_blocks)
      wrong("forged-density", r.active_blocks, " active blocks are recorded, of ", r.shown_blocks, " visible ones");
    else if (!near(r.density, is, 1e-9))
      wrong("forged-density", "the density is recorded as ", r.density, ", but ", r.active_blocks, " of ",
            r.shown_blocks, " blocks give ", is);
  }

  // Checks the bytes that follow from the problem line. `tensors` is the size of all tensors, of a module its own.
  void memory_of_it(const Problem& whole, double tensors) const {
    if (r.version < 2) return;
    const auto judge = [&](const char* what, double said, double is) {
      if (!near(said, is, 1e-6))
        wrong("forged-memory", what, " are recorded as ", said, " bytes, but the problem has ", is);
    };
    judge("inputs and outputs", r.tensor_bytes, tensors);
    judge("scores", r.scores_bytes, scores_bytes(whole));
    if (r.cache_bytes != 0) judge("keys and values", r.cache_bytes, cache_bytes(whole));  // not in every record
  }

  // Checks flops and bytes. They must be exact if they follow from the line alone; otherwise flops must not exceed the
  // bound.
  void cost_of_it(const Problem& p) const {
    Cost c = cost(p);
    if (Problem backward; train_problem(r.problem, backward)) {
      const Cost forward = cost(forward_of(p));
      c.flops += forward.flops, c.bytes += forward.bytes;
    }
    const bool exact = p.keys == KeySource::linear && !p.mask.blocks.q && p.mask.align != Align::absolute &&
                       word(p.variant).empty() && !p.has(Option::append);
    const auto judge = [&](const char* what, double said, double is) {
      if (exact ? !near(said, is, kDigits) : said > 1.001 * is)
        wrong("forged-flops", what, " per call are recorded as ", said, ", but the problem has ",
              exact ? "" : "at most ", is);
    };
    judge("flops", r.flops, c.flops);
    if (exact) judge("bytes", r.bytes, c.bytes);
  }

  // Sequences, tokens and queries of a call, exact unless lengths, which a record does not hold, made them less.
  void work_of_it(const Problem& whole) const {
    if (r.version < 4 || line.extract) return;
    const double tokens = double(whole.batch) * whole.len_q;
    const bool exact = whole.keys != KeySource::ragged;
    const auto judge = [&](const char* what, double said, double is) {
      if (exact ? said != is : said > is || said < 0)
        wrong("forged-work", what, " per call are recorded as ", said, ", but the problem has ",
              exact ? "" : "at most ", is);
    };
    if (r.sequences != whole.batch)
      wrong("forged-work", "sequences per call are recorded as ", r.sequences, ", but the problem has ", whole.batch);
    judge("tokens", r.tokens, tokens);
    if (r.queries != r.tokens * whole.heads_q)
      wrong("forged-work", "queries per call are recorded as ", r.queries, ", but tokens times heads are ",
            r.tokens * whole.heads_q);
  }

  void rates() const {
    if (r.median_ns <= 0) return;
    const auto judge = [&](const char* what, double said, double amount, const char* unit) {
      if (!near(said, amount / r.median_ns, 1e-4))
        wrong("forged-rate", said, " ", unit, " are recorded, but ", what, " divided by the median give ",
              amount / r.median_ns);
    };
    judge("flops", r.gflops, r.flops, "GFLOP/s");
    judge("bytes", r.gbs, r.bytes, "GB/s");
    judge("sequences", r.sequences_s, 1e9 * r.sequences, "sequences/s");
    judge("tokens", r.tokens_s, 1e9 * r.tokens, "tokens/s");
    judge("queries", r.queries_s, 1e9 * r.queries, "queries/s");
  }

  void roofline() const {
    if (r.ceiling_gflops <= 0 && r.copy_gbs <= 0)
      return caution("missing-roofline", "no ceiling of the machine was measured, so the rate cannot be judged");
    if (r.status == RecordStatus::refused) return;
    Record again = r;
    if (line.extract) again.samples_ns.assign(1, r.median_ns);
    derive(again);
    if (again.status == RecordStatus::refused)
      wrong(again.near_floor ? "enqueue-only" : "above-roofline", too_fast(again));
    else if (!r.peer && r.floor_ns > 0 && r.median_ns < 0.5 * r.floor_ns)
      wrong("enqueue-only", "the median is below half of an empty call: the timer did not wait for the work");
  }

  void parity() const {
    const Checked& c = r.parity;
    if (c.verdict == CheckVerdict::fail)
      return wrong("forged-parity", "status ok, but the result was wrong (", c.message, ")");
    Problem p;
    const bool excused = is_problem(p) && !can_draw(whole_problem(p)).ok();
    if (c.verdict == CheckVerdict::unchecked && excused)
      return caution("skipped-parity", "the result was not checked: ", c.message);
    if (c.verdict == CheckVerdict::empty)
      return caution("skipped-parity", "the check compared nothing: ", c.message);
    if (c.verdict != CheckVerdict::pass || (c.rows < 1 && !line.extract))
      return wrong("skipped-parity", "the result was not checked (",
                   c.verdict == CheckVerdict::none ? "no verdict" : c.verdict.text(), ", ", c.rows,
                   " rows); a skipped check is not a pass");
    if (!(c.error <= 1)) wrong("forged-parity", "verdict PASS with an error of ", c.error, " times the tolerance");
  }

  void place() const {
    if (is_gpu(r)) {
      const char* what = r.provenance.gpu.empty()        ? "no GPU is named"
                         : r.threads != 0                ? "a number of CPU threads is recorded"
                         : line.extract                  ? nullptr
                         : r.samples_mhz.empty()         ? "no sample has a GPU clock"
                         : r.samples_mhz.size() != r.samples_ns.size() ? "it has more samples than clocks or fewer"
                                                                       : nullptr;
      if (what) wrong("cpu-on-gpu", "the device is ", r.device, ", but ", what);
      Problem p;
      const bool captured = is_problem(p) && !is_ring(p);  // ranks and modules are not; peers may not be
      if (r.version >= 2 && !line.extract && captured && !r.peer && r.kernels.empty() && names_kernels(r.provenance))
        wrong("missing-kernels", "the device is ", r.device, ", but no kernel is named");
    } else if (!r.samples_mhz.empty() || r.threads == 0 || r.mode == "graph") {
      wrong("gpu-on-cpu", "the device is ", r.device, ", but the record has GPU clocks, a GPU's mode or no threads");
    } else if (const Provenance& p = r.provenance; !p.gpu.empty() || !p.gpu_uuid.empty() || p.gpu_memory_bytes ||
                                                    p.gpu_sms || p.gpu_bandwidth_gbs || p.cudnn) {
      wrong("gpu-on-cpu", "the device is ", r.device, ", but the record names a GPU");
    }
    const auto begins = [&](const char* word) { return r.subject.starts_with(word); };
    if (r.version >= 3 && !r.peer && is_gpu(r) && begins("cpu_"))
      wrong("cpu-on-gpu", "the device is ", r.device, ", but the subject is a backend of CPUs");
    if (r.version >= 3 && !r.peer && !is_gpu(r) &&
        (begins("cuda_") || begins("sm80_") || begins("sm90_") || begins("vendor_")))
      wrong("gpu-on-cpu", "the device is ", r.device, ", but the subject is a backend of GPUs");
  }

  // The root mean square of n normal values is off by 1/sqrt(2n) on average; bench looks at up to 4096 of them.
  double room_of_rms(const Problem* p) const {
    if (r.version < 3 || !p || p->keys == KeySource::ragged) return 0.5;
    const double values = std::min(4096.0, double(p->batch) * p->len_q * p->heads_q * p->dim_qk);
    return std::clamp(6 / std::sqrt(2 * values), 0.1, 0.5);
  }

  void inputs(const Problem* p) const {
    if (r.distribution == "zeros")
      return wrong("zero-inputs", "the inputs were zeros, so power and clock are not those of real work");
    if (r.version < 2 || line.extract) return;
    const double expected = r.distribution == "uniform" ? 1 / std::sqrt(3.0) : 1;
    if (!near(r.input_rms, expected, room_of_rms(p)))
      wrong("zero-inputs", "inputs recorded as ", r.distribution, " have a root mean square of ", r.input_rms,
            ", not about ", expected);
  }

  // How sampling ended. Older records do not say what precision was asked for.
  void end() const {
    if (r.version < 3 || line.extract) return;
    const bool cut = r.ended_by == "interrupt";
    if (r.status == RecordStatus::interrupted && !cut)
      wrong("forged-end", "interrupted, but sampling ended by '", r.ended_by, "'");
    if (r.status == RecordStatus::ok && cut) wrong("forged-end", "status ok, but sampling ended by an interrupt");
    const int taken = int(r.samples_ns.size());
    if (r.version >= 4 && (r.most_samples < 1 || taken > r.most_samples))
      wrong("forged-end", taken, " samples are recorded, of at most ", r.most_samples);
    else if (r.version >= 4 && (r.ended_by == "samples") != (taken == r.most_samples) && !cut)
      wrong("forged-end", taken, " samples of at most ", r.most_samples, " are recorded, but sampling ended by '",
            r.ended_by, "'");
    if (r.precision <= 0) wrong("forged-end", "the precision asked for is recorded as ", r.precision);
  }

  void energy() const {
    const double is = r.sustained_watts * r.sustained_ns * 1e-9;
    if (r.joules > 0 && r.sustained_watts > 0 && !near(r.joules, is, 1e-3))
      wrong("forged-energy", r.joules, " J per call are recorded, but power times time give ", is);
  }

  void clock() const {
    if (r.slowed_by.find("thermal") != r.slowed_by.npos || r.slowed_by.find("hardware") != r.slowed_by.npos ||
        r.slowed_by.find("brake") != r.slowed_by.npos)
      wrong("throttled", "the GPU was slowed by ", r.slowed_by);
    const double most = r.provenance.gpu_most_mhz;
    if (most > 0 && r.mhz > 0 && r.mhz < kSlow * most && !clocks_are_set(r.provenance)) {
      const std::string why = r.slowed_by.empty() ? "no reason recorded" : r.slowed_by;
      const bool wrong_one = r.slowed_by.empty() && r.mhz < kThrottled * most;  // NVML is sampled only now and then
      found.push_back({line.number, "throttled", wrong_one,
                       join(r.subject, ": the clock was ", std::round(r.mhz), " of ", most, " MHz: ", why)});
    }
    if (int64_t(32) * r.late_batches > int64_t(r.samples_ns.size()))
      caution("late-launches", "half of the samples may include launch time of the host");
  }

  void all() const {
    status();
    source();
    Problem p;
    const bool readable = is_problem(p);
    BenchRow module;
    const bool is_module = !readable && parse_module_row(r.problem, module).ok();
    if (!readable && !is_module && r.status != RecordStatus::unsupported)
      wrong("bad-problem", "'", r.problem, "' is not a problem line");
    if (r.status == RecordStatus::interrupted) caution("unfinished-row", "the run was interrupted");
    if (!was_timed(r)) return;
    if (const std::string busy = busy_text(r); !busy.empty()) caution("busy-machine", busy);
    if (!line.extract) samples();
    density();
    if (readable) {
      const Problem whole = whole_problem(p);
      cost_of_it(whole), work_of_it(whole);
      if (!line.extract) memory_of_it(whole, cost(whole).bytes);
    }
    if (is_module) work_of_it(module.problem);
    if (is_module && !line.extract) memory_of_it(module.problem, module_cost(module).bytes);
    if (const double is = is_module ? module_cost(module).flops : r.flops; !near(r.flops, is, kDigits))
      wrong("forged-flops", "flops per call are recorded as ", r.flops, ", but the module has ", is);
    rates();
    roofline();
    end();
    if (r.status != RecordStatus::ok) return;
    parity();
    place();
    inputs(readable ? &p : nullptr);
    energy();
    clock();
  }
};

}  // namespace

void audit_record(const Reporter& reporter) { Auditor{reporter}.all(); }

}  // namespace attune
