// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/backward/tile_table.h"

#include "attention/gpu/sort_by_length.h"
#include "machine/cuda/launcher.h"
#include "machine/sm80/dependent_launch.h"

namespace attune::sm90 {
namespace {

constexpr int kThreads = 1024;

__device__ KeyTile tile(const KeyTableParams& x, int n) {
  const int tiles = int(ceil_div(x.problem.len_k, x.tile_k)), b = n / tiles;
  KeyTile t = key_tile_of(sequence(x.problem, x.args, b), b);
  const int at = n - b * tiles;
  cut_key_tile(t, x.deterministic ? tiles - 1 - at : at, x.tile_q, x.tile_k, x.tile_q);
  return t;
}

__global__ void __launch_bounds__(kThreads) key_table_kernel(const __grid_constant__ KeyTableParams x) {
  sm80::wait_for_previous();
  sm80::admit_next();  // the next kernel waits until the table is ready
  const int count = int(key_table_size(x.problem, x.tile_k));
  if (x.deterministic) {
    for (int n = threadIdx.x; n < count; n += kThreads) x.table[n] = tile(x, n);
    return;
  }
  // Twice the length: put_by_length() does not tell a length of 1 from 0.
  sm80::put_by_length<kThreads>(
      count, [&](int n) { return tile(x, n); }, [](const KeyTile& t) { return uint32_t(2 * t.tiles); },
      [&](int place, const KeyTile& t) { x.table[place] = t; });
}

}  // namespace

Status make_key_table(const cuda::Launcher& launch, const KeyTableParams& x) {
  static constinit cuda::SharedMemoryOptIn ready;
  return launch({.kernel = cuda::address(key_table_kernel), .ready = &ready, .blocks = 1, .threads = kThreads}, x);
}

}  // namespace attune::sm90
