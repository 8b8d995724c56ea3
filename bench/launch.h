// For call_overhead.cpp, which has no CUDA syntax.
#pragma once

bool launch_nothing(void* stream);  // a kernel that does nothing; false: CUDA refused
