// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "machine/sm80/mma.h"

namespace attune::sm80 {

inline void copy16(uint32_t to, const void* from) { std::memcpy(emulated::shared(to), from, 16); }
inline void close_group() {}
template <int>
void wait_groups() {}
inline void store_shared(uint32_t to, uint32_t x) { std::memcpy(emulated::shared(to), &x, 4); }
// A thread that polls a counter does not run again before something has changed.
inline int load_count(const int* from) {
  emulated::Thread* const me = emulated::gpu.now;
  emulated::wait_until("a count", [=] { return me->asked != emulated::gpu.events; });
  me->asked = emulated::gpu.events, me->unfenced = true;
  return *from;
}
inline uint64_t load_mark(const uint64_t* from) { return *from; }
inline void add_count(int* to) { ++*to, ++emulated::gpu.events, emulated::hold_other_lanes(); }
inline int next_count(int* to) {
  ++emulated::gpu.events, emulated::hold_other_lanes();
  return (*to)++;
}

}  // namespace attune::sm80
