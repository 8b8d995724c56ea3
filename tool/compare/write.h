// SPDX-License-Identifier: Apache-2.0
// Prints changes: a table for a terminal, Markdown for a comment, JUnit for a CI server, annotations for GitHub's log.
// All print what changes.h decided and decide nothing.
#pragma once
#include "tool/compare/changes.h"

namespace attune {

std::string summary(const Changes&);  // "2 SLOWER, 31 SAME, 1 UNCLEAR"
std::string overall_text(const Overall&);  // "All 34 rows together: 0.971x [0.962, 0.980], SLOWER."
std::string to_text(const Agreement&, double within);  // the rows that are apart, and how many agree
enum class RowOrder { weight, ratio, problem };  // weight: the most important first
struct ChangesLook {
  bool colour = false, all = false;  // all: rows that are SAME too
  RowOrder order = RowOrder::weight;
  std::string filter{};  // only rows whose problem, subject, setting or verdict contains this
  int width = 0;         // 0: no limit
};
std::string to_text(const Changes&, const ChangesLook& = {});
std::string to_markdown(const Changes&);
std::string to_junit(const Changes&, const CompareSettings&);
std::string to_annotations(const Changes&, const CompareSettings&);  // "" if there is nothing to report

}  // namespace attune
