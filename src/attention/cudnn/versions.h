// SPDX-License-Identifier: Apache-2.0
// Limits and errors of each cuDNN version, refused during planning. Most come from the checks of NVIDIA's
// cudnn-frontend; those observed here name the place. A pure function, since no machine has every version.
#pragma once
#include "core/device.h"
#include "core/problem.h"

namespace attune::cudnn {

// `version` is 91500 for 9.15.0. The message does not include the backend's name.
inline Status serves(int64_t version, const Problem& p, const Device& d) {
  const auto no = [&](const auto&... why) {
    return Status::unsupported("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100, " ", why...);
  };
  const Mask& m = p.mask;
  const bool backward = p.pass == Pass::backward, window = m.kind == MaskKind::window;
  const bool left = window && m.left != kNoLimit, right = m.kind == MaskKind::causal || (window && m.right != kNoLimit);
  const bool from_end = (left || right) && m.align == Align::bottom_right && p.len_q != p.len_k;
  if (version == 91000 || version == 91001) return no("has known errors in attention; 9.10.2 does not");
  if (version == 91400 && left && !right && p.len_k > 1024)
    return no("gets a window without a right end wrong over k", p.len_k, "; 9.14.1 does not");
  if (version < 90600 && backward) return no("is before 9.6, the first for a backward");
  if (version < 90600 && from_end) return no("is before 9.6, the first for masks from the last key back");
  if (version < 91002 && left && !right) return no("is before 9.10.2, the first for a window without a right end");
  if (version < 91000 && p.len_q == 1 && right) return no("is before 9.10, the first to mask a single query");
  if (version < 91000 && d.arch < 90 && (p.dim_qk > 128 || p.dim_v > 128))
    return no("is before 9.10, the first with dims over 128 on sm_", d.arch);
  if (!backward) return Status::good();
  if (p.len_q == 1 && p.len_k == 1) return no("has no backward of one query and one key");
  // Observed with 9.14 on an H200: wrong gradients in five parity cases. cudnn-frontend adds a padding mask instead.
  if (version <= 91500 && p.len_k % 128) return no("gets k", p.len_k, " wrong, which is not a multiple of 128");
  return Status::good();
}

}  // namespace attune::cudnn
