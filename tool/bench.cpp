// `attune bench`: problems as lines or as axes, each measured by the one timer, every row a record. Peers are timed in
// the same process: the command then starts itself again inside of theirs.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include "machine/host.h"
#include "plan/plan.h"
#include "plan/tuned.h"
#include "tool/commands.h"
#include "tool/measure/axes.h"
#include "tool/measure/provenance.h"
#include "tool/measure/row.h"
#include "tool/measure/show.h"
#include "tool/text.h"

namespace attune {
namespace {

struct Asked {
  std::vector<std::string> lines{};
  std::string file{};
  Axes axes{};
  std::vector<std::string> backends{};
  std::string peer{}, python{"python3"}, device{"cpu"}, threads{}, layout{"bhsd"}, distribution{"normal"}, out{};
  bool cold = false, warm = false, dry_run = false, no_check = false;
  Settings timing{};
  uint32_t seed = 1;
};

std::atomic<bool> interrupted{false};

// The first interrupt ends the run with what is there; a second one ends the process.
struct Interrupts {
  struct sigaction old_int{}, old_term{};
  Interrupts() {
    struct sigaction action{};
    action.sa_handler = [](int) { interrupted = true; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &old_int);
    sigaction(SIGTERM, &action, &old_term);
  }
  ~Interrupts() {
    sigaction(SIGINT, &old_int, nullptr);
    sigaction(SIGTERM, &old_term, nullptr);
  }
};

double seconds_now() {
  static const Clock clock = host_clock();
  return double(clock.now()) * 1e-9;
}

Status problems(const Asked& asked, std::vector<Problem>& out) {
  for (const std::string& line : asked.lines) {
    Problem p;
    if (Status s = parse(line, p); !s.ok()) return s;
    out.push_back(p);
  }
  if (!asked.file.empty())
    if (Status s = problems_in(asked.file, out); !s.ok()) return s;
  return asked.lines.empty() && asked.file.empty() ? problems_of(asked.axes, out) : Status::good();
}

// What is the same for every row, and one Bench for each mode and number of threads: their ceilings differ.
Status benches(const Asked& asked, std::vector<Bench>& out) {
  Bench common;
  if (Status s = device_named(asked.device, common.device); !s.ok()) return s;
  if (common.device.kind != DeviceKind::cpu)
    return Status::no("--device: ", asked.device, " can be planned for here, not run on");
  for (const std::string& word : asked.backends) {
    if (word != "all" && !find_backend(word))
      return Status::no("--backend: '", word, "' is not one of all, ", backend_names());
    common.backends.push_back(word);
  }
  if (Status s = parse(asked.distribution, common.distribution); !s.ok()) return s;
  if (asked.layout != "bhsd" && asked.layout != "bshd")
    return Status::no("--layout: '", asked.layout, "' is not one of bhsd, bshd");
  if (!(asked.timing.precision > 0) || !(asked.timing.max_seconds > 0))
    return Status::no("--precision and --max-seconds are above 0");
  common.layout = asked.layout == "bhsd" ? Layout::bhsd : Layout::bshd;
  common.device_word = asked.device, common.seed = asked.seed, common.check = !asked.no_check;
  common.timing = asked.timing;
  common.timing.seed = asked.seed;
  common.timing.stop = &interrupted;
  std::vector<int32_t> threads;
  if (asked.threads.empty()) threads.push_back(common.device.units);
  else if (Status s = numbers_of("threads", asked.threads, threads); !s.ok()) return s;
  for (const int32_t n : threads)
    for (const bool cold : {false, true}) {
      if (cold ? !asked.cold : !asked.warm && asked.cold) continue;
      Bench b = common;
      b.device.units = n;
      b.timing.cold = cold;
      out.push_back(std::move(b));
    }
  return Status::good();
}

void tell_dry_run(const std::vector<Problem>& problems, const std::vector<Bench>& benches, Context& context) {
  double seconds = 0, most = 0;
  for (const Bench& b : benches)
    for (const Problem& p : problems) seconds += estimated_seconds(p, b), most = std::max(most, estimated_bytes(p));
  const size_t rows = problems.size() * benches.size();
  if (context.json) {
    fmt::print("{{\"rows\":{},\"estimated_minutes\":{:.2f},\"largest_row_bytes\":{:.0f}}}\n", rows, seconds / 60, most);
    return;
  }
  for (const Problem& p : problems) fmt::print("{}\n", name(p));
  fmt::print("{} rows, about {:.1f} minutes, at most {} of tensors at once ({} available)\n", rows, seconds / 60,
             bytes_text(most), bytes_text(available_memory()));
}

// Once for a run; the table has the rest.
void tell_machine(const Bench& b) {
  if (!b.ceilings) return;
  fmt::print("{}, {} thread{}, {}: {} GFLOP/s f32 ({})", b.device.name, b.device.units, b.device.units == 1 ? "" : "s",
             b.timing.cold ? "cold" : "warm", digits_text(b.ceilings->f32.gflops), b.ceilings->f32.instruction);
  if (b.ceilings->bf16.gflops > 0)
    fmt::print(", {} bf16 ({})", digits_text(b.ceilings->bf16.gflops), b.ceilings->bf16.instruction);
  fmt::print(", copy {} GB/s, empty call {}", digits_text(b.ceilings->copy_gbs),
             seconds_text(b.floor_ns.value_or(0) * 1e-9));
  if (b.aa_spread) fmt::print(", A/A spread {:.1f} %", 100 * *b.aa_spread);
  if (!b.peers.empty()) fmt::print(", {}", b.peers[0]->version);
  fmt::print("\n");
}

struct Tally {
  size_t ok = 0, unsupported = 0, bad = 0;
  void count(const Record& r) {
    if (r.status == "ok") ++ok;
    else if (r.status == "unsupported") ++unsupported;
    else if (r.status != "interrupted") ++bad;
  }
};

void run(Asked& asked, Context& context) {
  const auto no = [&](Exit code, const Status& s) { fail(context, code, join("attune bench: ", s.message)); };
  std::vector<Problem> rows;
  std::vector<Bench> all;
  if (const Status s = problems(asked, rows); !s.ok()) return no(kUsage, s);
  if (const Status s = benches(asked, all); !s.ok()) return no(kUsage, s);
  if (asked.dry_run) return tell_dry_run(rows, all, context);
  const std::vector<const attune_peer*> peers = find_peers(asked.peer);
  if (!asked.peer.empty() && peers.empty())
    return no(is_peer(asked.peer) ? kMachine : kUsage, become_host(asked.peer, asked.python));
  RecordFile file;
  if (!asked.out.empty())
    if (const Status s = file.open(asked.out); !s.ok()) return no(kMachine, s);

  Tuned tuned;
  if (const Status s = load_tuned(all[0].device, tuned); !s.ok()) return no(kFailed, s);
  std::unique_ptr<CacheFlush> flush;
  if (asked.cold) flush = std::make_unique<CacheFlush>(2 * last_level_cache_bytes());
  const Provenance from = provenance();
  double weight = 0;
  for (Bench& b : all) {
    b.peers = peers, b.rules = tuned.rules, b.provenance = from;
    b.timing.flush = [](void* f) { (*static_cast<CacheFlush*>(f))(); };
    b.timing.flush_context = flush.get();
    for (const Problem& p : rows) weight += estimated_seconds(p, b);
  }
  Progress progress(isatty(STDERR_FILENO) == 1, weight, rows.size() * all.size());
  const Interrupts interrupts;
  std::vector<Record> records;
  Tally tally;
  for (Bench& b : all) {
    b.timing.progress = [](void* p, double share) { static_cast<Progress*>(p)->share(share, seconds_now()); };
    b.timing.progress_context = &progress;
    for (const Problem& p : rows) {
      if (interrupted) break;
      progress.begin(name(p), estimated_seconds(p, Bench{b}), seconds_now());
      std::vector<Record> made = measure_row(p, b);
      progress.clear();
      progress.end(made);
      for (Record& r : made) {
        tally.count(r);
        if (context.json) fmt::print("{}\n", to_json(r)), std::fflush(stdout);
        if (file.is_open())
          if (const Status s = file.write(r); !s.ok()) return no(kMachine, s);
        records.push_back(std::move(r));
      }
    }
  }
  if (!context.json) {
    fmt::print("{}", table(records, colour_wanted(context.terminal)));
    for (const Bench& b : all) tell_machine(b);
  }
  if (interrupted) no(kFailed, Status::no("interrupted after ", records.size(), " records"));
  else if (tally.bad) no(kFailed, Status::no(tally.bad, " of ", records.size(), " records failed or were refused"));
  else if (!tally.ok) no(kFailed, Status::no("nothing was measured: no backend takes any of the problems"));
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  CLI::App* sub =
      app.add_subcommand("bench", "Measure problems, against each other, a peer and the machine's ceilings");
  const auto asked = std::make_shared<Asked>();
  Axes& axes = asked->axes;
  sub->add_option("problems", asked->lines, "Problem lines; without any, the axes below are combined")
      ->type_name("LINE");
  sub->add_option("--lines", asked->file, "A file of problem lines")->type_name("FILE");
  const auto axis = [&](const char* name, std::string& value, const char* help) {
    sub->add_option(name, value, help)->type_name("LIST")->capture_default_str()->group("Axes");
  };
  axis("--pass", axes.pass, "forward, backward");
  axis("--dtype", axes.dtype, "f32, f16, bf16");
  axis("--batch", axes.batch, "Sequences");
  axis("--heads", axes.heads, "Heads, or heads/of keys: 8,8/2");
  axis("--len", axes.len, "Keys: 512,1024 or 512-8192*2 or 512-2048+512");
  axis("--len-q", axes.len_q, "Queries; as many as keys unless given");
  axis("--dim", axes.dim, "Head dims: 64,128 or 192/128");
  axis("--mask", axes.mask, "full, causal, window<left>,<right>");
  sub->add_option("--options", axes.options, "Options of every problem, as in a line: \"softcap sink\"")
      ->type_name("TEXT")
      ->group("Axes");

  sub->add_option("--backend", asked->backends, "By name, or all; the planner's choice unless given")
      ->delimiter(',')
      ->type_name("NAME");
  sub->add_option("--peer", asked->peer,
                  "Compare with: torch (all of its ways, the fastest is the baseline), torch:sdpa, torch:math")
      ->type_name("NAME");
  sub->add_option("--python", asked->python, "The Python that has the peer")
      ->type_name("PROGRAM")
      ->capture_default_str();
  sub->add_option("--device", asked->device, "cpu, or cpu:<isa> for less than it can")
      ->type_name("NAME")
      ->capture_default_str();
  sub->add_option("--threads", asked->threads, "Numbers of threads; all of this process unless given")
      ->type_name("LIST");
  sub->add_flag("--warm", asked->warm, "Caches as the last run left them (the default)");
  sub->add_flag("--cold", asked->cold, "Flush the last-level cache before every sample; with --warm: both");
  sub->add_option("--layout", asked->layout, "bhsd or bshd: order of the axes in memory")
      ->type_name("NAME")
      ->capture_default_str();
  sub->add_option("--dist", asked->distribution, "normal, uniform or zeros: values of the inputs")
      ->type_name("NAME")
      ->capture_default_str();
  sub->add_option("--seed", asked->seed, "Of inputs, order and drawn rows")->capture_default_str();
  sub->add_flag("--no-check", asked->no_check, "Do not check results");
  sub->add_option("--precision", asked->timing.precision,
                  "Stop where half the interval of the median is below this share")
      ->type_name("SHARE")
      ->capture_default_str();
  sub->add_option("--max-seconds", asked->timing.max_seconds, "Stop after this time for each subject")
      ->capture_default_str();
  sub->add_option("--out", asked->out, "Append a record a row to this file")->type_name("FILE.jsonl");
  sub->add_flag("--dry-run", asked->dry_run, "Only say which rows, how long and how much memory");
  sub->footer(
      "Examples:\n"
      "  attune bench --len 512-8192*2 --dim 64,128 --mask full,causal --dtype f32,bf16\n"
      "  attune bench --pass forward,backward --peer torch --out records.jsonl\n"
      "  attune bench \"forward bf16 b1 h32/8 q1 k8192 d128 full\" --backend all --cold --warm\n\n"
      "The time is a median with its 95 % interval; a ratio is the baseline's time by this one's, so above 1 is "
      "faster.\n"
      "FASTER, SLOWER and SAME need the whole interval beyond or within the A/A spread; everything else is UNCLEAR.\n"
      "Exit code 1 where a result was wrong, a run failed, or a rate is above what the machine can do.");
  sub->callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
