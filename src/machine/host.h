// This machine: what its CPU can do, how many threads to use, which optional libraries are there.
#pragma once
#include "core/device.h"

namespace attune {

// The CPU of this machine with all it can do; `units` is the number of threads a run uses.
const Device& this_cpu();

// "cpu", "cpu:scalar", "cpu:neon", "cpu:avx2", ... (this CPU without what comes after the word), or a device one
// can plan for: "h200".
Status device_named(std::string_view word, Device& out);

// Threads of a CPU run: those this process may run on, unless set. Affects plans made afterwards.
int default_threads();

}  // namespace attune
