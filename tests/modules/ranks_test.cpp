// SPDX-License-Identifier: Apache-2.0
// A module whose attention spans ranks, one shard each: the outputs equal those of one module over the whole sequence,
// and the parameter gradients sum to its gradients.
#include <list>
#include <thread>

#include "core/variant/ring.h"
#include "tests/modules/world.h"
#include "transport/communicator.h"

namespace attune {
namespace {

constexpr int kBatch = 2;

// Copies a shard's rows out of the whole sequence, or back.
void move_rows(const Shards& shards, int rank, int embed, std::vector<float>& whole, std::vector<float>& shard,
               bool back) {
  const int rows = shards.count(rank);
  for (int b = 0; b < kBatch; ++b)
    for (int r = 0; r < rows; ++r)
      for (int d = 0; d < embed; ++d) {
        float& w = whole[size_t((b * shards.tokens + shards.token(rank, r)) * embed + d)];
        float& s = shard[size_t((b * rows + r) * embed + d)];
        back ? w = s : s = w;
      }
}

// In the line `of_ranks`, `s?` stands for the tokens of each rank.
void compare(const std::string& one, const std::string& of_ranks) {
  SCOPED_TRACE(of_ranks);
  const auto whole = made(one);
  ASSERT_TRUE(whole);
  ModuleWorld w(*whole);
  ASSERT_EQ(w.both().message, "");
  Ring ring;
  Variant variant;
  const size_t at = of_ranks.find("ring "), mark = of_ranks.find("s?");
  ASSERT_EQ(assign(variant, of_ranks.substr(at, of_ranks.find(" |", at) - at)).message, "");
  ASSERT_EQ(read_ring(variant, ring).message, "");
  const Shards shards = ring.shards;
  const int ranks = shards.ranks, embed = whole->settings().embed;
  Device cpu = this_cpu();
  cpu.units = 1;  // ranks provide the parallelism
  std::vector<Transport> transports;
  ASSERT_EQ(make_ranks(ranks, transports).message, "");
  std::vector<std::unique_ptr<Module>> modules;
  std::vector<std::unique_ptr<ModuleWorld>> worlds;
  for (int r = 0; r < ranks; ++r) {
    modules.push_back(made(std::string(of_ranks).replace(mark, 2, join("s", shards.count(r))), nullptr, cpu));
    ASSERT_TRUE(modules.back());
    worlds.push_back(std::make_unique<ModuleWorld>(*modules.back()));
    move_rows(shards, r, embed, w.x, worlds.back()->x, false);
    move_rows(shards, r, embed, w.d_out, worlds.back()->d_out, false);
  }
  std::vector<std::string> said(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      Communicator communicator(transports[size_t(r)], 20);
      ModuleWorld& mine = *worlds[size_t(r)];
      ModuleCall c = mine.call();
      c.communicator = &communicator;
      Status s = modules[size_t(r)]->forward(c);
      c.d_out = mine.tensor(mine.d_out, shards.count(r)), c.dx = mine.tensor(mine.dx, shards.count(r));
      if (s.ok()) s = modules[size_t(r)]->backward(c);
      said[size_t(r)] = s.message;
    });
  for (std::thread& t : threads) t.join();
  for (const std::string& s : said) ASSERT_EQ(s, "");
  std::vector<float> out(w.out.size()), dx(out.size());
  for (int r = 0; r < ranks; ++r) {
    move_rows(shards, r, embed, out, worlds[size_t(r)]->out, true);
    move_rows(shards, r, embed, dx, worlds[size_t(r)]->dx, true);
  }
  for (size_t n = 0; n < out.size(); ++n) {
    ASSERT_NEAR(out[n], w.out[n], 1e-5 * (1 + std::abs(w.out[n])));
    ASSERT_NEAR(dx[n], w.dx[n], 1e-4 * (1 + std::abs(w.dx[n])));
  }
  for (const Parameter& parameter : whole->graph().parameters) {
    const std::vector<float> want = w.gradient(parameter);
    std::vector<float> sum(want.size());
    for (int r = 0; r < ranks; ++r) {
      const std::vector<float> mine = worlds[size_t(r)]->gradient(*modules[size_t(r)]->find(parameter.name));
      for (size_t n = 0; n < sum.size(); ++n) sum[n] += mine[n];
    }
    for (size_t n = 0; n < sum.size(); ++n)
      ASSERT_NEAR(sum[n], want[n], 2e-4 * (1 + std::abs(want[n]))) << parameter.name;
  }
}

TEST(Ranks, modules_over_ranks_are_the_module_over_the_whole) {
  compare("multihead f32 b2 s32 e32 h4/2 norm=1 | causal",
          "multihead f32 b2 s? e32 h4/2 norm=1 | causal : ring layout=zigzag ranks=2 tokens=32");
  compare("longnet_encoder f32 b2 s32 e32 h4 | full",
          "longnet_encoder f32 b2 s? e32 h4 | full : ring layout=striped ranks=2 tokens=32");
  compare("multihead f32 b2 s32 e32 h4/2 | causal : dilated mode=headgroup norm=lse rates=1,2 segments=8,16",
          "multihead f32 b2 s? e32 h4/2 | causal : ring inner=dilated layout=ring mode=headgroup norm=lse ranks=2 "
          "rates=1,2 segments=8,16 tokens=32");
  compare("multihead f32 b2 s32 e32 h4/2 | causal | 8x8 local_window window=8",
          "multihead f32 b2 s? e32 h4/2 | causal : ring layout=ulysses ranks=2 tokens=32 | 8x8 local_window window=8");
}

// Rotary uses a token's position in the whole sequence, and ranks may have different lengths.
TEST(Ranks, rotary_counts_tokens_of_the_whole_and_lengths_need_not_divide) {
  for (const char* layout : {"ring", "zigzag", "striped", "ulysses"})
    for (const char* rope : {"half", "pairs"})
      compare(join("llama f32 b2 s29 e32 h4/2 rope=", rope, " | causal"),
              join("llama f32 b2 s? e32 h4/2 rope=", rope, " | causal : ring layout=", layout, " ranks=2 tokens=29"));
  compare("multihead f32 b2 s27 e32 h4 rope=half | window5,0",
          "multihead f32 b2 s? e32 h4 rope=half | window5,0 : ring layout=zigzag ranks=4 tokens=27");
}

TEST(Ranks, a_call_of_another_group_or_shard_is_refused) {
  const auto module = made("llama f32 b2 s15 e32 h4 | causal : ring layout=ring ranks=2 tokens=29");
  ASSERT_TRUE(module);
  ModuleWorld w(*module);
  EXPECT_EQ(w.forward().message, "module: the problem has 2 ranks, but no communicator is given");
  const auto said = [&](int ranks, int rank) {
    std::vector<Transport> transports;
    EXPECT_EQ(make_ranks(ranks, transports).message, "");
    std::list<Communicator> all;
    for (const Transport& t : transports) all.emplace_back(t, 1);
    ModuleCall c = w.call();
    c.communicator = &*std::next(all.begin(), rank);
    return module->forward(c).message;
  };
  EXPECT_EQ(said(3, 1), "module: the problem has 2 ranks, but the communicator has 3");
  EXPECT_EQ(said(2, 0), "module: x has 15 tokens, but rank 0 has 14 of the 29");
}

}  // namespace
}  // namespace attune
