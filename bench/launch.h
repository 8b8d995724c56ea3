// SPDX-License-Identifier: Apache-2.0
// For call_overhead.cpp, which has no CUDA syntax.
#pragma once

bool launch_nothing(void* stream);  // an empty kernel; false: CUDA error
