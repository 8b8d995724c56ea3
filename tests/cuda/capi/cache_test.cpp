// SPDX-License-Identifier: Apache-2.0
// The cache object on a GPU compared with the one on the CPU: the same steps give the same lengths, the same rows in
// memory and the same results. Uses only the C interface, as users do.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attune/attune.h"
#include "tests/cuda/capi/bits.h"

namespace {

constexpr int kHeads = 4, kHeadsKv = 2, kDim = 64, kSequences = 3, kCapacity = 70, kRow = kHeadsKv * kDim;

uint32_t state = 7;
int below(int n) { return int((state = state * 1664525u + 1013904223u) >> 8) % n; }

// A bf16 tensor [batch, seq, heads, dim] on the host and on the GPU.
struct Both {
  std::vector<uint16_t> here;
  void* there = nullptr;
  int64_t shape[4];

  Both(int batch, int seq, int heads) : here(size_t(batch * seq * heads * kDim)), shape{batch, seq, heads, kDim} {
    for (uint16_t& x : here) x = bf16(float(below(2001) - 1000) / 500.f);
    EXPECT_EQ(cudaMalloc(&there, here.size() * 2), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(there, here.data(), here.size() * 2, cudaMemcpyHostToDevice), cudaSuccess);
  }
  Both(const Both&) = delete;
  ~Both() { cudaFree(there); }
  attune_tensor tensor(bool gpu) {
    attune_tensor t{};
    t.data = gpu ? there : here.data();
    t.device.type = gpu ? 2 : 1, t.ndim = 4, t.dtype = {4, 16, 1}, t.shape = shape, t.axes = "bshd";
    return t;
  }
  std::vector<uint16_t> from_gpu() const {
    std::vector<uint16_t> got(here.size());
    EXPECT_EQ(cudaMemcpy(got.data(), there, got.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    return got;
  }
};

attune_cache* cache_on(const char* device, int page) {
  attune_cache_options o{};
  o.size = sizeof o, o.dtype = ATTUNE_BF16, o.heads = kHeadsKv, o.dim_qk = kDim, o.device = device;
  o.sequences = kSequences, o.capacity = kCapacity, o.page = page, o.pages = page ? 150 / page : 0;
  attune_cache* made = nullptr;
  EXPECT_EQ(attune_cache_create(&o, &made), 0) << attune_last_error();
  return made;
}

std::vector<uint16_t> contents(const attune_cache* cache, int role, bool gpu) {
  attune_tensor t{};
  EXPECT_EQ(attune_cache_view(cache, role, &t), 0);
  std::vector<uint16_t> all(size_t(t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]));
  if (gpu) EXPECT_EQ(cudaMemcpy(all.data(), t.data, all.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
  else std::memcpy(all.data(), t.data, all.size() * 2);
  return all;
}

struct Caches {
  attune_cache *cpu, *gpu;

  explicit Caches(int page) : cpu(cache_on("cpu", page)), gpu(cache_on("cuda:0", page)) {}
  ~Caches() { attune_cache_destroy(cpu), attune_cache_destroy(gpu); }

  // Rows of the sequences, which must agree in both caches.
  void compare(int page) const {
    for (const int role : {ATTUNE_K, ATTUNE_V}) {
      const std::vector<uint16_t> want = contents(cpu, role, false), got = contents(gpu, role, true);
      for (int s = 0; s < kSequences; ++s)
        for (int n = 0; n < attune_cache_length(cpu, s); ++n) {
          const int row = page ? attune_cache_pages(cpu, s)[n / page] * page + n % page : s * kCapacity + n;
          const int other = page ? attune_cache_pages(gpu, s)[n / page] * page + n % page : s * kCapacity + n;
          ASSERT_FALSE(std::memcmp(&want[size_t(row * kRow)], &got[size_t(other * kRow)], kRow * 2))
              << "key " << n << " of sequence " << s;
        }
    }
  }
};

// Whether the step succeeded; both caches must agree.
bool step(const Caches& on, const std::vector<int32_t>& order, int added) {
  const int batch = int(order.size());
  Both q(batch, added, kHeads), k(batch, added, kHeadsKv), v(batch, added, kHeadsKv), out(batch, added, kHeads);
  attune_problem p{};
  p.size = sizeof p;
  const std::string line = "forward bf16 b" + std::to_string(batch) + " h4/2 q" + std::to_string(added) +
                           " k70 d64 causal append";
  EXPECT_EQ(attune_problem_parse(line.c_str(), &p), 0) << attune_last_error();
  int refused[2];
  std::string why[2];
  for (const bool gpu : {false, true}) {
    attune_tensor tensors[] = {q.tensor(gpu), k.tensor(gpu), v.tensor(gpu), out.tensor(gpu)};
    attune_args a{};
    a.size = sizeof a;
    a.role[ATTUNE_Q] = &tensors[0], a.role[ATTUNE_K_NEW] = &tensors[1], a.role[ATTUNE_V_NEW] = &tensors[2];
    a.role[ATTUNE_OUT] = &tensors[3];
    refused[gpu] = attune_cache_attend(gpu ? on.gpu : on.cpu, &p, &a, order.data(), nullptr);
    why[gpu] = attune_last_error();
  }
  EXPECT_EQ(why[0], why[1]);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  if (refused[0]) return false;
  const std::vector<uint16_t> got = out.from_gpu();
  float worst = 0;
  for (size_t n = 0; n < got.size(); ++n) worst = std::fmax(worst, std::fabs(number(got[n]) - number(out.here[n])));
  EXPECT_LT(worst, 0.03f) << line;
  return true;
}

TEST(CacheOnGpu, does_what_the_one_on_the_cpu_does) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || !gpus) GTEST_SKIP() << "there is no NVIDIA GPU here";
  for (const int page : {0, 1, 16}) {
    const Caches on(page);
    int refusals = 0;
    for (int turn = 0; turn < 40; ++turn) {
      std::vector<int32_t> order;
      for (int s = 0; s < kSequences; ++s)
        if (below(3)) order.insert(order.begin() + below(int(order.size()) + 1), s);
      if (order.empty()) continue;
      refusals += !step(on, order, 1 + below(3) * below(12));
      if (const int s = below(kSequences); !below(2)) {
        const int length = below(attune_cache_length(on.cpu, s) + 1);
        for (attune_cache* cache : {on.cpu, on.gpu}) EXPECT_EQ(attune_cache_resize(cache, s, length), 0);
      }
      if (const int from = below(kSequences), to = below(kSequences); from != to && !below(3)) {
        const int length = below(attune_cache_length(on.cpu, from) + 1);
        for (attune_cache* cache : {on.cpu, on.gpu}) {
          EXPECT_EQ(attune_cache_resize(cache, to, 0), 0);
          EXPECT_EQ(attune_cache_fork(cache, from, to, length, nullptr), 0) << attune_last_error();
        }
      }
      on.compare(page);
    }
    EXPECT_GT(refusals, 0) << "page " << page;
  }
}

}  // namespace
