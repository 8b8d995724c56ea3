// SPDX-License-Identifier: Apache-2.0
// Synthetic records of a fictitious machine.
#pragma once
#include <string>

#include "core/status.h"
#include "tool/record/record.h"
#include "tool/timing/statistics.h"

namespace attune {

inline Record record(const std::string& subject, int length, double ns, int heads = 8) {
  Record r;
  r.problem = join("forward f32 b1 h", heads, " q", length, " k", length, " d64 causal");
  r.subject = subject;
  for (int n = 0; n < 30; ++n) r.samples_ns.push_back(ns * (1 + 0.001 * (n % 5 - 2)));
  r.median_ns = median(r.samples_ns);
  r.threads = 2;
  r.parity.verdict = CheckVerdict::pass;
  r.provenance.cpu = "Test CPU", r.provenance.time = "2026-01-31T12:00:00Z", r.provenance.commit = "0123abc";
  r.aa_spread = 0.01;
  return r;
}

}  // namespace attune
