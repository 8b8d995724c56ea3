// SPDX-License-Identifier: Apache-2.0
// Measures the overhead of attune_call: nanoseconds per call with a warm cache, including lookup and all checks. Prints
// one line per problem: the median over rounds of many calls, and the fastest and slowest round. Time is CPU time of
// the calling thread, so a busy machine shows in the spread and not in the median.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "attune/attune.h"
#ifdef ATTUNE_CUDA
#include <cuda_runtime.h>

#include "bench/launch.h"
#endif

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

struct Measure {
  int calls = 20000;              // per round
  bool (*between)() = nullptr;    // after each round, not timed
};

template <class F>
int measure(const char* what, const char* line, const Measure& m, F call) {
  constexpr int kRounds = 21;
  std::vector<double> ns;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = now_ns();
    for (int n = 0; n < m.calls; ++n)
      if (!call()) return std::puts(attune_last_error()), 1;
    ns.push_back((now_ns() - begin) / m.calls);
    if (m.between && !m.between()) return std::puts("the GPU failed"), 1;
  }
  std::sort(ns.begin(), ns.end());
  std::printf("%-16s %6.0f ns a call (%.0f ... %.0f)  %s\n", what, ns[kRounds / 2], ns.front(), ns.back(), line);
  return 0;
}

int measure_calls(const char* what, const char* line, const attune_args& args, void* stream = nullptr, Measure m = {}) {
  attune_problem problem{};
  problem.size = sizeof problem;
  if (attune_problem_parse(line, &problem)) return std::puts(attune_last_error()), 1;
  return measure(what, line, m, [&] { return attune_call(&problem, &args, stream) == 0; });
}

#ifdef ATTUNE_CUDA
// A call returns when its kernels are queued on the stream. Rounds are short enough that the queue never fills, which
// would make a launch wait for the GPU.
int on_gpu() {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || !gpus) return std::puts("there is no GPU here"), 0;
  const Measure few{.calls = 64, .between = [] { return cudaDeviceSynchronize() == cudaSuccess; }};
  cudaStream_t stream = nullptr;
  char* memory = nullptr;
  constexpr size_t kPart = size_t(1) << 20;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
      cudaMalloc(&memory, 8 * kPart) != cudaSuccess || cudaMemset(memory, 0, 8 * kPart) != cudaSuccess)
    return std::puts("no memory on the GPU"), 1;
  attune_tensor t[ATTUNE_ROLES]{};
  const int64_t rows[] = {1, 64, 1, 64}, row_lse[] = {1, 64, 1}, one[] = {1, 1, 8, 128}, cache[] = {1, 4096, 1, 128},
                one_lse[] = {1, 1, 8};
  const auto give = [&](attune_args& a, int role, bool f32, const char* axes, const int64_t* shape) {
    t[role] = tensor(memory + size_t(role % 8) * kPart, false, axes, shape);
    t[role].device.type = 2;
    if (!f32) t[role].dtype.code = 4, t[role].dtype.bits = 16;
    a.role[role] = &t[role];
  };
  const auto args_of = [&](const int64_t* q, const int64_t* k, const int64_t* lse) {
    attune_args a{};
    a.size = sizeof a;
    for (const int role : {ATTUNE_Q, ATTUNE_OUT}) give(a, role, false, "bshd", q);
    for (const int role : {ATTUNE_K, ATTUNE_V}) give(a, role, false, "bshd", k);
    give(a, ATTUNE_LSE, true, "bsh", lse);
    a.workspace = memory + 6 * kPart, a.workspace_bytes = 2 * kPart;
    return a;
  };
  const auto nothing = [&] { return launch_nothing(stream); };
  for (int again = 0; again < 2; ++again) {  // the first round of a kernel loads it
    if (measure("GPU, launch only", "a kernel that does nothing", few, nothing)) return 1;
    const attune_args square = args_of(rows, rows, row_lse);
    if (measure_calls("GPU, one kernel", "forward bf16 b1 h1 q64 k64 d64 causal", square, stream, few)) return 1;
    const attune_args decode = args_of(one, cache, one_lse);
    if (measure_calls("GPU, split", "forward bf16 b1 h8/1 q1 k4096 d128 full", decode, stream, few)) return 1;
    attune_args borrowing = decode;
    borrowing.workspace = nullptr, borrowing.workspace_bytes = 0;
    if (measure_calls("GPU, borrowed", "forward bf16 b1 h8/1 q1 k4096 d128 full", borrowing, stream, few)) return 1;
    attune_args backward = args_of(rows, rows, row_lse);
    static attune_tensor gradient[4];
    const int from[] = {ATTUNE_OUT, ATTUNE_Q, ATTUNE_K, ATTUNE_V};
    const int to[] = {ATTUNE_D_OUT, ATTUNE_DQ, ATTUNE_DK, ATTUNE_DV};
    for (int n = 0; n < 4; ++n) {
      gradient[n] = t[from[n]], gradient[n].data = static_cast<char*>(t[from[n]].data) + kPart / 2;
      backward.role[to[n]] = &gradient[n];
    }
    if (measure_calls("GPU, backward", "backward bf16 b1 h1 q64 k64 d64 causal", backward, stream, few)) return 1;
  }
  return 0;
}
#endif

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
  if (measure_calls("no tokens", line, args_of(none, none_lse, nothing, empty))) return 1;
  if (measure_calls("one token", line, args_of(one, one_lse, single, tiny))) return 1;
#ifdef ATTUNE_CUDA
  return on_gpu();
#else
  return 0;
#endif
}
