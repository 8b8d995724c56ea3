// SPDX-License-Identifier: Apache-2.0
// Names become module lines that the library accepts, with a reason.
#include "modules/factory.h"

#include "tests/modules/world.h"

namespace attune {
namespace {

MakeChoice chosen(std::string_view name, const MakeOptions& o = {}) {
  MakeChoice c;
  EXPECT_EQ(choose(name, o, this_cpu(), c).message, "") << name;
  return c;
}
std::string refusal(std::string_view name, const MakeOptions& o) {
  MakeChoice c;
  return choose(name, o, this_cpu(), c).message;
}

TEST(Factory, every_name_of_the_tables_is_a_problem_with_a_backend_or_its_refusal) {
  std::string names = implementation_names();
  names = names.substr(0, names.find(", auto"));
  int count = 0;
  for (size_t at = 0; at < names.size(); ++count) {
    const size_t end = std::min(names.find(", ", at), names.size());
    const std::string name = names.substr(at, end - at);
    at = end + 2;
    for (const int ranks : {1, 4}) {
      const MakeChoice c = chosen(name, {.len = 4096, .heads = 8, .causal = true, .ranks = ranks});
      Problem p;
      EXPECT_EQ(parse(c.line, p).message, "") << c.line;
      EXPECT_EQ(attune::name(p), c.line);
      EXPECT_TRUE(c.why.starts_with(name + ": selected by name")) << c.why;
      EXPECT_NE(c.why.find("first in the list of backends that supports it"), std::string::npos) << c.why;
      EXPECT_EQ(c.pattern.empty(), !name.starts_with("block_sparse") || name == "block_sparse_adaptive") << name;
      const MakeChoice m = chosen("multihead_" + name, {.len = 4096, .heads = 8, .causal = true, .ranks = ranks});
      EXPECT_TRUE(m.module);
      Settings s;
      EXPECT_EQ(read_settings(m.line, s).message, "") << m.line;
    }
  }
  EXPECT_EQ(count, 29);
}

TEST(Factory, names_say_what_is_computed) {
  const MakeOptions o{.dtype = DType::bf16, .len = 8192, .heads = 12, .causal = true};
  EXPECT_EQ(chosen("dilated", o).line,
            "forward bf16 b1 h12 q8192 k8192 d64 causal : dilated mode=headgroup norm=divide rates=1,2,4 "
            "segments=2048,4096,8192");
  EXPECT_EQ(chosen("longnet", {.len = 100, .backward = true, .segments = "10,20", .rates = "1,2"}).line,
            "backward f32 b1 h8 q100 k100 d64 full : dilated mode=longnet norm=lse rates=1,2 segments=10,20");
  EXPECT_EQ(chosen("torchscale", {.len = 100, .segments = "10,20", .rates = "1,2"}).line,
            "forward f32 b1 h8 q100 k100 d64 full : dilated gradient=detached mode=longnet norm=lse "
            "offsets=contiguous rates=1,2 segments=10,20");
  EXPECT_EQ(
      chosen("nsa", {.dtype = DType::bf16, .len = 65536, .heads = 64, .heads_kv = 4, .dim = 192, .dim_v = 128}).line,
      "forward bf16 b1 h64/4 q65536 k65536 d192/128 causal : nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512");
  EXPECT_EQ(chosen("ring_dense", {.len = 1000, .causal = true, .ranks = 4}).line,
            "forward f32 b1 h8 q250 k250 d64 causal : ring layout=zigzag ranks=4 tokens=1000");
  EXPECT_EQ(
      chosen("ring_dilated", {.len = 4096, .ranks = 4}).line,
      "forward f32 b1 h8 q1024 k1024 d64 full : ring inner=dilated layout=ring mode=headgroup norm=lse ranks=4 "
      "rates=1,2 segments=2048,4096 tokens=4096");
  EXPECT_EQ(chosen("block_sparse_adaptive", {.len = 4096, .density = 0.1}).line,
            "forward f32 b1 h8 q4096 k4096 d64 full : adaptive block=64 density=0.1 hidden=128");
  EXPECT_EQ(chosen("block_sparse", {.len = 4096, .density = 0.1}).pattern, "random density=0.1 seed=0");
  EXPECT_EQ(chosen("block_sparse", {.len = 4096, .density = 1e-5}).pattern, "random density=0.00001 seed=0");
  EXPECT_EQ(chosen("block_sparse", {.len = 4096, .density = 1}).pattern, "random density=1 seed=0");
  EXPECT_EQ(chosen("multihead_dilated", {.len = 128, .heads = 4, .dim = 16, .causal = true}).line,
            "multihead f32 b1 s128 e64 h4 norm=1 | causal : dilated mode=headgroup norm=divide rates=1 segments=128");
}

TEST(Factory, automatic_choices_follow_from_what_is_given) {
  const std::pair<MakeOptions, const char*> cases[] = {
      {{.len = 4096},
       "dense: no lists, segments or parameters of native sparse attention are given, so attention is exact"},
      {{.len = 4096, .ranks = 2},
       "ring_dense: no lists, segments or parameters of native sparse attention are given, so attention is exact, over "
       "2 ranks"},
      {{.len = 4096, .density = 0.1}, "block_sparse: a density of 0.1 is given"},
      {{.len = 4096, .ranks = 2, .pattern = "local_window window=512"},
       "block_sparse_ring: the pattern 'local_window window=512' is given, over 2 ranks"},
      {{.len = 4096, .segments = "1024,2048", .rates = "1,2"},
       "improved_dilated: segments 1024,2048 and rates 1,2 are given"},
      {{.len = 131072, .causal = true, .nsa = "d=16 gate=softmax l=32 n=16 phi=mean s=64 w=512"},
       "nsa: parameters of native sparse attention are given"},
  };
  for (const auto& [o, why] : cases) EXPECT_TRUE(chosen("auto", o).why.starts_with(std::string(why) + "\n")) << why;
  EXPECT_EQ(chosen("multihead_auto", {.len = 128}).name, "multihead_dense");
}

// The length, the mask, the pass and the ranks decide how, never what.
TEST(Factory, auto_never_changes_what_is_computed) {
  for (const int len : {1, 128, 32768, 32769, 131072, 1 << 24})
    for (const bool causal : {false, true})
      for (const bool backward : {false, true}) {
        const std::string sizes = join(backward ? "backward" : "forward", " f32 b1 h8 q");
        const MakeChoice one = chosen("auto", {.len = len, .heads = 8, .causal = causal, .backward = backward});
        EXPECT_EQ(one.line, join(sizes, len, " k", len, causal ? " d64 causal" : " d64 full"));
        if (len == 1) continue;
        const MakeOptions two{.len = len, .heads = 8, .causal = causal, .backward = backward, .ranks = 2};
        EXPECT_EQ(chosen("auto", two).line, chosen("ring_dense", two).line);
        EXPECT_EQ(chosen("multihead_auto", {.len = len, .causal = causal}).name, "multihead_dense");
      }
  const MakeChoice c = chosen("auto", {.len = 131072, .heads = 8});
  EXPECT_NE(c.why.find("; it computes 35.184 Tflop, and longnet, another function, "), std::string::npos) << c.why;
}

TEST(Factory, what_is_given_and_not_used_is_said) {
  const auto why = [](std::string_view name, const MakeOptions& o) {
    const std::string all = chosen(name, o).why;
    return all.substr(0, all.find('\n'));
  };
  EXPECT_EQ(why("nsa", {.len = 4096, .ranks = 4}),
            "nsa: selected by name; it is not spread, so each of the 4 ranks has all of it; it is causal, which is "
            "its definition");
  EXPECT_EQ(why("dilated", {.density = 0.5, .pattern = "dense", .nsa = "x"}),
            "dilated: selected by name; it does not use pattern, density, nsa");
  EXPECT_EQ(why("block_sparse", {.density = 0.5, .segments = "8", .rates = "1", .pattern = "dense"}),
            "block_sparse: selected by name; it does not use segments and rates, density");
  EXPECT_EQ(why("block_sparse_adaptive", {.density = 0.5}), "block_sparse_adaptive: selected by name");
  EXPECT_EQ(why("ring_dense", {}),
            "ring_dense: selected by name; one rank has the whole sequence, so nothing travels");
  EXPECT_EQ(why("auto", {.causal = true, .ranks = 2, .nsa = "d=16 gate=none l=32 n=16 phi=mean s=64 w=0"}),
            "nsa: parameters of native sparse attention are given; it is not spread, so each of the 2 ranks has all of "
            "it");
}

TEST(Factory, lists_over_ranks_travel_by_heads_or_by_keys) {
  const auto line = [](const MakeOptions& o) { return chosen("block_sparse_ring", o).line; };
  EXPECT_NE(line({.len = 1000, .ranks = 4}).find("layout=ulysses"), std::string::npos);
  EXPECT_NE(line({.len = 192 * 3, .ranks = 3}).find("layout=ring"), std::string::npos);
  EXPECT_NE(line({.len = 384 * 3, .causal = true, .ranks = 3}).find("layout=zigzag"), std::string::npos);
  EXPECT_NE(line({.len = 1000, .ranks = 3, .block = 48}).find("layout=striped"), std::string::npos);
  EXPECT_EQ(refusal("block_sparse_ring", {.len = 1000, .ranks = 3}),
            "make: ring: heads_q = 8 is not divisible by 3 ranks");
}

// With zigzag's 2 R pieces, a rank may get two of the longer ones.
TEST(Factory, any_length_is_spread_over_ranks) {
  EXPECT_EQ(chosen("ring_dense", {.len = 1003, .causal = true, .ranks = 4}).line,
            "forward f32 b1 h8 q252 k252 d64 causal : ring layout=zigzag ranks=4 tokens=1003");
  const auto module = [](int rank) {
    return chosen("multihead_ring_dense", {.len = 1003, .heads = 2, .dim = 8, .causal = true, .ranks = 4, .rank = rank})
        .line;
  };
  EXPECT_EQ(module(0), "multihead f32 b1 s251 e16 h2 norm=1 | causal : ring layout=zigzag ranks=4 tokens=1003");
  EXPECT_EQ(module(2), "multihead f32 b1 s252 e16 h2 norm=1 | causal : ring layout=zigzag ranks=4 tokens=1003");
  EXPECT_EQ(refusal("multihead_ring_dense", {.len = 2, .ranks = 4}),
            "make: rank 0 of 4 holds none of the 2 tokens; a module requires one");
  EXPECT_EQ(refusal("ring_dense", {.ranks = 100000}), "make: ranks = 100000 is over 65536");
  EXPECT_EQ(refusal("ring_dense", {.ranks = 4, .rank = 4}), "make: rank = 4 is not in 0 ... 3");
}

TEST(Factory, modules_by_name_run) {
  for (const char* name : {"multihead", "multihead_dilated", "multihead_longnet", "multihead_block_sparse",
                           "multihead_nsa", "multihead_ring_dilated", "multihead_auto"}) {
    const MakeChoice c = chosen(name, {.len = 128, .heads = 4, .dim = 16, .causal = true, .block = 16});
    const auto module = made(c.line);
    ASSERT_TRUE(module) << c.line;
    ModuleWorld w(*module);
    EXPECT_EQ(w.both().message, "") << c.line;
    for (const float x : w.dx) ASSERT_TRUE(std::isfinite(x)) << c.line;
  }
}

TEST(Factory, mistakes_are_sentences) {
  EXPECT_EQ(refusal("dilatet", {}), "make: 'dilatet' is not one of " + implementation_names());
  EXPECT_EQ(refusal("dilated", {.heads = 0}), "make: heads = 0 is below 1");
  EXPECT_EQ(refusal("dilated", {.segments = "8"}), "make: segments and rates must be given together, or neither");
  EXPECT_EQ(refusal("block_sparse", {.density = 2}), "make: density = 2 is not in 0 ... 1");
  EXPECT_EQ(refusal("block_sparse", {.density = 1e-9}), "make: density = 1e-09 is below a millionth");
  EXPECT_EQ(refusal("block_sparse", {.block = -1}), "make: block = -1 is below 1");
}

}  // namespace
}  // namespace attune
