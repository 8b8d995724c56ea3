// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/row.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <new>

#include "core/variant/adaptive.h"
#include "core/forward_of.h"
#include "core/work.h"
#include "core/variant/nsa.h"
#include "machine/cpu/kernels.h"
#include "machine/cuda/nvtx.h"
#include "plan/plan.h"
#include "tool/bench/backend_run.h"
#include "tool/bench/estimate.h"
#include "tool/bench/inputs.h"
#include "tool/subjects/gpu_workload.h"
#include "tool/timing/peak.h"
#include "tool/subjects/ring_run.h"
#include "tool/check/spot.h"
#include "tool/text.h"
#include "verify/diagnose/diagnose.h"

namespace attune {
namespace {

constexpr double kPracticalMargin = 0.01;  // smaller differences do not matter

bool is_planned(const std::vector<Plan>& made, const Backend* backend) {
  return std::any_of(made.begin(), made.end(), [&](const Plan& p) { return p.backend == backend; });
}

struct RowRun {
  const Problem& problem;
  Bench& bench;
  const Problem whole = whole_problem(problem);  // over ranks, the problem of all ranks together
  std::vector<Record> records{};
  std::vector<Subject> subjects{};
  std::vector<size_t> record_of{};  // per subject, an index into records
  struct Once {
    std::function<Status(int rows)> run;  // poisons the outputs, runs once, fetches what a check of `rows` rows reads
    Args results;                         // the tensors to check
  };
  std::vector<Once> onces{};      // per subject
  std::unique_ptr<Workload> work{};
  std::unique_ptr<GpuWorkload> gpu{};  // null on a CPU
  std::vector<std::unique_ptr<BackendRun>> ours{};
  std::vector<std::unique_ptr<RingRun>> rings{};
  std::vector<std::unique_ptr<PeerRun>> theirs{};
  std::optional<Inputs> inputs{};  // where there are peers
  Args peer_results{};   // on the GPU, shared by all peers: results are fetched before the next peer runs
  size_t peers = 0;      // number of peers among the subjects; they come first
  const BenchRow* train = nullptr;  // of a forward and its backward, as one call; `problem` is the backward
  bool skipped = false;  // a backend was skipped because a shorter row did not fit; peers may still run

  bool on_gpu() const { return bench.timer != nullptr; }
  void* stream() const { return on_gpu() ? bench.timer->stream() : nullptr; }

  Record& add(std::string subject) {
    BenchRow row{problem, bench.pattern};
    if (train) row.label = train->label;
    Record& r = records.emplace_back(blank_record(row, bench));
    if (work && !bench.pattern.empty()) {
      r.active_blocks = work->blocks()[size_t(BlockCount::active)];
      r.shown_blocks = work->blocks()[size_t(BlockCount::shown)];
      r.density = r.shown_blocks ? double(r.active_blocks) / double(r.shown_blocks) : 0;
    }
    r.subject = std::move(subject);
    r.sets = gpu ? gpu->sets() : 1;
    if (work) r.input_rms = input_rms(work->args[Role::q]);
    return r;
  }
  void end(Record& r, RecordStatus status, const std::string& message) {
    r.status = status, r.message = one_line(message);
  }
  bool failed(const Status& s, const char* what) {
    if (s.ok()) return false;
    end(add("attune"), status_of(s), join(what, s.message));
    return true;
  }

  Planner planner(std::string_view forced = {}) const {
    return {.device = bench.device, .rules = bench.rules, .forced = forced};
  }

  // If a shorter row did not fit, adds a record that names it and makes no attempt.
  bool skip_too_long(std::string_view subject) {
    const TooLong* const shorter = no_room_for(problem, subject, bench.too_long);
    if (!shorter) return false;
    skipped = true;
    const std::string line = name(shorter->problem);
    end(add(std::string(subject)), RecordStatus::oom,
        join(subject, ": not tried: not enough memory for the shorter ", line));
    return true;
  }

  // A training row is timed where out and lse of the forward are tensors that the backward reads.
  Status can_train() const {
    if (on_gpu()) return Status::unsupported("not built: train rows run on a CPU");
    const bool plain = word(problem.variant).empty() && !is_ring(problem) && !problem.has(Option::append) &&
                       !problem.has(Option::accumulate);
    return plain ? Status::good()
                 : Status::unsupported("not built: train rows have no variant, ranks, append and accumulate");
  }

  // The forward of a training row: of the same backend if it has one, else the planner's choice.
  Status add_forward(BackendRun& run, Record& r) {
    const Problem forward = forward_of(problem);
    Plan plan;
    Status s = planner(run.plan.backend->name).plan(forward, plan);
    if (!s.ok()) s = planner().plan(forward, plan);
    if (!s.ok()) return s.after("forward: ");
    r.why = join("forward by ", plan.backend->name, "; ", r.why), r.workspace_bytes += plan.workspace_bytes;
    std::vector<Args> all = sets();
    for (Args& args : all) args = forward_of(args);
    run.forward = std::make_unique<BackendRun>(std::move(plan), std::move(all), stream());
    return run.forward->status;
  }

  // What the forward of a training row wrote.
  Checked check_forward(const Args& results, int rows) const {
    return spot_check(forward_of(problem), forward_of(results), bench.seed, rows);
  }
  void poison_forward() const {
    for (const Role role : {Role::out, Role::lse})
      if (const Tensor& t = work->args[role]; t.data) std::memset(t.data, 0xFF, span_bytes(t));
  }

  // The plans of this row. A backend that does not support the problem becomes a record.
  std::vector<Plan> plans() {
    std::vector<Plan> made;
    const Status ranks = is_ring(problem) ? can_time_ring(problem, bench.device, bench.mode) : Status::good();
    if (!ranks.ok()) {
      Record& r = add("attune");
      r.left_out = LeftOut::not_built, end(r, RecordStatus::unsupported, ranks.message);
      return made;
    }
    if (const Status s = train ? can_train() : Status::good(); !s.ok()) {
      Record& r = add("attune");
      r.left_out = LeftOut::not_built, end(r, RecordStatus::unsupported, s.message);
      return made;
    }
    for (const std::string& word : wanted_backends(problem, bench)) {
      Plan plan;
      Planner by = planner(word);
      if (is_ring(problem)) by.device = rank_device(bench.device, problem);
      if (const Status s = by.plan(problem, plan); !s.ok())
        end(add(word.empty() ? "attune" : word), RecordStatus::unsupported, s.message);
      else if (is_planned(made, plan.backend)) continue;  // the planner's choice is also requested by name
      else if (!skip_too_long(plan.backend->name)) made.push_back(std::move(plan));
    }
    return made;
  }

  std::unique_ptr<Workload> fresh_workload() const {
    return std::make_unique<Workload>(whole, bench.layout, bench.seed, bench.distribution, bench.lengths,
                                      bench.pattern, !on_gpu());
  }
  std::unique_ptr<Workload> fresh_inputs() const {
    std::unique_ptr<Workload> fresh = fresh_workload();
    if (problem.pass == Pass::backward) (void)fresh->run_forward(planner());
    return fresh;
  }
  bool make_workload() {
    const double needed = estimated_bytes(problem), there = available_memory();
    std::optional<double> of_gpu;
    if (on_gpu()) of_gpu = double(bench.timer->facts().free_bytes);
    const auto no_room = [&] {
      end(add("attune"), RecordStatus::oom,
          join("not enough memory: ", std::ceil(needed / 1e6), " MB of tensors, ", std::floor(there / 1e6),
               " MB available", of_gpu ? join(", ", std::floor(*of_gpu / 1e6), " MB on the GPU") : ""));
      return false;
    };
    if (!fits(needed, there, of_gpu)) return no_room();
    try {
      work = fresh_workload();
    } catch (const std::bad_alloc&) {
      return no_room();
    }
    const bool backward = problem.pass == Pass::backward;
    if (on_gpu()) return make_gpu_workload(backward);
    return !backward || !failed(work->run_forward(planner()), "forward of this backward: ");
  }

  bool make_gpu_workload(bool backward) {
    gpu = std::make_unique<GpuWorkload>();
    if (failed(gpu->open(bench.device.index, stream(), *work), "tensors: ")) return false;
    if (backward && failed(gpu->run_forward(planner()), "forward of this backward: ")) return false;
    int calls = 1;
    if (bench.mode == Mode::graph) {
      const cuda::Facts& facts = bench.timer->facts();
      const int sets = rotation(gpu->set_bytes(), double(facts.l2_bytes), 0.3 * double(facts.free_bytes));
      if (failed(gpu->replicate(sets), "rotating sets of tensors: ")) return false;
      // Enough calls per graph to make its launch cost negligible.
      constexpr int kEnough = 8;
      calls = sets >= kEnough ? sets : sets * int(std::ceil(double(kEnough) / sets));
    }
    bench.timer->begin(bench.mode, calls);
    return bench.peers.empty() || !failed(gpu->other_outputs(peer_results), "output tensors of peers: ");
  }

  // Counts the blocks that an adaptive forward kept; its block list is among the results.
  void count_adaptive(Record& r, const Args& results) const {
    const Tensor& begin = results[role(AdaptiveTensor::begin)];
    if (word(problem.variant) != "adaptive" || problem.pass != Pass::forward || !begin.data) return;
    const Adaptive say = adaptive_of(problem);
    const int rows = begin.extent.dim - 1;
    r.active_blocks = view<const int32_t>(begin).row(problem.batch - 1, 0, problem.heads_q - 1)[rows];
    for (int b = 0; b < problem.batch; ++b) {
      const Sequence s = sequence(problem, results, b);
      const BlockGrid grid{s.band, s.len_q, s.len_k, {say.block, say.block, 1}};
      for (int row = 0; row < rows; ++row)
        r.shown_blocks += int64_t(problem.heads_q) * (grid.shown(row).last - grid.shown(row).first);
    }
    r.density = r.shown_blocks ? double(r.active_blocks) / double(r.shown_blocks) : 0;
  }

  // Copies the token counts that native sparse attention reports.
  void count_reads(Record& r, const Args& results) const {
    if (word(problem.variant) != "nsa" || problem.pass != Pass::forward) return;
    if (const int64_t* const read = results.row<const int64_t>(variant_tensor(kNsaReads)))
      r.tokens_read.assign(read, read + results[variant_tensor(kNsaReads)].extent.dim);
  }

  // Names the mistake behind a wrong result. A result that is right a moment later was only enqueued when the call
  // returned.
  void explain(Record& r, const std::function<Status()>& fetch, const Args& results) {
    if (gpu)
      if (const Status s = fetch(); !s.ok())
        return end(r, RecordStatus::failed, join(r.subject, ": wrong result: ", s.message));
    const Mistake m = diagnose(whole, results);
    r.parity.mistake = m.name;
    std::string sentence = m.sentence;
    host_clock().rest(50e6);
    const bool drained = !gpu || cuda::wait_all(bench.device.index).ok();
    if (drained && fetch().ok() && spot_check(whole, results, bench.seed, 6).verdict == CheckVerdict::pass)
      r.parity.mistake = "enqueue-only",
      sentence = gpu ? "its work is not on the given stream" : "the call returns before its work is done";
    end(r, RecordStatus::failed,
        join(r.subject, ": wrong result: ", r.parity.message,
             r.parity.mistake.empty() ? "" : join("; explained by ", r.parity.mistake, ": ", sentence)));
  }

  // Checking a row costs a walk over all keys in double, so fewer rows are sampled for long sequences. All subjects are
  // checked on the same rows.
  int rows_drawn() const {
    constexpr double kElements = 2e7;
    const double walk = double(whole.len_k) * (whole.dim_qk + whole.dim_v);
    return int(std::clamp(kElements / walk, 6.0, 24.0));
  }

  // Checks a subject. A correct one is queued for timing; a wrong one becomes a record of a failure.
  void take(Record& r, Subject subject, Once once, const std::function<Status()>& fetch) {
    r.parity = bench.check ? spot_check(whole, once.results, bench.seed, rows_drawn())
                           : Checked{.verdict = CheckVerdict::unchecked, .message = kNotAskedFor};
    if (train && passed(r.parity.verdict))
      if (const Checked of = check_forward(once.results, rows_drawn()); of.verdict == CheckVerdict::fail)
        r.parity = of, r.parity.message = join("forward: ", of.message);
    count_adaptive(r, once.results);
    count_reads(r, once.results);
    if (r.parity.verdict == CheckVerdict::fail) return explain(r, fetch, once.results);
    record_of.push_back(size_t(&r - records.data()));
    subjects.push_back(std::move(subject));
    onces.push_back(std::move(once));
  }

  // Negates an input in place, q in a forward and d_out in a backward, so that every result changes. The sign is the
  // highest bit of every floating-point type.
  Status negate_input() {
    // The q of a training row, so that a stale result of the forward shows as well.
    const Role role = problem.pass == Pass::forward || train ? Role::q : Role::d_out;
    const Tensor& t = work->args[role];
    const int size = size_of(t.dtype);
    for (int b = 0; b < t.extent.batch; ++b)
      for (int s = 0; s < t.extent.seq; ++s)
        for (int h = 0; h < t.extent.head; ++h) {
          auto* const row = static_cast<unsigned char*>(t.data) +
                            (b * t.stride.batch + s * t.stride.seq + h * t.stride.head) * size;
          for (int d = 0; d < t.extent.dim; ++d) row[(d + 1) * size - 1] ^= 0x80;
        }
    return gpu ? gpu->send(role) : Status::good();
  }

  // Checks again after the timing, with other inputs in the same memory: a cached result is now wrong.
  void check_again() {
    if (!bench.check || (bench.timing.stop && *bench.timing.stop) || bench.distribution == Distribution::zeros) return;
    if (!negate_input().ok()) return;
    if (train && !work->run_forward(planner()).ok()) return;  // the peers' gradients are judged with its results
    constexpr int kRows = 3;
    for (size_t n = 0; n < onces.size(); ++n) {
      Record& r = records[record_of[n]];
      if (r.status != RecordStatus::ok || r.parity.verdict != CheckVerdict::pass) continue;
      if (const Status s = onces[n].run(kRows); !s.ok()) { end(r, RecordStatus::failed, s.message); continue; }
      const Checked again = spot_check(whole, onces[n].results, bench.seed, kRows);
      if (again.verdict != CheckVerdict::fail) continue;
      r.parity.verdict = CheckVerdict::fail, r.parity.message = again.message, r.parity.error = again.error;
      r.parity.mistake = "cached-result";
      end(r, RecordStatus::failed,
          join(r.subject, ": with other inputs, after the timing, the result is wrong: cached-result: ",
               again.message));
    }
  }

  // Fetches from the GPU only what a check of this many rows reads: copying another 100 MB takes longer than the check.
  Status fetch_rows(const Args& results, int rows) {
    const std::vector<ResultRow> read = rows_read(whole, work->args, bench.seed, rows);
    if (read.empty()) return gpu->fetch(results);
    return gpu->fetch(results, bench.check ? read : std::vector<ResultRow>{});
  }

  Status set_up(PeerRun& run, const Args& results) {
    if (!gpu) return run.setup(whole, results, {.threads = bench.device.units, .train = train != nullptr});
    for (int n = 0; n < gpu->sets(); ++n) {
      Args args = gpu->args(n);
      for (const Role role : work->outputs()) args[role] = results[role];
      if (Status s = run.setup(whole, args, {.gpu = bench.device.index, .stream = stream()}); !s.ok()) return s;
    }
    return gpu->poison(results);
  }

  void add_peer(const attune_peer& peer) {
    if (skip_too_long(peer.name)) return void(records.back().peer = true);
    Record& r = add(peer.name);
    r.peer = true;
    if (const std::string how = how_it_ended(peer.name); !how.empty())
      return end(r, RecordStatus::failed, join(peer.name, ": ", how));
    const Args results = gpu ? peer_results : work->other_outputs();
    Args judged = gpu ? work->args : results;
    if (problem.pass == Pass::forward) judged[Role::lse] = {};  // peers compute out only
    PeerRun& run = *theirs.emplace_back(std::make_unique<PeerRun>(peer));
    const auto no = [&](const Status& s, RecordStatus otherwise) {
      end(r, status_of(s, otherwise), s.message), theirs.pop_back();
    };
    if (const Status s = set_up(run, results); !s.ok()) return no(s, RecordStatus::unsupported);
    r.note = one_line(run.note()), r.why = join("a peer", r.note.empty() ? "" : ": ", r.note);
    r.provenance.peers = peer.version;
    const auto fetch = [this, &run, results] {
      if (Status s = run.fetch(); !s.ok() || !gpu) return s;
      return gpu->fetch(results);
    };
    const auto once = [this, &run, results](int rows) {
      if (gpu)
        if (Status s = gpu->poison(results); !s.ok()) return s;
      if (!gpu) work->poison(results);
      if (Status s = run.run_once(); !s.ok()) return s;
      if (Status s = run.fetch(); !s.ok() || !gpu) return s;
      return fetch_rows(results, rows);
    };
    if (const Status s = once(rows_drawn()); !s.ok()) return no(s, RecordStatus::failed);
    if (const std::string what = inputs->changed(); !what.empty()) {
      no(Status::no(peer.name, ": a call changes its input ", what), RecordStatus::failed);
      return void(failed(inputs->restore(), "inputs: "));
    }
    r.taken_bytes = run.taken_bytes();
    if (on_gpu()) r.kernels = bench.timer->kernels(run.subject());
    take(r, run.subject(), {once, judged}, fetch);
    if (!record_of.empty() && record_of.back() == size_t(&r - records.data())) ++peers;
  }

  // No peer may be timed on other inputs than it was checked on.
  void check_inputs() {
    const std::string what = inputs ? inputs->changed() : "";
    if (what.empty()) return;
    bool named = false;
    for (const bool all : {false, true})
      for (size_t n = 0; n < peers && !(all && named); ++n) {
        Record& r = records[record_of[n]];
        if (!all && (!inputs->restore().ok() || !onces[n].run(1).ok() || inputs->changed().empty())) continue;
        named = true;
        end(r, RecordStatus::failed, join(r.subject, ": ", all ? "it or another peer of the row" : "a call",
                                          " changed the input ", what, " while it was timed"));
      }
    (void)inputs->restore();
  }

  std::vector<Args> sets() const {
    if (!gpu) return {work->args};
    std::vector<Args> all;
    for (int n = 0; n < gpu->sets(); ++n) all.push_back(gpu->args(n));
    return all;
  }

  void add_backend(Plan plan) {
    Record& r = add(std::string(plan.backend->name));
    r.why = plan.why;
    if (!on_gpu())
      if (const CpuKernels* k = best_kernels(problem.dtype.kv, bench.device.features)) r.kernels = {k->isa};
    r.workspace_bytes = plan.workspace_bytes;
    const auto no_room = [&] {
      end(r, RecordStatus::oom,
          join(r.subject, ": not enough memory for a workspace of ", r.workspace_bytes, " bytes"));
    };
    // Linux overcommits memory and kills the process that touches it.
    if (!on_gpu() && double(r.workspace_bytes) > available_memory())
      return no_room();
    const PeakMemory taken(on_gpu() ? bench.device.index : -1);
    try {
      ours.push_back(std::make_unique<BackendRun>(std::move(plan), sets(), stream()));
    } catch (const std::bad_alloc&) {
      return no_room();
    }
    BackendRun& run = *ours.back();
    if (const Status s = train ? add_forward(run, r) : Status::good(); !s.ok()) return end(r, status_of(s), s.message);
    if (!run.status.ok())
      return end(r, status_of(run.status),
                 join(r.subject, ": a workspace of ", r.workspace_bytes, " bytes: ", run.status.message));
    const auto fetch = [this] { return gpu ? gpu->fetch(gpu->args()) : Status::good(); };
    const auto once = [this, &run](int rows) {
      if (train) poison_forward();
      if (!gpu) work->poison_outputs();
      else if (Status s = gpu->poison(gpu->args()); !s.ok()) return s;
      run.next = 0;
      if (!run.run()) return run.status;
      run.next = 0;
      return gpu ? fetch_rows(gpu->args(), rows) : Status::good();
    };
    if (const Status s = once(rows_drawn()); !s.ok()) return end(r, status_of(s), s.message);
    r.taken_bytes = taken.bytes();
    if (on_gpu()) r.kernels = bench.timer->kernels(run.subject()), run.next = 0;
    take(r, run.subject(), {once, work->args}, fetch);
  }

  // Ranks are threads of this process. Tensors are sharded and gathered outside the timed window.
  void add_ring(Plan plan) {
    Record& r = add(std::string(plan.backend->name));
    if (!on_gpu())
      if (const CpuKernels* k = best_kernels(problem.dtype.kv, bench.device.features)) r.kernels = {k->isa};
    try {
      rings.push_back(std::make_unique<RingRun>(std::move(plan), work->args, work->outputs(), bench.layout,
                                                gpu ? &gpu->args() : nullptr, stream()));
    } catch (const std::bad_alloc&) {
      return end(r, RecordStatus::oom, join(r.subject, ": not enough memory for the shards of all ranks"));
    }
    RingRun& run = *rings.back();
    r.workspace_bytes = run.workspace_bytes();
    Status ready = run.open();
    if (ready.ok()) ready = run.cut();  // before PeakMemory: shards are inputs and outputs, not what a call takes
    if (!ready.ok()) return end(r, status_of(ready), join(r.subject, ": ", ready.message));
    const PeakMemory taken(on_gpu() ? bench.device.index : -1);
    const auto once = [this, &run](int) {
      work->poison_outputs();
      if (Status s = run.cut(); !s.ok()) return s;
      if (!run.run()) return run.status();
      return run.gather();
    };
    if (const Status s = once(0); !s.ok()) return end(r, status_of(s), s.message);
    r.taken_bytes = taken.bytes();
    if (on_gpu() && r.taken_bytes >= 0) r.taken_bytes += double(run.workspace_bytes());  // allocated before PeakMemory
    r.why = join(run.plan().why, "; ranks are threads of this process, with ",
                 on_gpu() ? "one stream each on one GPU" : join(run.plan().device.units, " CPU threads each"),
                 ", and send ", run.sent(), " bytes per call");
    const Subject subject{.name = r.subject,
                          .context = &run,
                          .run = [](void* c) { return static_cast<RingRun*>(c)->run(); },
                          .why = [](void* c) { return static_cast<RingRun*>(c)->status().message; }};
    if (on_gpu()) r.kernels = bench.timer->kernels(subject);
    take(r, subject, {once, work->args}, [] { return Status::good(); });
  }

  void measure_machine() {
    const Clock clock = host_clock();
    know_machine(bench);
    if (on_gpu()) bench.peer_floor_ns = bench.floor_ns;
    if (!bench.peers.empty() && !bench.peer_floor_ns) {
      const Subject empty = empty_call(*bench.peers[0]);
      bench.peer_floor_ns = floor_ns(bench.timing, clock, &empty);
    }
    know_spread(bench, subjects.back(), call_seconds(problem, bench));
  }

  // The GPU's clock saw less work than the problem has. Times one call from outside to find who did the rest.
  void explain_rate(Record& r, const Subject& subject) {
    const Clock clock = host_clock();
    if (!cuda::wait_all(bench.device.index).ok()) return;
    const int64_t start = clock.now();
    if (!subject.run(subject.context)) return;
    const double host = double(clock.now() - start);
    if (!cuda::wait_all(bench.device.index).ok()) return;
    const double all = double(clock.now() - start);
    if (all < 10 * r.median_ns) return;  // no hidden work
    r.parity.mistake = host > 0.5 * all ? "cpu-on-gpu" : "enqueue-only";
    r.message += join("; explained by ", r.parity.mistake, ": a call takes ", seconds_text(1e-9 * all), ", of which ",
                      host > 0.5 * all ? "the host works " : "streams other than its own work ",
                      seconds_text(1e-9 * std::max(host, all - host)));
  }

  void compare() {
    const auto is_good = [](const Record& r) {
      return !r.samples_ns.empty() && (r.status == RecordStatus::ok || r.status == RecordStatus::interrupted);
    };
    const Record* base = nullptr;
    for (size_t n = 0; n < subjects.size(); ++n) {
      const Record& r = records[record_of[n]];
      if (is_good(r) && (!base || (n < peers && r.median_ns < base->median_ns))) base = &r;
    }
    for (const Record& r : records)
      if (r.subject == bench.baseline && r.status != RecordStatus::unsupported) base = &r;
    if (!base || !is_good(*base)) return;
    for (const size_t n : record_of) {
      Record& r = records[n];
      const bool is_false = r.status == RecordStatus::failed || r.status == RecordStatus::refused;
      if (&r == base || r.samples_ns.empty() || is_false) continue;
      r.baseline = base->subject;
      r.ratio = median_ratio(base->samples_ns, r.samples_ns);
      r.verdict = name(verdict(r.ratio, kPracticalMargin, r.aa_spread));
      r.verdict = verdict_text(r);
    }
  }

  void run() {
    std::optional<cuda::DeviceGuard> use;
    if (on_gpu()) use.emplace(bench.device.index);
    if (skip_too_long("attune")) return;
    std::vector<Plan> planned = plans();
    if (planned.empty() && (!skipped || bench.peers.empty())) return;
    if (!make_workload()) return;
    if (!bench.peers.empty()) inputs.emplace(*work, gpu.get(), train != nullptr, [this] { return fresh_inputs(); });
    records.reserve(records.size() + planned.size() +
                    bench.peers.size());  // references into records must survive add()
    for (const attune_peer* peer : bench.peers) add_peer(*peer);
    for (Plan& plan : planned) is_ring(problem) ? add_ring(std::move(plan)) : add_backend(std::move(plan));
    if (subjects.empty()) return;
    if (on_gpu()) bench.timing.stopwatch = &bench.timer->stopwatch();
    measure_machine();
    const std::vector<Timing> timings = measure(subjects, bench.timing, host_clock());
    Cost c = cost(whole, &work->args);
    if (train) {
      const Args args = forward_of(work->args);
      const Cost forward = cost(forward_of(whole), &args);
      c.flops += forward.flops, c.bytes += forward.bytes;
    }
    for (size_t n = 0; n < subjects.size(); ++n) {
      Record& r = records[record_of[n]];
      note_readings(r, subjects[n], bench);
      note_amount(r, whole, &work->args);
      note_timing(r, timings[n], c, problem.dtype.kv, bench, n < peers);
      if (on_gpu() && r.status == RecordStatus::refused) explain_rate(r, subjects[n]);
      sustain(r, subjects[n], bench);
    }
    check_inputs();
    check_again();
    compare();
  }
};

}  // namespace

namespace {

std::vector<Record> measured(RowRun row) {
  const Problem& problem = row.problem;
  Bench& bench = row.bench;
  row.run();
  for (Record& r : row.records) {
    r.row_records = int(row.records.size());
    if (r.status == RecordStatus::oom && !no_room_for(problem, r.subject, bench.too_long))
      bench.too_long.push_back({problem, r.subject});
  }
  return std::move(row.records);
}

}  // namespace

std::vector<Record> measure_row(const Problem& problem, Bench& bench) { return measured({problem, bench}); }

std::vector<Record> measure_train(const BenchRow& row, Bench& bench) {
  return measured({.problem = row.problem, .bench = bench, .train = &row});
}

}  // namespace attune
