// SPDX-License-Identifier: Apache-2.0
// The definitions of variants, in double and written to be read: one line each in variants.cpp.
#pragma once
#include "plan/backend.h"

namespace attune::reference_detail {

struct VariantDefinition {
  std::string_view word;
  Status (*forward)(const Problem&, const Args&);
  Status (*backward)(const Problem&, const Args&);  // null: it has no gradient
};
const VariantDefinition* find_definition(std::string_view word);  // null if the reference does not have it

}  // namespace attune::reference_detail
