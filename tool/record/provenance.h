// SPDX-License-Identifier: Apache-2.0
// Where a number comes from: collected once, written into every record.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tool/record/record.h"

namespace attune {

std::string new_run();     // "20260131T120000Z-4711": the id of one run of the command
Provenance provenance();   // everything but `command`, `peers` and the GPU
// The words of a command line as a shell would take them. Paths that begin with / or ~ lose their folder, which may
// name a user.
std::string command_text(const std::vector<std::string>& words);
// Bandwidth of the GPU at this PCI address, from memory clock and bus width; nothing where the driver does not tell.
std::optional<double> gpu_bandwidth_gbs(const std::string& pci);
std::optional<std::string> cudnn_version();  // "9.15.0"; nothing where none can be opened
std::string utc_now();     // "2026-01-31T12:00:00Z"

}  // namespace attune
