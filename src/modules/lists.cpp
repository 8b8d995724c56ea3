#include "modules/lists.h"

namespace attune {

Status add_block_lists(Graph&, const Problem& p, std::string_view pattern, std::vector<Source>&) {
  if (pattern.empty()) return Status::no("module: a block list needs the setting pattern=, in: ", name(p));
  return Status::no("module: the pattern '", pattern, "' is not known");
}

}  // namespace attune
