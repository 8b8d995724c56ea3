// Rows that belong together, by name: what `attune bench --suite` measures.
#pragma once
#include "tool/measure/axes.h"

namespace attune {

std::string suite_names();  // "block_sparse, nsa, ..."
Status suite_rows(std::string_view name, std::vector<BenchRow>& out);

}  // namespace attune
