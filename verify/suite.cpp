// SPDX-License-Identifier: Apache-2.0
#include "verify/suite.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "core/work.h"
#include "machine/host.h"

namespace attune {
namespace {

// Cases that fill a GPU are not for CPUs: 34 of 2,030 took two thirds of the time, most of it in the reference, and
// their loops over tiles are those of the others.
constexpr double kMostCpuFlops = 2e9;
bool is_large(const Case& c) { return c.large || cost(c.problem).flops > kMostCpuFlops; }

// cuDNN's backward uses an f32 log-sum-exp as is, so with large logits its gradients are
// not finite (docs/kernels/sm80.md). No kernel of this library is excluded here.
bool is_let_off(const Backend& b, const Case& c, const Device& d) {
  return (d.kind == DeviceKind::cpu && is_large(c)) ||
         (b.name == std::string_view("vendor_cudnn") && c.variation.large_logits && c.problem.pass == Pass::backward);
}

// Backends run one at a time, so each has all of the library's threads.
std::vector<Attempt> run_case(const Suite& suite, size_t index, std::mutex& alone) {
  const Case& c = suite.cases[index];
  std::vector<Attempt> wanted;
  for (const Backend* b : suite.backends)
    for (size_t place = 0; place < suite.places.size(); ++place) {
      const Device& device = suite.places[place].device;
      if (Plan plan; !is_let_off(*b, c, device) && plan_on(*b, c.problem, device, plan).ok())
        wanted.push_back({index, b, place, {}});
    }
  if (wanted.empty()) return {};
  Trial trial(c);
  const Status ready = trial.prepare();
  for (Attempt& run : wanted) {
    run.outcome = ready.ok() ? trial.run(*run.backend, suite.places[run.place_index].device, &alone)
                             : Outcome{.verdict = Verdict::fail, .why = ready.message};
  }
  std::erase_if(wanted, [](const Attempt& run) { return !run.outcome.unfit.empty(); });
  return wanted;
}

}  // namespace

std::vector<Place> cpu_places() {
  std::vector<Place> all{{"cpu", this_cpu(), 0}};
  for (const std::string_view word :
       {"cpu:amx_bf16", "cpu:avx512_bf16", "cpu:avx512", "cpu:avx2", "cpu:neon_bf16", "cpu:neon", "cpu:scalar"}) {
    Place p{.word = std::string(word)};
    if (!device_named(word, p.device).ok()) continue;
    const auto same = [&](const Place& other) { return other.device.features == p.device.features; };
    if (std::none_of(all.begin(), all.end(), same)) all.push_back(std::move(p));
  }
  return all;
}

Place busy_cpu() {
  Place busy{"cpu", this_cpu(), 7};
  busy.device.units = busy.threads;
  return busy;
}

std::vector<Attempt> Suite::run() const {
  std::vector<std::vector<Attempt>> by_case(cases.size());
  std::atomic<size_t> next = 0;
  std::mutex alone, reporting;
  size_t done = 0, failed = 0;
  const auto work = [&] {
    for (size_t n; (n = next++) < cases.size();) {
      by_case[n] = run_case(*this, n, alone);
      const std::lock_guard hold(reporting);
      ++done;
      for (const Attempt& r : by_case[n]) failed += r.outcome.verdict == Verdict::fail;
      if (progress) progress(done, failed);
    }
  };
  std::vector<std::thread> helpers;
  const int wanted = threads ? threads : int(std::thread::hardware_concurrency());
  for (int n = 1; n < wanted; ++n) helpers.emplace_back(work);
  work();
  for (std::thread& t : helpers) t.join();
  std::vector<Attempt> all;
  for (auto& runs : by_case) std::move(runs.begin(), runs.end(), std::back_inserter(all));
  return all;
}

std::string command(const Suite& suite, const Attempt& run) {
  const Place& place = suite.places[run.place_index];
  return join("attune parity --device ", place.word, place.threads ? join(" --threads ", place.threads) : "",
              " --backend ", run.backend->name, " --case \"", name(suite.cases[run.case_index]), "\"");
}

}  // namespace attune
