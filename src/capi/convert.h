// SPDX-License-Identifier: Apache-2.0
// Conversion between the structs of the C interface and the types of core. Versions meet here. An older caller's struct
// is shorter: the missing fields are zero, which is their default. A newer caller's struct is longer: the fields that
// this version does not have must be zero.
#pragma once
#include "attune/attune.h"
#include "core/args.h"

namespace attune {

inline constexpr size_t kMostBytes = 1 << 16;  // limit for a future struct; more is an uninitialised size

Status problem_of(const attune_problem* given, Problem& out);  // filled, with terminated text; not yet validated
Status problem_to(const Problem&, attune_problem& out);        // as much as fits in out.size, if nothing is lost
Status tensor_of(const attune_tensor& given, std::string_view name, Tensor& out);  // errors begin with the name
Status tensor_of(const attune_tensor& given, Role, Tensor& out);
Status copy_args(const attune_args* given, attune_args& out);  // a copy to add roles to

}  // namespace attune
