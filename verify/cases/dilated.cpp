// SPDX-License-Identifier: Apache-2.0
// Cases of dilated attention: every mode, norm and gradient with lengths that no segment divides, segments that no rate
// divides, GQA groups in every relation to rates, rows in no branch, keys in two branches.
#include "verify/cases/cases.h"

namespace attune {
namespace {

constexpr VariantLine kLines[] = {
    // One segment of rate 1 is plain attention.
    {"b2 h3 q65 k65 d16 causal", "rates=1 segments=65", ""},
    {"b1 h4 q96 k96 d16 causal", "rates=1,2 segments=16,32", ""},
    {"b2 h4 q61 k61 d16 full", "rates=1,2,3 segments=8,16,40", ""},
    {"b2 h4 q61 k61 d16 causal", "rates=1,2,3 segments=8,16,40", "seed=7 bhsd d_lse"},
    {"b3 h4 q61 k61 d16 causal", "rates=1,2,3 segments=8,16,40", "seed=3 drawn lean"},
    // No branch of rate 1: rows in no branch. Head counts that no rate divides; different dims.
    {"b2 h5 q67 k67 d16/24 causal", "rates=2,3 segments=7,20", ""},
    {"b2 h5 q67 k67 d24/16 full", "rates=2,3 segments=7,20", "bhsd"},
    {"b1 h4 q5 k5 d16 full", "rates=8 segments=8", ""},
    {"b2 h5 q40 k40 d16 full", "rates=9,7 segments=20,40", ""},
    // Segments longer than the sequence; a sequence of one row.
    {"b2 h3 q33 k33 d16 causal", "rates=1,2 segments=64,4096", ""},
    {"b1 h3 q1 k1 d16 causal", "rates=1,2 segments=4,8", ""},
    {"b1 h3 q1 k1 d16 full", "rates=2,3 segments=4,8", ""},
    // Keys in several branches count in each.
    {"b1 h4 q50 k50 d16 causal", "rates=1,1,1 segments=16,16,50", ""},
    // GQA groups: rates that divide them, that they divide, and neither.
    {"b1 h6/2 q50 k50 d16 causal", "rates=1,2,4 segments=10,25,50", ""},
    {"b2 h8/2 q50 k50 d16 full", "rates=2,3,4,8 segments=12,25,30,50", ""},
    {"b2 h8/2 q50 k50 d16 full", "rates=3 segments=25", ""},
    {"b2 h12/3 q50 k50 d16 causal", "rates=6 segments=24", ""},
    // Sequences shorter than planned: one KV head at a time, with groups of one, two and four heads.
    {"b1 h2/1 q40 k40 d8 causal", "rates=1 segments=7", "seed=7 drawn"},
    {"b2 h4/2 q60 k60 d8 full", "rates=1,2 segments=7,20", "seed=5 drawn d_lse"},
    {"b2 h8/2 q60 k60 d8/16 causal", "mode=headgroup rates=1,2 segments=7,20", "seed=5 drawn"},
    {"b1 h4/1 q60 k60 d8 causal", "gradient=detached rates=1,2 segments=7,20", "seed=3 drawn d_lse"},
    // Rows that see one key: gradients that cancel to 0.
    {"b2 h2 q40 k40 d72 full", "norm=divide rates=1 segments=1", "seed=3"},
    {"b1 h4/1 q130 k130 d16 causal", "rates=1,5 segments=32,130", ""},
    // The other norms and the other mode.
    {"b2 h4/2 q50 k50 d16 causal", "norm=divide rates=1,3 segments=12,25", ""},
    {"b2 h4/2 q50 k50 d16 full", "norm=none rates=2,3 segments=12,25", "seed=5 bhsd lean"},
    {"b2 h8/2 q50 k50 d16 full", "mode=headgroup rates=1,2,3 segments=12,25,30", ""},
    {"b2 h8/2 q50 k50 d16 causal", "mode=headgroup rates=1,1 segments=12,25", "d_lse"},
    {"b2 h7 q50 k50 d16 causal", "mode=headgroup norm=divide rates=1,2,3 segments=12,25,30", ""},
    {"b2 h7 q50 k50 d16 full", "mode=headgroup norm=none rates=4,2,3 segments=12,25,30", "drawn seed=4"},
    {"b2 h4/2 q50 k50 d16 causal", "gradient=detached rates=1,3 segments=12,25", "d_lse"},
    {"b2 h5 q50 k50 d16 full", "gradient=detached rates=2,3 segments=12,25", ""},
    // Neighbouring heads share an offset, as in torchscale: rates that divide the heads or not, above the heads, GQA
    // groups in several ranges, that are ranges, and across the ends of ranges.
    {"b2 h8 q61 k61 d16 causal", "gradient=detached offsets=contiguous rates=1,2,4 segments=8,16,64", "d_lse"},
    {"b1 h5 q61 k61 d16 full", "offsets=contiguous rates=2,3,9 segments=8,20,40", "seed=3 bhsd lean"},
    {"b2 h8/2 q50 k50 d16 causal", "offsets=contiguous rates=2,4,8 segments=12,25,50", "seed=5 drawn d_lse"},
    {"b1 h12/3 q50 k50 d16 full", "offsets=contiguous rates=2,5 segments=12,30", "seed=5 drawn"},
    {"b2 h12/4 q50 k50 d16 causal", "norm=none offsets=contiguous rates=5 segments=20", ""},
    // As in LongNet, a few tiles long.
    {"b1 h12 q700 k700 d64 causal", "rates=1,2,4,6,12 segments=64,128,256,512,1024", "seed=2"},
    {"b2 h4 q300 k300 d128 full", "rates=1,2,4 segments=100,200,300", "seed=2"},
};

}  // namespace

std::span<const VariantLine> dilated_lines() { return kLines; }

}  // namespace attune
