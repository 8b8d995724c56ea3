// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper: the roles of warpgroups and threads of a CTA, and the named barriers at which its two
// consumer warpgroups meet. For all backward kernels. Barrier 0 is __syncthreads().
#pragma once

namespace attune::sm90 {

enum Warpgroup : int { kProducerGroup = 0, kFirstConsumer = 1 };
// Threads of the producer warpgroup: kLoader loads. In persistent CTAs, those from kHelpers on add dQ or prepare ahead.
// With lists, they walk the lists, and those from kListHelpers on prepare ahead.
enum ProducerThread : unsigned { kLoader = 0, kHelpers = 32, kListHelpers = 64 };

inline constexpr int kConsumerThreads = 256;
enum FusedBarrier : int { kConsumersMeet = 1 };
enum DkDvBarrier : int { kValuesMultiply = 1, kKeysMultiply = 2 };  // two-kernel dK/dV: one lets the other multiply

}  // namespace attune::sm90
