// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/asked.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <set>

#include "machine/host.h"
#include "plan/plan.h"
#include "tool/bench/suites.h"
#include "tool/line.h"
#include "tool/machine.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr double kBurstRest = 200, kSustainedHeat = 1000;  // ms

// The timing modes of each row. The default on a GPU is cold: in practice, keys are rarely in its cache.
Status modes_of(const AskedBench& asked, bool gpu, std::vector<Mode>& out) {
  for (const std::string& word : asked.modes) {
    Mode mode;
    if (Status s = parse(word, mode); !s.ok()) return s;
    out.push_back(mode);
  }
  if (asked.warm) out.push_back(Mode::warm);
  if (asked.cold) out.push_back(Mode::cold);
  if (out.empty()) out.push_back(gpu ? Mode::cold : Mode::warm);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  if (!gpu && out.back() == Mode::graph)
    return Status::no("--timing: graph given with --device ", asked.device, "; graph needs a GPU");
  return Status::good();
}

// "200" calls, or "2s" and "50ms".
Status warm_up_of(const std::string& text, TimingSettings& out) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string_view unit = end;
  constexpr double kMostCalls = 1e6, kMostSeconds = 3600;
  const double scale = unit == "s" ? 1 : unit == "ms" ? 1e-3 : 0;
  const bool calls = unit.empty() && value == std::floor(value) && value >= 0 && value <= kMostCalls;
  if (end == text.c_str() || (!calls && !(scale > 0 && value >= 0 && value * scale <= kMostSeconds)))
    return Status::no("--warm-up: '", text, "' is neither a number of calls to ", kMostCalls,
                      " nor a time to an hour, such as 2s or 50ms");
  out.warm_up_all = true;
  calls ? void(out.warm_up_calls = int(value)) : void(out.warm_up_seconds = value * scale);
  return Status::good();
}

// "2/4": keeps the rows 2, 6, 10, ..., so that neighbours, which take similar time, go to different machines.
Status keep_share(const AskedBench& asked, std::vector<BenchRow>& rows) {
  if (asked.share.empty()) return Status::good();
  size_t part = 0, parts = 0;
  const char* const end = asked.share.data() + asked.share.size();
  auto at = std::from_chars(asked.share.data(), end, part);
  const bool slash = at.ec == std::errc() && at.ptr != end && *at.ptr == '/';
  if (slash) at = std::from_chars(at.ptr + 1, end, parts);
  if (!slash || at.ec != std::errc() || at.ptr != end || part < 1 || part > parts)
    return Status::no("--share: '", in_one_line(asked.share), "' is not a part such as 2/4, the second of four");
  if (!asked.base.empty()) return Status::no("--share: not accepted with --base, which compares rows with each other");
  const size_t all = rows.size();
  size_t n = 0;
  std::erase_if(rows, [&](const BenchRow&) { return n++ % parts != part - 1; });
  return rows.empty() ? Status::no("--share: ", asked.share, " of ", all, " rows is none") : Status::good();
}

}  // namespace

Status rows_asked(const AskedBench& asked, std::vector<BenchRow>& out) {
  for (const std::string& line : lines_of(asked.lines)) {
    BenchRow row;
    if (Status s = parse_bench_row(line, row); !s.ok()) {
      if (const std::string module = meant_module(line); !module.empty()) s.message = module;
      return s.message += caret_below(line), s;
    }
    out.push_back(row);
  }
  if (!asked.suite.empty())
    if (Status s = suite_rows(asked.suite, out); !s.ok()) return s;
  if (!asked.file.empty())
    if (Status s = problems_in(asked.file, out); !s.ok()) return s;
  const bool by_axes = asked.lines.empty() && asked.file.empty() && asked.suite.empty();
  if (Status s = by_axes ? problems_of(asked.axes, out) : keep_rows(asked.axes, asked.axes_given, out); !s.ok())
    return s;
  // A row is identified by its line, so duplicates are dropped: a resumed run would count the second one as done.
  std::set<std::string> seen;
  std::erase_if(out, [&](const BenchRow& row) { return !seen.insert(name(row)).second; });
  return keep_share(asked, out);
}

Status benches_asked(const AskedBench& asked, std::vector<Bench>& out, Exit& code) {
  Bench common;
  if (const BenchSuite* suite = find_suite(asked.suite)) {
    if (suite->all_backends) common.backends = {"all"};
    if (suite->samples) common.timing.min_samples = suite->samples;
    common.timing.warm_up_calls = suite->warm_up_calls;
    if (suite->max_seconds > 0) common.timing.max_seconds = suite->max_seconds;
    if (suite->min_early) common.timing.min_early = suite->min_early;
    common.beside = suite->beside;
  }
  if (asked.samples) {
    common.timing.min_samples = common.timing.max_samples = asked.samples;
    common.timing.min_early = std::min(common.timing.min_early, asked.samples);
  }
  if (!asked.warm_up.empty())
    if (Status s = warm_up_of(asked.warm_up, common.timing); !s.ok()) return s;
  if (asked.max_seconds) common.timing.max_seconds = *asked.max_seconds;
  if (!asked.backends.empty()) common.backends.clear();
  code = exit_of_device(asked.device);
  if (Status s = device_named(asked.device, common.device); !s.ok()) return s;
  const bool gpu = common.device.kind == DeviceKind::cuda;
  if (common.device.index < 0 && !asked.dry_run)
    return Status::no("--device: ", asked.device, " is not in this machine; it can be planned for, but not measured");
  code = kUsage;
  for (const std::string& word : asked.backends) {
    if (word != "all" && !find_backend(word))
      return Status::no("--backend: ", not_one_of(word, join("all, ", backend_names())));
    common.backends.push_back(word);
  }
  ForcedBackend forced;
  if (common.backends.empty()) {
    if (Status s = forced_backend({}, forced); !s.ok()) return s;
    if (forced.by_environment) common.backends = {forced.name};
  }
  if (Status s = parse(asked.distribution, common.distribution); !s.ok()) return s;
  if (asked.layout != "bhsd" && asked.layout != "bshd")
    return Status::no("--layout: '", asked.layout, "' is not one of bhsd, bshd");
  constexpr double kHour = 3600;  // a NaN is outside every range
  if (!(asked.timing.precision > 0 && asked.timing.precision <= 0.5))
    return Status::no("--precision: ", asked.timing.precision, " is not above 0 and at most 0.5, half of the median");
  if (!(common.timing.max_seconds > 0 && common.timing.max_seconds <= kHour))
    return Status::no("--max-seconds: ", common.timing.max_seconds, " is not above 0 and at most ", kHour);
  const auto within = [](double x, double most) { return x >= 0 && x <= most; };
  if (!within(asked.energy_seconds, kHour) || (asked.energy_seconds > 0 && !gpu))
    return Status::no("--energy: must be from 0 to 3600 seconds, and needs a GPU");
  for (const auto& [option, ms] : {std::pair("--rest", asked.rest_ms), {"--hot", asked.heat_ms}})
    if (!within(ms.value_or(0), kHour * 1e3))
      return Status::no(option, ": ", *ms, " is not from 0 to 3600000 milliseconds");
  if (asked.burst && asked.rest_ms == 0.0)
    return Status::no("--burst: given with --rest 0; a burst needs a rest before every batch");
  if (asked.sustained && asked.heat_ms == 0.0)
    return Status::no("--sustained: given with --hot 0; it needs work before every batch");
  if (!asked.lengths.empty())
    if (Status s = numbers_of("lengths", asked.lengths, common.lengths); !s.ok()) return s;
  common.layout = asked.layout == "bhsd" ? Layout::bhsd : Layout::bshd;
  common.device_word = asked.device, common.seed = asked.seed, common.check = !asked.no_check;
  common.baseline = std::string(peer_name(asked.baseline)), common.energy_seconds = asked.energy_seconds;
  common.timing.precision = asked.timing.precision;
  common.timing.seed = asked.seed;
  if (gpu && !asked.threads.empty())
    return Status::no("--threads: given with --device ", asked.device, "; it needs a CPU");
  std::vector<int32_t> threads;
  if (Status s = thread_counts(asked.threads, common.device, this_cpu().units, threads); !s.ok()) return s;
  std::vector<Mode> modes;
  if (Status s = modes_of(asked, gpu, modes); !s.ok()) return s;
  struct State { double rest_ms, heat_ms; };  // before every batch of samples; if both are requested, two states
  std::vector<State> states;
  const BenchSuite* const suite = find_suite(asked.suite);
  const double heat_ms = asked.heat_ms.value_or(asked.sustained ? kSustainedHeat : 0);
  const bool as_suite = gpu && suite && heat_ms == 0;
  const double rest_ms = asked.rest_ms.value_or(asked.burst ? kBurstRest : as_suite ? suite->rest_ms : 0);
  if (rest_ms > 0 || heat_ms == 0) states.push_back({rest_ms, 0});
  if (heat_ms > 0) states.push_back({0, heat_ms});
  for (const int32_t n : threads)
    for (const Mode mode : modes)
      for (const State& state : states) {
        Bench b = common;
        b.device.units = n;
        b.mode = mode;
        b.timing.cold = mode == Mode::cold;
        b.timing.rest_seconds = 1e-3 * state.rest_ms, b.timing.heat_seconds = 1e-3 * state.heat_ms;
        out.push_back(std::move(b));
      }
  return Status::good();
}

Status lengths_fit(const std::vector<BenchRow>& rows, const std::vector<int32_t>& lengths) {
  const auto is_ragged = [](const BenchRow& row) { return row.problem.keys == KeySource::ragged; };
  if (!lengths.empty() && !rows.empty() && std::none_of(rows.begin(), rows.end(), is_ragged))
    return Status::no("--lengths: no problem has ragged keys: ", name(rows[0].problem));
  for (const BenchRow& row : rows) {
    const Problem& p = row.problem;
    if (lengths.empty() || !is_ragged(row)) continue;
    if (int(lengths.size()) != p.batch)
      return Status::no("--lengths: ", counted(lengths.size(), "length"), " given for ",
                        counted(p.batch, "sequence"), " of: ", name(p));
    for (const int32_t n : lengths)
      if (n > p.len_q || n > p.len_k) return Status::no("--lengths: ", n, " exceeds the bound of: ", name(p));
  }
  return Status::good();
}

}  // namespace attune
