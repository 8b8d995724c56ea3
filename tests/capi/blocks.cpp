// SPDX-License-Identifier: Apache-2.0
// Block lists as a user builds them: only the installed headers and the shared library.
#include <algorithm>
#include <cmath>
#include <vector>

#include "expect.h"

namespace {

constexpr int kLength = 200, kHeads = 2, kDim = 16;

struct Tokens {
  std::vector<float> q, k, v, out;
  Tokens() : q(size_t(kLength * kHeads * kDim)), k(q.size()), v(q.size()), out(q.size()) {
    for (size_t n = 0; n < q.size(); ++n)
      q[n] = std::sin(float(n)), k[n] = std::cos(0.7f * float(n)), v[n] = std::sin(1.3f * float(n));
  }
  attune::Args args() {
    const attune::Tensor::Sizes shape{1, kLength, kHeads, kDim};
    attune::Args a;
    a.set(ATTUNE_Q, {q.data(), "bshd", shape}).set(ATTUNE_K, {k.data(), "bshd", shape});
    return a.set(ATTUNE_V, {v.data(), "bshd", shape}).set(ATTUNE_OUT, {out.data(), "bshd", shape}), a;
  }
};

double apart(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  for (size_t n = 0; n < a.size(); ++n) most = std::max(most, std::fabs(a[n] - b[n]));
  return most;
}

std::vector<float> attended(attune::Problem problem, const char* pattern) {
  Tokens t;
  attune::Args args = t.args();
  const attune::Blocks blocks(problem, pattern);
  blocks.set(args);
  attune::call(problem, args);
  return t.out;
}

// Four query blocks over four key blocks. Lists that attune_check would refuse are refused here too, and nothing is
// written.
void lists_of_a_caller() {
  attune::Problem problem("forward f32 b1 h1 q256 k256 d16 full blocks64x64x6");
  const std::vector<int32_t> good_begin{0, 3, 3, 5, 6}, good_column{2, 0, 3, 3, 0, 1}, none(16, -7);
  std::vector<int32_t> begin, column, by_key;
  int64_t counts[ATTUNE_BLOCK_COUNTS];
  attune_blocks from{};
  from.size = sizeof from;
  const auto reset = [&] {
    begin = good_begin, column = good_column, by_key = none;
    std::fill_n(counts, int(ATTUNE_BLOCK_COUNTS), int64_t(-7));
  };
  reset();
  const auto build = [&](int32_t* begin_k, int32_t* row_k, int32_t* entries) {
    attune::Args args;
    args.set(ATTUNE_BLOCK_BEGIN, {begin.data(), "n", {5}}).set(ATTUNE_BLOCK_COLUMN, {entries, "n", {6}});
    if (begin_k) args.set(ATTUNE_BLOCK_BEGIN_K, {begin_k, "n", {5}}).set(ATTUNE_BLOCK_ROW_K, {row_k, "n", {6}});
    const auto made = [&](const attune_args* a) { return attune_blocks_build(&problem.c, a, &from, nullptr); };
    return args.with_c(made);
  };
  const auto turned = [&] { return build(by_key.data(), by_key.data() + 5, column.data()); };
  expect(!turned() && by_key[1] == 2 && by_key[4] == 6 && by_key[5] == 0, "a list in any order is turned round");
  const auto wrong = [&](std::vector<int32_t>& list, size_t at, int32_t x, const char* words) {
    reset(), list[at] = x;
    refused(turned(), words);
    from.counts = counts;
    refused(build(nullptr, nullptr, column.data()), words);
    from.counts = nullptr;
    expect(by_key == none && counts[0] == -7, "nothing is written");
  };
  wrong(column, 1, 4, "block_column of sequence 0: 4 is not one of 4 key blocks");
  wrong(column, 1, -1, "block_column of sequence 0: -1 is not one of 4 key blocks");
  wrong(column, 1, 3, "block_column of sequence 0: 3 occurs twice in row 0");
  wrong(begin, 2, 2, "block_begin of sequence 0: 2 is before its start 3");
  wrong(begin, 0, -1, "block_begin of sequence 0: -1 is below 0");
  wrong(begin, 4, 7, "block_begin of sequence 0: 7 exceeds the bound 6");
  reset(), problem.c.block_bound = 5, from.counts = counts;
  expect(!build(nullptr, nullptr, column.data()) && counts[ATTUNE_BLOCKS_DROPPED] == 1, "what is dropped is counted");
  problem.c.block_bound = 6, from.counts = nullptr;
  // Outputs must not overlap, including lists that the call builds.
  reset();
  refused(build(by_key.data(), by_key.data() + 4, column.data()),
          "block_begin_k: output shares memory with block_row_k");
  refused(build(by_key.data(), column.data(), column.data()),
          "block_row_k: output shares memory with block_column");
  from.counts = reinterpret_cast<int64_t*>(column.data());
  refused(build(nullptr, nullptr, column.data()), "counts: output shares memory with block_column");
  from.counts = nullptr, from.pattern = "local_window window=0";
  refused(build(nullptr, nullptr, begin.data() + 4), "block_begin: output shares memory with block_column");
  expect(begin == good_begin && column == good_column && by_key == none, "nothing is written");
  const attune::Tensor of_mask(reinterpret_cast<uint8_t*>(begin.data()), attune::DataType{1, 8}, "qk", {4, 4});
  const attune_tensor c = of_mask.c();
  from.pattern = nullptr, from.mask = &c;
  refused(build(nullptr, nullptr, column.data()), "block_begin: output shares memory with mask");
}

}  // namespace

int main() {
  lists_of_a_caller();
  const attune::Problem asked("forward f32 b1 h2 q200 k200 d16 causal blocks16x16x1");
  attune::Problem dense("forward f32 b1 h2 q200 k200 d16 causal");
  Tokens plain;
  attune::call(dense, plain.args());
  expect(apart(attended(asked, "dense"), plain.out) < 1e-5, "all blocks active is full attention");
  expect(apart(attended(asked, "local_window window=32"), plain.out) > 1e-3, "a window is not");
  // A window of whole blocks, given as a byte mask.
  attune::Problem problem = asked;
  std::vector<uint8_t> mask(13 * 13);
  for (int i = 0; i < 13; ++i)
    for (int j = 0; j < 13; ++j) mask[size_t(i * 13 + j)] = j >= i - 1 && j <= i + 1;
  Tokens t;
  attune::Args args = t.args();
  attune::Blocks lists(problem, "dense");
  lists.set(args);
  const attune::Tensor bytes(mask.data(), attune::DataType{1, 8}, "qk", {13, 13});
  const attune_tensor c = bytes.c();
  int64_t counts[ATTUNE_BLOCK_COUNTS];
  attune_blocks from{};
  from.size = sizeof from, from.mask = &c, from.counts = counts;
  const auto build = [&] {
    const auto made = [&](const attune_args* a) { return attune_blocks_build(&problem.c, a, &from, nullptr); };
    attune::require(args.with_c(made));
  };
  build();
  expect(counts[ATTUNE_BLOCKS_ACTIVE] == 2 * (13 + 12) && counts[ATTUNE_BLOCKS_SHOWN] == 2 * 13 * 14 / 2, "counts");
  attune::call(problem, args);
  expect(apart(t.out, attended(asked, "local_window window=32")) == 0, "the mask of a window is that window");

  attune::Problem half("forward f32 b1 h2 q4096 k4096 d16 full blocks64x64x1");
  const attune::Blocks::Counts drawn = attune::Blocks(half, "random density=0.25 seed=3").counts();
  expect(drawn.density() == 0.25 && drawn.active == half.c.block_bound && !drawn.dropped,
         "density is what was asked for");

  refused([&] { attune::Blocks(problem, "spiral"); }, "'spiral' is not one of dense, local_window");
  refused([&] { attune::Blocks(dense, "dense"); }, "block_q = 0 and block_k = 0 given; both must be at least 1");
  refused([&] { attune::Blocks(problem, "dense", "cuda:99"); }, "");
  from.pattern = "dense";
  refused(build, "a pattern and a mask given");
  from.pattern = nullptr;
  const attune::Tensor wrong(mask.data(), attune::DataType{1, 8}, "qk", {13, 12});
  const attune_tensor wrong_c = wrong.c();
  from.mask = &wrong_c;
  refused(build, "mask: is [1, 1, 13, 12] of bhqk, not [1 or 1, 2 or 1, 13, 13]");
  const attune::Tensor floats(t.q.data(), "qk", {13, 13});
  const attune_tensor floats_c = floats.c();
  from.mask = &floats_c;
  refused(build, "is not a bool or an integer of 8 bits");
  from.size = 4;
  refused(build, "blocks.size = 4 is not sizeof(attune_blocks)");
  return finish("blocks");
}
