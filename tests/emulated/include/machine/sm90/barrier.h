// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tests/emulated/gpu.h"

namespace attune::sm90 {

inline uint32_t shared_address(const void* p) {
  const char *at = static_cast<const char*>(p), *begin = emulated::shared(0);
  return at >= begin && at < begin + emulated::kSharedBytes ? uint32_t(at - begin) : 0;  // 0: the array itself
}
using Mbarrier = uint64_t;
inline void barrier_init(uint32_t barrier, int arrivals) { emulated::init_barrier(barrier, arrivals); }
inline void barrier_init_done() {}
inline void arrive(uint32_t barrier) { emulated::arrive_at(barrier); }
inline void arrive_expect(uint32_t barrier, uint32_t bytes) { emulated::arrive_at(barrier, int(bytes)); }
inline void wait(uint32_t barrier, uint32_t parity) { emulated::wait_at(barrier, parity); }
inline void named_sync(int number, int threads) { emulated::meet_named(number, threads, "a named barrier"); }
inline void named_arrive(int number, int threads) { emulated::meet_named(number, threads, "", false); }
template <int>
void grow_registers() {}
template <int>
void shrink_registers() {}

}  // namespace attune::sm90
