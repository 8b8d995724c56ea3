// SPDX-License-Identifier: Apache-2.0
// Measures how close a variant comes to time proportional to its pairs: cpu_linear LINE LINE ... [SECONDS] The first
// line is dense attention. All lines run in turn in one process, round after round, on one thread. Prints GFLOP/s of
// visible pairs and the ratio to the first line, from the best round of each. Time is CPU time of the thread, so other
// load on the machine has less effect than on wall-clock time. For lists:
//   "forward bf16 b1 h1 q8192 k8192 d128 full" and the same with "blocks64x64x1 | random density=0.1".
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/work.h"
#include "core/variant/nsa.h"
#include "machine/host.h"
#include "plan/backend.h"
#include "tool/bench/axes.h"
#include "tool/subjects/workload.h"

namespace {

using namespace attune;

double now_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) * 1e9 + double(t.tv_nsec);
}

struct Subject {
  std::string line{};
  std::unique_ptr<Workload> data{};
  struct Free { void operator()(std::byte* data) const { free_scratch(data); } };
  std::unique_ptr<std::byte, Free> workspace{};
  Plan plan{};
  double flops = 0;
  std::vector<double> ns{};
};

// Lists of `selected` as a selection makes them: the first block, a token's own, the one before, and random ones in
// between.
void draw_lists(const Problem& p, const Args& a) {
  const Nsa nsa = nsa_of(p);
  std::mt19937 random(1);
  for (int b = 0; b < p.batch; ++b)
    for (int i = 0; i < p.len_q; ++i)
      for (int g = 0; g < p.heads_kv; ++g) {
        const int last = int(sequence(p, a, b).band.q_position(i)) / nsa.s;
        std::vector<int32_t> all;
        for (int n = 1; n < last - 1; ++n) all.push_back(n);
        std::shuffle(all.begin(), all.end(), random);
        for (const int n : {0, last - 1, last})
          if (n >= 0 && std::find(all.begin(), all.end(), n) == all.end()) all.insert(all.begin(), n);
        all.resize(std::min(all.size(), size_t(nsa.n)));
        std::sort(all.begin(), all.end());
        all.resize(size_t(nsa.n), -1);
        std::copy(all.begin(), all.end(), a.row<int32_t>(variant_tensor(0), b, i, g));
      }
}

Status prepare(std::string_view line, const Device& device, Subject& to) {
  BenchRow row;
  if (Status s = parse_row(line, row); !s.ok()) return s;
  const Planner planner{.device = device};
  if (Status s = planner.plan(row.problem, to.plan); !s.ok()) return s;
  to.line = line;
  to.data = std::make_unique<Workload>(row.problem, Layout::bhsd, 1, Distribution::normal, std::vector<int32_t>{},
                                       row.pattern);
  if (word(row.problem.variant) == "selected") draw_lists(row.problem, to.data->args);
  if (row.problem.pass == Pass::backward)
    if (Status s = to.data->run_forward(planner); !s.ok()) return s;
  to.workspace.reset(static_cast<std::byte*>(take_scratch(to.plan.workspace_bytes)));
  if (!to.workspace) return Status::no("no memory for a workspace of ", to.plan.workspace_bytes, " bytes");
  to.flops = cost(row.problem, &to.data->args).flops;
  return Status::good();
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 10;  // for all lines together
  Device device;
  if (Status s = device_named("cpu", device); !s.ok()) return std::puts(s.message.c_str()), 1;
  device.units = 1;
  std::vector<Subject> all;
  for (int n = 1; n < argc; ++n) {
    char* end = nullptr;
    if (const double number = std::strtod(argv[n], &end); end != argv[n] && !*end) seconds = number;
    else if (Status s = prepare(argv[n], device, all.emplace_back()); !s.ok())
      return std::printf("%s: %s\n", argv[n], s.message.c_str()), 1;
  }
  if (all.empty()) return std::puts("usage: cpu_linear LINE LINE ... [SECONDS]"), 1;
  const double begin = now_ns();
  for (int round = 0; round < 3 || now_ns() - begin < seconds * 1e9; ++round)
    for (Subject& s : all) {
      const double before = now_ns();
      if (Status done = s.plan.backend->run(s.plan, s.data->args, Workspace{s.workspace.get()}, nullptr); !done.ok())
        return std::printf("%s: %s\n", s.line.c_str(), done.message.c_str()), 1;
      s.ns.push_back(now_ns() - before);
    }
  double first = 0;
  for (Subject& s : all) {
    std::sort(s.ns.begin(), s.ns.end());
    const double rate = s.flops / s.ns.front();
    if (first == 0) first = rate;
    std::printf("%6.1f GFLOP/s  %.3f  (%zu rounds, median %.1f)  %s\n", rate, rate / first, s.ns.size(),
                s.flops / s.ns[s.ns.size() / 2], s.line.c_str());
  }
  return 0;
}
