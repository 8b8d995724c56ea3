// SPDX-License-Identifier: Apache-2.0
// Records of one backend and one peer at three lengths: faster, the same and slower.
#pragma once
#include <string>
#include <vector>

#include "tool/record/record.h"

namespace attune {

inline Record record(const std::string& subject, int length, double ns, double ratio = 0) {
  Record r;
  r.problem = join("forward f32 b1 h8 q", length, " k", length, " d64 causal");
  r.subject = subject;
  r.threads = 2;
  r.samples_ns.assign(30, ns);
  r.median_ns = ns;
  r.interval = {ns * 0.99, ns * 1.01, 0.95};
  r.ended_by = "precision";
  r.flops = 1e3 * length;
  r.gflops = r.flops / ns;
  r.ceiling_gflops = 80;
  r.ceiling = "fmla";
  r.parity = {.verdict = CheckVerdict::pass, .error = 0.1, .rows = 8};
  r.provenance.cpu = "Test CPU";
  r.provenance.commit = "0123abc";
  if (ratio > 0) {
    r.baseline = "torch:sdpa";
    r.ratio = {ratio, {ratio * 0.98, ratio * 1.02, 0.95}};
    r.verdict = ratio > 1.03 ? "FASTER" : ratio < 0.97 ? "SLOWER" : "SAME";
  }
  return r;
}

inline std::vector<Record> typical() {
  return {record("torch:sdpa", 512, 2e4),       record("cpu_forward", 512, 1e4, 2.0),
          record("torch:sdpa", 1024, 4e4),      record("cpu_forward", 1024, 4e4, 1.0),
          record("torch:sdpa", 2048, 8e4),      record("cpu_forward", 2048, 16e4, 0.5)};
}

}  // namespace attune
