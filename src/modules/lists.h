// SPDX-License-Identifier: Apache-2.0
// The block lists of a module's attention: built once from a named pattern, then constants of the module.
#pragma once
#include "core/variant/pattern.h"
#include "modules/attend.h"

namespace attune {

// Lists by query block and by key block, for a problem that has their bound.
Status add_block_lists(Graph&, const Problem&, const Pattern&, std::vector<Source>&);

}  // namespace attune
