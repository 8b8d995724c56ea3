// The block lists of a module's attention: built once from a named pattern, and constants of the module from then on.
#pragma once
#include "modules/attend.h"

namespace attune {

Status add_block_lists(Graph&, const Problem&, std::string_view pattern, std::vector<Source>&);

}  // namespace attune
