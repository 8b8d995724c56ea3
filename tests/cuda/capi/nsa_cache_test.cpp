// SPDX-License-Identifier: Apache-2.0
// The cache of native sparse attention on a GPU. A prefill, chunks and single tokens give the same compressed streams
// and the same blocks, bit for bit, and the same results. Uses only the C interface, as users do.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attune/attune.h"
#include "tests/cuda/capi/bits.h"

namespace {

constexpr int kHeads = 32, kGroups = 2, kTokens = 330, kN = 4;
constexpr char kVariant[] = "nsa d=16 gate=sigmoid l=32 n=4 phi=mean s=64 w=64";

uint32_t state = 11;
float drawn() { return float(int((state = state * 1664525u + 1013904223u) >> 8) % 2001 - 1000) / 500.f; }

// A tensor [1, seq, heads, dim] that host and GPU can access.
template <class T>
struct Shared {
  T* data = nullptr;
  int64_t seq, heads, dim;

  Shared(int64_t s, int64_t h, int64_t d) : seq(s), heads(h), dim(d) {
    EXPECT_EQ(cudaMallocManaged(reinterpret_cast<void**>(&data), size_t(s * h * d) * sizeof(T)), cudaSuccess);
    std::memset(static_cast<void*>(data), 0xFF, size_t(s * h * d) * sizeof(T));
  }
  Shared(const Shared&) = delete;
  ~Shared() { cudaFree(data); }
  void draw() {
    for (int64_t n = 0; n < seq * heads * dim; ++n)
      if constexpr (sizeof(T) == 2) data[n] = bf16(drawn());
      else data[n] = T(drawn());
  }
  std::vector<T> all() const { return {data, data + seq * heads * dim}; }
};

// Rows of the tensor, for one call.
struct Piece {
  int64_t shape[4];
  attune_tensor t{};
  template <class T>
  Piece(const Shared<T>& s, int code, int64_t first, int64_t count) : shape{1, count, s.heads, s.dim} {
    t.data = s.data + first * s.heads * s.dim, t.device.type = 2, t.ndim = 4, t.shape = shape, t.axes = "bshd";
    t.dtype.code = uint8_t(code), t.dtype.bits = uint8_t(8 * sizeof(T)), t.dtype.lanes = 1;
  }
};

class NsaCacheOnGpu : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || !count) GTEST_SKIP() << "no GPU is here";
  }
};

struct Tokens {
  Shared<uint16_t> q, k, v, k_select, v_select, k_window, v_window;
  Shared<float> gates{kTokens, kHeads, 3};

  explicit Tokens(int dim)
      : q(kTokens, kHeads, dim), k(kTokens, kGroups, dim), v(kTokens, kGroups, 128), k_select(kTokens, kGroups, dim),
        v_select(kTokens, kGroups, 128), k_window(kTokens, kGroups, dim), v_window(kTokens, kGroups, 128) {
    for (Shared<uint16_t>* s : {&q, &k, &v, &k_select, &v_select, &k_window, &v_window}) s->draw();
    gates.draw();
  }
};

struct Outcome {
  std::vector<uint16_t> out, k, v;
  std::vector<int32_t> blocks;
};

Outcome through(Tokens& x, const std::vector<int>& counts) {
  attune_nsa_cache_options o{};
  o.size = sizeof o, o.dtype = ATTUNE_BF16, o.heads = kGroups, o.dim_qk = int32_t(x.q.dim), o.dim_v = 128;
  o.sequences = 1, o.capacity = 400, o.variant = kVariant, o.device = "cuda:0";
  attune_nsa_cache* cache = nullptr;
  EXPECT_EQ(attune_nsa_cache_create(&o, &cache), 0) << attune_last_error();
  Shared<uint16_t> out(kTokens, kHeads, 128);
  Shared<int32_t> blocks(kTokens, kGroups, kN);
  int first = 0;
  for (const int count : counts) {
    const std::string line = "forward bf16 b1 h32/2 q" + std::to_string(count) + " k1 d" + std::to_string(x.q.dim) +
                             (x.q.dim == 128 ? "" : "/128") + " causal";
    attune_problem p{};
    p.size = sizeof p;
    EXPECT_EQ(attune_problem_parse(line.c_str(), &p), 0) << attune_last_error();
    p.len_k = 0;
    const Piece q(x.q, 4, first, count), k(x.k, 4, first, count), v(x.v, 4, first, count),
        k_select(x.k_select, 4, first, count), v_select(x.v_select, 4, first, count),
        k_window(x.k_window, 4, first, count), v_window(x.v_window, 4, first, count), gates(x.gates, 2, first, count),
        to(out, 4, first, count), chosen(blocks, 0, first, count);
    attune_args a{};
    a.size = sizeof a;
    a.role[ATTUNE_Q] = &q.t, a.role[ATTUNE_K_NEW] = &k.t, a.role[ATTUNE_V_NEW] = &v.t, a.role[ATTUNE_OUT] = &to.t;
    a.role[ATTUNE_VARIANT] = &k_select.t, a.role[ATTUNE_VARIANT + 1] = &v_select.t;
    a.role[ATTUNE_VARIANT + 2] = &k_window.t, a.role[ATTUNE_VARIANT + 3] = &v_window.t;
    a.role[ATTUNE_VARIANT + 4] = &gates.t, a.role[ATTUNE_VARIANT + 17] = &chosen.t;
    EXPECT_EQ(attune_nsa_cache_attend(cache, &p, &a, nullptr, nullptr), 0) << attune_last_error();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    first += count;
  }
  EXPECT_EQ(attune_nsa_cache_length(cache, 0), first);
  Outcome r{out.all(), {}, {}, blocks.all()};
  for (const int stream : {ATTUNE_NSA_K_COMPRESSED, ATTUNE_NSA_V_COMPRESSED}) {
    attune_tensor t{};
    EXPECT_EQ(attune_nsa_cache_view(cache, stream, &t), 0);
    std::vector<uint16_t>& to = stream == ATTUNE_NSA_K_COMPRESSED ? r.k : r.v;
    to.resize(size_t(attune_nsa_cache_compressed(cache, 0) * t.shape[2] * t.shape[3]));
    EXPECT_EQ(cudaMemcpy(to.data(), t.data, to.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
  }
  attune_nsa_cache_destroy(cache);
  return r;
}

TEST_P(NsaCacheOnGpu, prefill_chunks_and_single_tokens_agree) {
  Tokens x(GetParam());
  const Outcome whole = through(x, {kTokens}), chunks = through(x, {1, 31, 1, 100, 64, 7, 126});
  std::vector<int> single{200};
  single.resize(1 + kTokens - 200, 1);
  const Outcome decoded = through(x, single);
  for (const Outcome* other : {&chunks, &decoded}) {
    EXPECT_EQ(other->k, whole.k);
    EXPECT_EQ(other->v, whole.v);
    EXPECT_EQ(other->blocks, whole.blocks);
    float worst = 0.f;
    for (size_t n = 0; n < whole.out.size(); ++n) {
      const float error = std::fabs(number(other->out[n]) - number(whole.out[n]));
      if (!(error <= worst)) worst = error;
    }
    EXPECT_LT(worst, 0.03f);  // sum of three bf16 branches, each rounded once: half an ulp at 4 is 0.0078
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, NsaCacheOnGpu, testing::Values(64, 128, 192));

}  // namespace
