// SPDX-License-Identifier: Apache-2.0
// Native Sparse Attention, word by word and whole: lengths below a compressed token and across block edges, groups of
// every size, packed and used lengths, every phi and gate, single branches, caches.
#include "verify/cases/cases.h"

namespace attune {
namespace {

constexpr std::string_view kLines[] = {
    "forward f32 b2 h2 q65 k15 d16 full : compress d=4 l=8 phi=mean",
    "forward bf16 b2 h4 q200 k11 d64 full : compress d=16 l=32 phi=mean | seed=2 used_q",
    "forward f16 b3 h2 q130 k31 d72 full : compress d=4 l=8 phi=mean | cu_q drawn",
    "forward f32 b4 h2 q9 k1 d8 full : compress d=4 l=8 phi=mean | seed=2 used_q",
    "forward bf16 b1 h1 q64 k64 d128 full : compress d=1 l=1 phi=mean",
    "forward f32 b2 h3 q70 k16 d20 full : compress d=4 l=8 phi=conv | bhsd",
    "forward bf16 b2 h4 q300 k17 d192 full : compress d=16 l=32 phi=conv | seed=3 cu_q drawn",
    "forward f16 b2 h2 q129 k31 d64 full : compress d=4 l=8 phi=conv | used_q pad=0",
    "forward f32 b2 h2 q33 k7 d8 full : compress d=4 hidden=12 l=8 phi=mlp",
    "forward bf16 b2 h2 q100 k5 d64 full : compress d=16 l=32 phi=mlp | seed=2 cu_q drawn",
    "forward f16 b1 h4 q96 k5 d32 full : compress d=16 hidden=40 l=32 phi=mlp | used_q",
    "backward f32 b2 h2 q65 k15 d16 full : compress d=4 l=8 phi=mean",
    "backward bf16 b2 h4 q200 k11 d64 full : compress d=16 l=32 phi=mean | seed=2 used_q",
    "backward bf16/bf16/f32/bf16 b3 h2 q130 k31 d72 full : compress d=4 l=8 phi=mean | cu_q drawn",
    "backward f32 b1 h2 q7 k1 d8 full : compress d=4 l=8 phi=mean | empty",
    "backward f32 b2 h3 q70 k16 d20 full : compress d=4 l=8 phi=conv | bhsd",
    "backward bf16/bf16/f32/f32 b2 h4 q300 k17 d128 full : compress d=16 l=32 phi=conv | seed=3 cu_q drawn",
    "backward f16 b2 h2 q129 k31 d64 full : compress d=4 l=8 phi=conv | used_q pad=0",
    "backward f32 b2 h2 q33 k7 d8 full : compress d=4 hidden=12 l=8 phi=mlp",
    "backward bf16/bf16/f32/bf16 b2 h2 q100 k5 d64 full : compress d=16 l=32 phi=mlp | seed=2 cu_q drawn",
    "backward f16 b1 h4 q96 k5 d32 full : compress d=16 hidden=40 l=32 phi=mlp | used_q",

    "forward f32 b2 h4/2 q130 k130 d16 causal : select d=4 l=8 n=6 s=8",
    "forward bf16 b2 h16/1 q300 k300 d64 causal : select d=16 l=32 n=4 s=64 | seed=2 used_q",
    "forward f16 b3 h8/2 q150 k150 d72 causal ragged : select d=4 l=8 n=5 s=16 | drawn",
    "forward bf16 b3 h12/4 q200 k200 d128 causal ragged : select d=8 l=16 n=16 s=8 | seed=3 odd",
    "forward f32 b2 h2 q40 k40 d8 causal : select d=1 l=1 n=64 s=1",
    "forward f32 b1 h4/1 q200 k200 d24 causal : select d=4 l=16 n=7 s=8 | bhsd",
    "forward f32 b2 h4/2 q130 k130 d16 causal : select d=4 l=8 n=6 s=8 | lean",
    "forward bf16 b3 h6/2 q150 k150 d64 causal ragged : select d=4 l=8 n=6 s=8 | lean drawn",
    "forward f16 b2 h8/2 q3 k300 d64 causal : select d=8 l=16 n=6 s=16 | lean cache used_q",
    "forward bf16 b3 h16/2 q1 k700 d192/128 causal : select d=16 l=32 n=5 s=32 | seed=5 drawn cache",
    "forward f32 b2 h4/2 q9 k300 d32 causal : select d=8 l=16 n=6 s=16 | cache used_q",
    "forward f32 b2 h6/2 q150 k150 d20 causal : select d=4 l=8 n=5 s=8 | seed=2 lean",
    "forward bf16 b1 h4/1 q900 k900 d64 causal : select d=4 l=8 n=9 s=16 | lean",
    "forward f16 b3 h8/2 q150 k150 d72 causal ragged : select d=4 l=8 n=5 s=16 | seed=4 lean drawn",
    "forward bf16 b2 h40/1 q2 k900 d64 causal : select d=2 l=4 n=8 s=8 | seed=6 lean drawn cache",
    "forward bf16 b1 h8/1 q2 k600 d32 causal : select d=1 l=4 n=250 s=2 | lean",

    "forward f32 b2 h4/2 q65 k65 d16 causal : selected n=4 s=8",
    "forward f32 b2 h4/2 q65 k65 d16 causal : selected n=9 s=8 | seed=2",
    "forward bf16 b2 h16/1 q200 k200 d64 causal : selected n=4 s=16 | seed=3",
    "forward bf16 b1 h32/2 q40 k300 d192/128 causal : selected n=5 s=64",
    "forward f16 b3 h8/2 q150 k150 d72/40 causal ragged : selected n=6 s=16 | seed=4 drawn",
    "forward bf16 b6 h6/2 q127 k127 d128 causal ragged : selected n=3 s=32 | odd",
    "forward bf16 b3 h16/2 q1 k700 d128 causal : selected n=8 s=64 | drawn cache",
    "forward f32 b2 h3/3 q33 k130 d8 causal : selected n=5 s=4 | seed=2 used_q bhsd pad=3",
    "forward f16 b1 h24/1 q50 k50 d256 causal : selected n=5 s=5",
    "forward bf16 b1 h20/1 q90 k130 d64 causal : selected n=4 s=16 | seed=2",
    "forward bf16 b2 h8/2 q90 k200 d72/40 causal : selected n=5 s=20 | seed=2",
    "forward bf16 b3 h4/1 q150 k150 d64 causal ragged : selected n=6 s=16 | seed=3 drawn",
    "forward f32 b1 h2 q48 k65 d64 causal : selected n=4 s=16 | x1e4",
    "forward bf16 b1 h8/1 q48 k65 d64 causal : selected n=4 s=16 | x1e1",
    "forward bf16/bf16/f32 b1 h5/1 q40 k70 d64 causal : selected n=4 s=1 | seed=2",
    "forward f32 b1 h8/1 q700 k700 d8 causal : selected n=3 s=600",
    "forward bf16 b2 h12/1 q200 k1300 d16 causal : selected n=3 s=600 | seed=2 drawn cache",
    "backward f32 b2 h4/2 q65 k65 d16 causal : selected n=4 s=8 | d_lse",
    "backward f32 b2 h4/2 q65 k65 d16 causal : selected n=9 s=8 | seed=2",
    "backward bf16 b2 h16/1 q200 k200 d64 causal : selected n=4 s=16 | seed=3",
    "backward bf16/bf16/bf16/f32 b1 h32/2 q40 k300 d192/128 causal : selected n=5 s=64",
    "backward f16 b3 h8/2 q150 k150 d72/40 causal ragged : selected n=6 s=16 | seed=4 drawn d_lse",
    "backward bf16 b6 h6/2 q127 k127 d128 causal ragged : selected n=3 s=32 | odd",
    "backward bf16 b3 h16/2 q5 k300 d128 causal : selected n=8 s=64 | drawn cache",
    "backward f32 b2 h3/3 q33 k130 d8 causal : selected n=5 s=4 | seed=2 used_q bhsd pad=3",
    "backward f32 b1 h8/1 q300 k700 d8 causal : selected n=3 s=600 | d_lse",
    "backward bf16 b2 h12/1 q40 k500 d16 causal : selected n=3 s=100 | seed=2 drawn cache",
    "backward bf16 b1 h24/1 q50 k300 d64 causal : selected n=4 s=64 | bhsd",
    "backward bf16 b1 h20/1 q90 k130 d64 causal : selected n=4 s=16 | seed=2",
    "backward f32 b2 h28/1 q40 k70 d32 causal : selected n=3 s=16 | d_lse",
    "backward bf16 b2 h8/2 q90 k200 d72/40 causal : selected n=5 s=20 | seed=2 d_lse",
    "backward bf16 b3 h4/1 q150 k150 d64 causal ragged : selected n=6 s=16 | seed=3 drawn",

    "forward f32 b2 h6/2 q65 k65 d16 full : gate act=sigmoid",
    "forward bf16 b3 h12/4 q40 k40 d64 full : gate act=softmax | cu_q drawn",
    "forward f16 b2 h48/16 q33 k33 d128 full : gate act=none | used_q bhsd",
    "forward f32 b2 h12/4 q20 k20 d16 full : gate act=sigmoid | seed=2",
    "backward f32 b2 h6/2 q65 k65 d16 full : gate act=sigmoid",
    "backward bf16 b2 h12/4 q20 k20 d16 full : gate act=softmax | seed=2",
    "backward bf16 b3 h12/4 q40 k40 d64 full : gate act=softmax | cu_q drawn",
    "backward f16 b2 h48/16 q33 k33 d128 full : gate act=none | used_q bhsd",

    "forward f32 b2 h4/2 q130 k130 d16 causal : reads d=4 l=8 n=6 s=8 w=20",
    "forward bf16 b3 h8/4 q7 k300 d16 causal : reads d=16 l=32 n=4 s=64 w=0 | seed=2 cache used_q",

    "forward f32 b2 h4/2 q150 k150 d16 causal : nsa d=4 gate=sigmoid l=8 n=6 phi=mean s=8 w=20",
    "forward f32 b2 h4/2 q150 k150 d16/24 causal : nsa d=4 gate=softmax l=8 n=4 phi=conv s=16 w=1 | lean",
    "forward f32 b1 h4/2 q100 k100 d16/8 causal : nsa d=4 gate=none hidden=12 l=8 n=4 phi=mlp s=8 w=20 | bhsd",
    "forward f32 b2 h6/2 q80 k80 d16 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=conv s=8 w=9 | seed=2",
    "forward f32 b1 h2 q5 k5 d8 causal : nsa d=4 gate=sigmoid l=8 n=3 phi=mean s=8 w=0",
    "forward bf16 b1 h16/1 q330 k330 d64 causal : nsa d=16 gate=sigmoid l=32 n=4 phi=mean s=64 w=100",
    "forward bf16 b1 h8/2 q200 k200 d192/128 causal : nsa d=16 gate=sigmoid l=32 n=3 phi=mean s=64 w=64 | pad=0",
    "forward f16 b3 h8/2 q150 k150 d64 causal ragged : nsa d=8 gate=softmax l=16 n=5 phi=mean s=16 w=33 | drawn",
    "forward f32 b4 h6/2 q90 k90 d32 causal ragged : nsa d=4 gate=sigmoid l=8 n=5 phi=conv s=8 w=12 | odd",
    "forward f32 b2 h4/2 q120 k120 d16 causal : nsa d=4 gate=sigmoid l=8 n=6 phi=none s=8 w=20",
    "forward f32 b3 h4/2 q1 k400 d16 causal : nsa d=16 gate=sigmoid l=32 n=5 phi=none s=32 w=40 | drawn",
    "forward bf16 b2 h16/2 q1 k900 d128 causal : nsa d=16 gate=sigmoid l=32 n=6 phi=none s=64 w=128 | drawn",
    "forward f32 b2 h4/2 q24 k200 d16 causal : nsa d=8 gate=softmax l=16 n=4 phi=mean s=16 w=30 | drawn used_q",
    // Fewer queries than rows: the queries that are used are all tokens.
    "forward f32 b3 h2 q40 k40 d64 causal : nsa d=4 gate=sigmoid l=8 n=3 phi=mean s=8 w=9 | seed=5 drawn used_q",
    "forward bf16 b3 h4/2 q70 k70 d16 causal ragged : nsa d=4 gate=none l=8 n=4 only=win phi=mean s=8 w=9 | used_q",
    "forward f32 b3 h4/2 q70 k70 d16 causal : nsa d=4 gate=none l=8 n=4 only=sel phi=mean s=16 w=9 | seed=4 used_q",
    "forward f32 b2 h4/2 q150 k150 d16 causal : nsa d=4 gate=none l=8 n=6 only=cmp phi=mean s=8 w=20",
    "forward bf16 b2 h4/2 q150 k150 d16 causal : nsa d=4 gate=none l=8 n=6 only=sel phi=mean s=8 w=20",
    "forward f16 b2 h4/2 q150 k150 d16 causal : nsa d=4 gate=none l=8 n=6 only=win phi=mean s=8 w=20",
    "backward f32 b2 h4/2 q150 k150 d16 causal : nsa d=4 gate=sigmoid l=8 n=6 phi=mean s=8 w=20",
    "backward f32 b2 h4/2 q150 k150 d16/24 causal : nsa d=4 gate=softmax l=8 n=4 phi=conv s=16 w=1",
    "backward f32 b1 h4/2 q100 k100 d16/8 causal : nsa d=4 gate=none hidden=12 l=8 n=4 phi=mlp s=8 w=20 | bhsd",
    "backward f32 b2 h6/2 q80 k80 d16 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=conv s=8 w=9 | seed=2",
    "backward f32 b1 h2 q5 k5 d8 causal : nsa d=4 gate=sigmoid l=8 n=3 phi=mean s=8 w=0",
    "backward bf16 b1 h16/1 q300 k300 d64 causal : nsa d=16 gate=sigmoid l=32 n=4 phi=mean s=64 w=100",
    "backward bf16 b1 h8/2 q200 k200 d192/128 causal : nsa d=16 gate=sigmoid l=32 n=3 phi=conv s=64 w=64 | pad=0",
    "backward f16 b3 h8/2 q150 k150 d64 causal ragged : nsa d=8 gate=softmax l=16 n=5 phi=mean s=16 w=33 | drawn",
    "backward bf16/bf16/bf16/f32 b2 h6/2 q90 k90 d32 causal ragged : nsa d=4 gate=none l=8 n=5 phi=mean s=8 w=12 | odd",
    "backward f32 b2 h4/2 q120 k120 d16 causal : nsa d=4 gate=sigmoid l=8 n=6 phi=none s=8 w=20",
    "backward f32 b2 h4/2 q150 k150 d16 causal : nsa d=4 gate=none l=8 n=6 only=cmp phi=mean s=8 w=20 | d_lse",
    "backward bf16 b2 h4/2 q150 k150 d16 causal : nsa d=4 gate=none l=8 n=6 only=sel phi=mean s=8 w=20 | d_lse",
    // Weights without a gradient, and those of one compressed token, whose gradients cancel to 0.
    "backward bf16 b1 h1 q9 k9 d24 causal : nsa d=1 gate=none l=1 n=3 only=sel phi=conv s=1 w=0",
    "backward f32 b1 h4/2 q40 k40 d16 causal : nsa d=2 gate=none l=6 n=4 only=sel phi=mlp s=4 w=5",
    "backward f16 b1 h1 q1 k32 d24 causal : nsa d=1 gate=sigmoid l=32 n=3 phi=mlp s=1 w=0",
    "backward bf16 b1 h1 q1 k62 d64 causal : nsa d=16 gate=none l=48 n=3 phi=conv s=16 w=0 | seed=787927",
    "backward f16 b2 h4/2 q150 k150 d16 causal : nsa d=4 gate=none l=8 n=6 only=win phi=mean s=8 w=20",
};

}  // namespace

std::span<const std::string_view> nsa_lines() { return kLines; }

namespace {

// A topic is a word, on the plainest problem that it fits.
constexpr std::string_view kWords[] = {"compress", "select", "selected", "gate", "reads", "nsa"};
constexpr std::string_view kPlainest[] = {"compress d=4 l=8 phi=mean", "select d=2 l=4 n=3 s=4", "selected n=3 s=4",
                                          "gate act=sigmoid", "reads d=2 l=4 n=3 s=4 w=5",
                                          "nsa d=2 gate=sigmoid l=4 n=3 phi=mean s=4 w=5"};

template <int N>
Topic topic_of_word() {
  return {kWords[N], [](const Problem& p) { return word(p.variant) == kWords[N]; },
          [](Problem& p) {
            (void)assign(p.variant, kPlainest[N]);
            if (kWords[N] == "compress") return void(p.len_k = 3);  // from 19 tokens
            if (kWords[N] == "gate") return void(p.heads_q = 3 * p.heads_kv);
            p.mask.kind = MaskKind::causal, p.len_k = p.len_q;
          }};
}

}  // namespace

std::vector<Topic> with_nsa_topics(std::vector<Topic> all) {
  for (const Topic& t : {topic_of_word<0>(), topic_of_word<1>(), topic_of_word<2>(), topic_of_word<3>(),
                         topic_of_word<4>(), topic_of_word<5>()})
    all.push_back(t);
  return all;
}

}  // namespace attune
