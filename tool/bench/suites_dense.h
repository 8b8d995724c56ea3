// SPDX-License-Identifier: Apache-2.0
// Lines of the dense suites. suites.cpp holds those of the variants and the list of all suites.
#pragma once
#include <string>
#include <vector>

namespace attune {

// A problem line, optionally with a pattern after a bar, or a pass and a module line.
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
