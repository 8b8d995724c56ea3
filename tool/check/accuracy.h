// SPDX-License-Identifier: Apache-2.0
// How far the results of a subject, a backend or a peer, are from the reference or from those of another subject. Every
// element is compared. Against the reference the rule is that of `attune parity` (verify/tolerance.h). Against another
// subject no reference of the whole is computed, so lengths are not bounded by its speed; rows of both are then checked
// by the definition, as `attune bench` does, so a wrong one is found there too.
#pragma once
#include <string>
#include <vector>

#include "tool/subjects/peer.h"
#include "verify/compare.h"

namespace attune {

struct AccuracySubject {
  std::string name{};
  const Backend* backend = nullptr;     // one of the two
  const attune_peer* peer = nullptr;
};

// What a row ends with. `unserved`: the subject, or the reference, cannot; the sentence says why.
enum class AccuracyEnd { compared, unserved, wrong };

struct Accuracy {
  std::string problem{}, subject{}, against{};
  AccuracyEnd end = AccuracyEnd::compared;
  Outcome outcome{};        // figures; against the reference also verdicts
  std::string message{};
};

struct AccuracyCase {
  Case one{};
  std::string pattern{};    // of its block lists; empty: drawn
  std::string line{};       // as a row shows it
  std::string unserved{};   // why it cannot be compared; empty: it can
};

// Rows of one problem: each subject against the reference or, if given, against `other`.
std::vector<Accuracy> accuracy(const AccuracyCase&, const std::vector<AccuracySubject>&, const AccuracySubject* other,
                               const Device&);

// Estimated seconds of the reference, which is one loop in double. Rows beyond the limit are refused.
double reference_seconds(const Problem&);
inline constexpr double kMostReferenceSeconds = 600;

}  // namespace attune
