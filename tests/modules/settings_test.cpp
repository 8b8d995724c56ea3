// SPDX-License-Identifier: Apache-2.0
// A module's line: parsed, printed, and every mistake reported.
#include <gtest/gtest.h>

#include "modules/settings.h"

namespace attune {
namespace {

std::string again(std::string_view line) {
  Settings s;
  const Status read = read_settings(line, s);
  return read.ok() ? name(s) : read.message;
}

TEST(Settings, a_line_is_printed_as_it_was_read) {
  for (const char* line : {
           "multihead f32 b2 s128 e64 h4 | full",
           "multihead bf16 b2 s128 e64 h4/2 memory=77 norm=1 rope=pairs theta=500 | window15,0",
           "multihead f16 b1 s128 e64 h4 dim=24 dim_v=32 encoder_layers=12 gain=0.5 seed=9 | causal : dilated "
           "rates=1,2 segments=8,16",
           "feed_forward f32 b1 s2 e3 act=relu bias=0 dropout=0.125 eps=1e-06 ffn=7",
           "longnet_encoder f32 b1 s2 e4 h2 norm=0 | full",
           "longnet_decoder f32 b1 s2 e4 h2 memory=9 | causal",
           "llama bf16 b1 s4096 e4096 h32/8 ffn=14336 theta=5e+05 | causal",
           "llama f32 b1 s64 e64 h4 softcap=30 | causal softcap sink",
           "llama f32 b1 s256 e64 h4 | causal | 64x64 random density=0.5 seed=7",
       })
    EXPECT_EQ(again(line), line);
}

TEST(Settings, what_is_not_said_has_its_default) {
  EXPECT_EQ(again("llama bf16 b1 s16 e4096 h32 rope=half ffn=11008"), "llama bf16 b1 s16 e4096 h32 | causal");
  EXPECT_EQ(again("multihead f32 b1 s16 e64 h4 dim=16 dim_v=16"), "multihead f32 b1 s16 e64 h4 | full");
  EXPECT_EQ(again("longnet_decoder f32 b1 s16 e64 h4 memory=16"), "longnet_decoder f32 b1 s16 e64 h4 | full");
}

TEST(Settings, the_widest_layers_are_read) {
  EXPECT_EQ(again("feed_forward f32 b1 s1 e268435455"), "feed_forward f32 b1 s1 e268435455");
  EXPECT_EQ(again("feed_forward f32 b1 s1 e536870912 ffn=1073741823"),
            "feed_forward f32 b1 s1 e536870912 ffn=1073741823");
}

TEST(Settings, every_mistake_is_a_sentence) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "module: '' is not one of multihead, feed_forward, longnet_encoder, longnet_decoder, llama"},
      {"llama f64 b1 s1 e4 h1", "module: dtype 'f64' is not one of f32, f16, bf16"},
      {"llama f32 b0 s1 e4 h1", "module: expected b# with # at least 1 at 'b0'"},
      {"llama f32 b1 s1x e4 h1", "module: expected s# with # at least 1 at 's1x'"},
      {"llama f32 b1 s1 h1", "module: expected e# with # at least 1 at 'h1'"},
      {"llama f32 b1 s1 e4", "module: expected h# with # at least 1 at ''"},
      {"llama f32 b1 s1 e12 h6/4", "module: heads 'h6/4' are not h#/# where the second divides the first"},
      {"llama f32 b1 s1 e12 h5", "module: e12 is not divisible by 5 heads, and dim is not given"},
      {"llama f32 b1 s1 e12 h4", "module: rope rotates pairs, but dim = 3 is odd"},
      {"llama f32 b1 s1 e8 h4 norm=1",
       "module: 'norm' is not a setting of llama; accepted: dim, dim_v, dropout, eps, ffn, rope, rope_scale, seed, "
       "softcap, theta"},
      {"multihead f32 b1 s1 e8 h4 dim=8 dim=16", "module: 'dim' is given twice"},
      {"multihead f32 b1 s1 e8 h4 dim=8 norm=1 dim=8", "module: 'dim' is given twice"},
      {"multihead f32 b1 s1 e8 h4 norm=2", "module: norm = '2' is not 0 or 1"},
      {"multihead f32 b1 s1 e8 h4 gain=-1", "module: gain = '-1' is not a number of at least 0"},
      {"multihead f32 b1 s1 e8 h4 dropout=1", "module: dropout = '1' is not in 0 <= dropout < 1"},
      {"multihead f32 b1 s1 e8 h4 theta=0", "module: theta = 0 and rope_scale = 1 are not both above 0"},
      {"feed_forward f32 b1 s1 e8 | full", "module: feed_forward has no attention"},
      {"feed_forward f32 b1 s1 e8 ffn=0", "module: ffn = 0 is not above 0"},
      {"llama f32 b1 s1 e8 h4 ffn=0", "module: ffn = 0 is not above 0"},
      {"feed_forward f32 b1 s1 e268435456",
       "module: ffn not given, and its default for e268435456 is not below 2^30"},
      {"feed_forward f32 b1 s1 e536870912",
       "module: ffn not given, and its default for e536870912 is not below 2^30"},
      {"longnet_encoder f32 b1 s1 e1073741824 h4",
       "module: ffn not given, and its default for e1073741824 is not below 2^30"},
      {"llama f32 b1 s1 e1073741824 h4",
       "module: ffn not given, and its default for e1073741824 is not below 2^30"},
      {"llama f32 b1 s1 e8 h4 ffn=1073741824", "module: ffn = 1073741824 is not below 2^30"},
      {"longnet_decoder f32 b1 s1 e8 h2 memory=0", "module: memory = 0 given; a longnet_decoder requires memory"},
      {"multihead f32 b1 s1 e8 h4 | causal bias", "module: option bias is not accepted in a module; use attune_call"},
      {"multihead f32 b1 s1 e8 h4 | causal paged16", "module: keys must be linear, not paged"},
      {"multihead f32 b1 s1 e8 h4 | causal@absolute", "module: @absolute is not accepted; positions are row numbers"},
      {"multihead f32 b1 s1 e8 h4 | causal softcap",
       "module: softcap requires both the option and the setting softcap=, or neither"},
      {"multihead f32 b1 s1 e8 h4 | causal dropout", "module: option dropout requires the setting dropout="},
      {"multihead f32 b1 s9 e8 h4 | causal blocks8x8x9",
       "module: 'causal blocks8x8x9' has blocks; a module takes a pattern, after a second ' | '"},
      {"multihead f32 b1 s9 e8 h4 | causal | random density=1",
       "module: block list 'random density=1' does not begin with #x# (tokens per block)"},
  };
  for (const auto& [line, sentence] : wrong) EXPECT_EQ(again(line), sentence) << line;
}

}  // namespace
}  // namespace attune
