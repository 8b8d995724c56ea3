// SPDX-License-Identifier: Apache-2.0
// From settings to a graph: the steps of each kind of module.
#pragma once
#include "modules/graph.h"
#include "modules/settings.h"
#include "plan/rules.h"

namespace attune {

// `why` gets a paragraph for every attention: its problem, and the backends chosen for both passes.
Status build(const Settings&, std::span<const Rule>, Graph& out, std::string& why);

}  // namespace attune
