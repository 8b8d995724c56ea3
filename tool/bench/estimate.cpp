// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/estimate.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "core/work.h"
#include "tool/subjects/module_run.h"
#include "tool/subjects/ring_run.h"

namespace attune {
namespace {

// For block lists, the bound limits the pairs; nothing else is known before the lists exist.
double flops_of(const Problem& p) {
  const Cost all = cost(p);
  const Blocks& b = p.mask.blocks;
  const double listed = double(b.bound) * b.q * b.k;
  return b.q && listed < all.pairs ? all.flops * listed / all.pairs : all.flops;
}

// Time of masked_dense, which computes every pair; for native sparse attention once per branch.
double pairs_seconds(const Problem& p, double call) {
  Problem all = p;
  all.variant = {}, all.mask = {};
  const double flops = flops_of(p), factor = word(p.variant) == "nsa" ? 3 : 1;
  return flops > 0 ? factor * call * cost(all).flops / flops : call;
}

}  // namespace

double call_seconds(const BenchRow& row, const Bench& bench) {
  const double one = call_seconds(row.problem, bench), flops = flops_of(whole_problem(row.problem));
  return row.module.empty() || flops <= 0 ? one : one * module_cost(row).flops / flops;
}

double call_seconds(const Problem& p, const Bench& bench) {
  // The rate of a modest kernel; half the ceiling once ceilings are measured.
  const bool gpu = bench.device.kind == DeviceKind::cuda;
  const double assumed = (gpu ? 1000.0 : 25.0) * bench.device.units * (p.dtype.kv == DType::bf16 ? 3 : 1);
  const double rate = bench.ceilings ? 0.5 * bench.ceilings->of(p.dtype.kv).gflops : assumed;
  return flops_of(whole_problem(p)) / std::max(rate, 1.0) * 1e-9;
}

double estimated_seconds(const Problem& p, const Bench& bench, size_t peers) {
  const double one = call_seconds(p, bench);
  // Rest and heating before a batch count as a subject's time; at least one of each takes place in any case.
  const double before = bench.timing.rest_seconds + bench.timing.heat_seconds;
  const auto subject = [&](double call) {
    const double wanted = std::max(0.2, 60 * call) + 4 * before;
    return call + std::max(std::min(wanted, bench.timing.max_seconds), bench.timing.min_early * call + call + before) +
           bench.energy_seconds;
  };
  double seconds = double(peers) * subject(one);
  for (const std::string& backend : wanted_backends(p, bench))
    seconds += subject(backend == "masked_dense" ? pairs_seconds(p, one) : one);
  const bool gpu = bench.device.kind == DeviceKind::cuda;
  return 0.2 + estimated_bytes(p) * (gpu ? 3e-9 : 15e-9) + seconds;
}

bool is_too_slow(const BenchRow& row, const Bench& bench) {
  return row.most_call_s > 0 && call_seconds(row, bench) > row.most_call_s;
}

double available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  for (double kib; file >> word;)
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  return INFINITY;
}

}  // namespace attune
