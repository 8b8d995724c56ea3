// SPDX-License-Identifier: Apache-2.0
// Fills the tables of core/variant/shard.h on a GPU: lengths of packed sequences are known only there. In a build
// without CUDA it refuses with a sentence.
#pragma once
#include "core/variant/shard.h"
#include "core/status.h"

namespace attune::cuda {

Status fill_tables(const ShardTables&, int index, void* stream);  // on GPU number `index`
Status cut_lists(const ListCut&, int index, void* stream);

}  // namespace attune::cuda
