#include "reference/variants.h"

namespace attune::reference_detail {
namespace {

// One line a variant; its functions are declared above the table and defined in the variant's file.
constexpr VariantDefinition kDefinitions[] = {
    {"", nullptr, nullptr},
};

}  // namespace

const VariantDefinition* find_definition(std::string_view word) {
  for (const VariantDefinition& d : kDefinitions)
    if (!word.empty() && d.word == word) return &d;
  return nullptr;
}

}  // namespace attune::reference_detail
