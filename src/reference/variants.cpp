// SPDX-License-Identifier: Apache-2.0
#include "reference/variants.h"

#include "reference/nsa.h"

namespace attune::reference_detail {

Status forward_dilated(const Problem&, const Args&);
Status backward_dilated(const Problem&, const Args&);
Status run_ring(const Problem&, const Args&);
Status adaptive_forward(const Problem&, const Args&);
Status adaptive_backward(const Problem&, const Args&);

namespace {

// One line per variant; its functions are declared above the table and defined in the variant's file.
constexpr VariantDefinition kDefinitions[] = {
    {"compress", nsa_forward, nsa_backward}, {"select", nsa_forward, nullptr},
    {"selected", nsa_forward, nsa_backward}, {"gate", nsa_forward, nsa_backward},
    {"reads", nsa_forward, nullptr},         {"nsa", nsa_forward, nsa_backward},
    {"dilated", forward_dilated, backward_dilated},
    {"ring", run_ring, run_ring},
    {"adaptive", adaptive_forward, adaptive_backward},
};

}  // namespace

const VariantDefinition* find_definition(std::string_view word) {
  for (const VariantDefinition& d : kDefinitions)
    if (!word.empty() && d.word == word) return &d;
  return nullptr;
}

}  // namespace attune::reference_detail
