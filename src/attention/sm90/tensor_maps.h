// SPDX-License-Identifier: Apache-2.0
// The TMA tensor maps of one run, for host code: a list of requests, and one sentence if the driver refuses one.
#pragma once
#include <initializer_list>

#include "core/check.h"
#include "core/problem.h"
#include "machine/cuda/tensor_map.h"

namespace attune::sm90 {

// Tiles of `rows` rows of `tensor`. A map cannot be empty: without rows, the caller gives a tensor that is never read.
struct MapRequest {
  Role role;
  const Tensor& tensor;
  CUtensorMap* to;
  int rows;
  bool wanted = true;
  int heads = 1;  // of a tile, one after another
};

inline Status make_maps(std::string_view who, const Problem& p, std::initializer_list<MapRequest> requests) {
  for (const MapRequest& x : requests) {
    if (!x.wanted) continue;
    if (const Status s = cuda::tensor_map(x.tensor, x.rows, *x.to, x.heads); !s.ok())
      return Status::failure(s.code, who, ": ", name(x.role), ": ", s.message, ", in: ", name(p));
  }
  return Status::good();
}

// Row statistics as lines of 2 * `padded` f32 numbers, one per head, of which a step takes those of `rows` rows. Not by
// plain bulk copies: racecheck treats those as writes of the issuing thread.
inline Status make_stats_map(std::string_view who, const Problem& p, const float2* stats, int padded, int rows,
                             CUtensorMap& to) {
  const Status s = cuda::line_map(&stats->x, 2 * int64_t(padded), p.heads_q, p.batch, 2 * rows, to);
  return s.ok() ? s : Status::failure(s.code, who, ": statistics: ", s.message, ", in: ", name(p));
}

}  // namespace attune::sm90
