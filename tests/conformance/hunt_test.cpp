// SPDX-License-Identifier: Apache-2.0
// The hunt must find backends that are wrong, hang or crash for some problems, continue afterwards, and print small
// reproducers. Its random draws must cover the whole grammar.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <map>

#include "machine/host.h"
#include "tests/asked_case.h"
#include "verify/hunt/hunter.h"

namespace attune {
namespace {

bool any(const Problem&) { return true; }

Status right(const Plan& plan, const Args& a) {
  return find_backend("reference")->run(Plan{.problem = plan.problem}, a, {}, nullptr);
}
Backend backend(const char* name, Status (*run)(const Plan&, const Args&, Workspace, Stream)) {
  return {.name = name,
          .supports = [](const Problem& p, const Device&) {
            return p.keys == KeySource::paged ? Status::no("no pages") : Status::good();
          },
          .shape = [](Plan&, const Planner&) { return Status::good(); },
          .run = run};
}
bool is_trouble(const Problem& p) { return p.mask.kind == MaskKind::window && p.len_q > 64; }

Hunt quick_hunt(const Backend& b, uint64_t cases) {
  Hunt h;
  h.backends = {&b}, h.cases = cases, h.seed = 4, h.threads = 1, h.launch_seconds = 30, h.shrink_seconds = 3;
  return h;
}

TEST(Hunt, draws_are_the_same_for_a_seed_and_others_for_another) {
  const HuntLimits limits;
  for (uint64_t n = 0; n < 50; ++n)
    EXPECT_EQ(name(hunted_case(1, n, limits, any)), name(hunted_case(1, n, limits, any)));
  int same = 0;
  for (uint64_t n = 0; n < 50; ++n)
    same += name(hunted_case(1, n, limits, any)) == name(hunted_case(2, n, limits, any));
  EXPECT_LT(same, 3);
}

TEST(Hunt, draws_reach_all_of_the_grammar_and_most_have_many_tiles) {
  const HuntLimits limits;
  std::map<std::string, int> seen;
  constexpr int kDraws = 3000;
  for (uint64_t n = 0; n < kDraws; ++n) {
    const Case c = hunted_case(7, n, limits, any);
    const Problem& p = c.problem;
    ASSERT_TRUE(valid(p).ok()) << name(c);
    Case again;
    ASSERT_TRUE(parse(name(c), again).ok()) << name(c);
    ASSERT_EQ(name(again), name(c));
    EXPECT_LE(hunt_work(p), 2 * limits.work) << name(c);
    ++seen[name(p.pass)], ++seen[name(p.dtype.q)], ++seen[name(p.keys)];
    const bool window = p.mask.kind == MaskKind::window;
    seen["window of a negative side"] += window && (p.mask.left < 0 || p.mask.right < 0);
    seen["window without end"] += window && (p.mask.left == kNoLimit || p.mask.right == kNoLimit);
    seen["causal"] += p.mask.kind == MaskKind::causal, seen["full"] += p.mask.kind == MaskKind::full;
    seen["blocks"] += p.mask.blocks.q > 0, seen["compressed"] += p.mask.k_step > 1;
    seen["top left"] += p.mask.align == Align::top_left, seen["absolute"] += p.mask.align == Align::absolute;
    seen["groups of 7"] += p.heads_q == 7 * p.heads_kv, seen["dims differ"] += p.dim_qk != p.dim_v;
    seen["d256"] += p.dim_qk == 256, seen["v256"] += p.dim_v == 256 && p.dim_qk != 256;
    seen["packed"] += c.variation.cu_q, seen["cache"] += c.variation.cache;
    seen["bhsd"] += c.variation.layout != Layout::bshd;
    seen["strides"] += c.variation.pad != 8, seen["ragged lengths"] += c.variation.lengths != Lengths::full;
    for (const Option o :
         {Option::softcap, Option::alibi, Option::bias, Option::dropout, Option::sink, Option::accumulate})
      seen[name(o)] += p.has(o);
    seen["block bias"] += p.has(Option::block_bias), seen["append"] += p.has(Option::append);
    seen["rotary"] += p.has(Option::rotary), seen["rotary_half"] += p.has(Option::rotary_half);
    seen["append to pages"] += p.has(Option::append) && p.keys == KeySource::paged;
    seen["append to a cache"] += p.has(Option::append) && c.variation.cache;
    seen["as many new keys as said"] += c.variation.added >= 0, seen["some pairs"] += c.variation.pairs > 0;
    seen["one list for all"] += p.mask.blocks.q && c.variation.shared;
    if (p.variant.text[0]) ++seen[std::string(word(p.variant))], ++seen[join(word(p.variant), " ", name(p.pass))];
    seen["more tiles than multiprocessors"] += ceil_div(p.len_q, 128) * p.batch * p.heads_q > limits.units;
  }
  for (const auto& [what, count] : seen) EXPECT_GT(count, 6) << what;
  EXPECT_EQ(seen.size(), 32u + 9u + 9u + 16u);  // 9 words; select and reads have no backward
  EXPECT_GT(seen["more tiles than multiprocessors"], kDraws / 7);
}

TEST(Hunt, every_kind_alone_has_a_backend_here_and_compares) {
  for (size_t kind = 0; kind < std::size(kHuntKinds); ++kind) {
    Hunt h;
    for (const Backend* b : backends())
      if (!b->only_by_name) h.backends.push_back(b);
    h.cases = 6, h.seed = 3, h.threads = 1, h.shrink_seconds = 1, h.kinds = {HuntKind(kind)};
    const Hunted all = hunt(h);
    EXPECT_TRUE(all.status.ok()) << all.status.message;
    EXPECT_TRUE(all.findings.empty()) << kHuntKinds[kind] << ": " << name(all.findings[0].smallest);
    EXPECT_EQ(all.cases, 6u);
    EXPECT_LT(all.empty, 3u) << kHuntKinds[kind];
  }
}

TEST(Hunt, a_right_backend_has_no_findings) {
  const Backend b = backend("fine", [](const Plan& plan, const Args& a, Workspace, Stream) { return right(plan, a); });
  const Hunted all = hunt(quick_hunt(b, 12));
  EXPECT_TRUE(all.status.ok()) << all.status.message;
  EXPECT_EQ(all.cases, 12u);
  EXPECT_EQ(all.runs.at(0), 12u - all.empty);
  EXPECT_TRUE(all.findings.empty());
}

TEST(Hunt, what_is_wrong_is_found_and_made_small) {
  const Backend b = backend("wrong", [](const Plan& plan, const Args& a, Workspace, Stream) {
    Args wrong = a;
    if (is_trouble(plan.problem)) wrong.scale = 3.f;
    return right(plan, wrong);
  });
  Hunt asked = quick_hunt(b, 5);
  asked.shrink_seconds = 600, asked.shrink_steps = 2;
  std::vector<std::string> at_once;
  asked.on_finding = [&](const HuntFinding& f) { at_once.push_back(name(f.smallest)); };
  const Hunted all = hunt(asked);
  ASSERT_FALSE(all.findings.empty());
  ASSERT_EQ(at_once.size(), all.findings.size());
  EXPECT_EQ(at_once[0], name(all.findings[0].drawn));  // before it is made small
  EXPECT_EQ(all.cases, 5u);
  const HuntFinding& f = all.findings[0];
  EXPECT_EQ(f.ending, Ending::wrong);
  EXPECT_EQ(f.again, f.tries);
  EXPECT_TRUE(is_trouble(f.drawn.problem)) << name(f.drawn);
  EXPECT_TRUE(is_trouble(f.smallest.problem)) << name(f.smallest);
  EXPECT_NE(name(f.smallest), name(f.drawn));
}

TEST(Hunt, a_run_that_hangs_is_found_and_the_hunt_goes_on) {
  const Backend b = backend("hangs", [](const Plan& plan, const Args& a, Workspace, Stream) {
    while (is_trouble(plan.problem)) sleep(1);
    return right(plan, a);
  });
  Hunt asked = quick_hunt(b, 3);
  asked.launch_seconds = 3, asked.shrink_seconds = 1;
  const Hunted all = hunt(asked);
  ASSERT_FALSE(all.findings.empty());
  EXPECT_EQ(all.cases, 3u);
  for (const HuntFinding& f : all.findings) {
    EXPECT_EQ(f.ending, Ending::hang);
    EXPECT_TRUE(is_trouble(f.smallest.problem)) << name(f.smallest);
  }
}

TEST(Hunt, a_crash_is_found_and_the_hunt_goes_on) {
  const Backend b = backend("crashes", [](const Plan& plan, const Args& a, Workspace, Stream) {
    if (is_trouble(plan.problem)) raise(SIGKILL);
    return right(plan, a);
  });
  Hunt asked = quick_hunt(b, 5);
  asked.shrink_seconds = 1;
  const Hunted all = hunt(asked);
  ASSERT_FALSE(all.findings.empty());
  EXPECT_EQ(all.cases, 5u);
  EXPECT_EQ(all.findings[0].ending, Ending::crash);
  EXPECT_NE(all.findings[0].why.find("signal 9"), std::string::npos) << all.findings[0].why;
}

TEST(Hunt, a_device_that_is_not_here_is_a_sentence) {
  const Backend b = backend("fine", [](const Plan& plan, const Args& a, Workspace, Stream) { return right(plan, a); });
  Hunt asked = quick_hunt(b, 2);
  asked.device = "cuda:63";
  const Hunted all = hunt(asked);
  EXPECT_FALSE(all.status.ok());
  EXPECT_TRUE(all.device_is_wrong);
}

TEST(Hunt, smaller_cases_are_valid_and_none_is_the_case_itself) {
  const Case c = case_of("backward bf16 b3 h8/2 q130 k200 d256/128 window5,3 softcap bias ragged | seed=5 drawn bhsd");
  const std::vector<Case> all = smaller_cases(c);
  EXPECT_GT(all.size(), 15u);
  for (const Case& s : all) {
    EXPECT_TRUE(valid(s.problem).ok()) << name(s);
    EXPECT_NE(name(s), name(c));
  }
}

// Each of these has a simpler neighbour that drops the word, one that halves a number, and one that halves the rows.
TEST(Hunt, variants_and_appends_shrink_too) {
  const struct { std::string_view from, to; } all[] = {
      {"forward f32 b2 h4/2 q90 k90 d16 causal : nsa d=4 gate=sigmoid l=8 n=6 phi=mean s=8 w=20",
       "forward f32 b2 h4/2 q90 k90 d16 causal : nsa d=4 gate=sigmoid l=8 n=3 phi=mean s=8 w=20"},
      {"forward f32 b2 h4/2 q90 k90 d16 causal : nsa d=4 gate=sigmoid l=8 n=6 phi=mean s=8 w=20",
       "forward f32 b2 h4/2 q90 k90 d16 causal"},
      {"forward f32 b2 h2 q65 k15 d16 full : compress d=4 l=8 phi=mean",
       "forward f32 b2 h2 q33 k7 d16 full : compress d=4 l=8 phi=mean"},
      {"backward f32 b1 h4 q60 k60 d16 causal : dilated rates=1,2,4 segments=8,16,64",
       "backward f32 b1 h4 q60 k60 d16 causal : dilated rates=1,2 segments=8,16"},
      {"forward f32 b1 h4 q60 k60 d16 causal : ring layout=zigzag ranks=1 tokens=60",
       "forward f32 b1 h4 q30 k30 d16 causal : ring layout=zigzag ranks=1 tokens=30"},
      {"forward f32 b1 h4 q60 k60 d16 causal : adaptive block=16 density=0.5 hidden=24",
       "forward f32 b1 h4 q60 k60 d16 causal : adaptive block=16 density=0.5 hidden=12"},
      {"forward f32 b1 h4 q6 k60 d16 causal append rotary paged16 | new=5 pairs=4",
       "forward f32 b1 h4 q6 k60 d16 causal append paged16 | new=5"},
      {"forward f32 b1 h4 q6 k60 d16 causal append rotary paged16 | new=5 pairs=4",
       "forward f32 b1 h4 q6 k60 d16 causal paged16"},
  };
  for (const auto& [from, to] : all) {
    bool found = false;
    for (const Case& c : smaller_cases(case_of(from))) found |= name(c) == to;
    EXPECT_TRUE(found) << from << " does not shrink to " << to;
  }
}

}  // namespace
}  // namespace attune
