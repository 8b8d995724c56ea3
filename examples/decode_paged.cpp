// SPDX-License-Identifier: Apache-2.0
// A decode loop over a paged KV cache: two sequences of different lengths take pages from one pool, one token per step.
// Every step is compared with the same attention over contiguous keys.
#include <attune/attune.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int kBatch = 2, kHeads = 4, kHeadsKv = 2, kDim = 64, kPage = 16, kPages = 12, kTable = 5, kSteps = 40;
constexpr int kRow = kHeadsKv * kDim;

// Synthetic tokens.
float number(int step, int batch, int n) { return std::sin(float(step * 131 + batch * 17 + n) * 0.37f); }

}  // namespace

int main() try {
  std::vector<float> pool_k(kPages * kPage * kRow), pool_v(pool_k.size());
  std::vector<float> plain_k(kBatch * kTable * kPage * kRow), plain_v(plain_k.size());
  std::vector<float> q(kBatch * kHeads * kDim), out(q.size()), expected(q.size());
  std::vector<int32_t> table(kBatch * kTable, -1), used{0, 21};  // the second sequence already has 21 tokens
  int next_page = kPages;                                        // pages are allocated from the end

  const auto append = [&](int b, int at) {
    if (int32_t& page = table[size_t(b * kTable + at / kPage)]; page < 0) page = --next_page;
    const int page = table[size_t(b * kTable + at / kPage)];
    for (int n = 0; n < kRow; ++n) {
      const size_t slot = size_t((page * kPage + at % kPage) * kRow + n);
      const size_t plain = size_t((b * kTable * kPage + at) * kRow + n);
      pool_k[slot] = plain_k[plain] = number(at, b, n);
      pool_v[slot] = plain_v[plain] = number(at, b, n + kRow);
    }
  };
  for (int at = 0; at < used[1]; ++at) append(1, at);

  const attune::Problem paged("forward f32 b2 h4/2 q1 k80 d64 causal paged16");
  const attune::Problem plain("forward f32 b2 h4/2 q1 k80 d64 causal");
  const attune::Tensor tq{q.data(), "bshd", {kBatch, 1, kHeads, kDim}}, lengths{used.data(), "b", {kBatch}};
  const attune::Tensor::Sizes pool{kPages, kPage, kHeadsKv, kDim}, whole{kBatch, kTable * kPage, kHeadsKv, kDim};
  attune::Args on_pages, on_plain;
  on_pages.set(ATTUNE_Q, tq)
      .set(ATTUNE_K, {pool_k.data(), "pshd", pool})
      .set(ATTUNE_V, {pool_v.data(), "pshd", pool})
      .set(ATTUNE_PAGE_TABLE, {table.data(), "bn", {kBatch, kTable}})
      .set(ATTUNE_USED_K, lengths)
      .set(ATTUNE_OUT, {out.data(), "bshd", {kBatch, 1, kHeads, kDim}});
  on_plain.set(ATTUNE_Q, tq)
      .set(ATTUNE_K, {plain_k.data(), "bshd", whole})
      .set(ATTUNE_V, {plain_v.data(), "bshd", whole})
      .set(ATTUNE_USED_K, lengths)
      .set(ATTUNE_OUT, {expected.data(), "bshd", {kBatch, 1, kHeads, kDim}});

  float worst = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (int b = 0; b < kBatch; ++b) append(b, used[size_t(b)]++);
    for (size_t n = 0; n < q.size(); ++n) q[n] = number(step, 7, int(n));
    attune::call(paged, on_pages);  // the plan is made once: lengths are not part of it
    attune::call(plain, on_plain);
    for (size_t n = 0; n < out.size(); ++n) worst = std::fmax(worst, std::fabs(out[n] - expected[n]));
  }
  std::printf("%d steps, %d pages of %d used, largest difference %.1e\n", kSteps, kPages - next_page, kPages,
              double(worst));
  return !(worst < 1e-5f);
} catch (const attune::Error& e) {
  return std::puts(e.what()), 1;
}
