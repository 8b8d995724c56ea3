// SPDX-License-Identifier: Apache-2.0
// This machine: the features of its CPU, the number of threads to use, and the optional libraries it has.
#pragma once
#include <cstddef>

#include "core/device.h"

namespace attune {

// The CPU of this machine with all features that are fast; `units` is the current default_threads(). Features that are
// present but slow (VDPBF16PS on Intel: 77 GFLOP/s per core where f32 multiply-adds reach 128) must be requested by
// name.
Device this_cpu();

// "cpu", "cpu:scalar", "cpu:neon", "cpu:avx2", ... (this CPU limited to that level), "cuda:0" (a GPU that is present;
// "cuda" is the first), or a device to plan for: "h200".
Status device_named(std::string_view word, Device& out);

// Threads of a CPU run: those available to this process, unless set. Affects plans made afterwards.
int default_threads();
inline constexpr int kMostThreads = 4096;  // upper bound for requests
void set_threads(int threads);             // 0: all available to this process. Thread-safe

// Scratch memory for the CPU; null on failure. Large blocks use huge pages where the system has them, since packed
// operands are read all over them. A block of 2 MiB or more is aligned to 2 MiB.
void* take_scratch(size_t bytes);
void free_scratch(void* data);

// Pure parsers of kernel files: the name of a CPU from /proc/cpuinfo, and the threads that a cgroup's cpu.max ("150000
// 100000", "max 100000") allows, 0 without a limit.
std::string cpu_name(std::string_view cpuinfo);
int quota_threads(std::string_view cpu_max);

}  // namespace attune
