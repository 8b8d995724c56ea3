// Whether arguments fit a problem. Shapes, strides, dtypes, devices and overlaps are checked always; the integers
// inside tensors (lengths, pages, lists) only on the CPU, because on a GPU reading them would stop the stream. Both are
// on the path of every call: a good one builds no text, allocates nothing and looks only at the roles that are given.
#pragma once
#include <initializer_list>

#include "core/args.h"

namespace attune {

std::string name(Role);
bool writes(const Problem&, Role);                 // whether a run may write the tensor of this role
Status check(const Problem&, const Args&);         // everything that can be known without waiting
Status check_values(const Problem&, const Args&);  // of CPU tensors that passed check()

// For kernels that read and write rows 16 bytes at a time: `who`'s refusal of what does not begin there or does not
// step so. Roles that are not given pass.
Status check_pieces(std::string_view who, Role, const Tensor&);
Status check_pieces(std::string_view who, const Args&, std::initializer_list<Role>);

}  // namespace attune
