// Lines of the suites of dense attention: suites.cpp has those of variants, and the list of all.
#pragma once
#include <string>
#include <vector>

namespace attune {

// A problem line, perhaps with a pattern behind a bar; or "- what it is: why not", where it is not built yet.
using Lines = std::vector<std::string>;

Lines sdpa_small();
Lines fa2_vs_sdpa();
Lines seq_sweep();
Lines memory_rows();
Lines scaling();
Lines decode();
Lines train();
Lines generate();
Lines versions();
Lines models();
Lines regress();

}  // namespace attune
