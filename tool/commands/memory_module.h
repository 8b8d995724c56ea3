// SPDX-License-Identifier: Apache-2.0
// `attune memory` for module lines: see docs/modules.md.
#pragma once
#include <string>
#include <string_view>

namespace attune {

struct Context;
struct Device;

bool is_module(std::string_view line);  // by its first word
void module_memory(const std::string& line, const Device&, Context&);

}  // namespace attune
