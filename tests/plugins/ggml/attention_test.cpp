// SPDX-License-Identifier: Apache-2.0
// The attention of the ggml backend on every instruction set of this CPU, compared with its definition in double.
#include "plugins/ggml/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "machine/host.h"

namespace attune::ggml {
namespace {

// Rows in a stored type and what they hold after rounding, as [sequence][row][head][dim].
struct Data {
  std::vector<char> bytes;
  std::vector<float> numbers;
  Rows rows;
};

uint16_t half(float x) { return F16(x).bits; }

void encode(Stored t, const float* x, char* to, int dim) {
  for (int d = 0; d < dim; ++d) {
    const uint16_t h = t == Stored::f16 ? half(x[d]) : Bf16(x[d]).bits;
    if (t == Stored::f32) std::memcpy(to + 4 * d, &x[d], 4);
    if (t == Stored::f16 || t == Stored::bf16) std::memcpy(to + 2 * d, &h, 2);
  }
  const int block = t == Stored::q8_0 ? 34 : 18;
  for (int b = 0; is_quantized(t) && b < dim / kBlock; ++b, to += block, x += kBlock) {
    const uint16_t scale = half(t == Stored::q8_0 ? 0.02f : -0.25f);
    std::memcpy(to, &scale, 2);
    for (int j = 0; j < kBlock; ++j) {
      const float step = float(std::bit_cast<F16>(scale));
      const int n = int(std::lround(x[j] / step));
      if (t == Stored::q8_0)
        to[2 + j] = char(std::clamp(n, -127, 127));
      else if (j < kBlock / 2)
        to[2 + j] = char(std::clamp(n + 8, 0, 15));
      else
        to[2 + j - kBlock / 2] = char(to[2 + j - kBlock / 2] | std::clamp(n + 8, 0, 15) << 4);
    }
  }
}
// What a row means, written apart from the library's reading.
void decode(Stored t, const char* from, int dim, float* to) {
  for (int d = 0; d < dim; ++d) {
    uint16_t bits = 0;
    if (t == Stored::f32) std::memcpy(&to[d], from + 4 * d, 4);
    if (t == Stored::f16 || t == Stored::bf16) std::memcpy(&bits, from + 2 * d, 2);
    if (t == Stored::f16) to[d] = float(std::bit_cast<F16>(bits));
    if (t == Stored::bf16) to[d] = float(std::bit_cast<Bf16>(bits));
    if (!is_quantized(t)) continue;
    const char* block = from + d / kBlock * (t == Stored::q8_0 ? 34 : 18);
    const int j = d % kBlock;
    std::memcpy(&bits, block, 2);
    const int n = t == Stored::q8_0 ? block[2 + j] : (uint8_t(block[2 + j % 16]) >> (j < 16 ? 0 : 4) & 15) - 8;
    to[d] = float(std::bit_cast<F16>(bits)) * float(n);
  }
}

int64_t row_bytes(Stored t, int dim) {
  switch (t) {
    case Stored::f32:
      return dim * 4;
    case Stored::q8_0:
      return dim / kBlock * 34;
    case Stored::q4_0:
      return dim / kBlock * 18;
    default:
      return dim * 2;
  }
}

struct Shape {
  Stored k = Stored::f16, v = Stored::f16;
  int dim_qk = 64, dim_v = 64, heads_q = 4, heads_kv = 2, len_q = 5, len_k = 300, batch = 1;
  float max_bias = 0, softcap = 0;
  bool sinks = false, mask = true, mask_f16 = true;
};
using MaskRule = std::function<float(int b, int i, int j)>;

class Problem {
 public:
  Problem(const Shape& s, const MaskRule& mask) : s_(s) {
    q_ = data(Stored::f32, s.dim_qk, s.heads_q, s.len_q), k_ = data(s.k, s.dim_qk, s.heads_kv, s.len_k);
    v_ = data(s.v, s.dim_v, s.heads_kv, s.len_k), out_ = data(Stored::f32, s.dim_v, s.heads_q, s.len_q);
    std::fill(out_.bytes.begin(), out_.bytes.end(), char(0xFF));  // NaN
    for (int b = 0; b < s.batch; ++b)
      for (int i = 0; i < s.len_q; ++i)
        for (int j = 0; j < s.len_k; ++j) {
          mask_.push_back(mask ? mask(b, i, j) : 0.f);
          half_.push_back(half(mask_.back()));
        }
    for (int h = 0; h < s.heads_q; ++h) sinks_.push_back(float(h) - 1.f);
    a_ = {.q = q_.rows,
          .k = k_.rows,
          .v = v_.rows,
          .out = out_.rows,
          .sinks = s.sinks ? sinks_.data() : nullptr,
          .batch = s.batch,
          .heads_q = s.heads_q,
          .heads_kv = s.heads_kv,
          .len_q = s.len_q,
          .len_k = s.len_k,
          .scale = 1.f / std::sqrt(float(s.dim_qk)),
          .max_bias = s.max_bias,
          .softcap = s.softcap};
    const int64_t size = s.mask_f16 ? 2 : 4;
    if (s.mask)
      a_.mask = {reinterpret_cast<const char*>(s.mask_f16 ? static_cast<const void*>(half_.data()) : mask_.data()),
                 s.mask_f16, size * s.len_k, size * s.len_k * s.len_q, s.batch};
  }

  // The largest difference from the definition, relative to the largest value of v.
  double error(const Device& cpu, int threads) {
    EXPECT_TRUE(attend(a_, cpu, threads, memory_));
    double worst = 0;
    for (int b = 0; b < s_.batch; ++b)
      for (int i = 0; i < s_.len_q; ++i)
        for (int h = 0; h < s_.heads_q; ++h) worst = std::max(worst, row_error(b, i, h));
    return worst;
  }

 private:
  Data data(Stored t, int dim, int heads, int len) {
    const int64_t row = row_bytes(t, dim), count = int64_t(s_.batch) * len * heads;
    Data to{std::vector<char>(size_t(row * count)), std::vector<float>(size_t(count * dim)), {}};
    std::vector<float> x(static_cast<size_t>(dim));
    for (int64_t n = 0; n < count; ++n) {
      for (float& y : x) y = std::uniform_real_distribution<float>(-2, 2)(random_);
      encode(t, x.data(), &to.bytes[size_t(n * row)], dim);
      decode(t, &to.bytes[size_t(n * row)], dim, &to.numbers[size_t(n * dim)]);
    }
    to.rows = {to.bytes.data(), t, dim, row * heads, row, row * heads * len};
    return to;
  }

  double row_error(int b, int i, int h) const {
    const float* q = &q_.numbers[size_t(((b * s_.len_q + i) * s_.heads_q + h) * s_.dim_qk)];
    std::vector<double> logit(size_t(s_.len_k), -INFINITY), out(size_t(s_.dim_v), 0.);
    const auto key = [&](int j) { return size_t((b * s_.len_k + j) * s_.heads_kv + h / (s_.heads_q / s_.heads_kv)); };
    double top = s_.sinks ? double(sinks_[size_t(h)]) : -INFINITY, sum = 0;
    for (int j = 0; j < s_.len_k; ++j) {
      const double by = s_.mask ? double(mask_[size_t((b * s_.len_q + i) * s_.len_k + j)]) : 0.;
      double x = 0;
      const float* k = &k_.numbers[key(j) * size_t(s_.dim_qk)];
      for (int d = 0; d < s_.dim_qk; ++d) x += double(q[d]) * double(k[d]);
      x *= double(a_.scale);
      if (s_.softcap > 0) x = double(s_.softcap) * std::tanh(x / double(s_.softcap));
      // ggml's slopes for 4 heads, by the paper: 2^(-max_bias / 4), squared, ...
      const double slope = s_.max_bias > 0 ? std::pow(2., -double(s_.max_bias) / 4. * (h + 1)) : 1.;
      logit[size_t(j)] = by == -INFINITY ? -INFINITY : x + slope * by;
      top = std::max(top, logit[size_t(j)]);
    }
    if (top == -INFINITY) top = 0;
    for (int j = 0; j < s_.len_k; ++j) {
      const double w = std::exp(logit[size_t(j)] - top);
      sum += w;
      const float* v = &v_.numbers[key(j) * size_t(s_.dim_v)];
      for (int d = 0; w > 0 && d < s_.dim_v; ++d) out[size_t(d)] += w * double(v[d]);
    }
    if (s_.sinks) sum += std::exp(double(sinks_[size_t(h)]) - top);
    const char* at = out_.bytes.data() + ((int64_t(b) * s_.len_q + i) * s_.heads_q + h) * s_.dim_v * 4;
    double worst = 0;
    for (int d = 0; d < s_.dim_v; ++d) {
      float x;
      std::memcpy(&x, at + 4 * d, 4);
      const double difference = std::fabs(double(x) - (sum > 0 ? out[size_t(d)] / sum : 0.));
      worst = difference <= worst ? worst : difference;  // keeps NaN
      if (difference != difference) return INFINITY;
    }
    return worst;
  }

  const Shape s_;
  std::mt19937 random_{3};
  Data q_, k_, v_, out_;
  std::vector<float> mask_, sinks_;
  std::vector<uint16_t> half_;
  Attention a_;
  Memories memory_;
};

constexpr double kError = 2e-5;

class EachCpu : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!device_named(GetParam(), cpu).ok()) GTEST_SKIP() << "requires a CPU with " << GetParam();
  }
  void expect(const Shape& s, const MaskRule& mask, const char* what) {
    for (const int threads : {1, 3}) {
      Problem problem(s, mask);
      EXPECT_LT(problem.error(cpu, threads), kError) << what << ", " << threads << " threads, q" << s.len_q;
    }
  }
  Device cpu;
};

float hide(bool hidden) { return hidden ? -INFINITY : 0.f; }

TEST_P(EachCpu, takes_every_stored_type) {
  for (const Stored k : {Stored::f32, Stored::f16, Stored::bf16, Stored::q8_0, Stored::q4_0})
    for (const Stored v : {k, Stored::f16})
      for (const int len_q : {1, 70}) {
        const MaskRule causal = [&](int, int i, int j) { return hide(j > 230 + i); };
        expect({.k = k, .v = v, .dim_qk = 96, .len_q = len_q}, causal, "stored");
      }
}

TEST_P(EachCpu, recognises_what_a_mask_hides) {
  std::mt19937 random(5);
  const MaskRule rules[] = {{},
                            [](int, int i, int j) { return hide(j > i + 100); },
                            [](int, int i, int j) { return hide(j > i + 200 || j + 30 < i + 200); },
                            [](int, int i, int j) { return hide(j % 3 != i % 3); },       // sequences in one cache
                            [](int, int i, int j) { return hide(i % 2 == 1 || j > 7); },  // rows that see nothing
                            [](int, int i, int j) { return hide(j < 40 ? j > i : j < 290 - i); },  // a ring that wraps
                            [&](int, int, int j) { return j == 9 ? -INFINITY : float(random() % 9) / 4; },
                            [](int, int i, int j) { return j < 128 ? -0.f : hide(j > 128 + i); }};
  for (const MaskRule& rule : rules)
    for (const int len_q : {1, 6, 130}) expect({.len_q = len_q, .len_k = 333}, rule, "mask");
  expect({.len_q = 70, .mask = false}, {}, "no mask");
  expect({.len_q = 70, .mask_f16 = false}, rules[6], "f32 mask");
}

TEST_P(EachCpu, softcap_alibi_sinks_and_sequences) {
  for (const int len_q : {1, 40}) {
    const MaskRule causal = [&](int, int i, int j) { return hide(j > 250 + i); };
    const MaskRule distance = [&](int, int i, int j) { return j > 250 + i ? -INFINITY : -float(250 + i - j) / 16; };
    expect({.len_q = len_q, .softcap = 2.f}, causal, "softcap");
    expect({.len_q = len_q, .softcap = 2.f, .mask = false}, {}, "softcap, no mask");
    expect({.len_q = len_q, .max_bias = 8.f}, distance, "alibi");
    expect({.len_q = len_q, .sinks = true}, causal, "sinks");
    expect(
        {.len_q = len_q, .sinks = true}, [](int, int, int) { return -INFINITY; }, "sinks alone");
    expect(
        {.len_q = len_q, .batch = 3}, [](int b, int, int j) { return hide(j > 80 * (b + 1)); }, "sequences");
    expect({.heads_q = 4, .heads_kv = 4, .len_q = len_q}, causal, "one head each");
    expect({.heads_q = 4, .heads_kv = 1, .len_q = len_q, .len_k = 1300}, causal, "one key head");
    expect({.dim_qk = 192, .dim_v = 128, .len_q = len_q}, causal, "two dims");
    expect({.dim_qk = 40, .dim_v = 256, .len_q = len_q, .len_k = 3}, causal, "few keys");
  }
}

INSTANTIATE_TEST_SUITE_P(All, EachCpu, testing::Values("cpu", "cpu:avx2", "cpu:scalar", "cpu:neon"));

TEST(Rows, a_scale_is_any_half) {
  for (int bits = 0; bits < 1 << 16; ++bits) {
    char block[34] = {}, half_block[18] = {};
    const uint16_t scale = uint16_t(bits);
    std::memcpy(block, &scale, 2), std::memcpy(half_block, &scale, 2);
    block[2 + 5] = -3, half_block[2 + 5] = 0x4B;
    float eight[kBlock], four[kBlock], x = float(std::bit_cast<F16>(scale));
    widen_quantized(Stored::q8_0, block, kBlock, eight);
    widen_quantized(Stored::q4_0, half_block, kBlock, four);
    if (x != x) continue;
    ASSERT_EQ(eight[5], -3 * x) << bits;
    ASSERT_EQ(four[5], 3 * x) << bits;
    ASSERT_EQ(four[21], -4 * x) << bits;
  }
}

TEST(Takes, dims_of_whole_blocks_up_to_256) {
  EXPECT_TRUE(takes(40, Stored::f16, 256, Stored::f32));
  EXPECT_TRUE(takes(64, Stored::q8_0, 96, Stored::q4_0));
  EXPECT_FALSE(takes(40, Stored::q8_0, 64, Stored::f16));
  EXPECT_FALSE(takes(64, Stored::f16, 36, Stored::f16));
  EXPECT_FALSE(takes(576, Stored::f16, 512, Stored::f16));
  EXPECT_FALSE(takes(0, Stored::f16, 64, Stored::f16));
}

}  // namespace
}  // namespace attune::ggml
