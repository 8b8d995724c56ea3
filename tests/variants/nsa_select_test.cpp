// SPDX-License-Identifier: Apache-2.0
// Which blocks are selected, and the attention over a list, on the CPU and on a GPU if there is one: groups, ties, the
// future, invalid lists, and a needle.
#include <algorithm>
#include <numeric>

#include "core/score.h"
#include "tests/runs.h"

namespace attune {
namespace {

constexpr Role kList = variant_tensor(0);

std::vector<int> list_of(const Ran& r, Role role, int s, int g, int b = 0) {
  std::vector<int> all;
  for (int n = 0; n < r.got.args[role].extent.dim; ++n) all.push_back(int(r.at(role, b, s, g, n)));
  return all;
}

TEST(NsaSelect, identical_heads_of_a_group_choose_as_one_does) {
  for (const Device& device : devices()) {
    const std::string tail = " d16 causal : select d=4 l=8 n=6 s=8";
    const Ran one(join("forward f32 b2 h1 q200 k200", tail), device);
    const Ran many(join("forward f32 b2 h6/1 q200 k200", tail), device, [&](World& w) {
      for (const Role r : {Role::q, Role::lse})
        set(w.args[r], [&](int b, int s, int, int d) { return one.input(r, b, s, 0, d); });
      copy(one.world->args[Role::k], w.args[Role::k]);
    });
    expect_near(one, kList, many, kList, 0);
  }
}

TEST(NsaSelect, identical_heads_of_a_group_have_identical_outputs) {
  for (const Device& device : devices()) {
    const std::string sizes = "forward f32 b1 h8/2 q150 k150 d16 causal";
    const Ran r(join(sizes, " : nsa d=4 gate=none l=8 n=5 phi=mean s=8 w=20 | seed=2"), device, [](World& w) {
      const Tensor& q = w.args[Role::q];
      set(q, [&](int b, int s, int h, int d) { return load(q, b, s, h / 4 * 4, d); });
      ASSERT_EQ(w.args[variant_tensor(4)].extent.head, 2) << "with an even seed a group shares its gates";
    });
    each(r.got.args[Role::out], [&](int b, int s, int h, int d) {
      EXPECT_NEAR(r.at(Role::out, b, s, h, d), r.at(Role::out, b, s, h / 4 * 4, d), 1e-6);
    });
  }
}

TEST(NsaSelect, blocks_rise_hold_the_forced_ones_and_lie_in_the_past) {
  for (const Device& device : devices()) {
    const Ran r("forward bf16 b2 h8/2 q300 k300 d32 causal : select d=4 l=8 n=6 s=16", device);
    for (int s = 0; s < 300; ++s)
      for (int g = 0; g < 2; ++g) {
        std::vector<int> list = list_of(r, kList, s, g, 1);
        const auto end = std::find(list.begin(), list.end(), -1);
        EXPECT_TRUE(std::all_of(end, list.end(), [](int x) { return x == -1; }));
        list.erase(end, list.end());
        EXPECT_TRUE(std::is_sorted(list.begin(), list.end()));
        EXPECT_EQ(std::adjacent_find(list.begin(), list.end()), list.end());
        EXPECT_EQ(int(list.size()), std::min(6, s / 16 + 1));  // no filler, and as many as exist
        for (const int forced : {0, std::max(0, s / 16 - 1), s / 16})
          EXPECT_TRUE(std::binary_search(list.begin(), list.end(), forced)) << s;
        EXPECT_LE(list.back(), s / 16);
      }
  }
}

TEST(NsaSelect, the_future_changes_nothing) {
  for (const Device& device : devices()) {
    const std::string line =
        "forward bf16 b1 h8/2 q150 k150 d16 causal : nsa d=4 gate=sigmoid l=8 n=5 phi=mean s=8 w=20";
    const Ran whole(line, device);
    for (const int t : {0, 7, 8, 40, 63, 64, 100}) {
      const Ran other(line, device, [&](World& w) {
        for (int n = -3; n < 5; ++n) {
          const Role r = n < 0 ? Role(int(Role::q) + n + 3) : variant_tensor(n);
          each(w.args[r], [&](int b, int s, int h, int d) {
            if (s > t) store(w.args[r], b, s, h, d, -2 * load(w.args[r], b, s, h, d) + 3);
          });
        }
      });
      bool changed = false;
      for (const Role r : {Role::out, variant_tensor(15), variant_tensor(16), variant_tensor(17)})
        each(whole.got.args[r], [&](int b, int s, int h, int d) {
          const bool same = whole.at(r, b, s, h, d) == other.at(r, b, s, h, d);
          EXPECT_TRUE(same || s > t) << name(r) << " of " << s << " by what is behind " << t;
          changed |= !same;
        });
      EXPECT_TRUE(changed);
    }
  }
}

TEST(NsaSelect, of_equal_scores_the_lower_block_wins_in_every_dtype) {
  for (const Device& device : devices())
    for (const std::string_view dtype : {"f32", "f16", "bf16"}) {
      const std::string line = join("forward ", dtype, " b1 h4/2 q400 k400 d64 causal : select d=8 l=8 n=6 s=8");
      const auto all_alike = [](World& w) {
        set(w.args[Role::k], [&](int, int, int, int d) { return load(w.args[Role::k], 0, 0, 0, d); });
      };
      const Ran r(line, device, all_alike);
      for (int s = 0; s < 400; ++s)
        for (int g = 0; g < 2; ++g) {
          std::vector<int> want;
          const int own = s / 8, forced = std::min(3, own + 1);
          for (int m = 0; m <= own; ++m)
            if (m == 0 || m >= own - 1 || m <= 6 - forced) want.push_back(m);
          want.resize(6, -1);
          EXPECT_EQ(list_of(r, kList, s, g), want) << dtype << " at " << s;
        }
      const Ran again(line, device, all_alike);
      expect_near(r, kList, again, kList, 0);
    }
}

// Cases with `far` let a backend compute the log-sum-exp (`lean`): a random one would not match such logits.
TEST(NsaSelect, a_far_log_sum_exp_that_is_given_chooses_as_the_reference_does_on_the_cpu) {
  for (const std::string_view dtype : {"f32", "bf16"}) {
    Trial trial(case_of(join("forward ", dtype, " b1 h4/1 q200 k200 d64 causal : select d=4 l=8 n=4 s=8 | far")));
    const Args& a = trial.world.args;
    const double scale = scale_of(trial.world.problem, a);
    set(a[Role::lse], [&](int, int s, int h, int) {
      double top = -INFINITY;  // also the sum: every row sees one key
      for (int c = 0; 4 * c + 7 <= s; ++c) {
        double x = 0;
        for (int d = 0; d < 64; ++d) x += load(a[Role::q], 0, s, h, d) * load(a[Role::k], 0, c, 0, d);
        top = std::max(top, scale * x);
      }
      return top;
    });
    ASSERT_EQ(trial.prepare().message, "");
    const Outcome o = trial.run(*find_backend("cpu_select"), this_cpu());
    EXPECT_NE(o.verdict, Verdict::fail) << dtype << ": " << o.why;
  }
}

// Entries of every kind compared with the reference, which takes a list literally.
TEST(NsaSelected, every_kind_of_list_means_what_it_says) {
  enum { random, sequential, twice, gaps, none, single, wild, kinds };
  for (const Device& device : devices())
    for (const int batch : {1, 2, 4})
      for (const int len : {1, 8, 16, 33})
        for (const int groups : {1, 2, 4})
          for (int kind = 0; kind < kinds; ++kind)
            for (const std::string_view pass : {"forward", "backward"}) {
              const Case c = case_of(join(pass, " f32 b", batch, " h", 2 * groups, "/", groups, " q", len, " k", len,
                                          " d8 causal : selected n=6 s=4"));
              Trial trial(c);
              Random draw{uint64_t(kind * 100 + len)};
              const Tensor& list = trial.world.args[kList];
              each(list, [&](int b, int s, int g, int n) {
                const int wrong[] = {-1, -7, INT32_MIN, INT32_MAX, len, n, 1000000, 2};
                const int any = draw.below(9) - 1, bad = wrong[draw.below(8)];
                const int entry[] = {any, n, n / 2, n % 2 ? -1 : n, -1, n ? -1 : s / 4, bad};
                store(list, b, s, g, n, entry[kind]);
              });
              ASSERT_TRUE(trial.prepare().ok());
              Plan plan;
              ASSERT_TRUE(Planner{.device = device}.plan(c.problem, plan).ok());
              const Outcome o = trial.run(*plan.backend, device);
              EXPECT_NE(o.verdict, Verdict::fail) << name(c) << ", kind " << kind << ": " << o.why;
            }
}

TEST(NsaSelected, an_empty_list_gives_exact_zeros_and_no_gradients) {
  for (const Device& device : devices())
    for (const std::string_view dtype : {"f32", "bf16"}) {
      const auto nothing = [](World& w) { set(w.args[kList], [](int, int, int, int) { return -1; }); };
      const std::string tail = join(dtype, " b2 h4/2 q40 k40 d16 causal : selected n=3 s=8");
      const Ran forward(join("forward ", tail), device, nothing), backward(join("backward ", tail), device, nothing);
      const auto all_are = [](const Ran& r, Role role, double x) {
        each(r.got.args[role], [&](int b, int s, int h, int d) { EXPECT_EQ(r.at(role, b, s, h, d), x) << name(role); });
      };
      all_are(forward, Role::out, 0);
      all_are(forward, Role::lse, -INFINITY);
      for (const Role r : {Role::dq, Role::dk, Role::dv}) all_are(backward, r, 0);
    }
}

TEST(NsaSelected, blocks_of_the_future_are_not_read) {
  for (const Device& device : devices()) {
    const std::string line = "forward f32 b1 h4/2 q64 k64 d16 causal : selected n=4 s=8";
    const auto lists = [](World& w, bool future) {
      each(w.args[kList], [&](int b, int s, int g, int n) {
        const int entry[] = {0, s / 8, future ? s / 8 + 1 : -1, future ? 7 : -1};
        store(w.args[kList], b, s, g, n, s / 8 == 0 && n == 0 ? -1 : entry[n]);
      });
    };
    const Ran with(line, device, [&](World& w) { lists(w, true); });
    const Ran without(line, device, [&](World& w) { lists(w, false); });
    expect_near(with, Role::out, without, Role::out, 0);
    expect_near(with, Role::lse, without, Role::lse, 0);
  }
}

// 64k tokens with real scores: one token in a block that is not forced answers the last query, and is found and
// returned.
TEST(NsaSelect, a_needle_in_64k_tokens_is_found) {
  constexpr int kTokens = 65536, kNeedle = 23456;
  for (const Device& device : devices()) {
    const Ran r("forward bf16 b1 h16/1 q1 k65536 d64 causal : nsa d=16 gate=none l=32 n=16 only=sel phi=mean s=64 w=0 "
                "| pad=0", device, [](World& w) {
                  store(w.args[Role::used_k], 0, 0, 0, 0, kTokens);
                  for (int h = 0; h < 16; ++h)
                    for (int d = 0; d < 64; ++d) {
                      const double x = (d % 3 - 1) * 1.5 + 0.01 * h;
                      store(w.args[Role::q], 0, 0, h, d, x);
                      store(w.args[Role::k], 0, kNeedle, 0, d, 30 * (d % 3 - 1));  // seen through the mean of 32
                      store(w.args[kList], 0, kNeedle, 0, d, 3 * (d % 3 - 1));     // k_select
                    }
                });
    const std::vector<int> list = list_of(r, variant_tensor(17), 0, 0);
    EXPECT_TRUE(std::binary_search(list.begin(), list.end(), kNeedle / 64));
    EXPECT_TRUE(kNeedle / 64 != 0 && kNeedle / 64 < kTokens / 64 - 2);
    double dot = 0, one = 0, other = 0;
    for (int d = 0; d < 64; ++d) {
      const double x = r.at(Role::out, 0, 0, 5, d), y = r.input(variant_tensor(1), 0, kNeedle, 0, d);
      dot += x * y, one += x * x, other += y * y;
    }
    EXPECT_GT(dot / std::sqrt(one * other), 0.999);
  }
}

}  // namespace
}  // namespace attune
