// SPDX-License-Identifier: Apache-2.0
// Checks that arguments fit a problem. Shapes, strides, dtypes, devices and overlaps are always checked. The integers
// inside tensors (lengths, pages, lists) are checked only on the CPU, because reading them from a GPU would stall the
// stream. Both checks run on every call: a valid call builds no text, allocates nothing and visits only the given
// roles.
#pragma once
#include <initializer_list>

#include "core/args.h"

namespace attune {

std::string name(Role);
bool writes(const Problem&, Role);                 // whether a run may write this role's tensor
Status check(const Problem&, const Args&);         // everything that is known without synchronising
Status check_values(const Problem&, const Args&);  // for CPU tensors that passed check()

// For kernels that access rows 16 bytes at a time: refuses, in the name of `who`, a tensor whose address or strides are
// not 16-byte aligned. Roles that are not given pass.
Status check_aligned16(std::string_view who, Role, const Tensor&);
Status check_aligned16(std::string_view who, const Args&, std::initializer_list<Role>);

}  // namespace attune
