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

constexpr double kRounded = 0.051;    // ns: samples are kept to a tenth of one
constexpr double kSlow = 0.75;        // of the highest clock: below it, care is called for
constexpr double kThrottled = 0.6;    // and below this, where nobody says why, it was throttled
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
bool is_peer(const Record& r) { return r.why.starts_with("a peer"); }
// An interrupted one as far as it came: others of its row are compared with it.
bool was_timed(const Record& r) {
  return r.status == "ok" || r.status == "refused" || (r.status == "interrupted" && !r.samples_ns.empty());
}

// Whether the driver could say what a call launches: cuFuncGetName is of CUDA 12.3.
bool names_kernels(const Provenance& p) {
  constexpr std::string_view kBefore = "driver for ";
  int major = 0, minor = 0;
  const size_t at = p.cuda.find(kBefore);
  if (at == p.cuda.npos || std::sscanf(p.cuda.c_str() + at + kBefore.size(), "%d.%d", &major, &minor) != 2) return true;
  return std::pair(major, minor) >= std::pair(12, 3);
}

// One record and where its findings go.
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
    constexpr std::string_view kKnown[] = {"ok", "unsupported", "oom", "failed", "interrupted", "refused"};
    if (std::find(std::begin(kKnown), std::end(kKnown), r.status) == std::end(kKnown))
      wrong("unknown-status", "the status '", r.status, "' is not one of ok, unsupported, oom, failed, interrupted, ",
            "refused");
    else if (r.status != "ok" && r.status != "interrupted" && r.message.empty())
      wrong("no-reason", "the status is ", r.status, " and no sentence says why");
  }

  void source() const {
    const Provenance& p = r.provenance;
    const std::string& t = p.time;
    const bool shaped = t.size() == 20 && t[4] == '-' && t[7] == '-' && t[10] == 'T' && t[13] == ':' && t[16] == ':' &&
                        t[19] == 'Z';
    if (!shaped) wrong("bad-time", "the time '", t, "' is not like 2026-01-31T12:00:00Z");
    if (p.commit.empty() || p.commit == "unknown") caution("unknown-source", "no commit says what was measured");
    if (p.dirty) caution("dirty-source", "it was built from changed files, which no commit names");
  }

  void samples() const {
    const std::vector<double>& all = r.samples_ns;
    if (all.empty()) return wrong("no-samples", "it is said to be measured and has no samples");
    for (const double s : all)
      if (!(s > 0) || !std::isfinite(s)) return wrong("impossible-sample", "a sample of ", s, " ns");
    if (all.size() < 3) caution("few-samples", "a median of ", all.size(), all.size() == 1 ? " sample" : " samples");
    const bool same = std::all_of(all.begin(), all.end(), [&](double s) { return s == all[0]; });
    if (same && all.size() >= 10) {
      if (is_gpu(r)) caution("copied-samples", "all ", all.size(), " samples are the same");
      else wrong("copied-samples", "all ", all.size(), " samples are the same, which no clock of a CPU shows");
    }
    summary();
  }

  void summary() const {
    Record again = r;
    derive(again);
    const auto off = [&](const char* what, double said, double is) {
      wrong("forged-summary", what, " is said to be ", said, ", its samples give ", is);
    };
    if (!near(r.median_ns, again.median_ns, 1e-9, kRounded)) off("the median", r.median_ns, again.median_ns);
    if (!near(r.interval.low, again.interval.low, 1e-9, kRounded))
      off("the lower end of the interval", r.interval.low, again.interval.low);
    if (!near(r.interval.high, again.interval.high, 1e-9, kRounded))
      off("the upper end of the interval", r.interval.high, again.interval.high);
    if (!near(r.interval.confidence, again.interval.confidence, 1e-6))
      off("the confidence", r.interval.confidence, again.interval.confidence);
    if (std::abs(r.outliers.total() - again.outliers.total()) > 2)  // samples at a fence may round across it
      off("the number of outliers", r.outliers.total(), again.outliers.total());
    if (!r.samples_mhz.empty() && !near(r.mhz, again.mhz, 0, 1)) off("the clock", r.mhz, again.mhz);
    const bool at_the_edge = near(r.median_ns, 5 * r.floor_ns, 1e-3, kRounded);
    if (r.near_floor != again.near_floor && !at_the_edge) off("near_floor", r.near_floor, again.near_floor);
    if (r.version >= 2 && r.modes != again.modes) off("the number of their peaks", r.modes, again.modes);
  }

  void density() const {
    const double is = r.shown_blocks > 0 ? double(r.active_blocks) / double(r.shown_blocks) : 0;
    if (r.active_blocks < 0 || r.active_blocks > r.shown_blocks)
      wrong("forged-density", r.active_blocks, " blocks are said to be active, of ", r.shown_blocks, " that are shown");
    else if (!near(r.density, is, 1e-9))
      wrong("forged-density", "the density is said to be ", r.density, ", and ", r.active_blocks, " of ",
            r.shown_blocks, " blocks are ", is);
  }

  // Bytes that follow from the line. `tensors`: of a module its own.
  void memory_of_it(const Problem& whole, double tensors) const {
    if (r.version < 2) return;
    const auto judge = [&](const char* what, double said, double is) {
      if (!near(said, is, 1e-6))
        wrong("forged-memory", what, " are said to be ", said, " bytes, its problem has ", is);
    };
    judge("inputs and outputs", r.tensor_bytes, tensors);
    judge("scores", r.scores_bytes, scores_bytes(whole));
    if (r.cache_bytes != 0) judge("keys and values", r.cache_bytes, cache_bytes(whole));  // not in every record
  }

  // Flops and bytes from the line, where they follow from it alone; else no more than its bounds allow.
  void cost_of_it(const Problem& p) const {
    const Cost c = cost(p);
    const bool exact = p.keys == KeySource::linear && !p.mask.blocks.q && p.mask.align != Align::absolute &&
                       word(p.variant).empty() && !p.has(Option::append);
    const auto judge = [&](const char* what, double said, double is) {
      if (exact ? !near(said, is, 1e-6) : said > 1.001 * is)
        wrong("forged-flops", what, " of a call are said to be ", said, ", its problem has ",
              exact ? "" : "at most ", is);
    };
    judge("flops", r.flops, c.flops);
    if (exact) judge("bytes", r.bytes, c.bytes);
  }

  void rates() const {
    if (r.median_ns <= 0) return;
    const auto judge = [&](const char* what, double said, double amount, const char* unit) {
      if (!near(said, amount / r.median_ns, 1e-4))
        wrong("forged-rate", said, " ", unit, " are claimed, and ", what, " by its median is ", amount / r.median_ns);
    };
    judge("flops", r.gflops, r.flops, "GFLOP/s");
    judge("bytes", r.gbs, r.bytes, "GB/s");
  }

  void roofline() const {
    if (r.ceiling_gflops <= 0 && r.copy_gbs <= 0)
      return caution("missing-roofline", "no ceiling of the machine was measured: nothing says whether it can be true");
    if (r.status == "refused") return;
    Record again = r;
    derive(again);
    if (again.status == "refused")
      wrong(again.near_floor ? "enqueue-only" : "above-roofline", again.message.substr(again.subject.size() + 2));
    else if (!is_peer(r) && r.floor_ns > 0 && r.median_ns < 0.5 * r.floor_ns)
      wrong("enqueue-only", "its median is half of an empty call: the work was not waited for");
  }

  void parity() const {
    const Checked& c = r.parity;
    if (c.verdict == "FAIL") return wrong("forged-parity", "its result was wrong (", c.message, "): it is not ok");
    Problem p;
    const bool excused = c.message.find("cannot be drawn") != c.message.npos && parse(r.problem, p).ok() &&
                         !can_draw(whole_problem(p)).ok();
    if (c.verdict == "UNCHECKED" && excused)
      return caution("skipped-parity", "its result was not checked: ", c.message);
    if (c.verdict != "PASS" || c.rows < 1)
      return wrong("skipped-parity", "its result was not checked (", c.verdict.empty() ? "no verdict" : c.verdict, ", ",
                   c.rows, " rows), and a skip is not a pass");
    if (!(c.error <= 1)) wrong("forged-parity", "an error of ", c.error, " times what is allowed passes");
  }

  void place() const {
    if (is_gpu(r)) {
      const char* what = r.provenance.gpu.empty()        ? "no GPU is named"
                         : r.threads != 0                ? "it says how many threads of a CPU it had"
                         : r.samples_mhz.empty()         ? "no sample has the clock of a GPU"
                         : r.samples_mhz.size() != r.samples_ns.size() ? "samples and clocks are not as many" : nullptr;
      if (what) wrong("cpu-on-gpu", "the row is of ", r.device, ", and ", what);
      Problem p;
      const bool captured = parse(r.problem, p).ok() && !is_ring(p);  // neither ranks nor modules are; peers may not be
      if (r.version >= 2 && captured && !is_peer(r) && r.kernels.empty() && names_kernels(r.provenance))
        wrong("missing-kernels", "the row is of ", r.device, ", and no kernel of a call is named");
    } else if (!r.samples_mhz.empty() || r.threads == 0) {
      wrong("gpu-on-cpu", "the row is of ", r.device, ", and has the clock of a GPU or no thread");
    }
  }

  void inputs() const {
    if (r.distribution == "zeros")
      return wrong("zero-inputs", "its inputs were zeros: power, and so the clock, is not that of real work");
    if (r.version < 2) return;
    const double expected = r.distribution == "uniform" ? 1 / std::sqrt(3.0) : 1;
    if (!near(r.input_rms, expected, 0.5))
      wrong("zero-inputs", "values said to be ", r.distribution, " have a root mean square of ", r.input_rms,
            ", and not about ", expected);
  }

  void clock() const {
    if (r.slowed_by.find("thermal") != r.slowed_by.npos || r.slowed_by.find("hardware") != r.slowed_by.npos ||
        r.slowed_by.find("brake") != r.slowed_by.npos)
      wrong("throttled", "the GPU was slowed by ", r.slowed_by);
    const double most = r.provenance.gpu_most_mhz;
    const bool set = r.provenance.clocks.find("set by") != std::string::npos;
    if (most > 0 && r.mhz > 0 && r.mhz < kSlow * most && !set) {
      const std::string why = r.slowed_by.empty() ? "nothing says why" : r.slowed_by;
      const bool wrong_one = r.slowed_by.empty() && r.mhz < kThrottled * most;  // NVML is asked only now and then
      found.push_back({line.number, "throttled", wrong_one,
                       join(r.subject, ": its clock was ", std::round(r.mhz), " of ", most, " MHz: ", why)});
    }
    if (2 * 16 * r.late_batches > int(r.samples_ns.size()))
      caution("late-launches", "launches of the host may be in half of its samples");
  }

  void all() const {
    status();
    source();
    Problem p;
    const bool readable = parse(r.problem, p).ok();
    BenchRow module;
    const bool is_module = !readable && parse_module_row(r.problem, module).ok();
    if (!readable && !is_module && r.status != "unsupported")
      wrong("bad-problem", "'", r.problem, "' is not a problem line");
    if (r.status == "interrupted") caution("unfinished-row", "its run was interrupted");
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
      wrong("forged-flops", "flops of a call are said to be ", r.flops, ", its module has ", is);
    rates();
    roofline();
    if (r.status != "ok") return;
    parity();
    place();
    inputs();
    clock();
  }
};

// The records of one row are written together. Files may be joined, so a subject that comes again begins another row.
std::span<const Line> row_at(std::span<const Line> lines, size_t first) {
  const std::string key = row_key(lines[first].record);
  std::set<std::string> subjects;
  size_t last = first;
  const auto is_next = [&](const Record& r) { return row_key(r) == key && subjects.insert(r.subject).second; };
  while (last < lines.size() && is_next(lines[last].record)) ++last;
  return lines.subspan(first, last - first);
}

// What a row claims of another one: the baseline is there, was timed, is the best that was, and the ratio is theirs.
void audit_ratio(const Auditor& a, std::span<const Line> row) {
  const Record& r = a.r;
  if (r.baseline.empty()) {
    if (!r.verdict.empty()) a.wrong("missing-baseline", "it is ", r.verdict, " than nothing that is named");
    return;
  }
  const Record *base = nullptr, *best = nullptr;
  for (const Line& other : row) {
    const Record& o = other.record;
    if (!was_timed(o) || o.samples_ns.empty()) continue;
    if (o.subject == r.baseline) base = &o;
    if (is_peer(o) && o.status == "ok" && (!best || o.median_ns < best->median_ns)) best = &o;
  }
  if (!base) return a.wrong("missing-baseline", "its baseline ", r.baseline, " was not measured in the same row");
  if (base->parity.verdict == "FAIL") a.wrong("slow-baseline", "its baseline ", r.baseline, " computed a wrong result");
  const Ratio again = median_ratio(base->samples_ns, r.samples_ns);
  if (!near(r.ratio.value, again.value, 2e-3)) {
    a.wrong("forged-ratio", "it is said to be ", r.ratio.value, " times as fast as ", r.baseline,
            ", and the samples of both give ", again.value);
  } else {
    const double room = 2e-3 + 0.25 * (again.interval.high - again.interval.low);  // samples were rounded since
    if (!near(r.ratio.interval.low, again.interval.low, 0, room) ||
        !near(r.ratio.interval.high, again.interval.high, 0, room))
      a.wrong("forged-ratio", "the interval of its ratio is said to be ", r.ratio.interval.low, " to ",
              r.ratio.interval.high, ", and the samples of both give ", again.interval.low, " to ",
              again.interval.high);
  }
  if (const std::string is = name(verdict(r.ratio, 0.01, r.aa_spread)); is != r.verdict)
    a.wrong("forged-verdict", "it is said to be ", r.verdict, " and its ratio and the A/A spread say ", is);
  if (best && is_peer(*base) && best != base && best->median_ns < base->median_ns / (1.01 + r.aa_spread)) {
    const bool changes = r.verdict == "FASTER" && best->median_ns < r.median_ns && best != &r;
    if (changes)
      a.wrong("slow-baseline", "it is FASTER than ", r.baseline, ", and slower than ", best->subject,
              " in the same row");
    else
      a.caution("slow-baseline", "its ratio is to ", r.baseline, ", and ", best->subject,
                " was the faster peer in the same row");
  }
}

// The machine's ceilings are measured once for a run: a row with others of its own was given them.
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
                       join(r.subject, ": its ceilings are ", r.ceiling_gflops, " GFLOP/s and ", r.copy_gbs,
                            " GB/s, and other rows of its run have ", one.ceiling_gflops, " and ", one.copy_gbs)});
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
                       join(l.record.subject, ": its samples are those of line ", it->second->number)});
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
    return no("missing-field", join("record: the field ", fields[n], " is missing",
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
      Auditor{row[0], r, found}.caution("unfinished-row", row.size(), " of ", r.row_records,
                                        " records of its row are here");
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
    else if (unfinished) found.push_back({number, "unfinished-row", false, "the last line is not whole"});
    else found.insert(found.end(), of_line.begin(), of_line.end());
  }
  if (file.bad()) return Status::no("'", path, "' cannot be read: ", std::strerror(errno));
  audit(lines, found);
  return Status::good();
}

std::vector<std::string> finding_names() { return {std::begin(kNames), std::end(kNames)}; }

}  // namespace attune
