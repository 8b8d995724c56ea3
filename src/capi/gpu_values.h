// check_values() for tensors on a GPU: waits for it and copies the small integer tensors here. For attune_check only.
#pragma once
#include "core/args.h"

namespace attune {

Status check_values_on_gpu(const Problem&, const Args&);  // of arguments that passed check()

}  // namespace attune
