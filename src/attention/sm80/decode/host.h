// Few queries over many keys as sm80_forward sees them: which problems the decode kernels serve, and how.
#pragma once
#include "plan/backend.h"

namespace attune::sm80 {

constexpr int kMostRows = 64;  // (position, head) rows of a sequence and key head: beyond, taller tiles are better

// Whether the decode kernels serve all sequences of a problem; or, where a row's bits may not depend on the batch and
// some sequence may have too many queries for them, those sequences that have few.
enum class Few { none, some, all };
Few decode(const Problem&);

// Tiles, splits and workspace. Of some: only the workspace.
Status decode_shape(Plan&, Workspace& count);
// Of some: nothing where the host knows that all sequences have many.
Status decode_run(const Plan&, const Args&, Workspace&, Stream);

}  // namespace attune::sm80
