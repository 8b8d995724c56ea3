// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/suites_dense.h"

#include "core/status.h"

namespace attune {
namespace {

constexpr std::string_view kPasses[] = {"forward", "backward"};
// The dtypes of Hopper's tensor cores in use: both 16-bit types, and fp8 with scales and results in bf16.
constexpr std::string_view kHopper[] = {"f16", "bf16", "e4m3/e4m3/bf16"};

std::string line(std::string_view pass, std::string_view dtype, int batch, std::string_view heads, int len_q, int len_k,
                 int dim, std::string_view mask) {
  const std::string_view scales = dtype.starts_with("e4m3") ? " descale" : "";
  return join(pass, " ", dtype, " b", batch, " h", heads, " q", len_q, " k", len_k, " d", dim, " ", mask, scales);
}
std::string square(std::string_view pass, std::string_view dtype, int batch, int heads, int len, int dim,
                   std::string_view mask) {
  return line(pass, dtype, batch, join(heads), len, len, dim, mask);
}

}  // namespace

Lines sdpa_small() {
  Lines all;
  const struct { int batch, heads, len; } shapes[] = {{1, 1, 128}, {8, 4, 128}, {32, 8, 128}, {32, 8, 256}};
  for (const std::string_view dtype : {"f16", "bf16"})
    for (const auto& [batch, heads, len] : shapes)
      all.push_back(square("forward", dtype, batch, heads, len, 64, "full"));
  return all;
}

Lines fa2_vs_sdpa() {
  Lines all;
  for (const auto& [batch, most] : {std::pair(1, 4096), {4, 2048}})
    for (int len = 512; len <= most; len *= 2) all.push_back(square("forward", "f16", batch, 8, len, 64, "causal"));
  for (const int dim : {64, 96, 128, 192, 256})
    for (int len = 16; len <= 2048; len *= 2) all.push_back(square("forward", "f16", 1, 8, len, dim, "causal"));
  // The masks of native sparse attention: windows of 8192 tokens, and its compressed keys, one of 32 tokens every 16.
  for (const std::string_view pass : kPasses) {
    for (int window = 128; window <= 4096; window *= 2)
      all.push_back(square(pass, "f16", 1, 8, 8192, 64, join("window", window - 1, ",0")));
    for (int len = 1024; len <= 16384; len *= 2)
      all.push_back(line(pass, "f16", 1, "8", len, (len - 32) / 16 + 1, 64, "causal@absolute/16+31"));
  }
  return all;
}

// The published shapes in every dtype; then a constant number of tokens and a constant model width at every length.
Lines seq_sweep() {
  Lines all;
  for (const std::string_view dtype : kHopper)
    for (int len = 512; len <= 8192; len *= 2) all.push_back(square("forward", dtype, 8, 32, len, 64, "full"));
  for (const std::string_view dtype : {"f16", "bf16"})  // that of an A10G, which has 24 GB and no fp8
    for (int len = 512; len <= 8192; len *= 2) all.push_back(square("forward", dtype, 4, 32, len, 64, "full"));
  for (const std::string_view pass : kPasses)
    for (const std::string_view mask : {"full", "causal"})
      for (const int dim : {64, 128, 256})
        for (int len = 512; len <= 16384; len *= 2)
          all.push_back(square(pass, "bf16", 16384 / len, 2048 / dim, len, dim, mask));
  return all;
}

// As far as the memory of each backend goes: 2^21 tokens take 277 GB of tensors. That a row does not fit is its result.
Lines memory_rows() {
  Lines all;
  for (const std::string_view pass : kPasses)
    for (int len = 512; len <= 1 << 21; len *= 2) all.push_back(square(pass, "bf16", 8, 32, len, 64, "full"));
  return all;
}

Lines scaling() {
  Lines all;
  for (int len = 512; len <= 16384; len *= 2) all.push_back(square("forward", "bf16", 1, 32, len, 64, "full"));
  return all;
}

Lines decode() {
  Lines all;
  for (const std::string_view keys : {"", " paged64"})
    for (const std::string_view heads : {"32/8", "32"})
      for (const int batch : {1, 16, 64, 128})
        for (int len = 512; len <= 131072; len *= 2)
          all.push_back(line("forward", "bf16", batch, heads, 1, len, 128, "full") + std::string(keys));
  return all;
}

// Llama-2-7B: 32 heads of 128.
Lines train() {
  Lines all;
  const struct { int batch, len; } shapes[] = {{4, 2048}, {8, 2048}, {4, 4096}, {8, 4096}, {2, 8192}};
  for (const auto& [batch, len] : shapes)
    for (const std::string_view pass : kPasses) all.push_back(square(pass, "bf16", batch, 32, len, 128, "causal"));
  return all;
}

Lines generate() {
  Lines all;
  for (int len = 512; len <= 16384; len *= 2) all.push_back(line("forward", "bf16", 1, "32", 1, len, 128, "full"));
  return all;
}

// The work of the first row over fewer and longer heads: what divides its work by heads alone, as FlashAttention 1
// does, leaves multiprocessors idle.
Lines versions() {
  Lines all;
  for (const std::string_view dtype : kHopper) all.push_back(square("forward", dtype, 8, 32, 4096, 64, "full"));
  for (const auto& [heads, len] : {std::pair(64, 8192), {16, 16384}, {4, 32768}, {1, 65536}})
    all.push_back(square("forward", "f16", 1, heads, len, 64, "full"));
  return all;
}

// One of the 32 layers of Llama-2-7B.
Lines models() {
  Lines all;
  for (const std::string_view pass : kPasses)
    for (int len = 2048; len <= 32768; len *= 2)
      all.push_back(join(pass, " llama bf16 b1 s", len, " e4096 h32 ffn=11008 | causal"));
  return all;
}

// Small enough for every commit, on a CPU too.
Lines regress() {
  return {"forward f32 b1 h8 q512 k512 d64 causal",    "forward bf16 b1 h8 q1024 k1024 d64 causal",
          "forward bf16 b1 h8/2 q1024 k1024 d128 full", "forward bf16 b1 h8 q1024 k1024 d64 window127,0",
          "forward bf16 b4 h8/2 q1 k4096 d128 full",   "forward bf16 b4 h8/2 q1 k4096 d128 full paged64",
          "backward f32 b1 h8 q512 k512 d64 causal",   "backward bf16 b1 h8 q1024 k1024 d64 causal"};
}

}  // namespace attune
