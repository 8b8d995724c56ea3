// SPDX-License-Identifier: Apache-2.0
// Cases of content-adaptive blocks: blocks that divide no length, rows of one block, every band, GQA, per-sequence
// lengths, networks shared by heads or per head, noisy selection. All have a gradient of lse: without one, the gradient
// of b2 is a sum of large terms that cancel to 0, which tests nothing.
#include "verify/cases/cases.h"

namespace attune {
namespace {

constexpr VariantLine kLines[] = {
    {"b1 h2 q64 k64 d16 full", "block=16 density=0.5 hidden=16", "d_lse seed=2"},
    {"b2 h4/2 q130 k130 d16 causal", "block=16 density=0.3 hidden=24", "d_lse"},
    {"b2 h4/2 q130 k130 d16 causal", "block=16 density=0.3 hidden=24 per_head=1", "seed=5 bhsd d_lse"},
    {"b2 h4/2 q77 k130 d16/24 causal", "block=16 density=0.5 hidden=40 noise=gumbel", "seed=3 drawn used_q d_lse"},
    {"b2 h3 q100 k70 d24/16 causal", "block=32 density=0.4 hidden=8", "seed=4 drawn cache d_lse"},
    {"b3 h2 q90 k120 d16 causal ragged", "block=16 density=0.25 hidden=16", "seed=6 drawn d_lse"},
    {"b1 h2 q150 k150 d16 window40,20", "block=16 density=0.5 hidden=16", "d_lse"},
    {"b1 h2 q33 k150 d16 causal@top_left", "block=8 density=0.2 hidden=16", "lean d_lse"},
    {"b1 h2/1 q1 k200 d16 causal", "block=64 density=1 hidden=16", "d_lse"},
    {"b1 h2 q96 k96 d16 causal softcap sink", "block=32 density=0 hidden=16", "d_lse"},
    {"b1 h2 q500 k500 d64 causal", "block=64 density=0.3 hidden=128", "seed=2 d_lse"},
    {"b1 h4/1 q400 k300 d128 full", "block=128 density=0.5 hidden=32", "seed=2 d_lse"},
};

}  // namespace

std::span<const VariantLine> adaptive_lines() { return kLines; }

}  // namespace attune
