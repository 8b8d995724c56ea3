// SPDX-License-Identifier: Apache-2.0
// Cases of formulas: documents, prefixes, dilation, a table of biases, every function, options beside them, arrays of
// one to four indices, every key source; rows that see nothing; a score of -inf, which hides, and the least f32, which
// does not.
#include "verify/cases/cases.h"

namespace attune {
namespace {

constexpr VariantLine kLines[] = {
    {"b1 h2 q64 k64 d16 full", "mask{q>=k}", ""},
    {"b2 h4/2 q130 k130 d32 causal", "mask{doc[q]==doc[k]}", "seed=3"},
    {"b2 h4/2 q130 k130 d32 causal", "mask{doc[b,q]==doc[b,k]}", "seed=2 drawn cu_q"},
    {"b1 h2 q300 k300 d64 full", "mask{doc[q]==doc[k]&&q>=k}", "seed=5"},
    {"b1 h3 q200 k333 d24/40 full", "mask{k<prefix[b]*20||q>=k}", "seed=3 bhsd"},
    {"b1 h2 q257 k257 d64 window100,0", "mask{(q-k)%4==0||q-k<9}", ""},
    {"b2 h4/1 q90 k120 d16 full@top_left", "mask{abs(q//8-k//8)<=2&&abs(q%8-k%8)<=2}", "lean d_lse"},
    {"b1 h2 q70 k70 d16 causal", "mask{allowed[h,q,k]!=0} score{s+bias[b,h,q,k]}", "seed=4 d_lse"},
    {"b2 h4/2 q100 k140 d32 causal", "score{s+slope[h]*(k-q)}", "drawn cache d_lse"},
    {"b2 h2 q65 k65 d32 full", "score{20*tanh(s/20)}", "seed=2"},
    {"b1 h4/2 q150 k150 d64 full", "score{s+table[h,q-k+64]}", ""},
    {"b1 h4/2 q80 k80 d16 full", "score{q>=k?s:-inf}", "seed=3"},
    {"b1 h2 q80 k80 d16 causal dropout softcap sink", "mask{doc[q]==doc[k]} score{s*gain[g]}", "seed=3 d_lse"},
    {"b2 h2 q90 k90 d16 causal alibi bias", "score{min(s,limit[h])+max(s,-2)/4}", "d_lse"},
    {"b1 h2 q60 k60 d16 full", "score{s+exp(-abs(q-k)/9)+log(1+abs(w[k]))-sqrt(1+x[q]*x[q])+floor(s)}", "d_lse"},
    {"b3 h2/1 q77 k120 d32 causal ragged", "mask{doc[k]<=doc[q]} score{h==1?s:s/(1+k-k)}", "drawn seed=7"},
    {"b3 h4/2 q5 k300 d32 causal paged16", "mask{k<8||q-k<64}", "drawn"},
    {"b2 h2 q48 k48 d16 full", "mask{q<8&&!(k>=q)||k==len_k-1-b}", "used_q"},
    {"b2 h4/1 q1 k200 d64 causal", "mask{k%3==h%3} score{s-0.5*(q-k)//64}", ""},
    {"b1 h2 q64 k64 d16 causal@absolute", "mask{(q-k)%2==0||len_q==len_k}", ""},
    {"b1 h1 q40 k40 d8 full", "mask{k>100||k+q<30}", ""},
    {"b1 h2 q64 k64 d16 full", "score{k<q-30?s:-3.4028234663852886e38}", "d_lse"},
    {"b1 h2 q96 k96 d16 full blocks16x16x72", "mask{doc[q]==doc[k]} score{s+1e-2*(q-k)}", "seed=3"},
};

}  // namespace

std::vector<std::string> formula_lines() {
  std::vector<std::string> all;
  for (const auto& [sizes, formula, variation] : kLines)
    for (const std::string_view pass : {"forward", "backward"})
      for (const std::string_view dtype : {"f32", "f16", "bf16"})
        all.push_back(join(pass, " ", dtype, " ", sizes, " ", formula, variation.empty() ? "" : " | ", variation));
  return all;
}

}  // namespace attune
