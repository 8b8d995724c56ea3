// This machine: what its CPU can do, how many threads to use, which optional libraries are there.
#pragma once
#include <cstddef>

#include "core/device.h"

namespace attune {

// The CPU of this machine with all it does well; `units` is default_threads() as of now. What it has but does slowly
// (VDPBF16PS on Intel: 77 GFLOP/s a core where f32 multiply-adds reach 128) is there only if asked for by name.
Device this_cpu();

// "cpu", "cpu:scalar", "cpu:neon", "cpu:avx2", ... (this CPU without what comes after the word), "cuda:0" (a GPU that
// is here; "cuda" is the first), or a device one can plan for: "h200".
Status device_named(std::string_view word, Device& out);

// Threads of a CPU run: those this process may run on, unless set. Affects plans made afterwards.
int default_threads();
inline constexpr int kMostThreads = 4096;  // that may be asked for
void set_threads(int threads);  // 0: as many as this process may run on. Safe from any thread

// Scratch memory of this machine for its CPU, null where there is none: a large one in large pages where the system has
// them, since packed operands are read all over it. What is as large as a page of 2 MiB begins with one.
void* take_scratch(size_t bytes);
void free_scratch(void* data);

// How the two read what the kernel says; pure. The name of a CPU from /proc/cpuinfo, and the threads that a cgroup's
// cpu.max ("150000 100000", "max 100000") is worth, 0 without a limit.
std::string cpu_name(std::string_view cpuinfo);
int quota_threads(std::string_view cpu_max);

}  // namespace attune
