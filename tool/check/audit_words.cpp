// SPDX-License-Identifier: Apache-2.0
// Words and counts of one record. A field that code decides by has a closed set of words; a name of a peer is open, but
// begins as one of the peers that bench offers.
#include "build_info.h"
#include "core/device.h"
#include "tool/check/parts.h"
#include "tool/text.h"

namespace attune {
namespace {

using Words = std::vector<std::string_view>;

// All backends of this version, also those that this build leaves out.
#ifndef ATTUNE_CUDA
#define ATTUNE_CUDA
#endif
#ifndef ATTUNE_SM90
#define ATTUNE_SM90
#endif
#define BACKEND(name) #name,
const Words kBackends = {
#include "plan/backends.def"
};
#undef BACKEND

const Words& levels() {  // loops of CPUs
  static const Words all = {"scalar", "neon", "neon_bf16", "avx2", "avx512", "avx512_bf16", "amx_bf16"};
  return all;
}

bool is_one_of(std::string_view word, const Words& all) { return std::find(all.begin(), all.end(), word) != all.end(); }

bool is_number(std::string_view word) {
  return !word.empty() && word.size() < 5 && word.find_first_not_of("0123456789") == word.npos;
}

bool is_device(std::string_view word) {
  if (word == "cpu") return true;
  if (word.starts_with("cpu:")) return is_one_of(word.substr(4), levels());
  return word.starts_with("cuda:") && is_number(word.substr(5));
}

bool is_feature(std::string_view word) {
  for (int n = 0; n < int(Feature::count); ++n)
    if (word == name(Feature(n))) return true;
  return false;
}

bool is_peer_name(std::string_view word) {
  const bool is_own = word.find(".py:") != word.npos || word.find(".so:") != word.npos;  // a user's function
  return is_own || word.starts_with("torch:") || word.starts_with("flash_attn") || word.starts_with("fa3");
}

bool is_hex(std::string_view word, size_t digits) {
  return word.size() == digits && word.find_first_not_of("0123456789abcdef") == word.npos;
}

// A backend that this version does not have is a warning in a record of another version.
void subject(const Reporter& a) {
  const Record& r = a.r;
  if (r.peer) {
    if (!is_peer_name(r.subject))
      a.wrong("unknown-word", "a peer of this name is not known; they begin with torch:, flash_attn or fa3, or ",
              "are FILE.py:FUNCTION or LIBRARY.so:SYMBOL");
  } else if (r.subject != "attune" && !is_one_of(r.subject, kBackends)) {
    const bool same = r.provenance.version == build::kVersion;
    a.found.push_back({a.line.number, "unknown-word", same,
                       join(r.subject, ": it is neither a backend of version ", build::kVersion, " nor a peer")});
  }
}

// Facts of version 4 that have a form.
void facts(const Reporter& a) {
  const Provenance& p = a.r.provenance;
  if (a.r.version < 4 || a.line.extract) return;
  const auto has_control = [](const std::string& s) {
    return std::any_of(s.begin(), s.end(), [](char c) { return c >= 0 && c < ' '; });
  };
  if (!p.command || (*p.command != "attune bench" && !p.command->starts_with("attune bench ")))
    a.wrong("unknown-word", "the command '", p.command.value_or(""), "' does not begin with attune bench");
  if (p.os && (p.os->empty() || has_control(*p.os))) a.wrong("unknown-word", "the OS '", *p.os, "' is not a name");
  if (p.cudnn && (p.cudnn->find_first_not_of("0123456789.") != p.cudnn->npos ||
                  std::count(p.cudnn->begin(), p.cudnn->end(), '.') != 2))
    a.wrong("unknown-word", "cudnn '", *p.cudnn, "' is not a version such as 9.15.0");
}

}  // namespace

void audit_words(const Reporter& a) {
  const Record& r = a.r;
  const auto judge = [&](const char* field, std::string_view word, const Words& known) {
    if (is_one_of(word, known)) return;
    std::string all;
    for (const std::string_view one : known)
      if (!one.empty()) all += join(all.empty() ? "" : ", ", one);
    a.wrong("unknown-word", field, " '", word, "' is not one of ", all);
  };
  judge("mode", r.mode, {"warm", "cold", "graph"});
  judge("layout", r.layout, {"bhsd", "bshd"});
  judge("distribution", r.distribution, {"normal", "uniform", "zeros"});
  judge("verdict", r.verdict, {"FASTER", "SLOWER", "SAME", "UNCLEAR", ""});
  judge("left_out", r.left_out.text(), {"not built", "not tried", ""});
  judge("ended_by", r.ended_by,
        was_timed(r) && r.version >= 3 ? Words{"precision", "time", "samples", "interrupt"}
                                       : Words{"precision", "time", "samples", "interrupt", "failure", ""});
  judge("governor", r.provenance.governor,
        {"performance", "powersave", "ondemand", "conservative", "userspace", "schedutil", "interactive", "unknown",
         ""});
  if (!is_device(r.device))
    a.wrong("unknown-word", "device '", r.device, "' is not one of cpu, cpu:<level>, cuda:<number>");
  if (r.parity.verdict == CheckVerdict::other)
    a.wrong("unknown-word", "verdict '", r.parity.verdict.text(),
            "' of the check is not one of PASS, PASS-AT-FLOOR, FAIL, UNCHECKED");
  const std::string& all = r.provenance.features;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find(' ', at), all.size());
    const std::string_view word = std::string_view(all).substr(at, end - at);
    if (!is_feature(word)) a.wrong("unknown-word", "feature '", word, "' of the CPU is not known");
    at = end + 1;
  }
  if (!r.provenance.binary.empty() && !is_hex(r.provenance.binary, 16))
    a.wrong("unknown-word", "binary '", r.provenance.binary, "' is not 16 hexadecimal digits");
  if (r.version < 3) return;
  subject(a);
  facts(a);
  if (!is_gpu(r) && !r.peer)
    for (const std::string& loops : r.kernels) judge("kernels", loops, levels());
}

void audit_counts(const Reporter& a) {
  const Record& r = a.r;
  const Provenance& p = r.provenance;
  const auto least = [&](const char* what, double is, double most) {
    if (is < most) a.wrong("impossible-count", what, " is recorded as ", is);
  };
  least("threads", r.threads, 0), least("sets", r.sets, 1), least("calls", r.calls, 1), least("modes", r.modes, 1);
  least("row_records", r.row_records, r.version >= 3 ? 1 : 0), least("planned_rows", r.planned_rows, 0);
  least("active_blocks", double(r.active_blocks), 0), least("shown_blocks", double(r.shown_blocks), 0);
  least("rest_s", r.rest_s, 0), least("heat_s", r.heat_s, 0), least("warm_up_s", r.warm_up_s, 0);
  least("tensor_bytes", r.tensor_bytes, 0), least("scores_bytes", r.scores_bytes, 0);
  least("cache_bytes", r.cache_bytes, 0), least("median_ns", r.median_ns, 0), least("floor_ns", r.floor_ns, 0);
  least("mhz", r.mhz, 0), least("watts", r.watts, 0), least("late_batches", r.late_batches, 0);
  least("sustained_ns", r.sustained_ns, 0), least("joules", r.joules, 0);
  least("sustained_watts", r.sustained_watts, 0), least("flops", r.flops, 0), least("bytes", r.bytes, 0);
  least("ceiling_gflops", r.ceiling_gflops, 0), least("copy_gbs", r.copy_gbs, 0);
  least("rows of the check", r.parity.rows, 0), least("error of the check", r.parity.error, 0);
  least("most_samples", r.most_samples, 0), least("deviation_ns", r.deviation_ns, 0);
  least("sequences", r.sequences, 0), least("tokens", r.tokens, 0), least("queries", r.queries, 0);
  for (const auto& [what, known] : {std::pair("gpu_memory_bytes", p.gpu_memory_bytes), {"gpu_sms", p.gpu_sms},
                                    {"gpu_bandwidth_gbs", p.gpu_bandwidth_gbs}})
    if (known && !(*known > 0)) a.wrong("impossible-count", what, " is recorded as ", *known);
  if (p.gpu_sms && *p.gpu_sms != std::floor(*p.gpu_sms))
    a.wrong("impossible-count", "gpu_sms is recorded as ", *p.gpu_sms);
  least("cores", p.cores, 0), least("gpu_power_limit_w", p.gpu_power_limit_w, 0);
  least("gpu_most_mhz", p.gpu_most_mhz, 0);
  for (const double read : r.tokens_read)
    if (read < 0) return least("tokens_read", read, 0);
  // Measured clocks vary by a few percent, and a card may draw more than its limit for an instant.
  constexpr double kClock = 1.1, kPower = 1.5;
  if (r.version >= 3 && p.cores > 0 && r.threads > p.cores)
    a.wrong("impossible-count", counted(r.threads, "thread"), " ran on ", counted(p.cores, "core"));
  if (r.version >= 3 && r.mode == "cold" && r.calls != 1)
    a.wrong("impossible-count", "a cold sample has ", r.calls, " calls; caches are flushed before each call");
  if (p.gpu_most_mhz > 0 && r.mhz > kClock * p.gpu_most_mhz)
    a.wrong("impossible-count", "the clock was ", r.mhz, " MHz, above the ", p.gpu_most_mhz, " of the card");
  if (p.gpu_power_limit_w > 0 && std::max(r.watts, r.sustained_watts) > kPower * p.gpu_power_limit_w)
    a.wrong("impossible-count", "the card drew ", std::max(r.watts, r.sustained_watts), " W, far above its limit of ",
            p.gpu_power_limit_w);
}

}  // namespace attune
