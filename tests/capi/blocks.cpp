// Block lists as a user makes them: only the installed headers and the shared library.
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

}  // namespace

int main() {
  const attune::Problem asked("forward f32 b1 h2 q200 k200 d16 causal blocks16x16x1");
  attune::Problem dense("forward f32 b1 h2 q200 k200 d16 causal");
  Tokens plain;
  attune::call(dense, plain.args());
  expect(apart(attended(asked, "dense"), plain.out) < 1e-5, "all blocks active is full attention");
  expect(apart(attended(asked, "local_window window=32"), plain.out) > 1e-3, "a window is not");
  // A window of whole blocks, as a mask of bytes.
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
  refused([&] { attune::Blocks(dense, "dense"); }, "block_q = 0 and block_k = 0 are not the sizes of blocks");
  refused([&] { attune::Blocks(problem, "dense", "cuda:99"); }, "");
  from.pattern = "dense";
  refused(build, "both a pattern and a mask");
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
