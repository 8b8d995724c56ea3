// SPDX-License-Identifier: Apache-2.0
// Measures the cost of a decoded token with Native Sparse Attention: one query of each sequence over a full cache,
// through the C interface. Prints the median with L2 flushed before each token, and the mean of back-to-back tokens.
//   nsa_decode [tokens in the cache = 65536] [sequences = 1] [dim of queries and keys = 128]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "attune/attune.h"

namespace {

constexpr int kHeads = 64, kGroups = 4, kDimV = 128, kChunk = 4096, kSteps = 200;
constexpr size_t kFlush = size_t(256) << 20;

bool failed(const char* what, int code) {
  if (code) std::fprintf(stderr, "nsa_decode: %s: %s\n", what, attune_last_error());
  return code != 0;
}
bool failed(const char* what, cudaError_t code) {
  if (code != cudaSuccess) std::fprintf(stderr, "nsa_decode: %s: %s\n", what, cudaGetErrorString(code));
  return code != cudaSuccess;
}

// [sequences, rows, heads, dim] of numbers between -1 and 1; a call uses the first rows.
struct Rows {
  int64_t shape[4];
  attune_tensor t{};
  bool make(int sequences, int rows, int heads, int dim, bool f32) {
    const size_t count = size_t(sequences) * size_t(rows) * size_t(heads) * size_t(dim), size = f32 ? 4 : 2;
    std::vector<uint16_t> values(count * size / 2);
    static uint32_t state = 7;
    for (uint16_t& x : values)  // bits of a bf16, or the upper half of an f32, of magnitude 1/2 ... 1
      x = uint16_t((state = state * 1664525u + 1013904223u) >> 16 & 0x807Fu) | 0x3F00u;
    shape[0] = sequences, shape[1] = rows, shape[2] = heads, shape[3] = dim;
    t.device.type = 2, t.ndim = 4, t.shape = shape, t.axes = "bshd";
    t.dtype.code = f32 ? 2 : 4, t.dtype.bits = uint8_t(8 * size), t.dtype.lanes = 1;
    return !failed("cudaMalloc", cudaMalloc(&t.data, count * size)) &&
           !failed("cudaMemcpy", cudaMemcpy(t.data, values.data(), count * size, cudaMemcpyHostToDevice));
  }
};

struct Decode {
  int sequences, dim;
  attune_nsa_cache* cache = nullptr;
  Rows q{}, out{}, gates{}, k[3]{}, v[3]{};
  cudaStream_t stream = nullptr;

  // Adds `count` new tokens to every sequence; in a decode with a query.
  bool step(int count, bool query) {
    const std::string line = "forward bf16 b" + std::to_string(sequences) + " h64/4 q" + std::to_string(count) +
                             " k1 d" + std::to_string(dim) + "/128 causal";
    attune_problem p{};
    p.size = sizeof p;
    if (failed("the problem", attune_problem_parse(line.c_str(), &p))) return false;
    p.len_k = 0;
    attune_args a{};
    a.size = sizeof a;
    const int keys[] = {ATTUNE_K_NEW, ATTUNE_VARIANT, ATTUNE_VARIANT + 2};
    const int values[] = {ATTUNE_V_NEW, ATTUNE_VARIANT + 1, ATTUNE_VARIANT + 3};
    for (int n = 0; n < 3; ++n) {
      k[n].shape[1] = v[n].shape[1] = count;
      a.role[keys[n]] = &k[n].t, a.role[values[n]] = &v[n].t;
    }
    if (query) a.role[ATTUNE_Q] = &q.t, a.role[ATTUNE_OUT] = &out.t, a.role[ATTUNE_VARIANT + 4] = &gates.t;
    return !failed("a step", attune_nsa_cache_attend(cache, &p, &a, nullptr, stream));
  }
  bool make(int tokens) {
    attune_nsa_cache_options o{};
    o.size = sizeof o, o.dtype = ATTUNE_BF16, o.heads = kGroups, o.dim_qk = dim, o.dim_v = kDimV;
    o.sequences = sequences, o.capacity = tokens + 3 * kSteps, o.device = "cuda:0";
    o.variant = "nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512";
    if (failed("cudaStreamCreate", cudaStreamCreate(&stream))) return false;
    if (failed("the cache", attune_nsa_cache_create(&o, &cache))) return false;
    if (!q.make(sequences, 1, kHeads, dim, false) || !out.make(sequences, 1, kHeads, kDimV, false) ||
        !gates.make(sequences, 1, kHeads, 3, true))
      return false;
    for (int n = 0; n < 3; ++n)
      if (!k[n].make(sequences, kChunk, kGroups, dim, false) || !v[n].make(sequences, kChunk, kGroups, kDimV, false))
        return false;
    for (int done = 0; done < tokens; done += kChunk)
      if (!step(std::min(kChunk, tokens - done), false)) return false;
    for (int n = 0; n < kSteps; ++n)  // loads kernels, makes plans
      if (!step(1, true)) return false;
    return !failed("the prefill", cudaStreamSynchronize(stream));
  }
  ~Decode() { attune_nsa_cache_destroy(cache); }
};

}  // namespace

int main(int count, char** words) {
  const int tokens = count > 1 ? std::atoi(words[1]) : 65536;
  Decode d{.sequences = count > 2 ? std::atoi(words[2]) : 1, .dim = count > 3 ? std::atoi(words[3]) : 128};
  void* flush = nullptr;
  std::vector<cudaEvent_t> marks(2 * kSteps);
  for (cudaEvent_t& mark : marks)
    if (failed("cudaEventCreate", cudaEventCreate(&mark))) return 1;
  if (!d.make(tokens) || failed("cudaMalloc", cudaMalloc(&flush, kFlush))) return 1;
  for (int n = 0; n < kSteps; ++n) {  // the flush takes long enough for the host to run ahead
    if (failed("cudaMemset", cudaMemsetAsync(flush, n, kFlush, d.stream))) return 1;
    if (failed("a mark", cudaEventRecord(marks[size_t(2 * n)], d.stream)) || !d.step(1, true) ||
        failed("a mark", cudaEventRecord(marks[size_t(2 * n + 1)], d.stream)))
      return 1;
  }
  if (failed("the decode", cudaStreamSynchronize(d.stream))) return 1;
  std::vector<float> us(kSteps);
  float whole = 0;
  for (size_t n = 0; n < size_t(kSteps); ++n)
    if (failed("a time", cudaEventElapsedTime(&us[n], marks[2 * n], marks[2 * n + 1]))) return 1;
  std::nth_element(us.begin(), us.begin() + kSteps / 2, us.end());
  if (failed("a mark", cudaEventRecord(marks[0], d.stream))) return 1;
  for (int n = 0; n < kSteps; ++n)
    if (!d.step(1, true)) return 1;
  if (failed("a mark", cudaEventRecord(marks[1], d.stream)) || failed("the decode", cudaStreamSynchronize(d.stream)) ||
      failed("a time", cudaEventElapsedTime(&whole, marks[0], marks[1])))
    return 1;
  std::printf("a token over %d, %d sequence%s, heads 64/4, dims %d/128: %.1f us cold, %.1f us one after the other\n",
              tokens, d.sequences, d.sequences == 1 ? "" : "s", d.dim, 1e3 * us[kSteps / 2], 1e3 * whole / kSteps);
  return 0;
}
