// Windows of sm90_forward at d128: the kernel as it is against plain attention on the GPU, and against others in one
// process: that of another commit, and itself without a loop of plain steps. bench/sm90_window.sh builds and runs it;
// half a minute on an H200, most of it compiling.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "bench/sm90_window.h"

namespace {

void must(cudaError_t e, const char* what) {
  if (e != cudaSuccess) std::printf("%s: %s\n", what, cudaGetErrorString(e)), std::exit(1);
}

template <class T>
__device__ float to_float(T x) { return float(x); }

// A warp for each row, f32.
template <class T>
__global__ void plain(WindowRun w, T* out, float* lse) {
  const int at = int((blockIdx.x * blockDim.x + threadIdx.x) / 32), lane = threadIdx.x % 32;
  if (at >= w.heads_q * w.rows) return;
  const int head = at / w.rows, i = at % w.rows, k_head = head / (w.heads_q / w.heads_kv);
  const auto place = [&](int h, int n, int heads, int rows) {
    return w.bhsd ? (int64_t(h) * rows + n) * 128 : (int64_t(n) * heads + h) * 128;
  };
  const T* q = static_cast<const T*>(w.q) + place(head, i, w.heads_q, w.rows);
  float mine[4], sum = 0.f, top = -INFINITY, o[4] = {};
  for (int d = 0; d < 4; ++d) mine[d] = to_float(q[lane * 4 + d]);
  const int stand = i + w.keys - w.rows;
  for (int j = max(0, stand - w.left); j <= min(w.keys - 1, stand + w.right); ++j) {
    const int64_t from = place(k_head, j, w.heads_kv, w.keys) + lane * 4;
    float s = 0.f;
    for (int d = 0; d < 4; ++d) s += mine[d] * to_float(static_cast<const T*>(w.k)[from + d]);
    for (int n = 16; n; n /= 2) s += __shfl_xor_sync(~0u, s, n);
    s *= rsqrtf(128.f);
    const float now = fmaxf(top, s), keep = expf(top - now), weight = expf(s - now);
    sum = sum * keep + weight, top = now;
    for (int d = 0; d < 4; ++d) o[d] = o[d] * keep + weight * to_float(static_cast<const T*>(w.v)[from + d]);
  }
  T* to = out + place(head, i, w.heads_q, w.rows) + lane * 4;
  for (int d = 0; d < 4; ++d) to[d] = T(sum > 0.f ? o[d] / sum : 0.f);
  if (lane == 0) lse[int64_t(head) * w.rows + i] = sum > 0.f ? top + logf(sum) : -INFINITY;
}

template <class T>
__global__ void fill(T* x, int64_t count, uint32_t seed) {
  for (int64_t n = blockIdx.x * blockDim.x + threadIdx.x; n < count; n += int64_t(gridDim.x) * blockDim.x) {
    uint32_t h = uint32_t(n) * 2654435761u + seed;
    float sum = 0.f;
    for (int k = 0; k < 4; ++k) h ^= h >> 15, h *= 2246822519u, h ^= h >> 13, sum += float(h >> 8) * 0x1p-24f - 0.5f;
    x[n] = T(sum * 1.7f);
  }
}

template <class T>
__global__ void compare(const T* a, const T* b, int64_t count, unsigned* worst) {
  for (int64_t n = blockIdx.x * blockDim.x + threadIdx.x; n < count; n += int64_t(gridDim.x) * blockDim.x) {
    const float x = to_float(a[n]), y = to_float(b[n]), off = x == y ? 0.f : fabsf(x - y) / fmaxf(1.f, fabsf(y));
    atomicMax(worst, __float_as_uint(off == off ? off : INFINITY));
  }
}

struct Memory {
  WindowRun w{};
  void* other = nullptr;
  float* other_lse = nullptr;
  unsigned* worst = nullptr;
  int64_t q_count = 0;

  explicit Memory(const WindowRun& asked) : w(asked) {
    q_count = int64_t(w.heads_q) * w.rows * 128;
    const int64_t k_count = int64_t(w.heads_kv) * w.keys * 128;
    for (void** p : {&w.q, &w.out, &other}) must(cudaMalloc(p, q_count * 2), "cudaMalloc");
    for (void** p : {&w.k, &w.v}) must(cudaMalloc(p, k_count * 2), "cudaMalloc");
    must(cudaMalloc(&w.lse, q_count / 32), "cudaMalloc"), must(cudaMalloc(&other_lse, q_count / 32), "cudaMalloc");
    must(cudaMalloc(&w.counters, 16), "cudaMalloc"), must(cudaMalloc(&worst, 8), "cudaMalloc");
    const auto random = [&](void* to, int64_t count, uint32_t seed) {
      if (w.bf16) fill<<<512, 256>>>(static_cast<__nv_bfloat16*>(to), count, seed);
      else fill<<<512, 256>>>(static_cast<__half*>(to), count, seed);
    };
    random(w.q, q_count, 1), random(w.k, k_count, 2), random(w.v, k_count, 3);
  }
  ~Memory() {
    for (void* p : {w.q, w.k, w.v, w.out, other, static_cast<void*>(w.lse), static_cast<void*>(other_lse),
                    static_cast<void*>(w.counters), static_cast<void*>(worst)})
      cudaFree(p);
  }
  template <class T>
  bool right() {
    must(cudaMemset(w.out, 0xFF, q_count * 2), "cudaMemset"), must(cudaMemset(w.lse, 0xFF, q_count / 32), "cudaMemset");
    must(cudaMemset(worst, 0, 8), "cudaMemset");
    must(run_after(w, nullptr), "the kernel");
    must(cudaDeviceSynchronize(), "the kernel");
    plain<T><<<(w.heads_q * w.rows + 7) / 8, 256>>>(w, static_cast<T*>(other), other_lse);
    compare<<<512, 256>>>(static_cast<const T*>(w.out), static_cast<const T*>(other), q_count, worst);
    compare<<<512, 256>>>(w.lse, other_lse, q_count / 128, worst + 1);
    float off[2];
    must(cudaMemcpy(off, worst, 8, cudaMemcpyDeviceToHost), "plain attention");
    const bool ok = off[0] < (w.bf16 ? 0.02f : 0.004f) && off[1] < 1e-3f;
    std::printf("%s  h%d/%d q%d k%d window%d,%d %s%s tail %d: out %.5f lse %.6f\n", ok ? "right" : "WRONG", w.heads_q,
                w.heads_kv, w.rows, w.keys, w.left, w.right, w.bf16 ? "bf16" : "f16", w.bhsd ? " bhsd" : "", w.tail,
                off[0], off[1]);
    std::fflush(stdout);
    return ok;
  }
};

// Cold: the second-level cache is emptied before each, and the GPU rests.
double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

void time_both(WindowRun asked, int rounds) {
  Memory m(asked);
  WindowRun plain_run = m.w, tails = m.w;
  plain_run.tail = 0, tails.tail = window_tail(m.w);
  void* flush;
  constexpr size_t kFlush = size_t(256) << 20;
  must(cudaMalloc(&flush, kFlush), "cudaMalloc");
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  const auto once = [&](auto run, const WindowRun& w) {
    must(cudaMemsetAsync(flush, 1, kFlush), "cudaMemset");
    cudaEventRecord(begin);
    must(run(w, nullptr), "the kernel");
    cudaEventRecord(end);
    must(cudaEventSynchronize(end), "the kernel");
    float ms;
    cudaEventElapsedTime(&ms, begin, end);
    std::this_thread::sleep_for(std::chrono::milliseconds(8));
    return double(ms) * 1e3;
  };
  std::vector<double> took[5];
  for (int n = 0; n < rounds + 3; ++n)
    for (int k = 0; k < 5; ++k) {
      const int which = (n + k) % 5;
      const WindowRun& w = which % 2 ? plain_run : tails;
      const double us = which == 0 ? once(run_before, plain_run) : once(which < 3 ? run_other : run_after, w);
      if (n >= 3) took[which].push_back(us);
    }
  std::printf("h%d q%d window%d: before %.1f us; without a plain loop %.1f, with a tail of %d %.1f; as it is %.1f, "
              "with the tail %.1f\n",
              asked.heads_q, asked.rows, asked.left, median(took[0]), median(took[1]), tails.tail, median(took[2]),
              median(took[3]), median(took[4]));
  std::fflush(stdout);
  cudaFree(flush);
}

}  // namespace

int main() {
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  const int units = device.multiProcessorCount;
  const auto run = [&](int heads, int kv, int rows, int keys, int left, int right, bool bf16, bool bhsd, int tail) {
    return WindowRun{heads, kv, rows, keys, left, right, bf16, bhsd, tail, units, std::min(heads, 4)};
  };
  bool ok = true;
  const auto check = [&](const WindowRun& w) {
    Memory m(w);
    if (m.w.tail < 0) m.w.tail = window_tail(m.w);
    ok &= w.bf16 ? m.right<__nv_bfloat16>() : m.right<__half>();
  };
  // tail: -1 as shape() has it.
  check(run(16, 16, 16384, 16384, 511, 0, true, false, 0));
  check(run(16, 16, 16384, 16384, 511, 0, true, false, 256));
  check(run(16, 4, 16384, 16384, 1023, 0, true, false, 64));
  check(run(104, 1, 593, 2100, 300, 0, true, false, 17));
  check(run(104, 2, 640, 2051, 256, 20, false, true, 64));
  check(run(100, 4, 701, 701, 1535, 0, false, false, 0));
  check(run(30, 3, 2000, 2500, 400, -30, true, true, 80));
  check(run(31, 1, 2115, 1900, 767, 3, false, false, 195));
  check(run(128, 8, 1000, 4000, 1023, 0, true, true, 40));
  for (int n = 0; n < 20; ++n) check(run(16, 16, 16384, 16384, 257 + 61 * n, 0, n % 2 == 0, n % 3 == 0, -1));
  if (!ok) return 1;
  for (const int window : {512, 1024, 384, 768})
    time_both(run(16, 16, 16384, 16384, window - 1, 0, true, false, 0), 25);
  return 0;
}
