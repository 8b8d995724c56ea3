// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace attune::sm80 {

inline void admit_next() {}
inline void wait_for_previous() {}

}  // namespace attune::sm80
