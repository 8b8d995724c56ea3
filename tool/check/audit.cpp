#include "tool/check/audit.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "core/work.h"
#include "tool/subjects/module_run.h"
#include "tool/subjects/ring_run.h"
#include "tool/check/spot.h"
#include "tool/subjects/workload.h"

namespace attune {
namespace {

constexpr double kRounded = 0.051;    // ns; samples are stored to a tenth of a nanosecond
constexpr double kSlow = 0.75;        // share of the highest clock below which a row is a warning
constexpr double kThrottled = 0.6;    // share below which a row without a recorded reason counts as throttled
constexpr const char* kNames[] = {
    "unreadable",      "missing-field",  "unknown-status",  "no-reason",        "no-samples",     "impossible-sample",
    "copied-samples",  "forged-summary", "forged-rate",     "forged-flops",     "above-roofline", "enqueue-only",
    "missing-roofline", "forged-ceiling", "skipped-parity", "forged-parity",    "cpu-on-gpu",     "gpu-on-cpu",
    "zero-inputs",     "missing-baseline", "slow-baseline", "forged-ratio",     "forged-verdict", "throttled",
    "late-launches",   "unknown-source", "dirty-source",    "bad-time",         "bad-problem",    "unfinished-row",
    "few-samples",     "forged-density", "forged-memory",   "missing-kernels"};

bool near(double a, double b, double relative, double absolute = 0) {
  return std::abs(a - b) <= absolute + relative * std::max(std::abs(a), std::abs(b));
}

bool is_gpu(const Record& r) { return r.device.starts_with("cuda"); }
// An interrupted record counts as far as it got: others of its row are compared with it.
bool was_timed(const Record& r) {
  return r.status == RecordStatus::ok || r.status == RecordStatus::refused ||
         (r.status == RecordStatus::interrupted && !r.samples_ns.empty());
}

// True if the driver could name the kernels of a call: cuFuncGetName needs CUDA 12.3.
bool names_kernels(const Provenance& p) {
  constexpr std::string_view kBefore = "driver for ";
  int major = 0, minor = 0;
  const size_t at = p.cuda.find(kBefore);
  if (at == p.cuda.npos || std::sscanf(p.cuda.c_str() + at + kBefore.size(), "%d.%d", &major, &minor) != 2) return true;
  return std::pair(major, minor) >= std::pair(12, 3);
}

// Checks one record and appends to `found`.
struct Auditor {
  const Line& line;
  const Record& r;
  std::vector<Finding>& found;

  template <class... T>
  void wrong(const char* name, const T&... sentence) const {
    found.push_back({line.number, name, true, join(r.subject, ": ", sentence...)});
  }
  template <class... T>
  void caution(const char* name, const T&... sentence) const {
    found.push_back({line.number, name, false, join(r.subject, ": ", sentence...)});
  }

  void status() const {
    if (r.status == RecordStatus::other)
      wrong("unknown-status", "status '", r.status.text(), "' is not one of ok, unsupported, oom, failed, ",
            "interrupted, refused");
    else if (r.status != RecordStatus::ok && r.status != RecordStatus::interrupted && r.message.empty())
      wrong("no-reason", "status ", r.status.text(), " without a message");
  }

  void source() const {
    const Provenance& p = r.provenance;
    const std::string& t = p.time;
    const bool shaped = t.size() == 20 && t[4] == '-' && t[7] == '-' && t[10] == 'T' && t[13] == ':' && t[16] == ':' &&
                        t[19] == 'Z';
    if (!shaped) wrong("bad-time", "time '", t, "' does not have the form 2026-01-31T12:00:00Z");
    if (p.commit.empty() || p.commit == "unknown") caution("unknown-source", "the commit of its sources is unknown");
    if (p.dirty) caution("dirty-source", "built from uncommitted changes");
  }

  void samples() const {
    const std::vector<double>& all = r.samples_ns;
    if (all.empty()) return wrong("no-samples", "status ", r.status.text(), " without samples");
    for (const double s : all)
      if (!(s > 0) || !std::isfinite(s)) return wrong("impossible-sample", "a sample of ", s, " ns");
    if (int(all.size()) < kFewestSamples)
      caution("few-samples", "the median of only ", all.size(), all.size() == 1 ? " sample" : " samples", "; 95 % ",
              "confidence needs ", kFewestSamples);
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
    if (std::abs(r.outliers.total() - again.outliers.total()) > 2)  // rounding may move a sample across a fence
      off("the number of outliers", r.outliers.total(), again.outliers.total());
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
    const Cost c = cost(p);
    const bool exact = p.keys == KeySource::linear && !p.mask.blocks.q && p.mask.align != Align::absolute &&
                       word(p.variant).empty() && !p.has(Option::append);
    const auto judge = [&](const char* what, double said, double is) {
      if (exact ? !near(said, is, 1e-6) : said > 1.001 * is)
        wrong("forged-flops", what, " per call are recorded as ", said, ", but the problem has ",
              exact ? "" : "at most ", is);
    };
    judge("flops", r.flops, c.flops);
    if (exact) judge("bytes", r.bytes, c.bytes);
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
  }

  void roofline() const {
    if (r.ceiling_gflops <= 0 && r.copy_gbs <= 0)
      return caution("missing-roofline", "no ceiling of the machine was measured, so the rate cannot be judged");
    if (r.status == RecordStatus::refused) return;
    Record again = r;
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
    const bool excused = parse(r.problem, p).ok() && !can_draw(whole_problem(p)).ok();
    if (c.verdict == CheckVerdict::unchecked && excused)
      return caution("skipped-parity", "the result was not checked: ", c.message);
    if (c.verdict != CheckVerdict::pass || c.rows < 1)
      return wrong("skipped-parity", "the result was not checked (",
                   c.verdict == CheckVerdict::none ? "no verdict" : c.verdict.text(), ", ", c.rows,
                   " rows); a skipped check is not a pass");
    if (!(c.error <= 1)) wrong("forged-parity", "verdict PASS with an error of ", c.error, " times the tolerance");
  }

  void place() const {
    if (is_gpu(r)) {
      const char* what = r.provenance.gpu.empty()        ? "no GPU is named"
                         : r.threads != 0                ? "a number of CPU threads is recorded"
                         : r.samples_mhz.empty()         ? "no sample has a GPU clock"
                         : r.samples_mhz.size() != r.samples_ns.size() ? "it has more samples than clocks or fewer"
                                                                       : nullptr;
      if (what) wrong("cpu-on-gpu", "the device is ", r.device, ", but ", what);
      Problem p;
      const bool captured = parse(r.problem, p).ok() && !is_ring(p);  // ranks and modules are not; peers may not be
      if (r.version >= 2 && captured && !r.peer && r.kernels.empty() && names_kernels(r.provenance))
        wrong("missing-kernels", "the device is ", r.device, ", but no kernel is named");
    } else if (!r.samples_mhz.empty() || r.threads == 0) {
      wrong("gpu-on-cpu", "the device is ", r.device, ", but the record has GPU clocks or no threads");
    }
  }

  void inputs() const {
    if (r.distribution == "zeros")
      return wrong("zero-inputs", "the inputs were zeros, so power and clock are not those of real work");
    if (r.version < 2) return;
    const double expected = r.distribution == "uniform" ? 1 / std::sqrt(3.0) : 1;
    if (!near(r.input_rms, expected, 0.5))
      wrong("zero-inputs", "inputs recorded as ", r.distribution, " have a root mean square of ", r.input_rms,
            ", not about ", expected);
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
    if (2 * 16 * r.late_batches > int(r.samples_ns.size()))
      caution("late-launches", "half of the samples may include launch time of the host");
  }

  void all() const {
    status();
    source();
    Problem p;
    const bool readable = parse(r.problem, p).ok();
    BenchRow module;
    const bool is_module = !readable && parse_module_row(r.problem, module).ok();
    if (!readable && !is_module && r.status != RecordStatus::unsupported)
      wrong("bad-problem", "'", r.problem, "' is not a problem line");
    if (r.status == RecordStatus::interrupted) caution("unfinished-row", "the run was interrupted");
    if (!was_timed(r)) return;
    samples();
    density();
    if (readable) {
      const Problem whole = whole_problem(p);
      cost_of_it(whole);
      memory_of_it(whole, cost(whole).bytes);
    }
    if (is_module) memory_of_it(module.problem, module_cost(module).bytes);
    if (const double is = is_module ? module_cost(module).flops : r.flops; !near(r.flops, is, 1e-6))
      wrong("forged-flops", "flops per call are recorded as ", r.flops, ", but the module has ", is);
    rates();
    roofline();
    if (r.status != RecordStatus::ok) return;
    parity();
    place();
    inputs();
    clock();
  }
};

// The records of one row are adjacent. Files may be concatenated, so a repeated subject begins another row.
std::span<const Line> row_at(std::span<const Line> lines, size_t first) {
  const std::string key = row_key(lines[first].record);
  std::set<std::string> subjects;
  size_t last = first;
  const auto is_next = [&](const Record& r) { return row_key(r) == key && subjects.insert(r.subject).second; };
  while (last < lines.size() && is_next(lines[last].record)) ++last;
  return lines.subspan(first, last - first);
}

// Checks a claim about a baseline: the row has it, it was timed, it is the fastest peer, and the ratio follows from the
// samples of both.
void audit_ratio(const Auditor& a, std::span<const Line> row) {
  const Record& r = a.r;
  if (r.baseline.empty()) {
    if (!r.verdict.empty()) a.wrong("missing-baseline", "verdict ", r.verdict, " without a baseline");
    return;
  }
  const Record *base = nullptr, *best = nullptr;
  for (const Line& other : row) {
    const Record& o = other.record;
    if (!was_timed(o) || o.samples_ns.empty()) continue;
    if (o.subject == r.baseline) base = &o;
    if (o.peer && o.status == RecordStatus::ok && (!best || o.median_ns < best->median_ns)) best = &o;
  }
  if (!base) return a.wrong("missing-baseline", "the baseline ", r.baseline, " was not measured in the same row");
  if (base->parity.verdict == CheckVerdict::fail)
    a.wrong("slow-baseline", "the baseline ", r.baseline, " computed a wrong result");
  const bool resampled = r.version < 3;
  const Ratio again = (resampled ? resampled_ratio : median_ratio)(base->samples_ns, r.samples_ns);
  if (!near(r.ratio.value, again.value, 2e-3)) {
    a.wrong("forged-ratio", "recorded as ", r.ratio.value, " times as fast as ", r.baseline,
            ", but the samples of both give ", again.value);
  } else {
    const double room = 2e-3 + 0.25 * (again.interval.high - again.interval.low);  // stored samples are rounded
    if (!near(r.ratio.interval.low, again.interval.low, 0, room) ||
        !near(r.ratio.interval.high, again.interval.high, 0, room))
      a.wrong("forged-ratio", "the interval of the ratio is recorded as ", r.ratio.interval.low, " to ",
              r.ratio.interval.high, ", but the samples of both give ", again.interval.low, " to ",
              again.interval.high);
    else if (!resampled && !near(r.ratio.interval.confidence, again.interval.confidence, 1e-6))
      a.wrong("forged-ratio", "the confidence of the ratio is recorded as ", r.ratio.interval.confidence,
              ", but the samples of both give ", again.interval.confidence);
  }
  if (const std::string is = name(verdict(r.ratio, 0.01, r.aa_spread, resampled ? 0 : kConfidence)); is != r.verdict)
    a.wrong("forged-verdict", "recorded as ", r.verdict, ", but the ratio and the A/A spread give ", is);
  if (best && base->peer && best != base && best->median_ns < base->median_ns / (1.01 + r.aa_spread.value_or(0))) {
    const bool changes = r.verdict == "FASTER" && best->median_ns < r.median_ns && best != &r;
    if (changes)
      a.wrong("slow-baseline", "FASTER than ", r.baseline, ", but slower than ", best->subject, " in the same row");
    else
      a.caution("slow-baseline", "the baseline is ", r.baseline, ", but ", best->subject,
                " was the faster peer in the same row");
  }
}

// Ceilings are measured once per run, so a row whose ceilings differ was edited.
void audit_ceilings(std::span<const Line> lines, std::vector<Finding>& found) {
  std::map<std::string, const Record*> first;
  for (const Line& l : lines) {
    const Record& r = l.record;
    if (r.run.empty() || !was_timed(r)) continue;
    const std::string key = join(r.run, "|", r.device, "|", r.threads, "|", timing_text(r), "|", r.ceiling);
    const auto [it, is_new] = first.emplace(key, &r);
    if (is_new) continue;
    const Record& one = *it->second;
    if (!near(one.ceiling_gflops, r.ceiling_gflops, 1e-9) || !near(one.copy_gbs, r.copy_gbs, 1e-9))
      found.push_back({l.number, "forged-ceiling", true,
                       join(r.subject, ": the ceilings are ", r.ceiling_gflops, " GFLOP/s and ", r.copy_gbs,
                            " GB/s, but other rows of the run have ", one.ceiling_gflops, " and ", one.copy_gbs)});
  }
}

void audit_copies(std::span<const Line> lines, std::vector<Finding>& found) {
  std::map<std::vector<double>, const Line*> seen;
  for (const Line& l : lines) {
    const auto& samples = l.record.samples_ns;
    if (samples.size() < 5 || std::all_of(samples.begin(), samples.end(), [&](double s) { return s == samples[0]; }))
      continue;
    const auto [it, is_new] = seen.emplace(samples, &l);
    if (!is_new)
      found.push_back({l.number, "copied-samples", true,
                       join(l.record.subject, ": the samples are those of line ", it->second->number)});
  }
}

}  // namespace

std::string row_key(const Record& r) {
  return join(r.run, "|", r.problem, "|", r.pattern, "|", r.device, "|", timing_text(r), "|", r.threads, "|", r.layout,
              "|", r.distribution, "|", r.seed);
}

bool audit_line(std::string_view text, Line& out, std::vector<Finding>& found) {
  const auto no = [&](const char* name, std::string sentence) {
    found.push_back({out.number, name, true, std::move(sentence)});
    return false;
  };
  if (const Status s = from_json(text, out.record); !s.ok()) return no("unreadable", s.message);
  constexpr const char* kFields[] = {"status",    "problem",     "subject", "device", "mode",   "samples_ns",
                                     "median_ns", "interval_ns", "flops",   "bytes",  "parity", "provenance",
                                     "run",       "row_records", "input_rms", "kernels"};
  constexpr size_t kOfFirst = 12;  // in version 1
  const std::span<const char* const> fields(kFields, out.record.version >= 2 ? std::size(kFields) : kOfFirst);
  if (const size_t n = first_missing(text, fields); n < fields.size())
    return no("missing-field", join("record: field ", fields[n], " is missing",
                                    n < kOfFirst ? "" : join(" in version ", out.record.version)));
  return true;
}

void audit(std::span<const Line> lines, std::vector<Finding>& found) {
  for (size_t first = 0; first < lines.size();) {
    const std::span<const Line> row = row_at(lines, first);
    for (const Line& l : row) {
      const Auditor a{l, l.record, found};
      a.all();
      if (was_timed(l.record)) audit_ratio(a, row);
    }
    if (const Record& r = row[0].record; int(row.size()) < r.row_records)
      Auditor{row[0], r, found}.caution("unfinished-row", "only ", row.size(), " of ", r.row_records,
                                        " records of the row are present");
    first += row.size();
  }
  audit_ceilings(lines, found);
  audit_copies(lines, found);
  std::stable_sort(found.begin(), found.end(), [](const Finding& a, const Finding& b) { return a.line < b.line; });
}

Status audit_file(const std::string& path, std::vector<Line>& lines, std::vector<Finding>& found) {
  std::ifstream file(path);
  if (!file) return Status::no("'", path, "' cannot be read: ", std::strerror(errno));
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    const bool unfinished = file.eof();
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    Line line{.number = number};
    std::vector<Finding> of_line;
    if (audit_line(text, line, of_line)) lines.push_back(std::move(line));
    else if (unfinished) found.push_back({number, "unfinished-row", false, "the last line is incomplete"});
    else found.insert(found.end(), of_line.begin(), of_line.end());
  }
  if (file.bad()) return Status::no("'", path, "' cannot be read: ", std::strerror(errno));
  audit(lines, found);
  return Status::good();
}

std::vector<std::string> finding_names() { return {std::begin(kNames), std::end(kNames)}; }

}  // namespace attune
