// SPDX-License-Identifier: Apache-2.0
// The suites, as loops over what varies. Most suites of variants contain dense counterparts, so one file of records
// shows how much a variant saves.
#include "tool/bench/suites.h"

#include "attune/attune.h"
#include "tool/bench/suites_dense.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr std::string_view kPasses[] = {"forward", "backward"};

// 16384 tokens, d128: block lists of exact density beside the dense problem, then the named patterns.
Lines block_sparse() {
  Lines all;
  for (const std::string_view pass : kPasses) {
    for (const std::string_view mask : {"full", "causal"}) {
      const std::string sizes = join(pass, " bf16 b1 h16 q16384 k16384 d128 ", mask);
      all.push_back(sizes);
      for (const int block : {64, 128})
        for (const std::string_view density : {"1", "0.5", "0.25", "0.1"})
          all.push_back(join(sizes, " blocks", block, "x", block, "x1 | random density=", density, " seed=1"));
    }
    for (const std::string_view pattern :
         {"local_window window=1024", "global_local global=128 window=1024", "strided stride=8",
          "dilated_rates rates=1,2,4", "dilated_offsets ratio=0.1", "dilated_multiples strides=4,8", "hierarchical",
          "streaming sink=64 local=1024", "random density=0.1 seed=1 kinds=12*sparse,2*dense,2*streaming"})
      all.push_back(join(pass, " bf16 b1 h16 q16384 k16384 d128 causal blocks64x64x1 | ", pattern));
    all.push_back(join(pass, " bf16 b1 h16 q16384 k16384 d128 causal : adaptive block=64 density=0.1"));
  }
  return all;
}

// The paper's heads and those of a smaller model: dense attention, the whole of NSA, and each branch alone.
Lines nsa() {
  Lines all;
  constexpr std::string_view kWhole = "d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512";
  for (const std::string_view heads : {"h64/4", "h16/4", "h16/1"}) {
    const bool paper = heads == "h64/4";
    const std::string_view dims = paper ? "d192/128" : "d128";
    for (const std::string_view pass : kPasses)
      for (int length = 1024; length <= 65536; length *= 2) {
        const std::string sizes = join(pass, " bf16 b1 ", heads, " q", length, " k", length, " ", dims);
        all.push_back(join(sizes, " causal"));
        all.push_back(join(sizes, " causal : nsa ", kWhole));
        if (!paper && length != 65536) continue;
        for (const int window : {128, 256, 512}) all.push_back(join(sizes, " window", window - 1, ",0"));
        for (const std::string_view only : {"cmp", "sel", "win"})
          all.push_back(join(sizes, " causal : nsa d=16 gate=none l=32 n=16 only=", only, " phi=mean s=64 w=512"));
      }
    // The same inside a module.
    for (const std::string_view pass : kPasses)
      for (const int length : {4096, 16384})
        for (const std::string_view variant : {"", " : nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512"})
          all.push_back(join(pass, " multihead bf16 b1 s", length, " e2048 ", heads,
                             paper ? " dim=192 dim_v=128" : " dim=128", " | causal", variant));
    // Decode: one query over its caches. One cache holds the compressed tokens, so a step does not recompute them.
    for (int length = 1024; length <= 65536; length *= 2) {
      const std::string sizes = join("forward bf16 b1 ", heads, " q1 k", length, " ", dims, " causal");
      all.push_back(sizes);
      all.push_back(join(sizes, " : nsa d=16 gate=sigmoid l=32 n=16 phi=none s=64 w=512"));
    }
  }
  return all;
}

// Slow backends, where the score matrix fits: unfused attention beside dense rows, and dense attention with a bias as
// mask beside sparse rows.
bool beside_nsa(const Problem& p, std::string_view backend) {
  constexpr double kMostPairs = 4096. * 4096;
  if (double(p.len_q) * p.len_k > kMostPairs) return false;
  const bool dense = word(p.variant).empty() && p.mask.kind == MaskKind::causal;
  return dense ? backend.ends_with("_standard") : backend == "masked_dense";
}

std::string dilated_line(std::string_view pass, std::string_view dtype, int batch, int heads, int length,
                         std::string_view variant) {
  return join(pass, " ", dtype, " b", batch, " h", heads, " q", length, " k", length, " d64 causal", variant);
}

// Four ranks: the zigzag layout balances plain causal attention, the ring layout is that of dilated attention.
constexpr int kRanks = 4;
std::string ring_line(std::string_view pass, int batch, int length, std::string_view ring) {
  return join(dilated_line(pass, "f16", batch, 8, length / kRanks, " : ring "), ring, " ranks=", kRanks, " tokens=",
              length);
}

// The module line that the factory returns. If it refuses, returns its error, which suite_rows() then reports because
// it is not a line.
std::string module_line(std::string_view pass, const char* module, int batch, int length, int ranks = 1) {
  attune_make_options options{};
  options.size = sizeof options, options.dtype = ATTUNE_F16, options.batch = batch, options.len = length;
  options.ranks = ranks;
  options.heads = 8, options.dim = 64, options.causal = 1;
  options.segments = "1024,2048,4096", options.rates = "1,2,4";
  attune_choice* made = nullptr;
  if (attune_choose(module, &options, &made)) return attune_last_error();
  const std::string line = join(pass, " ", attune_choice_line(made));
  attune_choice_destroy(made);
  return line;
}

Lines dilated() {
  Lines all;
  for (const std::string_view pass : kPasses)
    for (const int batch : {1, 2, 4})
      for (const int length : {2048, 4096, 8192}) {
        const auto add = [&](std::string_view variant) {
          all.push_back(dilated_line(pass, "f16", batch, 8, length, variant));
        };
        add("");
        add(" : dilated rates=1,2,4 segments=1024,2048,4096");
        add(" : dilated mode=headgroup norm=divide rates=1,2,4 segments=1024,2048,4096");
        for (const std::string_view density : {"0.1", "0.25", "0.5"})
          add(join(" blocks64x64x1 | random density=", density, " seed=1"));
        all.push_back(ring_line(pass, batch, length, "layout=zigzag"));
        all.push_back(ring_line(pass, batch, length, "inner=dilated rates=1,2,4 segments=1024,2048,4096 layout=ring"));
        for (const char* module :
             {"multihead_dense", "multihead_dilated", "multihead_longnet", "multihead_block_sparse"})
          all.push_back(module_line(pass, module, batch, length));
        for (const char* module : {"multihead_ring_dense", "multihead_ring_dilated", "multihead_block_sparse_ring"})
          all.push_back(module_line(pass, module, batch, length, kRanks));
      }
  return all;
}

// LongNet's configuration and a smaller one, at lengths where dense attention is slow.
Lines long_rows() {
  Lines all;
  for (const std::string_view pass : kPasses)
    for (const int length : {32768, 65536, 131072}) {
      all.push_back(dilated_line(pass, "bf16", 1, 12, length, ""));
      all.push_back(dilated_line(pass, "bf16", 1, 12, length,
                                 " : dilated rates=1,2,4,6,12 segments=2048,4096,8192,16384,32768"));
      all.push_back(dilated_line(pass, "bf16", 1, 12, length, " blocks128x128x1 | streaming sink=128 local=2048"));
      // The smaller configuration: every head over all segments, groups of heads, four ranks, and modules.
      for (const std::string_view variant :
           {"", " : dilated rates=1,2,4 segments=1024,2048,4096",
            " : dilated mode=headgroup norm=divide rates=1,2,4 segments=1024,2048,4096"})
        all.push_back(dilated_line(pass, "f16", 1, 8, length, variant));
      for (const std::string_view ring :
           {"layout=zigzag", "inner=dilated rates=1,2,4 segments=1024,2048,4096 layout=ring"})
        all.push_back(ring_line(pass, 1, length, ring));
      for (const char* module : {"multihead_dense", "multihead_dilated", "multihead_longnet"})
        all.push_back(module_line(pass, module, 1, length));
      for (const char* module : {"multihead_ring_dense", "multihead_ring_dilated"})
        all.push_back(module_line(pass, module, 1, length, kRanks));
    }
  return all;
}

// As far as memory goes: 2^26 tokens take 275 GB in the smallest row, and 2^25 take 200 GB in native sparse attention.
// A row that does not fit becomes an "oom" record, and longer rows are skipped.
Lines extreme() {
  Lines all;
  for (int length = 1 << 18; length <= 1 << 26; length *= 2)
    for (const std::string_view pass : kPasses) {
      all.push_back(dilated_line(pass, "f16", 1, 8, length, " : dilated rates=1,2,4 segments=1024,2048,4096"));
      all.push_back(join(pass, " f16 b1 h8 q", length, " k", length, " d64 window2047,0"));
      if (length <= 1 << 25)
        all.push_back(join(pass, " bf16 b1 h8/1 q", length, " k", length,
                           " d128 causal : nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512"));
    }
  return all;
}

constexpr BenchSuite kSuites[] = {
    {.name = "sdpa-small", .lines = sdpa_small, .all_backends = true, .samples = 500, .warm_up_calls = 200},
    {.name = "fa2-vs-sdpa", .lines = fa2_vs_sdpa, .all_backends = true},
    {.name = "seq-sweep", .lines = seq_sweep, .all_backends = true, .max_seconds = 0.15, .rest_ms = 20},
    {.name = "memory", .lines = memory_rows, .all_backends = true, .max_seconds = 1, .min_early = 1},
    {.name = "scaling", .lines = scaling},
    {.name = "decode", .lines = decode},
    {.name = "nsa", .lines = nsa, .beside = beside_nsa},
    {.name = "dilated", .lines = dilated},
    {.name = "long", .lines = long_rows},
    {.name = "extreme", .lines = extreme, .max_seconds = 2, .min_early = 1},
    {.name = "block_sparse", .lines = block_sparse},
    {.name = "train", .lines = train},
    {.name = "generate", .lines = generate},
    {.name = "versions", .lines = versions, .all_backends = true},
    {.name = "models", .lines = models},
    {.name = "regress", .lines = regress}};

}  // namespace

std::string suite_names() {
  std::string all;
  for (const BenchSuite& s : kSuites) all += join(all.empty() ? "" : ", ", s.name);
  return all;
}

const BenchSuite* find_suite(std::string_view name) {
  for (const BenchSuite& s : kSuites)
    if (s.name == name) return &s;
  return nullptr;
}

Status suite_rows(std::string_view name, std::vector<BenchRow>& out) {
  if (const BenchSuite* s = find_suite(name)) {
    for (const std::string& line : s->lines()) {
      BenchRow row;
      if (Status bad = parse_row(line, row); !bad.ok()) return bad.after("'", line, "': ");
      row.most_call_s = kMostCallSeconds;
      out.push_back(std::move(row));
    }
    return Status::good();
  }
  return Status::no("--suite: ", not_one_of(name, suite_names()));
}

}  // namespace attune
