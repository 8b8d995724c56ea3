// Between the structs of the C interface and the types of the core. Versions meet here: an older caller's struct is
// shorter, and the fields it does not know are zero, which is their default; a newer caller's is longer, and what this
// version does not know must be zero.
#pragma once
#include "attune/attune.h"
#include "core/args.h"

namespace attune {

inline constexpr size_t kMostBytes = 1 << 16;  // of a struct of the future; more is a size that was never set

Status problem_of(const attune_problem* given, Problem& out);  // filled, its text has an end; not yet valid
Status problem_to(const Problem&, attune_problem& out);        // as much as out.size has room for, if that says it all
Status tensor_of(const attune_tensor& given, Role, Tensor& out);
Status copy_args(const attune_args* given, attune_args& out);  // to add roles to

}  // namespace attune
