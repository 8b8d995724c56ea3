// SPDX-License-Identifier: Apache-2.0
// Decode for sm80_forward: few queries over many keys. Declares which problems the decode kernels serve, and how.
#pragma once
#include "plan/backend.h"

namespace attune::sm80 {

constexpr int kMostDecodeRows = 64;  // (position, head) rows per sequence and KV head; above, taller tiles are faster

// Which sequences of a problem the decode kernels serve. `some`: with repro=batch, if some sequence may have too many
// queries, only the sequences with few.
enum class DecodeShare { none, some, all };
DecodeShare decode_share(const Problem&);

// Sets tiles, splits and workspace; for DecodeShare::some only the workspace.
Status decode_shape(Plan&, Workspace& count);
// For DecodeShare::some, does nothing if the host can tell that all sequences have many queries.
Status decode_run(const Plan&, const Args&, Workspace&, Stream);

}  // namespace attune::sm80
