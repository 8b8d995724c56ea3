// SPDX-License-Identifier: Apache-2.0
// `attune bench`: measures problems given as lines, axes, a file or a suite, and writes one record per subject. Peers
// are timed in the same process: the command then starts itself again inside theirs. A GPU is timed by its own clock,
// see timing/device_timer.h.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "machine/cuda/runtime.h"
#include "machine/host.h"
#include "plan/plan.h"
#include "plan/tuned.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/line.h"
#include "tool/machine.h"
#include "tool/bench/axes.h"
#include "tool/bench/estimate.h"
#include "tool/record/busy.h"
#include "tool/record/plot.h"
#include "tool/record/ranking.h"
#include "tool/record/provenance.h"
#include "tool/bench/suites.h"
#include "tool/bench/sweep.h"
#include "tool/check/signature.h"
#include "tool/files.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr double kBurstRest = 200, kSustainedHeat = 1000;  // ms

struct Asked {
  std::vector<std::string> lines{};
  std::string file{};
  Axes axes{};
  std::vector<std::string> backends{}, peers{}, modes{};
  std::string python{"python3"}, device{"cpu"}, threads{}, layout{"bhsd"}, distribution{"normal"}, out{}, baseline{};
  std::string base{};  // of rows across lines
  std::string sign{};  // a key
  std::string lengths{}, suite{};
  std::vector<std::string> axes_given{};  // names on the command line: "--pass"
  bool cold = false, warm = false, dry_run = false, no_check = false, resume = false;
  bool plot = false, burst = false, sustained = false;
  double energy_seconds = 0;
  std::optional<double> max_seconds{}, rest_ms{}, heat_ms{};  // unset: the suite's value, or the engine's default
  TimingSettings timing{};
  uint32_t seed = 1;
};

std::atomic<bool> interrupted{false};
std::atomic<int> interrupted_by{0};  // the signal

// The first interrupt ends the run and keeps its records so far; a second one ends the process. A hang-up that the
// caller ignores, as nohup does, stays ignored.
struct Interrupts {
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction old[std::size(kSignals)]{};
  Interrupts() {
    struct sigaction action{};
    action.sa_handler = [](int signal) { interrupted_by = signal, interrupted = true, note_interrupt(); };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    for (size_t n = 0; n < std::size(kSignals); ++n) {
      sigaction(kSignals[n], &action, &old[n]);
      if (kSignals[n] == SIGHUP && old[n].sa_handler == SIG_IGN) sigaction(SIGHUP, &old[n], nullptr);
    }
  }
  ~Interrupts() {
    for (size_t n = 0; n < std::size(kSignals); ++n) sigaction(kSignals[n], &old[n], nullptr);
  }
};

Status problems(const Asked& asked, std::vector<BenchRow>& out) {
  for (const std::string& line : lines_of(asked.lines)) {
    BenchRow row;
    if (Status s = parse_row(line, row); !s.ok()) return s;
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
  return Status::good();
}

// The timing modes of each row. The default on a GPU is cold: in practice, keys are rarely in its cache.
Status modes_of(const Asked& asked, bool gpu, std::vector<Mode>& out) {
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

// Settings shared by every row, and one Bench per mode, state and number of threads, because their ceilings differ.
Status benches(const Asked& asked, std::vector<Bench>& out, Exit& code) {
  Bench common;
  if (const BenchSuite* suite = find_suite(asked.suite)) {
    if (suite->all_backends) common.backends = {"all"};
    if (suite->samples) common.timing.min_samples = suite->samples;
    common.timing.warm_up_calls = suite->warm_up_calls;
    if (suite->max_seconds > 0) common.timing.max_seconds = suite->max_seconds;
    if (suite->min_early) common.timing.min_early = suite->min_early;
    common.beside = suite->beside;
  }
  if (asked.max_seconds) common.timing.max_seconds = *asked.max_seconds;
  if (!asked.backends.empty()) common.backends.clear();
  code = exit_of_device(asked.device);
  if (Status s = device_named(asked.device, common.device); !s.ok()) return s;
  const bool gpu = common.device.kind == DeviceKind::cuda;
  if (common.device.index < 0)
    return Status::no("--device: ", asked.device, " is not in this machine; it can be planned for, but not measured");
  code = kUsage;
  for (const std::string& word : asked.backends) {
    if (word != "all" && !find_backend(word))
      return Status::no("--backend: '", word, "' is not one of all, ", backend_names());
    common.backends.push_back(word);
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
  if (!within(asked.rest_ms.value_or(0), kHour * 1e3) || !within(asked.heat_ms.value_or(0), kHour * 1e3))
    return Status::no("--rest, --hot: must be from 0 to 3600000 milliseconds");
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
  common.timing.stop = &interrupted;
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

// --lengths needs at least one problem with ragged keys, and must fit all of them.
Status lengths_fit(const std::vector<BenchRow>& rows, const std::vector<int32_t>& lengths) {
  const auto is_ragged = [](const BenchRow& row) { return row.problem.keys == KeySource::ragged; };
  if (!lengths.empty() && !rows.empty() && std::none_of(rows.begin(), rows.end(), is_ragged))
    return Status::no("--lengths: no problem has ragged keys: ", name(rows[0].problem));
  for (const BenchRow& row : rows) {
    const Problem& p = row.problem;
    if (lengths.empty() || !is_ragged(row)) continue;
    if (int(lengths.size()) != p.batch)
      return Status::no("--lengths: ", lengths.size(), " lengths given for ", p.batch, " sequences of: ", name(p));
    for (const int32_t n : lengths)
      if (n > p.len_q || n > p.len_k) return Status::no("--lengths: ", n, " exceeds the bound of: ", name(p));
  }
  return Status::good();
}

void tell_dry_run(const std::vector<BenchRow>& all, const std::vector<Bench>& benches, size_t peers,
                  Context& context) {
  double seconds = 0, most = 0;
  size_t too_large = 0, too_slow = 0;
  const double there = available_memory();
  const Device& device = benches[0].device;
  size_t of_gpu = 0;
  if (device.kind == DeviceKind::cuda)
    if (const Status s = cuda::memory_of(device.index, of_gpu); !s.ok())
      return fail(context, kMachine, join("attune bench: ", s.message));
  const std::optional<double> gpu =
      device.kind == DeviceKind::cuda ? std::optional(of_gpu ? double(of_gpu) : INFINITY) : std::nullopt;
  const auto too_large_for = [&](const BenchRow& r) {
    return !fits(estimated_bytes(r.problem), there, gpu);
  };
  for (const BenchRow& r : all) {
    const double bytes = estimated_bytes(r.problem);
    if (too_large_for(r)) { ++too_large; continue; }
    most = std::max(most, bytes);
    for (const Bench& b : benches) {
      if (is_too_slow(r, b)) ++too_slow;
      else seconds += estimated_seconds(r.problem, b, peers);
    }
  }
  const size_t rows = all.size() * benches.size();
  if (context.json) {
    fmt::print("{{\"rows\":{},\"estimated_minutes\":{:.2f},\"largest_row_bytes\":{:.0f},"
               "\"too_large\":{},\"too_slow\":{}}}\n", rows, seconds / 60, most, too_large * benches.size(),
               too_slow);
    return;
  }
  for (const BenchRow& r : all)
    fmt::print("{}{}\n", name(r),
               too_large_for(r) ? ": does not fit into memory" : is_too_slow(r, benches[0]) ? ": takes too long" : "");
  fmt::print("{} rows, about {:.1f} minutes, at most {} of tensors at once ({} available{})\n", rows, seconds / 60,
             bytes_text(most), bytes_text(there), of_gpu ? join(", ", bytes_text(*gpu), " on the GPU") : "");
  const auto counted = [](size_t n) { return join(n, n == 1 ? " row" : " rows"); };
  if (too_large)
    fmt::print("{} cannot fit into memory and will be reported as such\n", counted(too_large * benches.size()));
  if (too_slow)
    fmt::print("{} would take more than {} per call, the limit of a suite, and will be reported as such\n",
               counted(too_slow), seconds_text(kMostCallSeconds));
}

// The A/A spread of this run, and that of resumed rows if it is larger: it decides their verdicts.
std::string spread_text(const Bench& b, const std::string& timing, const std::vector<Record>& records) {
  double earlier = 0;
  const int threads = b.timer ? 0 : b.device.units;
  for (const Record& r : records)
    if (const std::optional<double> spread = r.aa_spread;
        spread && r.run != b.run && r.threads == threads && timing_text(r) == timing)
      earlier = std::max(earlier, *spread);
  std::string text = b.aa_spread ? fmt::format(", A/A spread {:.1f} %", 100 * *b.aa_spread) : "";
  if (earlier > b.aa_spread.value_or(0))
    text += fmt::format(", A/A spread of earlier rows up to {:.1f} %", 100 * earlier);
  return text;
}

// Facts of the machine, printed once per run below the table.
void tell_machine(const Bench& b, const std::vector<Record>& records) {
  if (!b.ceilings) return;
  const bool gpu = b.timer != nullptr;
  const std::string timing = timing_text(name(b.mode), b.timing.rest_seconds, b.timing.heat_seconds);
  if (gpu) fmt::print("{}, {}", b.device.name, timing);
  else fmt::print("{}, {} thread{}, {}", b.device.name, b.device.units, b.device.units == 1 ? "" : "s", timing);
  const char* before = ": ";
  for (const auto& [type, ceiling] : {std::pair("f32", &b.ceilings->f32), {"f16", &b.ceilings->f16},
                                      {"bf16", &b.ceilings->bf16}})
    if (ceiling->gflops > 0) {
      fmt::print("{}{} GFLOP/s {} ({})", before, digits_text(ceiling->gflops), type, ceiling->instruction);
      before = ", ";
    }
  fmt::print("{}copy {} GB/s, empty {} {}", before, digits_text(b.ceilings->copy_gbs), gpu ? "kernel" : "call",
             seconds_text(b.floor_ns.value_or(0) * 1e-9));
  fmt::print("{}\n", spread_text(b, timing, records));
  if (!b.ceilings->missed.empty()) fmt::print("no ceiling: {}\n", b.ceilings->missed);
  if (gpu && !b.timer->no_nvml().ok()) fmt::print("no clock and power readings: {}\n", b.timer->no_nvml().message);
}

// Identifies the card among others of the same name.
void add_gpu(Provenance& p, const Device& device, const DeviceTimer& timer) {
  const cuda::GpuIdentity id = timer.nvml().identity();
  p.gpu = device.name, p.gpu_uuid = id.uuid, p.gpu_vbios = id.vbios, p.gpu_driver = id.driver;
  p.gpu_power_limit_w = id.power_limit_w, p.gpu_most_mhz = id.most_sm_mhz, p.gpu_ecc = id.ecc, p.gpu_mig = id.mig;
  if (id.pcie_generation) p.gpu_pcie = join("generation ", id.pcie_generation, ", ", id.pcie_lanes, " lanes");
  p.clocks = id.most_sm_mhz > 0 ? join("up to ", id.most_sm_mhz, " MHz") : "";  // note_readings() adds who sets them
  p.cuda = join(timer.facts().runtime, ", driver for ", timer.facts().driver);
}

// The versions of the peers that are installed.
std::string versions_of(const std::vector<const attune_peer*>& peers) {
  std::string versions;
  for (const attune_peer* const peer : peers) {
    const std::string_view version = peer->version;
    if (!version.empty() && versions.find(version) == versions.npos)
      versions += join(versions.empty() ? "" : ", ", version);
  }
  return versions;
}

// Whether --sign can work, before anything is measured or written.
Status is_signable(const Asked& asked) {
  if (asked.out.empty()) return Status::no("--sign: no file to sign; give one with --out");
  if (asked.resume)
    return Status::no("--sign: not accepted with --resume; sign a file of several runs with ssh-keygen -Y sign");
  return can_sign(asked.out, asked.sign).after("--sign: ");
}

struct Tally {
  size_t ok = 0, unsupported = 0, not_built = 0, oom = 0, bad = 0;
  void count(const Record& r) {
    if (r.status == RecordStatus::ok) ++ok;
    else if (r.status == RecordStatus::oom) ++oom;
    else if (r.status == RecordStatus::unsupported) ++(r.left_out == LeftOut::not_built ? not_built : unsupported);
    else if (r.status != RecordStatus::interrupted) ++bad;
  }
  // Records that were not measured but are not failures: "3 unsupported, 2 out of memory".
  std::string rest() const {
    std::string text;
    const auto add = [&](size_t count, const char* what) {
      if (count) text += join(text.empty() ? "" : ", ", count, " ", what);
    };
    add(unsupported, "unsupported"), add(oom, "out of memory"), add(not_built, "not built");
    return text;
  }
};

// Queries per second, counted as whole sequences, as the source report of this suite does.
void tell_queries(const std::vector<Record>& records) {
  for (const Record& r : records)
    if (Problem p; r.status == RecordStatus::ok && parse(r.problem, p).ok())
      fmt::print("{} | {}: {} queries/s\n", r.problem, r.subject, digits_text(p.batch / (r.median_ns * 1e-9)));
}

// On stderr, after the results: what they suffered from. Rows of an earlier run that was resumed count too.
void tell_state(const std::vector<Record>& records) {
  for (const std::string& line : {busy_summary(records), spread_summary(records)})
    if (!line.empty()) fmt::print(stderr, "warning: {}\n", line);
}

// Peers run in a process of their own, which is started again if one of them ends it.
void run_apart(const Asked& asked, const std::vector<std::string>& names, Context& context) {
  const auto start = [&](const std::vector<std::string>& left) { return start_again(left, asked.python); };
  int code = kOk;
  if (const Status s = await({.names = names, .start = start}, code); !s.ok())
    return fail(context, kFailed, join("attune bench: ", s.message));
  context.exit_code = code;
}

void run(Asked& asked, Context& context) {
  const auto no = [&](Exit code, const Status& s) { fail(context, code, join("attune bench: ", s.message)); };
  std::vector<BenchRow> rows;
  std::vector<Bench> all;
  if (const Status s = problems(asked, rows); !s.ok()) return no(s.code == Code::device ? kMachine : kUsage, s);
  Exit code = kUsage;
  if (const Status s = benches(asked, all, code); !s.ok()) return no(code, s);
  if (const Status s = lengths_fit(rows, all[0].lengths); !s.ok()) return no(kUsage, s);
  if (asked.resume && asked.out.empty())
    return no(kUsage, Status::no("--resume: no file to continue; give one with --out"));
  if (asked.resume && !asked.lengths.empty())
    return no(kUsage, Status::no("--resume: not accepted with --lengths, because records do not hold lengths"));
  const bool gpu = all[0].device.kind == DeviceKind::cuda;
  std::vector<std::string> names;
  if (const Status s = peers_named(asked.peers, gpu, names); !s.ok()) return no(kUsage, s);
  if (const std::string& base = asked.baseline;
      !base.empty() && !find_backend(base) &&
      std::none_of(names.begin(), names.end(), [&](const std::string& n) { return peer_name(n) == peer_name(base); }))
    return no(kUsage, Status::no("--baseline: '", base, "' is neither one of --peer nor one of ", backend_names()));
  if (asked.dry_run && asked.resume)
    fmt::print(stderr, "the estimate includes rows that are already in {}\n", asked.out);
  if (asked.dry_run) return tell_dry_run(rows, all, names.size(), context);
  if (!asked.sign.empty() && !is_peer_process())
    if (const Status s = is_signable(asked); !s.ok()) return no(s.code == Code::device ? kMachine : kUsage, s);
  if (!names.empty() && !is_hosted() && !is_peer_process()) return run_apart(asked, names, context);
  const RunEnds ends;
  std::vector<const attune_peer*> peers;
  Provenance from = provenance();
  if (const Status s = open_peers(names, asked.python, peers); !s.ok()) return no(kMachine, s);
  from.peers = versions_of(peers);
  RecordFile file;
  if (!asked.out.empty())
    if (const Status s = file.open(asked.out); !s.ok()) return no(file.is_foreign() ? kFailed : kMachine, s);
  if (file.was_torn()) fmt::print(stderr, "removed an incomplete line from the end of {}\n", asked.out);

  Tuned tuned;
  if (const Status s = load_tuned(all[0].device, tuned); !s.ok()) return no(kFailed, s);
  std::unique_ptr<CacheFlush> flush;
  DeviceTimer timer;
  if (gpu) {
    if (const Status s = timer.open(all[0].device.index); !s.ok()) return no(kMachine, s);
    add_gpu(from, all[0].device, timer);
  } else if (std::any_of(all.begin(), all.end(), [](const Bench& b) { return b.mode == Mode::cold; })) {
    flush = std::make_unique<CacheFlush>(2 * last_level_cache_bytes());
  }
  const std::string this_run = new_run();
  for (Bench& b : all) {
    b.peers = peers, b.rules = tuned.rules, b.provenance = from, b.run = this_run, b.timer = gpu ? &timer : nullptr;
    b.timing.flush = [](void* f) { (*static_cast<CacheFlush*>(f))(); };
    b.timing.flush_context = flush.get();
    b.timing.load_context = b.timer;
    b.timing.load = [](void* of_gpu) {
      LoadCounters c = read_load();
      if (of_gpu) static_cast<DeviceTimer*>(of_gpu)->add_use(c);
      return c;
    };
  }
  Tally tally;
  Sweep sweep{.rows = std::move(rows), .benches = std::move(all), .file = file.is_open() ? &file : nullptr};
  RecordFile session;
  if (is_peer_process()) {
    if (const Status s = session.open(session_path()); !s.ok()) return no(kMachine, s);
    sweep.session = &session;
  }
  if (asked.resume || is_started_again()) {
    std::vector<Record> before;
    size_t cut = 0;
    RecordFile& from_file = asked.resume ? file : session;
    if (const Status s = from_file.resume(before, &cut); !s.ok()) return no(kFailed, s);
    if (cut)
      fmt::print(stderr, "removed {} record{} of an unfinished row from the end of {}\n", cut, cut == 1 ? "" : "s",
                 asked.out);
    sweep.keep(std::move(before)), sweep.after = from_file.tail();
  }
  size_t told = 0;
  sweep.each = [&](const Record& r) {
    tally.count(r);
    if (!context.json || told++ < printed_records()) return;
    fmt::print("{}\n", to_json(r)), std::fflush(stdout);
    printed_records() = told;
  };
  const size_t total = sweep.rows.size() * sweep.benches.size(), done = sweep.done();
  if (done && !is_started_again()) fmt::print(stderr, "{} of {} rows are already in {}\n", done, total, asked.out);
  if (sweep.changed_sources() && !is_started_again())
    fmt::print(stderr, "warning: uncommitted changes; cannot tell whether earlier rows come from the same sources\n");
  Progress progress(isatty(STDERR_FILENO) == 1, sweep.seconds_left(), total - done);
  sweep.progress = &progress;
  const Interrupts interrupts;
  std::vector<Record> records;
  if (const Status s = sweep.run(records); !s.ok()) return no(kMachine, s);
  if (const Status s = asked.sign.empty() ? Status::good() : sign_file(asked.out, asked.sign); !s.ok())
    no(kMachine, s.after("--sign: "));
  if (!context.json) {
    fmt::print("{}", table(records, colour_wanted(context.terminal), asked.base));
    for (const Bench& b : sweep.benches) tell_machine(b, records);
    if (const std::string rest = tally.rest(); !rest.empty()) fmt::print("{} measured, {}\n", tally.ok, rest);
    fmt::print("{}", ranking_text(rankings(records, asked.base)));
    if (asked.suite == "sdpa-small") tell_queries(records);
    if (const std::string drawn = asked.plot ? plot(records) : ""; !drawn.empty()) fmt::print("\n{}", drawn);
    else if (asked.plot) fmt::print("nothing to plot: no problem was measured at two lengths\n");
  }
  tell_state(records);
  if (interrupted) {
    no(kFailed, Status::no("interrupted after ", records.size(), records.size() == 1 ? " record" : " records"));
    context.exit_code = kSignal + interrupted_by;
  } else if (tally.bad) no(kFailed, Status::no(tally.bad, " of ", records.size(), " records failed or were refused"));
  else if (!tally.ok)
    no(kFailed, Status::no("nothing was measured: ", tally.rest().empty() ? "no row is left" : tally.rest()));
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  const Command sub =
      add_command(app, "bench", "Measure problems and compare them with peers and the machine's ceilings");
  const auto asked = std::make_shared<Asked>();
  Axes& axes = asked->axes;
  sub.add_option("problems", asked->lines,
                 "Measure these problem lines, for block lists with a pattern after a bar; without any, combine the "
                 "axes below")
      .type_name("LINE");
  sub.add_option("--suite", asked->suite, join("Measure a named set of rows: ", suite_names())).type_name("NAME");
  sub.add_option("--lines", asked->file, "Read problem lines from this file").type_name("FILE");
  const auto axis = [&](const char* name, std::string& value, const char* help) {
    sub.add_option(name, value, help).type_name("LIST").show_default().group("Axes");
  };
  axis("--pass", axes.pass, "Set the pass: forward, backward; with lines, a file or a suite, keep only these rows");
  axis("--dtype", axes.dtype, "Set the dtype: f32, f16, bf16");
  axis("--batch", axes.batch, "Set the batch size");
  axis("--heads", axes.heads, "Set the query heads, or query heads/KV heads: 8,8/2");
  axis("--len", axes.len,
       "Set the number of keys: 512,1024 or 512-8192*2 or 512-2048+512; with lines, a file or a suite, keep only these "
       "rows");
  axis("--len-q", axes.len_q, "Set the number of queries; default as many as keys");
  axis("--dim", axes.dim, "Set the head dim: 64,128 or 192/128");
  axis("--mask", axes.mask,
       "Set the mask: full, causal, window<left>,<right>; with lines, a file or a suite, keep only these rows, where a "
       "bare window is any window, compressed has steps between keys, and blocks has block lists");
  sub.add_option("--options", axes.options, "Add options to every problem, as in a line: \"softcap sink\"")
      .type_name("TEXT")
      .group("Axes");

  sub.add_option("--backend", asked->backends,
                 "Measure these backends: names separated by commas, or all; default the planner's choice")
      .delimiter(',')
      .one_word()
      .type_name("LIST");
  sub.add_option("--peer", asked->peers,
                 "Compare with these peers, separated by commas: torch (on a GPU its flash, cudnn and efficient, on a "
                 "CPU its sdpa and math), torch:sdpa, torch:math, torch:flash, torch:cudnn, torch:efficient, "
                 "torch:flex, flash_attn, fa3, and your own FILE.py:FUNCTION and LIBRARY.so:SYMBOL")
      .delimiter(',')
      .one_word()
      .type_name("LIST");
  sub.add_option("--baseline", asked->baseline,
                 "Compute ratios to this subject: a backend, which is then measured too, or one of --peer; default the "
                 "fastest correct peer, else the first backend")
      .type_name("NAME");
  sub.add_option("--base", asked->base,
                 "Compare rows of other lines of the same sizes with this implementation: a subject, or what it "
                 "computes, such as 'dilated rates=1,2'; default the fastest dense row")
      .type_name("NAME");
  sub.add_option("--python", asked->python, "Run peers in this Python")
      .type_name("PROGRAM")
      .show_default();
  sub.add_option("--device", asked->device, "Run on cpu, on cpu:<isa> with fewer features, or on a GPU: cuda:0")
      .type_name("NAME")
      .show_default();
  sub.add_option("--threads", asked->threads, "Run with these numbers of threads; default all of this process")
      .type_name("LIST");
  sub.add_option("--timing", asked->modes,
                 "Time cold: caches flushed before every sample (default on a GPU); warm: as the last run left them "
                 "(default on a CPU); graph: replayed from a CUDA graph over rotating inputs, so cold too")
      .delimiter(',')
      .one_word()
      .type_name("LIST");
  sub.add_flag("--warm", asked->warm, "Time warm, as --timing warm");
  sub.add_flag("--cold", asked->cold, "Time cold, as --timing cold; with --warm both");
  sub.add_option("--rest", asked->rest_ms,
                 "Rest this many milliseconds before every batch of samples, so that all begin equally cool; default "
                 "0, or what the suite sets on a GPU")
      .type_name("MS");
  sub.add_option("--hot", asked->heat_ms,
                 "Run the subject this many milliseconds before every batch, untimed, to reach the power limit; with "
                 "--rest measure all rows a second time")
      .type_name("MS");
  sub.add_flag("--burst", asked->burst, "Take at most 10 samples after a rest, as --rest 200");
  sub.add_flag("--sustained", asked->sustained,
               "Take samples only after a second of the same work, as --hot 1000; with --burst both");
  sub.add_option("--lengths", asked->lengths, "Set sequence lengths for ragged keys, one per batch entry")
      .type_name("LIST");
  sub.add_option("--energy", asked->energy_seconds,
                 "Then run each GPU subject this many seconds back to back: joules per call, mean power")
      .type_name("SECONDS");
  sub.add_option("--layout", asked->layout, "Set the order of the axes in memory: bhsd or bshd")
      .type_name("NAME")
      .show_default();
  sub.add_option("--dist", asked->distribution, "Draw inputs from this distribution: normal, uniform or zeros")
      .type_name("NAME")
      .show_default();
  sub.add_option("--seed", asked->seed, "Set the seed for inputs, order and sampled rows").show_default();
  sub.add_flag("--no-check", asked->no_check, "Do not check results");
  sub.add_option("--precision", asked->timing.precision,
                 "Stop when half the interval of the median is below this share")
      .type_name("SHARE")
      .show_default();
  sub.add_option("--max-seconds", asked->max_seconds,
                 join("Stop after this time per subject; default ", TimingSettings{}.max_seconds,
                      ", or what the suite sets"))
      .type_name("SECONDS");
  sub.add_option("--out", asked->out, "Append one record per subject to this file").type_name("FILE.jsonl");
  sub.add_option("--sign", asked->sign,
                 "Then sign --out with this OpenSSH key, into FILE.jsonl.sig; attune verify --signers checks it")
      .type_name("KEY");
  sub.add_flag("--resume", asked->resume,
               "Continue a run: skip rows that are complete in --out, from this machine and commit");
  sub.add_flag("--plot", asked->plot, "Also draw time against length in the terminal");
  sub.add_flag("--dry-run", asked->dry_run, "Only print the rows, their time and memory, and what does not fit");
  sub.footer(
      "Examples:\n"
      "  attune bench --len 512-8192*2 --dim 64,128 --mask full,causal --dtype f32,bf16\n"
      "  attune bench --pass forward,backward --peer torch --out records.jsonl\n"
      "  attune bench --len 256,512 --peer examples/my_attention.py:attention,torch:sdpa\n"
      "  attune bench --suite regress --out records.jsonl --resume --plot\n"
      "  attune bench --device cuda:0 --backend sm80_forward,vendor_cudnn --peer torch:flash,torch:cudnn\n"
      "  attune bench \"forward bf16 b1 h32/8 q1 k8192 d128 full\" --backend all --cold --warm\n"
      "  attune bench \"forward bf16 b1 h8 q8192 k8192 d64 causal blocks64x64x1 | random density=0.1\" \\\n"
      "    --backend cpu_forward,masked_dense\n\n"
      "The time is a median with its 95 % interval; with fewer than 6 samples, which have less, it says how much. A "
      "ratio is the\nbaseline's time divided by this one's, so above 1 is faster. FASTER and SLOWER require the whole "
      "interval beyond the A/A\nspread, SAME within it and within 5 %; everything else is UNCLEAR, also below 6 "
      "samples.\n"
      "Exit code 1 if a result was wrong, a run failed, or a rate is above what the machine can do.");
  sub.callback([asked, sub, &context] {
    asked->axes_given = sub.given("Axes");
    run(*asked, context);
  });
}

}  // namespace attune
