// SPDX-License-Identifier: Apache-2.0
// A report from synthetic records, and its sections.
#pragma once
#include <gtest/gtest.h>

#include <string_view>
#include <utility>
#include <vector>

#include "tool/report/model.h"

namespace attune {

inline Report report_of(std::vector<Record> records) { return make_report({.records = std::move(records)}); }

inline const Section& section(const Report& r, std::string_view id) {
  static const Section none{};
  const Section* s = find_section(r, id);
  EXPECT_NE(s, nullptr) << id;
  return s ? *s : none;
}

}  // namespace attune
