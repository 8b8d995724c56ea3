// SPDX-License-Identifier: Apache-2.0
// `attune bench`: measures problems given as lines, axes, a file or a suite, and writes one record per subject. Peers
// are timed in the same process: the command then starts itself again inside theirs. A GPU is timed by its own clock,
// see timing/device_timer.h.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "machine/cuda/runtime.h"
#include "machine/host.h"
#include "machine/known_gpus.h"
#include "plan/plan.h"
#include "plan/tuned.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/bench/asked.h"
#include "tool/bench/estimate.h"
#include "tool/record/busy.h"
#include "tool/record/plot.h"
#include "tool/record/ranking.h"
#include "tool/record/provenance.h"
#include "tool/bench/suites.h"
#include "tool/bench/sweep.h"
#include "tool/check/signature.h"
#include "tool/files.h"
#include "tool/machine.h"
#include "tool/settings.h"
#include "tool/table.h"
#include "tool/text.h"

namespace attune {
namespace {

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

void tell_dry_run(const std::vector<BenchRow>& all, const std::vector<Bench>& benches, size_t peers,
                  Context& context) {
  double seconds = 0, most = 0;
  size_t too_large = 0, too_slow = 0;
  const Device& device = benches[0].device;
  const bool elsewhere = device.kind == DeviceKind::cuda && device.index < 0;
  const double there = elsewhere ? INFINITY : available_memory();  // the host of a GPU that is not here is not known
  size_t of_gpu = 0;
  if (elsewhere) {
    if (const KnownGpu* const known = known_gpu(device.name)) of_gpu = size_t(known->bytes());
  } else if (device.kind == DeviceKind::cuda) {
    if (const Status s = cuda::memory_of(device.index, of_gpu); !s.ok())
      return fail(context, kMachine, join("attune bench: ", s.message));
  }
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
  const auto is_slow = [&](const BenchRow& r) {
    return std::any_of(benches.begin(), benches.end(), [&](const Bench& b) { return is_too_slow(r, b); });
  };
  for (const BenchRow& r : all)
    fmt::print("{}{}\n", name(r),
               too_large_for(r) ? ": does not fit into memory" : is_slow(r) ? ": may take too long" : "");
  const std::string time = seconds < 90 ? counted(std::lround(seconds), "second")
                                        : fmt::format("{:.1f} minutes", seconds / 60);
  if (elsewhere)
    fmt::print("{}, est. {} on {}, which is not here, at most {} of tensors at once ({} on the GPU)\n",
               counted(rows, "row"), time, device.name, bytes_text(most), bytes_text(*gpu));
  else
    fmt::print("{}, about {}, at most {} of tensors at once ({} available{})\n", counted(rows, "row"), time,
               bytes_text(most), bytes_text(there), of_gpu ? join(", ", bytes_text(*gpu), " on the GPU") : "");
  if (too_large)
    fmt::print("{} cannot fit into memory and will be reported as such\n", counted(too_large * benches.size(), "row"));
  if (too_slow)
    fmt::print("{} would take more than {} per call, the limit of a suite, at the rate that is assumed before this "
               "machine is measured\n", counted(too_slow, "row"), seconds_text(kMostCallSeconds));
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
  if (size_t bytes = 0; cuda::memory_of(device.index, bytes).ok() && bytes) p.gpu_memory_bytes = double(bytes);
  if (timer.facts().sms > 0) p.gpu_sms = timer.facts().sms;
  p.gpu_bandwidth_gbs = gpu_bandwidth_gbs(timer.facts().pci), p.cudnn = cudnn_version();
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
Status is_signable(const AskedBench& asked) {
  if (asked.out.empty()) return Status::no("--sign: no file to sign; give one with --out");
  if (asked.resume)
    return Status::no("--sign: not accepted with --resume; sign a file of several runs with ssh-keygen -Y sign");
  return can_sign(asked.out, asked.sign).after("--sign: ");
}

struct Tally {
  size_t ok = 0, unsupported = 0, not_built = 0, oom = 0, bad = 0, empty = 0;
  void count(const Record& r) {
    if (r.parity.verdict == CheckVerdict::empty) ++empty;
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
    add(empty, "EMPTY: nothing to compare");
    return text;
  }
};

// Rates of the source report of this suite, which calls sequences queries.
void tell_sequences(const std::vector<Record>& records) {
  for (const Record& r : records)
    if (r.status == RecordStatus::ok)
      fmt::print("{} | {}: {} sequences/s\n", r.problem, r.subject, digits_text(r.sequences_s));
}

// Before anything is measured: --base names a backend, a peer of this run, or what one of the rows computes.
Status base_asked(const std::string& base, const std::vector<BenchRow>& rows, const Bench& bench,
                  const std::vector<std::string>& peers) {
  std::vector<Record> blank;
  for (const BenchRow& row : rows) blank.push_back(blank_record(row, bench));
  for (const std::string& peer : peers) blank.emplace_back().subject = peer_name(peer);
  return base.empty() || find_backend(base) ? Status::good() : is_base(base, blank);
}

// On stderr, after the results: what they suffered from. Rows of an earlier run that was resumed count too.
void tell_state(const std::vector<Record>& records) {
  for (const std::string& line : {busy_summary(records), spread_summary(records)})
    if (!line.empty()) fmt::print(stderr, "warning: {}\n", line);
}

// Peers run in a process of their own, which is started again if one of them ends it.
void run_apart(const AskedBench& asked, const std::vector<std::string>& names, Context& context) {
  const auto start = [&](const std::vector<std::string>& left) { return start_again(left, asked.python); };
  int code = kOk;
  if (const Status s = await({.names = names, .start = start}, code); !s.ok())
    return fail(context, kFailed, join("attune bench: ", s.message));
  context.exit_code = code;
}

// The settings of --config. Rows, timing and state of the machine are one choice each: what the command line says of it
// replaces what the file says.
Status configure(const Command& sub, SettingsFile& settings, Exit& code) {
  std::string text;
  code = kMachine;
  if (Status s = read_file(settings.path, text); !s.ok()) return s.after("--config: ");
  code = kUsage;
  const std::vector<std::string> rows = {"problems", "--lines", "--suite"};
  const std::vector<std::string> timing = {"--timing", "--warm", "--cold"};
  const std::vector<std::string> rest = {"--rest", "--burst"}, heat = {"--hot", "--sustained"};
  std::vector<std::string> rows_and_axes = rows;
  rows_and_axes.push_back("Axes");
  const SettingRules rules{.section = "Axes",
                           .but_not = "config",
                           .of_another = "bar",
                           .same = {{rows, rows_and_axes}, {timing, timing}, {rest, rest}, {heat, heat}},
                           .positional = [](const std::string& line) {
                             BenchRow row;
                             return parse_bench_row(line, row);
                           }};
  return settings.read(text, sub, rules);
}

void run(AskedBench& asked, const SettingsFile& settings, Context& context) {
  const auto no = [&](Exit code, const Status& s) {
    fail(context, code, join("attune bench: ", settings.place(s.message), s.message));
  };
  std::vector<BenchRow> rows;
  std::vector<Bench> all;
  if (const Status s = rows_asked(asked, rows); !s.ok()) return no(s.code == Code::device ? kMachine : kUsage, s);
  Exit code = kUsage;
  if (const Status s = benches_asked(asked, all, code); !s.ok()) return no(code, s);
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
  if (const Status s = base_asked(asked.base, rows, all[0], names); !s.ok()) return no(kUsage, s);
  if (std::error_code error; asked.dry_run && asked.resume && std::filesystem::exists(asked.out, error))
    fmt::print(stderr, "the estimate includes rows that are already in {}\n", asked.out);
  if (asked.dry_run) return tell_dry_run(rows, all, names.size(), context);
  if (ForcedBackend forced; asked.backends.empty() && !is_hosted() && !is_peer_process() &&
                            forced_backend({}, forced).ok() && all[0].backends == std::vector{forced.name})
    fmt::print(stderr, "ATTUNE_BACKEND: {} is measured, not the planner's choice\n", forced.name);
  if (!asked.sign.empty() && !is_peer_process())
    if (const Status s = is_signable(asked); !s.ok()) return no(s.code == Code::device ? kMachine : kUsage, s);
  if (!names.empty() && !is_hosted() && !is_peer_process()) return run_apart(asked, names, context);
  const RunGuard guard;
  std::vector<const attune_peer*> peers;
  Provenance from = provenance();
  if (const Status s = open_peers(names, asked.python, peers); !s.ok()) return no(kMachine, s);
  from.peers = versions_of(peers), from.command = context.command;
  RecordFile file;
  if (!asked.out.empty())
    if (const Status s = file.open(asked.out); !s.ok()) return no(file.is_foreign() ? kFailed : kMachine, s);
  // A table printed into the file that stdout was redirected to would begin at its first byte, over the records.
  if (beside({asked.out}) == stderr) std::fflush(stdout), dup2(STDERR_FILENO, STDOUT_FILENO);
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
    b.timing.stop = &interrupted;
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
  if (done && !is_started_again())
    fmt::print(stderr, "{} of {} {} already in {}\n", done, counted(total, "row"), done == 1 ? "is" : "are", asked.out);
  if (const std::string again = sweep.not_answered(); !again.empty() && !is_started_again())
    fmt::print(stderr, "{}: {}\n", asked.out, again);
  if (sweep.changed_sources() && !is_started_again())
    fmt::print(stderr, "warning: uncommitted changes; cannot tell whether earlier rows come from the same sources\n");
  const bool live = isatty(STDERR_FILENO) == 1;
  Progress progress(live, sweep.seconds_left(), total - done);
  sweep.progress = &progress, sweep.shows_kept = !is_started_again();
  const Interrupts interrupts;
  std::vector<Record> records;
  if (const Status s = sweep.run(records); !s.ok()) return no(kMachine, s);
  if (const Status s = asked.sign.empty() ? Status::good() : sign_file(asked.out, asked.sign); !s.ok())
    no(kMachine, s.after("--sign: "));
  if (!context.json) {
    // On a terminal the rows are already there.
    if (!live || !context.terminal || !asked.base.empty())
      fmt::print("{}", table(records, {.colour = colour_wanted(context.terminal),
                                       .width = terminal_width(STDOUT_FILENO), .base = asked.base}));
    for (const Bench& b : sweep.benches) tell_machine(b, records);
    if (const std::string rest = tally.rest(); !rest.empty()) fmt::print("{} measured, {}\n", tally.ok, rest);
    fmt::print("{}", ranking_text(rankings(records, asked.base), terminal_width(STDOUT_FILENO)));
    if (asked.suite == "sdpa-small") tell_sequences(records);
    if (const std::string drawn = asked.plot ? plot(records) : ""; !drawn.empty()) fmt::print("\n{}", drawn);
    else if (asked.plot) fmt::print("nothing to plot: no problem was measured at two lengths\n");
  }
  tell_state(records);
  if (const Status s = asked.base.empty() || records.empty() ? Status::good() : is_base(asked.base, records); !s.ok())
    fmt::print(stderr, "warning: {}; nothing is compared with it\n", s.message);
  if (interrupted) {
    no(kFailed, Status::no("interrupted after ", counted(records.size(), "record")));
    context.exit_code = kSignal + interrupted_by;
  } else if (tally.bad) {
    no(kFailed, Status::no(tally.bad, " of ", counted(records.size(), "record"), " failed or were refused"));
  } else if (!tally.ok) {
    no(kFailed, Status::no("nothing was measured: ", tally.rest().empty() ? "no row is left" : tally.rest()));
  }
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  const Command sub =
      add_command(app, "bench", "Measure problems and compare them with peers and the machine's ceilings");
  const auto asked = std::make_shared<AskedBench>();
  Axes& axes = asked->axes;
  sub.add_option("problems", asked->lines,
                 "Measure these problem lines, for block lists with a pattern after a bar; without any, combine the "
                 "axes below")
      .type_name("LINE");
  sub.add_option("--suite", asked->suite, join("Measure a named set of rows: ", suite_names())).type_name("NAME");
  sub.add_option("--config", asked->config,
                 "Read options from this TOML file, by their names; those of the command line win")
      .type_name("FILE.toml");
  sub.add_option("--lines", asked->file, "Read problem lines from this file").type_name("FILE");
  const auto axis = [&](const char* name, std::string& value, const char* help) {
    sub.add_option(name, value, help).type_name("LIST").show_default().group("Axes");
  };
  axis("--pass", axes.pass,
       "Set the pass: forward, backward, or train for both as one row; with lines, a file or a suite, keep only these "
       "rows");
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
                 "torch:flex, flash_attn, fa3, flash_attn1, xformers, flashinfer, jax, and your own FILE.py:FUNCTION "
                 "and LIBRARY.so:SYMBOL")
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
  sub.add_option("--samples", asked->samples,
                 "Take this many samples per subject, unless --max-seconds ends it first; default until --precision")
      .type_name("N")
      .between(1, 1000000);
  sub.add_option("--warm-up", asked->warm_up,
                 "Warm up for at least this many calls, or this long: 200, 2s, 50ms; default 0.1 s and until it "
                 "settles")
      .type_name("N");
  sub.add_option("--out", asked->out, "Append one record per subject to this file").type_name("FILE.jsonl");
  sub.add_option("--sign", asked->sign,
                 "Then sign --out with this OpenSSH key, into FILE.jsonl.sig; attune verify --signers checks it")
      .type_name("KEY");
  sub.add_flag("--resume", asked->resume,
               "Continue a run: skip rows that are complete in --out, from this machine and commit");
  sub.add_option("--share", asked->share,
                 "Measure only this part of the rows: with 2/4 rows 2, 6, 10, ...; for several machines")
      .type_name("K/N");
  sub.add_flag("--plot", asked->plot, "Also draw time against length in the terminal");
  sub.add_flag("--dry-run", asked->dry_run, "Only print the rows, their time and memory, and what does not fit");
  sub.footer(
      "Examples:\n"
      "  attune bench --len 512-8192*2 --dim 64,128 --mask full,causal --dtype f32,bf16\n"
      "  attune bench --pass forward,backward --peer torch --out records.jsonl\n"
      "  attune bench --len 256,512 --peer examples/my_attention.py:attention,torch:sdpa\n"
      "  attune bench --suite regress --out records.jsonl --resume --plot\n"
      "  attune bench --config examples/bench.toml --max-seconds 1\n"
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
    SettingsFile settings{.path = asked->config};
    Exit code = kUsage;
    if (const Status s = asked->config.empty() ? Status::good() : configure(sub, settings, code); !s.ok())
      return fail(context, code, join("attune bench: ", s.message));
    asked->axes_given = sub.given("Axes");
    run(*asked, settings, context);
  });
}

}  // namespace attune
