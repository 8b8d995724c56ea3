// SPDX-License-Identifier: Apache-2.0
// check_values() for tensors on a GPU: synchronises and copies the small integer tensors. Used only by attune_check.
#pragma once
#include "core/args.h"

namespace attune {

Status check_values_on_gpu(const Problem&, const Args&);  // requires arguments that passed check()

}  // namespace attune
