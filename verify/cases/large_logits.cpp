// SPDX-License-Identifier: Apache-2.0
// Large logits, of the order of 2^33, where one f32 rounding is worth many weights: every row is one key, and finite. A
// kernel that scales before it subtracts, or trusts the last bits of a log-sum-exp, fails here and nowhere else.
#include "verify/cases/cases.h"

namespace attune {
namespace {

constexpr std::string_view kLargeLogit[] = {
    "forward bf16 b1 h2 q200 k150 d64 full | far",
    "forward f16 b1 h2 q200 k150 d64 causal | far",
    "forward bf16 b2 h4/2 q130 k300 d128 causal | seed=2 far",
    "forward f16 b2 h4/2 q130 k300 d128 window50,9 | far bhsd",
    "forward bf16/bf16/f32 b1 h2 q150 k300 d96 causal sink accumulate | seed=3 far",
    "forward bf16 b2 h2 q140 k200 d192/128 causal | far",
    "forward bf16 b1 h2 q140 k260 d256 full | far",
    "forward f16 b1 h2 q140 k260 d256 causal sink | seed=3 far",
    "forward f16 b3 h2 q70 k90 d40/24 causal ragged | seed=2 drawn far",
    "forward bf16 b1 h1 q64 k2100 d128 full | far",  // split-KV
    "forward bf16 b2 h8/2 q1 k1025 d128 causal | far",
    "forward f16 b2 h4/1 q1 k1500 d64 full paged16 | seed=3 drawn far",
    "forward bf16 b3 h16/2 q5 k700 d256 causal | seed=2 drawn cache far",
    "forward bf16 b2 h4/2 q3 k200 d64 causal append paged64 | far",
    "forward bf16 b1 h4/2 q200 k200 d64 full blocks48x32x100 | seed=2 far",
    "forward bf16 b2 h4/2 q160 k200 d128 causal blocks64x64x60 block_bias | far",
    "forward f16 b1 h2 q140 k140 d64 causal alibi dropout | seed=2 far",
    "forward bf16 b1 h2 q140 k200 d128 window60,10 bias | far",
    "forward f32 b1 h2 q70 k130 d64 causal | far",
    "forward f32 b2 h4/2 q65 k70 d130/100 window20,5 sink | seed=2 far",
    "forward f32 b1 h2 q33 k140 d256 full alibi | far",
    "forward f32 b2 h4/2 q1 k300 d64 full paged16 | far",
    "forward bf16 b2 h16/1 q100 k100 d64 causal : selected n=4 s=16 | far",
    "forward f16 b1 h8/2 q90 k150 d128 causal : selected n=4 s=32 | seed=3 far",
    "forward f32 b2 h4/2 q65 k65 d16 causal : selected n=4 s=8 | far",

    "backward bf16 b1 h2 q200 k150 d64 full | far",
    "backward f16/f16/f16/f32 b1 h2 q150 k150 d64 causal | far d_lse",
    "backward bf16 b2 h4/2 q130 k300 d128 causal | seed=2 far",
    "backward f16 b1 h4/2 q130 k200 d128 window50,9 sink | far bhsd",
    "backward bf16 b1 h2 q150 k200 d96 causal | far",
    "backward bf16 b1 h2 q140 k200 d192/128 causal | far",
    "backward bf16 b1 h2 q140 k200 d256 causal | far",
    "backward f16 b1 h2 q140 k200 d256 full repro=run | seed=3 far",
    "backward bf16 b3 h2 q70 k90 d40/24 causal ragged | seed=2 drawn far",
    "backward bf16 b2 h4/2 q33 k64 d64 causal paged16 | far",
    "backward bf16 b1 h2 q200 k200 d64 full blocks48x32x60 repro=run | seed=2 far",
    "backward bf16 b1 h2 q131 k77 d80/88 causal | seed=3 far",
    "backward bf16 b3 h2/1 q70 k90 d96 causal ragged repro=run | seed=3 drawn far odd",
    "backward f16 b1 h4/2 q150 k260 d128 causal blocks64x128x50 | seed=3 far",
    "backward bf16 b1 h2 q200 k200 d128 causal blocks48x32x60 repro=run | seed=2 far",
    "backward bf16 b1 h2 q140 k200 d64 full blocks64x64x12 block_bias | seed=2 far",
    "backward f16 b1 h2 q140 k140 d128 causal alibi dropout | seed=2 far",
    "backward bf16 b1 h2 q140 k200 d64 window60,10 bias | far",
    "backward f32 b1 h2 q70 k130 d64 causal | far",
    "backward f32 b2 h4/2 q65 k70 d130/100 window20,5 sink | seed=2 far d_lse",
    "backward bf16 b2 h16/1 q100 k100 d64 causal : selected n=4 s=16 | far",
    "backward f16 b1 h8/2 q90 k150 d128 causal : selected n=4 s=32 | seed=3 far",
    "backward f32 b2 h4/2 q65 k65 d16 causal : selected n=4 s=8 | far d_lse",

    // lean: a random log-sum-exp would be unrelated to these logits.
    "forward bf16 b1 h4/1 q200 k200 d64 causal : select d=4 l=8 n=4 s=8 | lean far",
    "forward f16 b2 h8/2 q3 k300 d64 causal : select d=8 l=16 n=6 s=16 | lean cache used_q far",
};

}  // namespace

std::span<const std::string_view> large_logit_lines() { return kLargeLogit; }

}  // namespace attune
