// SPDX-License-Identifier: Apache-2.0
// The calls of a branch, applied to a tensor whose elements encode their position: together they cover each pair of the
// definition exactly once, wherever the sequence is cut.
#include "variants/dilated/calls.h"

#include <algorithm>
#include <map>

#include "tests/asked.h"
#include "verify/world.h"

using namespace attune;

namespace {

struct Size { int batch, kv, group, length; };

// Each element is row * 100 + head; the batch is stored beside it.
struct Numbered {
  Owned t;
  explicit Numbered(const Extents& e) : t(DType::f32, e, Layout::bshd, 1) {
    t.each([&](int b, int s, int h, int d) { store(t.t, b, s, h, d, d ? b : s * 100 + h); });
  }
};
struct Element { int batch, row, head; };
Element element(const Tensor& t, int b, int s, int h) {
  const int at = int(load(t, b, s, h, 0));
  return {int(load(t, b, s, h, 1)), at / 100, at % 100};
}

using Pair = std::array<int, 5>;  // branch, batch, query head, query, key

std::map<Pair, int> wanted(const Dilated& d, const Problem& p, int length, int first, int last) {
  std::map<Pair, int> all;
  for (int n = 0; n < d.branches; ++n)
    for (int b = 0; b < p.batch; ++b)
      for (int h = 0; h < p.heads_q; ++h) {
        const bool dealt = d.mode == Dilated::Mode::headgroup;
        const Rows own = group_heads(p.heads_q, d.branches, n);
        if (dealt && (h < own.first || h >= own.last)) continue;
        const bool contiguous = value(p.variant, "offsets") == "contiguous";
        const int w = d.segment[n], r = d.rate[n], each = (p.heads_q + r - 1) / r;
        const int o = dealt ? n % r : contiguous ? h / each : h % r;
        for (int i = first; i < last; ++i)
          for (int j = i / w * w; j < std::min((i / w + 1) * w, length); ++j)
            if (i % w % r == o && j % w % r == o && (p.mask.kind == MaskKind::full || j <= i)) ++all[{n, b, h, i, j}];
      }
  return all;
}

// The pairs that plain attention sees in the views: bottom-right aligned, so the last query is at the last key.
void gather(const DilatedCall& call, const Problem& p, const Tensor& q, const Tensor& k, std::map<Pair, int>& all) {
  const Tensor vq = call.q.of(q, 0), vk = call.k.of(k, 0);
  ASSERT_EQ(vq.extent.batch, vk.extent.batch);
  ASSERT_EQ(vq.extent.head % vk.extent.head, 0);
  const int each = vq.extent.head / vk.extent.head, ahead = vk.extent.seq - vq.extent.seq;
  for (int b = 0; b < vq.extent.batch; ++b)
    for (int h = 0; h < vq.extent.head; ++h)
      for (int i = 0; i < vq.extent.seq; ++i)
        for (int j = 0; j < vk.extent.seq; ++j) {
          if (p.mask.kind == MaskKind::causal && j > i + ahead) continue;
          const Element x = element(vq, b, i, h), y = element(vk, b, j, h / each);
          ASSERT_EQ(x.batch, y.batch);
          ASSERT_EQ(y.head, x.head / (p.heads_q / p.heads_kv));
          ++all[{call.branch, x.batch, x.head, x.row, y.row}];
        }
}

// Some kernels do not accept negative strides: in every layout, all axes of a view go forward.
void expect_forward(const ViewOf& view, const std::string& where) {
  for (const ViewAxis& axis : {view.along_batch, view.along_head})
    EXPECT_TRUE(axis.batches >= 0 && axis.rows >= 0 && axis.heads >= 0)
        << where << ": " << axis.batches << ", " << axis.rows << ", " << axis.heads;
}

constexpr Size kSizes[] = {{1, 1, 1, 1},  {1, 4, 1, 30}, {3, 5, 1, 23}, {2, 2, 3, 25},
                           {1, 2, 4, 31}, {2, 3, 2, 17}, {1, 12, 1, 26}};
constexpr std::string_view kBranches[] = {"rates=1,2 segments=8,16", "rates=1,2,3 segments=5,11,40",
                                          "rates=3,2 segments=7,10", "rates=4,12 segments=12,24",
                                          "rates=6,5 segments=6,30"};

TEST(DilatedCalls, calls_are_the_pairs_of_the_definition_wherever_they_are_cut) {
  for (const std::string_view mode : {"longnet", "headgroup", "longnet offsets=contiguous"})
    for (const std::string_view mask : {"full", "causal"})
      for (const std::string_view branches : kBranches)
        for (const Size& z : kSizes) {
          if (mode == "headgroup" && z.kv * z.group < 3) continue;
          const Problem p = problem(join("forward f32 b", z.batch, " h", z.kv * z.group, "/", z.kv, " q", z.length,
                                         " k", z.length, " d16 ", mask, " : dilated mode=", mode, " ", branches));
          const Dilated d = dilated_of(p);
          const Numbered q({z.batch, z.length, p.heads_q, 2}), k({z.batch, z.length, p.heads_kv, 2});
          for (const int chunk : {z.length, 10, 24, 7}) {
            std::map<Pair, int> got, one_by_one;
            for (int first = 0; first < z.length; first += chunk) {
              const Status s = each_call(d, p, z.length, first, std::min(first + chunk, z.length),
                                         [&](const DilatedCall& call) {
                gather(call, p, q.t.t, k.t.t, got);
                expect_forward(call.q, name(p)), expect_forward(call.k, name(p));
                for (int b = 0; b < call.q.along_batch.count; ++b)
                  for (int h = 0; h < call.k.along_head.count; ++h)
                    gather(single(call, b, h), p, q.t.t, k.t.t, one_by_one);
                return Status::good();
              });
              ASSERT_TRUE(s.ok());
            }
            const std::map<Pair, int> all = wanted(d, p, z.length, 0, z.length);
            ASSERT_TRUE(got == all) << name(p) << ", rows at a time: " << chunk;
            ASSERT_TRUE(one_by_one == all) << name(p) << ", rows at a time: " << chunk;
          }
        }
}

int calls(std::string_view line) {
  const Problem p = problem(line);
  int n = 0;
  (void)each_call(dilated_of(p), p, p.len_q, 0, p.len_q, [&](const DilatedCall&) { return ++n, Status::good(); });
  return n;
}

// Segments or remainders become the batch axis, so the number of launches does not grow with the length.
TEST(DilatedCalls, few_calls_serve_long_sequences) {
  const std::string_view longnet = " d64 causal : dilated rates=1,2,4,6,12 segments=2048,4096,8192,16384,32768";
  EXPECT_EQ(calls(join("forward bf16 b1 h12 q32768 k32768", longnet)), 1 + 2 + 3 + 4 + 2);
  EXPECT_EQ(calls(join("forward bf16 b1 h12 q131072 k131072", longnet)), 1 + 2 + 3 + 4 + 2);
  EXPECT_EQ(calls(join("forward bf16 b1 h12 q1048576 k1048576", longnet)), 1 + 2 + 3 + 4 + 2);
  EXPECT_EQ(calls(join("forward bf16 b1 h12 q131072 k131072", longnet, " offsets=contiguous")), 1 + 2 + 3 + 4 + 2);
  // Offsets in the batch axis, KV heads in the head axis; with rate 8 a KV head has two offsets.
  EXPECT_EQ(calls("forward bf16 b1 h16/4 q4096 k4096 d64 causal : dilated offsets=contiguous rates=2,4,8 "
                  "segments=4096,4096,4096"), 1 + 1 + 4);
}

TEST(DilatedCalls, errors_end_the_walk) {
  const Problem p = problem("forward f32 b1 h4 q64 k64 d16 full : dilated rates=1,2 segments=8,16");
  int n = 0;
  const auto refuse = [&](const DilatedCall&) { return ++n, Status::no("enough"); };
  const Status s = each_call(dilated_of(p), p, 64, 0, 64, refuse);
  EXPECT_EQ(s.message, "enough");
  EXPECT_EQ(n, 1);
}

TEST(DilatedCalls, a_branch_of_rate_1_comes_first) {
  Dilated d{.branches = 4};
  const int rates[] = {3, 2, 1, 1};
  std::copy_n(rates, 4, d.rate);
  const int wanted[] = {2, 0, 1, 3};
  for (int n = 0; n < 4; ++n) EXPECT_EQ(branch_at(d, n), wanted[n]);
  EXPECT_TRUE(first_has_all(d));
  d.rate[2] = d.rate[3] = 5;
  for (int n = 0; n < 4; ++n) EXPECT_EQ(branch_at(d, n), n);
  EXPECT_FALSE(first_has_all(d));
}

}  // namespace
