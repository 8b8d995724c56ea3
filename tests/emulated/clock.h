// SPDX-License-Identifier: Apache-2.0
// Happens-before order within a CTA, and the reads and writes of shared memory. It detects a read or write that no
// arrival and wait order after the previous write, or a write not ordered after a read, independent of the schedule.
//
// An agent is a warp, or an mbarrier with the copies that complete on it. A warp's clock holds the latest time of each
// agent that the warp has synchronized with, directly or indirectly: an arrival leaves the clock at the barrier, a wait
// joins it. The lanes of a warp are one agent; divergence within a warp is left to the schedules.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace attune::emulated {

inline constexpr int kSharedBytes = 227 * 1024, kWarps = 16, kBarriers = 80, kAgents = kWarps + kBarriers;

struct Clock {
  std::array<uint32_t, kAgents> at{};
  void join(const Clock& other) {
    for (size_t n = 0; n < at.size(); ++n) at[n] = std::max(at[n], other.at[n]);
  }
};

// 16 bytes of shared memory. A stamp of 0 means never.
struct Piece {
  static constexpr uint32_t kPending = ~0u;  // a product or bulk store that has not been waited for
  uint32_t writer = 0, written = 0;          // agent, and its time
  bool generic = false;                      // written by threads: the async proxy needs a fence
  uint32_t read[kWarps] = {};                // by threads, or by products that have been waited for
  uint32_t sent[kWarps] = {};                // by bulk stores
  uint32_t spoiled = 0;                      // one bit per warp: overwritten under a pending product
};

// Shared memory of one CTA. Each call returns an error message, or an empty one.
struct Shadow {
  std::vector<Piece> pieces{size_t(kSharedBytes / 16)};
  uint32_t published[kWarps] = {};  // time of each warp's last fence
  bool taints = false;              // racing products give NaN sums instead of an error

  static std::string place(uint32_t address) { return " at byte " + std::to_string(address / 16 * 16); }

  const char* overwrites(const Piece& p, const Clock& now) const {
    if (p.written > now.at[p.writer])
      return p.writer < kWarps ? "overwrites what a warp wrote, without word of it"
                               : "overwrites what a copy is still to bring";
    for (int w = 0; w < kWarps; ++w) {
      if (p.read[w] > now.at[size_t(w)] && !(taints && p.read[w] == Piece::kPending))
        return p.read[w] == Piece::kPending ? "overwrites what a product still reads"
                                            : "overwrites what a warp may still read";
      if (p.sent[w] > now.at[size_t(w)]) return "overwrites what a bulk store has not read yet";
    }
    return nullptr;
  }
  std::string write(uint32_t address, int bytes, const Clock& now, uint32_t who, uint32_t stamp) {
    for (uint32_t n = address / 16; n < (address + uint32_t(bytes) + 15) / 16; ++n) {
      Piece& p = pieces[n];
      if (const char* const what = overwrites(p, now)) return what + place(n * 16) + of(p, now);
      p.writer = who, p.written = stamp, p.generic = who < kWarps;
      for (int w = 0; w < kWarps; ++w)
        if (p.read[w] == Piece::kPending) p.spoiled |= 1u << w;
    }
    return {};
  }
  // The conflicting warp.
  std::string of(const Piece& p, const Clock& now) const {
    for (uint32_t w = 0; w < kWarps; ++w)
      if (p.read[w] > now.at[w] || p.sent[w] > now.at[w]) return " (warp " + std::to_string(w) + ")";
    return p.writer < kWarps ? " (warp " + std::to_string(p.writer) + ")" : "";
  }
  // `async`: read by a product or a bulk store.
  std::string unseen(const Piece& p, uint32_t address, const Clock& now, bool async) const {
    if (p.written > now.at[p.writer])
      return (p.writer < kWarps ? "reads what another warp writes" + place(address) + of(p, now)
                                : "reads what a copy brings that it has not waited for" + place(address));
    if (async && p.generic && p.written > published[p.writer])
      return "reads by the async proxy what no fence has published" + place(address) + of(p, now);
    return {};
  }
};

}  // namespace attune::emulated
