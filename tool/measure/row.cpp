#include "tool/measure/row.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <new>

#include "core/cost.h"
#include "plan/plan.h"
#include "tool/measure/provenance.h"
#include "tool/measure/spot.h"

namespace attune {
namespace {

constexpr double kPracticalMargin = 0.01;  // a smaller difference is nobody's concern

// A backend, its plan and its workspace, as a subject.
struct BackendRun {
  Plan plan;
  Args args;
  Memory workspace;
  Status status{};

  BackendRun(Plan p, const Args& a) : plan(std::move(p)), args(a), workspace(plan.workspace_bytes) {}
  bool run() {
    status = plan.backend->run(plan, args, Workspace{workspace.data()}, nullptr);
    return status.ok();
  }
  Subject subject() {
    return {.name = std::string(plan.backend->name),
            .context = this,
            .run = [](void* c) { return static_cast<BackendRun*>(c)->run(); },
            .why = [](void* c) { return static_cast<BackendRun*>(c)->status.message; }};
  }
};

// One line: the first sentence of a refusal by all, and the reasons behind it.
std::string one_line(std::string text) {
  for (size_t at; (at = text.find("\n  ")) != std::string::npos;) text.replace(at, 3, "; ");
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

struct RowRun {
  const Problem& problem;
  Bench& bench;
  std::vector<Record> records{};
  std::vector<Subject> subjects{};
  std::vector<size_t> record_of{};  // of each subject
  std::vector<std::unique_ptr<BackendRun>> ours{};
  std::vector<std::unique_ptr<PeerRun>> theirs{};
  std::unique_ptr<Workload> work{};
  size_t peers = 0;  // how many of the subjects, the first ones

  Record& add(std::string subject) {
    Record& r = records.emplace_back();
    r.problem = name(problem);
    r.subject = std::move(subject);
    r.device = bench.device_word;
    r.mode = bench.timing.cold ? "cold" : "warm";
    r.layout = name(bench.layout);
    r.distribution = name(bench.distribution);
    r.seed = bench.seed;
    r.threads = bench.device.units;
    r.provenance = bench.provenance;
    r.provenance.time = utc_now();
    if (!bench.peers.empty()) r.provenance.peers = bench.peers[0]->version;
    return r;
  }
  void end(Record& r, const char* status, const std::string& message) {
    r.status = status, r.message = one_line(message);
  }

  Planner planner(std::string_view forced = {}) const {
    return {.device = bench.device, .rules = bench.rules, .forced = forced};
  }

  // The plans of this row; what is not supported is a record.
  std::vector<Plan> plans() {
    std::vector<std::string> wanted;
    for (const std::string& word : bench.backends) {
      if (word != "all") { wanted.push_back(word); continue; }
      for (const Backend* b : backends())
        if (!b->only_by_name && b->supports(problem, bench.device).ok()) wanted.emplace_back(b->name);
    }
    if (wanted.empty()) wanted.emplace_back();
    std::vector<Plan> made;
    for (const std::string& word : wanted) {
      Plan plan;
      if (const Status s = planner(word).plan(problem, plan); s.ok()) made.push_back(std::move(plan));
      else end(add(word.empty() ? "attune" : word), "unsupported", s.message);
    }
    return made;
  }

  bool make_workload() {
    const double needed = estimated_bytes(problem), there = available_memory();
    const auto no_room = [&] {
      end(add("attune"), "failed",
          join("not enough memory: ", std::ceil(needed / 1e6), " MB of tensors, ", std::floor(there / 1e6),
               " MB available"));
      return false;
    };
    if (2.2 * needed > there) return no_room();  // while they are made there are two of each
    try {
      work = std::make_unique<Workload>(problem, bench.layout, bench.seed, bench.distribution);
    } catch (const std::bad_alloc&) {
      return no_room();
    }
    if (problem.pass == Pass::backward)
      if (const Status s = work->run_forward(planner()); !s.ok())
        return end(add("attune"), "failed", join("the forward before it: ", s.message)), false;
    return true;
  }

  // A subject that is right is timed; one that is not is a record of a failure.
  void take(Record& r, Subject subject, const Args& results) {
    r.parity = bench.check ? spot_check(problem, results, bench.seed)
                           : Checked{.verdict = "UNCHECKED", .message = "not asked for"};
    if (r.parity.verdict == "FAIL") return end(r, "failed", join(r.subject, ": wrong result: ", r.parity.message));
    record_of.push_back(size_t(&r - records.data()));
    subjects.push_back(std::move(subject));
  }

  void add_peer(const attune_peer& peer) {
    Record& r = add(peer.name);
    r.why = "a peer";
    const Args results = work->other_outputs();
    PeerRun& run = *theirs.emplace_back(std::make_unique<PeerRun>(peer));
    if (const Status s = run.setup(problem, results, bench.device.units); !s.ok())
      return end(r, "unsupported", s.message);
    if (const Status s = run.run_and_fetch(); !s.ok()) return end(r, "failed", s.message);
    take(r, run.subject(), results);
    if (!record_of.empty() && record_of.back() == size_t(&r - records.data())) ++peers;
  }

  void add_backend(Plan plan) {
    Record& r = add(std::string(plan.backend->name));
    r.why = plan.why;
    r.workspace_bytes = plan.workspace_bytes;
    try {
      ours.push_back(std::make_unique<BackendRun>(std::move(plan), work->args));
    } catch (const std::bad_alloc&) {
      return end(r, "failed", join(r.subject, ": not enough memory for a workspace of ", r.workspace_bytes, " bytes"));
    }
    work->poison_outputs();
    if (!ours.back()->run()) return end(r, "failed", ours.back()->status.message);
    take(r, ours.back()->subject(), work->args);
  }

  void measure_machine() {
    const Clock clock = host_clock();
    if (!bench.ceilings)
      bench.ceilings =
          bench.device.kind == DeviceKind::cpu ? measure_ceilings(bench.device, bench.device.units) : Ceilings{};
    if (!bench.floor_ns) bench.floor_ns = floor_ns(bench.timing, clock);
    if (!bench.peers.empty() && !bench.peer_floor_ns) {
      const Subject empty = empty_call(*bench.peers[0]);
      bench.peer_floor_ns = floor_ns(bench.timing, clock, &empty);
    }
    if (subjects.size() > 1 && !bench.aa_spread) {
      Settings set = bench.timing;
      set.max_seconds = std::min(set.max_seconds, 3.0);
      bench.aa_spread = spread(against_itself(subjects.back(), set, clock));
    }
  }

  void fill(Record& r, const Timing& t, const Cost& c, bool peer) {
    r.samples_ns = t.samples;
    r.calls = t.calls;
    r.ended_by = t.ended_by;
    r.warm_up_s = t.warm_up_s;
    r.flops = c.flops, r.bytes = c.bytes;
    const Ceiling& ceiling = bench.ceilings->of(problem.dtype.kv);
    r.ceiling = ceiling.instruction, r.ceiling_gflops = ceiling.gflops, r.copy_gbs = bench.ceilings->copy_gbs;
    r.floor_ns = peer ? *bench.peer_floor_ns : *bench.floor_ns;
    if (!t.status.ok()) return end(r, "failed", t.status.message);
    if (t.ended_by == "interrupt") r.status = "interrupted";
    derive(r);
  }

  void compare() {
    if (subjects.size() < 2) return;
    size_t best = 0;
    for (size_t n = 1; n < peers; ++n)
      if (records[record_of[n]].median_ns < records[record_of[best]].median_ns) best = n;
    const Record& base = records[record_of[best]];
    for (size_t n = 0; n < subjects.size(); ++n) {
      Record& r = records[record_of[n]];
      if (n == best || r.samples_ns.empty() || base.samples_ns.empty()) continue;
      r.baseline = base.subject;
      r.ratio = median_ratio(base.samples_ns, r.samples_ns);
      r.aa_spread = *bench.aa_spread;
      r.verdict = name(verdict(r.ratio, std::max(kPracticalMargin, r.aa_spread)));
    }
  }

  void run() {
    std::vector<Plan> planned = plans();
    if (planned.empty() || !make_workload()) return;
    records.reserve(records.size() + planned.size() +
                    bench.peers.size());  // take() keeps places, and add() must not move them
    for (const attune_peer* peer : bench.peers) add_peer(*peer);
    for (Plan& plan : planned) add_backend(std::move(plan));
    if (subjects.empty()) return;
    measure_machine();
    const std::vector<Timing> timings = measure(subjects, bench.timing, host_clock());
    const Cost c = cost(problem, &work->args);
    for (size_t n = 0; n < subjects.size(); ++n) fill(records[record_of[n]], timings[n], c, n < peers);
    compare();
  }
};

}  // namespace

std::vector<Record> measure_row(const Problem& problem, Bench& bench) {
  RowRun row{problem, bench};
  row.run();
  return std::move(row.records);
}

double estimated_seconds(const Problem& p, const Bench& bench) {
  // A modest kernel, before anything is known; once there are ceilings, half of theirs.
  const double assumed = 25.0 * bench.device.units * (p.dtype.kv == DType::bf16 ? 3 : 1);
  const double rate = bench.ceilings ? 0.5 * bench.ceilings->of(p.dtype.kv).gflops : assumed;
  const double call = cost(p).flops / std::max(rate, 1.0) * 1e-9;
  const double timed =
      std::max(std::min(std::max(0.2, 60 * call), bench.timing.max_seconds), bench.timing.few * call + call);
  const double subjects = double(std::max<size_t>(1, bench.backends.size())) + double(bench.peers.size());
  return 0.2 + estimated_bytes(p) * 15e-9 + subjects * (call + timed);
}

double available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  for (double kib; file >> word;)
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  return INFINITY;
}

}  // namespace attune
