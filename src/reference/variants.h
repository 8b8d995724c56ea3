// The definitions of variants, in double and for reading: a line in variants.cpp each.
#pragma once
#include "plan/backend.h"

namespace attune::reference_detail {

struct VariantDefinition {
  std::string_view word;
  Status (*forward)(const Problem&, const Args&);
  Status (*backward)(const Problem&, const Args&);  // null: it has no gradient
};
const VariantDefinition* find_definition(std::string_view word);  // null where the reference does not know it

}  // namespace attune::reference_detail
