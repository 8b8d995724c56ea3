// SPDX-License-Identifier: Apache-2.0
// Guarantees of native sparse attention as a whole, on the CPU and on a GPU if there is one. A branch that sees
// everything is plain attention; gates have their documented effect; decode equals prefill; ragged sequences are
// independent; memory is linear. `attune parity` checks every number; nsa_select_test.cpp checks the selection.
#include "tests/runs.h"

namespace attune {
namespace {

constexpr Role kSelectK = variant_tensor(0), kSelectV = variant_tensor(1), kWindowK = variant_tensor(2),
               kWindowV = variant_tensor(3), kGates = variant_tensor(4), kBlocks = variant_tensor(17),
               kReads = variant_tensor(18);

// Plain causal attention on the keys of one stream of `of`, with its queries.
Ran dense(std::string_view sizes, const Device& device, const Ran& of, Role k, Role v) {
  return Ran(join("forward ", sizes, " causal"), device, [&](World& w) {
    copy(of.world->args[Role::q], w.args[Role::q]);
    copy(of.world->args[k], w.args[Role::k]);
    copy(of.world->args[v], w.args[Role::v]);
  });
}

// Gates that pass one branch, with gate=none.
Change only_gate(int branch) {
  return [branch](World& w) {
    set(w.args[kGates], [&](int, int, int, int d) { return d == branch; });
  };
}

TEST(Nsa, window_of_everything_is_causal_attention) {
  const std::string sizes = "f32 b2 h4/2 q150 k150 d32/16";
  for (const Device& device : devices()) {
    const std::string tail = " causal : nsa d=4 gate=none l=8 n=4 phi=mean s=8 w=150";
    const Ran gated(join("forward ", sizes, tail), device, only_gate(2));
    expect_near(gated, Role::out, dense(sizes, device, gated, kWindowK, kWindowV), Role::out, 1e-5);
    const Ran alone(join("forward ", sizes, " causal : nsa d=4 gate=none l=8 n=4 only=win phi=mean s=8 w=150"), device);
    const Ran want = dense(sizes, device, alone, kWindowK, kWindowV);
    expect_near(alone, Role::out, want, Role::out, 1e-5);
    expect_near(alone, Role::lse, want, Role::lse, 1e-5);
  }
}

TEST(Nsa, every_block_selected_is_causal_attention) {
  const std::string sizes = "f32 b2 h4/2 q60 k60 d32/16";
  for (const Device& device : devices())
    for (const std::string_view blocks :
         {"d=1 gate=none l=1 n=60 phi=mean s=1 w=9", "d=2 gate=none l=4 n=15 phi=mean s=4 w=9"}) {
      const Ran gated(join("forward ", sizes, " causal : nsa ", blocks), device, only_gate(1));
      expect_near(gated, Role::out, dense(sizes, device, gated, kSelectK, kSelectV), Role::out, 1e-5);
      const Ran alone(join("forward ", sizes, " causal : nsa only=sel ", blocks), device);
      const Ran want = dense(sizes, device, alone, kSelectK, kSelectV);
      expect_near(alone, Role::out, want, Role::out, 1e-5);
      expect_near(alone, Role::lse, want, Role::lse, 1e-5);
    }
}

TEST(Nsa, compressed_tokens_of_one_are_causal_attention) {
  const std::string sizes = "f32 b2 h4/2 q90 k90 d32/16";
  for (const Device& device : devices()) {
    const std::string tail = " causal : nsa d=1 gate=none l=1 n=4 phi=mean s=8 w=9";
    const Ran gated(join("forward ", sizes, tail), device, only_gate(0));
    expect_near(gated, Role::out, dense(sizes, device, gated, Role::k, Role::v), Role::out, 1e-5);
    const Ran alone(join("forward ", sizes, " causal : nsa d=1 gate=none l=1 n=4 only=cmp phi=mean s=8 w=9"), device);
    expect_near(alone, Role::lse, dense(sizes, device, alone, Role::k, Role::v), Role::lse, 1e-5);
  }
}

TEST(Nsa, a_branch_alone_is_that_branch_and_needs_no_stream_of_another) {
  for (const Device& device : devices()) {
    const std::string sizes = "forward f32 b2 h4/2 q100 k100 d16 causal : nsa d=4 gate=none l=8 n=4 phi=mean s=8 w=20";
    for (int branch = 0; branch < 3; ++branch) {
      const std::string_view word[] = {" only=cmp", " only=sel", " only=win"};
      const Ran whole(sizes, device, only_gate(branch));
      const auto copy_streams = [&](World& w) {
        for (const Role r : {Role::q, Role::k, Role::v, kSelectK, kSelectV, kWindowK, kWindowV})
          if (w.args.given(r)) copy(whole.world->args[r], w.args[r]);
        // A tensor that a branch does not read is absent.
        EXPECT_EQ(w.args.given(kSelectK), branch == 1);
        EXPECT_EQ(w.args.given(kWindowK), branch == 2);
        EXPECT_EQ(w.args.given(Role::v), branch == 0);
        EXPECT_EQ(w.args.given(Role::k), branch != 2);
        EXPECT_FALSE(w.args.given(kGates));
      };
      const Ran alone(join(sizes, word[branch]), device, copy_streams);
      expect_near(whole, Role::out, alone, Role::out, 1e-5);
    }
  }
}

TEST(Nsa, softmax_gates_sum_to_one_and_sigmoid_gates_do_not) {
  for (const Device& device : devices())
    for (const std::string_view gate : {"softmax", "sigmoid"}) {
      const std::string sizes = "forward f32 b1 h4/2 q100 k100 d16 causal : nsa d=4 l=8 n=4 phi=mean s=8 w=20 gate=";
      const Ran r(join(sizes, gate), device, [](World& w) {
        for (const Role v : {Role::v, kSelectV, kWindowV})
          set(w.args[v], [](int, int, int, int) { return 1; });
      });
      for (int s = 7; s < 100; ++s)  // from here on, all branches see keys
        for (int h = 0; h < 4; ++h) {
          double sum = 1;
          if (gate == "sigmoid") sum = 0;
          for (int n = 0; gate == "sigmoid" && n < 3; ++n) sum += 1 / (1 + std::exp(-r.input(kGates, 0, s, h, n)));
          EXPECT_NEAR(r.at(Role::out, 0, s, h, 3), sum, 1e-6);
        }
    }
}

TEST(Nsa, a_query_without_compressed_tokens_still_has_its_gates) {
  for (const Device& device : devices()) {
    const Ran r("forward f32 b1 h2 q20 k20 d16 causal : nsa d=8 gate=sigmoid l=16 n=3 phi=mean s=8 w=4", device);
    for (int s = 0; s < 15; ++s) {
      EXPECT_EQ(r.at(variant_tensor(16), 0, s, 1), -INFINITY);
      for (int d = 0; d < 16; ++d) {
        EXPECT_EQ(r.at(variant_tensor(15), 0, s, 1, d), 0);
        double want = 0;
        for (int n = 1; n < 3; ++n)
          want += r.at(variant_tensor(15), 0, s, 2 * n + 1, d) / (1 + std::exp(-r.input(kGates, 0, s, 1, n)));
        EXPECT_NEAR(r.at(Role::out, 0, s, 1, d), want, 1e-6);
      }
    }
    EXPECT_GT(r.at(variant_tensor(16), 0, 15, 1), -INFINITY);
  }
}

TEST(Nsa, filter_of_equal_taps_is_the_mean) {
  for (const Device& device : devices())
    for (const std::string_view pass : {"forward", "backward"}) {
      const std::string sizes =
          join(pass, " f32 b2 h4/2 q100 k100 d16 causal : nsa d=4 gate=sigmoid l=8 n=4 s=8 w=20 phi=");
      const Ran mean(sizes + "mean", device);
      const Ran conv(sizes + "conv", device, [&](World& w) {
        for (int n = 0; n < kVariantTensors; ++n) {
          const Role r = variant_tensor(n);
          if (n == 5 || n == 10)
            set(w.args[r], [](int, int, int, int) { return 0.125; });
          else if (w.args.given(r)) copy(mean.world->args[r], w.args[r]);
        }
        for (const Role r : {Role::q, Role::k, Role::v, Role::d_out})
          if (w.args.given(r)) copy(mean.world->args[r], w.args[r]);
      });
      if (pass == "forward") expect_near(mean, Role::out, conv, Role::out, 1e-5);
      else
        for (const Role r : mean.got.roles) expect_near(mean, r, conv, r, 1e-5);
    }
}

// One or several queries over caches give the same numbers and blocks as the whole sequence at once. Lengths below a
// compressed token, in the middle of blocks, and beyond the window.
TEST(Nsa, decode_and_chunks_are_prefill) {
  const std::string tail = " d=4 gate=sigmoid l=8 n=4 phi=";
  for (const Device& device : devices()) {
    const Ran whole(join("forward f32 b1 h4/2 q90 k90 d16 causal : nsa s=8 w=20", tail, "mean"), device);
    const Tensor k = whole.world->args[Role::k], v = whole.world->args[Role::v];
    // Compressed tokens as a cache holds them.
    const auto compressed = [&](const Tensor& raw) {
      return std::make_unique<Ran>("forward f32 b1 h2 q90 k21 d16 full : compress d=4 l=8 phi=mean", device,
                                   [&](World& w) { copy(raw, w.args[Role::q]); });
    };
    const auto cache_k = compressed(k), cache_v = compressed(v);
    for (const int len : {1, 5})
      for (int end = len; end <= 90; end += 7) {
        const Ran chunk(join("forward f32 b1 h4/2 q", len, " k90 d16 causal : nsa s=8 w=20", tail, "none"), device,
                        [&](World& w) {
                          store(w.args[Role::used_k], 0, 0, 0, 0, end);
                          const Tensor from = whole.world->args[Role::q];
                          copy(pick_rows(from, end - len, len), w.args[Role::q]);
                          copy(pick_rows(whole.world->args[kGates], end - len, len), w.args[kGates]);
                          copy(cache_k->got.args[Role::out], w.args[Role::k]);
                          copy(cache_v->got.args[Role::out], w.args[Role::v]);
                          for (const Role r : {kSelectK, kSelectV, kWindowK, kWindowV})
                            copy(whole.world->args[r], w.args[r]);
                        });
        for (int i = 0; i < len; ++i) {
          for (int g = 0; g < 2; ++g)
            for (int n = 0; n < 4; ++n)
              EXPECT_EQ(chunk.at(kBlocks, 0, i, g, n), whole.at(kBlocks, 0, end - len + i, g, n))
                  << "at " << end - len + i;
          for (int h = 0; h < 4; ++h)
            for (int d = 0; d < 16; ++d)
              EXPECT_NEAR(chunk.at(Role::out, 0, i, h, d), whole.at(Role::out, 0, end - len + i, h, d), 1e-5);
        }
      }
  }
}

TEST(Nsa, a_compressed_token_is_the_same_however_much_follows) {
  for (const Device& device : devices())
    for (const std::string_view phi : {"mean", "conv", "mlp"}) {
      const Ran whole(join("forward bf16 b1 h2 q90 k21 d16 full : compress d=4 l=8 phi=", phi), device);
      for (const int tokens : {8, 9, 11, 12, 40, 89}) {
        const Ran part(join("forward bf16 b1 h2 q90 k21 d16 full : compress d=4 l=8 phi=", phi, " | used_q"), device,
                       [&](World& w) {
                         store(w.args[Role::used_q], 0, 0, 0, 0, tokens);
                         copy(whole.world->args[Role::q], w.args[Role::q]);
                         for (int n = 0; n < 5; ++n)
                           if (const Role r = variant_tensor(n); w.args.given(r)) copy(whole.world->args[r], w.args[r]);
                       });
        const int made = (tokens - 8) / 4 + 1;
        for (int i = 0; i < 21; ++i)
          EXPECT_EQ(part.got.of(Role::out).untouched(0, i, 0, 0), i >= made) << tokens << " tokens, compressed " << i;
        for (int i = 0; i < made; ++i)
          for (int d = 0; d < 16; ++d) EXPECT_EQ(part.at(Role::out, 0, i, 1, d), whole.at(Role::out, 0, i, 1, d));
      }
    }
}

TEST(Nsa, sequences_of_a_ragged_batch_are_apart) {
  const int cu[] = {0, 5, 7, 7, 60};
  const std::string tail = " d16 causal";
  const std::string of = " : nsa d=4 gate=softmax l=8 n=4 phi=conv s=8 w=9";
  for (const Device& device : devices()) {
    const Ran all(join("forward f32 b4 h4/2 q53 k53", tail, " ragged", of), device, [&](World& w) {
      // Different lengths with the same total.
      const int total = w.args[Role::q].extent.seq;
      for (int n = 0; n < 5; ++n)
        for (const Role r : {Role::cu_q, Role::cu_k}) store(w.args[r], 0, 0, 0, n, cu[n]);
      ASSERT_GE(total, 60);
    });
    for (int b = 0; b < 4; ++b) {
      const int len = cu[b + 1] - cu[b];
      if (!len) continue;
      const Ran one(join("forward f32 b1 h4/2 q", len, " k", len, tail, of), device, [&](World& w) {
        for (const Role r : {Role::q, Role::k, Role::v, kSelectK, kSelectV, kWindowK, kWindowV, kGates})
          copy(pick_rows(all.world->args[r], cu[b], len), w.args[r]);
        for (const int n : {5, 10}) copy(all.world->args[variant_tensor(n)], w.args[variant_tensor(n)]);
      });
      for (int i = 0; i < len; ++i)
        for (int h = 0; h < 4; ++h)
          for (int d = 0; d < 16; ++d)
            EXPECT_NEAR(all.at(Role::out, 0, cu[b] + i, h, d), one.at(Role::out, 0, i, h, d), 1e-6);
    }
  }
}

TEST(Nsa, keys_of_another_length_than_queries_are_refused_in_a_ragged_batch) {
  const Case c = case_of("forward f32 b2 h2 q20 k20 d16 causal ragged : nsa d=4 gate=none l=8 n=3 phi=mean s=8 w=9");
  World w(c.problem, c.variation);
  const Outputs out = w.outputs(false);
  EXPECT_TRUE(check_values(c.problem, out.args).ok());
  store(w.args[Role::cu_k], 0, 0, 0, 1, 19);
  EXPECT_EQ(check_values(c.problem, out.args).message, "cu_k of sequence 0: 19 is not 20, the value in cu_q");
  store(w.args[Role::cu_q], 0, 0, 0, 1, 41);
  EXPECT_FALSE(check_values(c.problem, out.args).ok());
}

TEST(Nsa, compressed_keys_that_are_too_few_for_the_tokens_are_refused) {
  for (const char* const line : {"forward f32 b2 h2 q20 k40 d16 causal : select d=4 l=8 n=4 s=8 | cache",
                                 "forward f32 b2 h2 q20 k40 d16 causal : nsa d=4 gate=none l=8 n=4 phi=none s=8 w=9 | "
                                 "cache"}) {
    const Case c = case_of(line);
    World w(c.problem, c.variation);
    const Outputs out = w.outputs(false);
    EXPECT_EQ(check_values(c.problem, out.args).message, "") << line;
    const auto said = [&](Role r, int x) {
      const int before = out.args.integer(r, 1, 0);
      store(out.args[r], 1, 0, 0, 0, x);
      const std::string message = check_values(c.problem, out.args).message;
      store(out.args[r], 1, 0, 0, 0, before);
      return message;
    };
    EXPECT_EQ(said(Role::used_k, 41), "used_k of sequence 1: 41 is not in 0 ... 40") << line;
    EXPECT_EQ(said(Role::used_k, -1), "used_k of sequence 1: -1 is not in 0 ... 40") << line;
    int32_t rows[] = {0, 9};
    Args few = out.args;
    few[Role::cache_index] = few[Role::used_k];
    few[Role::cache_index].data = rows, few[Role::cache_index].stride.batch = 1;
    EXPECT_EQ(check_values(c.problem, few).message, join("cache_index of sequence 1: 9 is not one of the ",
                                                         few[Role::k].extent.batch, " rows of k")) << line;
    rows[1] = 1;
    few[Role::k].extent.seq = 3;
    store(few[Role::used_k], 0, 0, 0, 0, 8), store(few[Role::used_k], 1, 0, 0, 0, 24);
    EXPECT_EQ(check_values(c.problem, few).message,
              "used_k of sequence 1: 24 tokens give 5 compressed keys, and k has room for 3") << line;
  }
}

// A hunt drew these: packed queries, and lengths of keys that count tokens. The first had fewer compressed keys than
// tokens give; of the second check() says that it takes no cu_q.
TEST(Nsa, lengths_of_packed_queries_and_compressed_keys_fit_or_are_refused) {
  const Case fits = case_of(
      "forward f16 b1 h1 q49 k49 d16 causal : select d=1 l=1 n=4 s=1 | drawn cu_q cache used_q lean");
  const World w(fits.problem, fits.variation);
  const Outputs out = w.outputs(false);
  EXPECT_EQ(check_values(fits.problem, out.args).message, "");
  const int tokens = out.args.integer(Role::used_k, 0, 0);
  EXPECT_GT(tokens, out.args[Role::q].extent.seq);
  EXPECT_GE(out.args[Role::k].extent.seq, tokens);
  Trial drawn_again(case_of("forward bf16 b1 h2/1 q189 k189 d8 causal ragged : select d=4 l=16 n=4 s=8 | seed=710581 "
                            "drawn pad=16 cache used_q"));
  EXPECT_EQ(drawn_again.prepare().message, "");
  const Case refused = case_of(
      "backward bf16 b2 h2 q400 k400 d8 causal : nsa d=2 gate=sigmoid l=2 n=5 phi=conv s=16 w=20 | seed=181024 drawn "
      "pad=3 cu_q");
  const World other(refused.problem, refused.variation);
  EXPECT_EQ(check(refused.problem, other.outputs(false).args).message, "cu_q: given, but the problem does not use it");
}

// Counted by the kernels, and by hand for every query.
TEST(Nsa, tokens_that_were_read_are_counted) {
  for (const Device& device : devices())
    for (const int len : {1, 15, 16, 31, 32, 33, 63, 64, 300}) {
      const Ran r(join("forward f32 b1 h2/1 q", len, " k", len,
                       " d16 causal : nsa d=16 gate=none l=32 n=3 phi=mean s=32 w=40"), device);
      int64_t compressed = 0, selected = 0, window = 0, distinct = 0;
      for (int t = 0; t < len; ++t) {
        compressed += t + 1 < 32 ? 0 : (t + 1 - 32) / 16 + 1;
        std::vector<char> seen(size_t(len), 0);
        for (int n = 0; n < 3; ++n)
          if (const int block = int(r.at(kBlocks, 0, t, 0, n)); block >= 0)
            for (int j = block * 32; j < block * 32 + 32 && j <= t; ++j) ++selected, seen[size_t(j)] = 1;
        for (int j = std::max(0, t - 39); j <= t; ++j) ++window, seen[size_t(j)] = 1;
        for (const char c : seen) distinct += c;
        EXPECT_TRUE(t < 64 || r.at(kBlocks, 0, t, 0, 2) == t / 32);
      }
      EXPECT_EQ(r.at(kReads, 0, 0, 0, 0), double(compressed)) << len;
      EXPECT_EQ(r.at(kReads, 0, 0, 0, 1), double(selected)) << len;
      EXPECT_EQ(r.at(kReads, 0, 0, 0, 2), double(window)) << len;
      EXPECT_EQ(r.at(kReads, 0, 0, 0, 3), double(distinct)) << len;
    }
  // One token of a long cache: N_cmp(S) + n s + min(w, S), minus the missing part of the last block.
  for (const Device& device : devices()) {
    const Ran r("forward f32 b1 h2/1 q1 k1000 d16 causal : nsa d=16 gate=none l=32 n=16 phi=none s=32 w=40", device,
                [](World& w) { store(w.args[Role::used_k], 0, 0, 0, 0, 1000); });
    EXPECT_EQ(r.at(kReads, 0, 0, 0, 0), 61);
    EXPECT_EQ(r.at(kReads, 0, 0, 0, 1), 15 * 32 + 8);
    EXPECT_EQ(r.at(kReads, 0, 0, 0, 2), 40);
    EXPECT_EQ(r.at(kReads, 0, 0, 0, 3), 15 * 32 + 8);
  }
}

TEST(Nsa, memory_grows_with_the_tokens_and_not_with_their_square) {
  for (const char* pass : {"forward", "backward"}) {
    size_t bytes[2];
    for (int n = 0; n < 2; ++n) {
      const Case c = case_of(join(pass, " bf16 b1 h64/4 q", 32768 << n, " k", 32768 << n,
                                  " d192/128 causal : nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512"));
      Plan plan;
      const Status s = Planner{.device = this_cpu()}.plan(c.problem, plan);
      ASSERT_TRUE(s.ok()) << s.message;
      bytes[n] = plan.workspace_bytes;
    }
    EXPECT_LT(double(bytes[1]), 2.01 * double(bytes[0])) << pass;
  }
}

TEST(Nsa, runs_at_every_head_dim_and_short_length) {
  for (const Device& device : devices())
    for (const std::string_view dtype : {"f16", "bf16"})
      for (const int dim : {64, 96, 128, 192, 256})
        for (const int len : {1, 8, 16, 33, 96}) {
          Trial trial(case_of(join("forward ", dtype, " b1 h2/1 q", len, " k", len, " d", dim,
                                   " causal : nsa d=4 gate=sigmoid l=8 n=3 phi=mean s=8 w=1")));
          ASSERT_TRUE(trial.prepare().ok());
          const Outcome o = trial.run(*find_backend("nsa"), device);
          EXPECT_NE(o.verdict, Verdict::fail) << dtype << " d" << dim << " q" << len << ": " << o.why;
        }
}

TEST(Nsa, the_same_call_gives_the_same_bits) {
  for (const Device& device : devices())
    for (const std::string_view pass : {"forward", "backward"}) {
      const std::string line =
          join(pass, " bf16 b2 h8/2 q200 k200 d64 causal repro=run : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=8 w=20");
      const Ran first(line, device);
      for (int n = 0; n < 5; ++n) {
        const Ran again(line, device);
        for (const Role r : first.got.roles) EXPECT_EQ(first.got.of(r).memory, again.got.of(r).memory) << name(r);
      }
    }
}

}  // namespace
}  // namespace attune
