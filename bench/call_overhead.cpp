// What attune_call costs beside the work: nanoseconds a call with a warm cache, lookup and all checks included.
// Prints a line a problem: the median of rounds of many calls, and the fastest and slowest round. Time is that of the
// calling thread on its CPU, so a busy machine shows in the spread and not in the median.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "attune/attune.h"

namespace {

attune_tensor tensor(void* data, bool integer, const char* axes, const int64_t* shape) {
  attune_tensor t{};
  t.data = data;
  t.device.type = 1;
  t.ndim = int32_t(std::strlen(axes));
  t.dtype.code = integer ? 0 : 2, t.dtype.bits = 32, t.dtype.lanes = 1;
  t.shape = shape, t.axes = axes;
  return t;
}

double now_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) * 1e9 + double(t.tv_nsec);
}

int measure(const char* what, const char* line, const attune_args& args) {
  attune_problem problem{};
  problem.size = sizeof problem;
  if (attune_problem_parse(line, &problem)) return std::puts(attune_last_error()), 1;
  constexpr int kRounds = 21, kCalls = 20000;
  std::vector<double> ns;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = now_ns();
    for (int n = 0; n < kCalls; ++n)
      if (attune_call(&problem, &args, nullptr)) return std::puts(attune_last_error()), 1;
    ns.push_back((now_ns() - begin) / kCalls);
  }
  std::sort(ns.begin(), ns.end());
  std::printf("%-10s %6.0f ns a call (%.0f ... %.0f)  %s\n", what, ns[kRounds / 2], ns.front(), ns.back(), line);
  return 0;
}

}  // namespace

int main() {
  alignas(64) static float q[64], k[64], v[64], out[64], lse[1];
  static int32_t nothing[2] = {0, 0}, single[2] = {0, 1};
  const int64_t none[] = {0, 1, 64}, one[] = {1, 1, 64}, none_lse[] = {0, 1}, one_lse[] = {1, 1}, starts[] = {2};
  const auto args_of = [&](const int64_t* rows, const int64_t* lse_rows, int32_t* cu, attune_tensor* t) {
    attune_args a{};
    a.size = sizeof a;
    float* data[] = {q, k, v, out};
    for (int r = ATTUNE_Q; r <= ATTUNE_OUT; ++r) t[r] = tensor(data[r], false, "thd", rows);
    t[ATTUNE_LSE] = tensor(lse, false, "th", lse_rows);
    t[ATTUNE_CU_Q] = t[ATTUNE_CU_K] = tensor(cu, true, "n", starts);
    for (int r = ATTUNE_Q; r <= ATTUNE_CU_K; ++r) a.role[r] = &t[r];
    return a;
  };
  attune_tensor empty[ATTUNE_ROLES], tiny[ATTUNE_ROLES];
  const char* line = "forward f32 b1 h1 q1 k1 d64 causal ragged";
  if (measure("no tokens", line, args_of(none, none_lse, nothing, empty))) return 1;
  return measure("one token", line, args_of(one, one_lse, single, tiny));
}
