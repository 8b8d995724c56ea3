// SPDX-License-Identifier: Apache-2.0
// Measures one row of a module. The module is built, all its results are compared with the same module in f32, it is
// timed, and it is compared once more with other inputs.
#include <algorithm>
#include <cmath>
#include <new>
#include <optional>

#include "machine/cpu/kernels.h"
#include "tool/bench/estimate.h"
#include "tool/subjects/module_run.h"
#include "tool/timing/peak.h"

namespace attune {
namespace {

Checked compared(const ModuleRun& run, const ModuleRun& in_f32, int rows) {
  Checked c{.verdict = CheckVerdict::pass, .rows = rows};
  std::string where;
  if (const Status s = run.compare(in_f32, c.error, where); !s.ok())
    return c.verdict = CheckVerdict::fail, c.error = INFINITY, c.message = s.message, c;
  if (!(c.error <= 1))
    c.verdict = CheckVerdict::fail,
    c.message = join(where, ": the difference from f32 is ", c.error, " times the tolerance");
  return c;
}

Status judge(ModuleRun& run, ModuleRun& in_f32, int rows, Checked& out) {
  if (Status s = run.once(); !s.ok()) return s;
  if (Status s = in_f32.once(); !s.ok()) return s.after("in f32: ");
  out = compared(run, in_f32, rows);
  return out.verdict == CheckVerdict::pass ? Status::good() : Status::no("wrong result: ", out.message);
}

// Why a module is not compared with itself in f32; empty: it is.
std::string unchecked_by(const BenchRow& row, const ModuleRun& run) {
  if (row.problem.dtype.q == DType::f32) return "a module in f32 is not compared with a wider one";
  return run.exact_rows() ? "" : "in f32 it selects other blocks";
}

void measure_into(Record& r, const BenchRow& row, Bench& bench) {
  const auto end = [&](RecordStatus status, std::string message) {
    std::replace(message.begin(), message.end(), '\n', ' ');
    r.status = status, r.message = std::move(message);
  };
  const bool gpu = bench.timer != nullptr;
  if (const Status s = can_time_module(row, bench.device, bench.mode); !s.ok())
    return r.left_out = LeftOut::not_built, end(RecordStatus::unsupported, s.message);
  std::optional<cuda::DeviceGuard> use;
  if (gpu) use.emplace(bench.device.index);
  ModuleRun run, in_f32;
  ModulePlace place{.word = bench.device_word};
  if (gpu) place.gpu = bench.device.index, place.stream = bench.timer->stream();
  if (const Status s = run.make(row, place); !s.ok())
    return end(status_of(s, RecordStatus::unsupported), s.message);
  const std::string unchecked = unchecked_by(row, run);
  const bool check = bench.check && unchecked.empty();
  const double needed = 3 * (gpu ? run.tensor_bytes() : run.bytes()), there = available_memory();  // f32 takes 2 of 3
  const auto no_room = [&] {
    end(RecordStatus::oom, join("not enough memory: ", std::ceil(needed / 1e6), " MB of tensors, ",
                                std::floor(there / 1e6), " MB available"));
  };
  if (needed > there) return no_room();
  try {
    const PeakMemory taken(gpu ? bench.device.index : -1);
    Status s = run.open();
    if (s.ok()) s = run.fill(bench.distribution, bench.seed, r.input_rms);
    if (s.ok()) s = run.once();
    if (!s.ok()) return end(status_of(s), join("attune: ", s.message));
    if (const double bytes = taken.bytes(); bytes >= 0) r.taken_bytes = std::max(0., bytes - run.tensor_bytes());
    if (check) s = in_f32.make_f32(run);
    if (check && s.ok()) s = in_f32.open();
    if (check && s.ok()) s = run.keep_exact_rows();
    if (check && s.ok()) s = in_f32.take_inputs(run);
    if (!s.ok()) return end(status_of(s), join("in f32: ", s.message));
  } catch (const std::bad_alloc&) {
    return no_room();
  }
  r.why = join(run.why(), "; the module as a whole", check ? ", compared with the same in f32" : "");
  std::replace(r.why.begin(), r.why.end(), '\n', ' ');
  r.workspace_bytes = run.workspace_bytes();
  if (const CpuKernels* k = gpu ? nullptr : best_kernels(row.problem.dtype.kv, bench.device.features))
    r.kernels = {k->isa};
  const int rows = row.problem.batch * run.exact_rows();
  r.parity = {.verdict = CheckVerdict::unchecked, .message = bench.check ? unchecked : kNotAskedFor};
  if (const Status s = check ? judge(run, in_f32, rows, r.parity) : Status::good(); !s.ok())
    return end(status_of(s), join("attune: ", s.message));
  if (const Status s = run.fill(bench.distribution, bench.seed, r.input_rms); !s.ok())  // all rows again
    return end(status_of(s), join("attune: ", s.message));
  const Subject subject{.name = r.subject,
                        .context = &run,
                        .run = [](void* c) { return static_cast<ModuleRun*>(c)->run(); },
                        .why = [](void* c) { return static_cast<ModuleRun*>(c)->status().message; }};
  if (gpu) {
    bench.timer->begin(bench.mode);
    bench.timing.stopwatch = &bench.timer->stopwatch();
    r.kernels = bench.timer->kernels(subject);
  }
  know_machine(bench);
  know_spread(bench, subject, call_seconds(row.problem, bench));
  const std::vector<Timing> timings = measure({&subject, 1}, bench.timing, host_clock());
  note_readings(r, subject, bench);
  note_amount(r, row.problem);
  note_timing(r, timings[0], module_cost(row), row.problem.dtype.kv, bench);
  sustain(r, subject, bench);
  if (r.status != RecordStatus::ok || !check || bench.distribution == Distribution::zeros) return;
  Checked again;
  Status s = run.keep_exact_rows();
  if (s.ok()) s = run.negate_input();
  if (s.ok()) s = in_f32.negate_input();
  if (s.ok()) s = judge(run, in_f32, rows, again);
  if (!s.ok()) {
    r.parity = again, r.parity.verdict = CheckVerdict::fail, r.parity.mistake = "cached-result";
    end(RecordStatus::failed, join("attune: with other inputs, after the timing: ", s.message));
  }
}

}  // namespace

std::vector<Record> measure_module(const BenchRow& row, Bench& bench) {
  std::vector<Record> all(1, blank_record(row, bench));
  all[0].subject = "attune", all[0].row_records = 1;
  all[0].tensor_bytes = module_cost(row).bytes;
  BlockCounts counts;
  (void)module_attention_cost(row, counts);
  if (const int64_t shown = counts[size_t(BlockCount::shown)]) {
    all[0].active_blocks = counts[size_t(BlockCount::active)], all[0].shown_blocks = shown;
    all[0].density = double(all[0].active_blocks) / double(shown);
  }
  measure_into(all[0], row, bench);
  return all;
}

}  // namespace attune
