// SPDX-License-Identifier: Apache-2.0
// NVTX ranges of GPU runs, as a profiler sees them. No GPU required: nvtx_tool.cpp plays the profiler.
#include "machine/cuda/nvtx.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "tests/asked.h"

namespace {

int allocations = 0;

}  // namespace

// Not inlined: g++ 12 would see malloc paired with delete and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* place = std::malloc(bytes)) return place;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* place) noexcept { std::free(place); }
[[gnu::noinline]] void operator delete(void* place, size_t) noexcept { std::free(place); }

namespace attune {
namespace {

#ifdef ATTUNE_NVTX_TOOL
TEST(Nvtx, a_range_has_the_line_of_its_problem) {
  ASSERT_EQ(setenv("NVTX_INJECTION64_PATH", ATTUNE_NVTX_TOOL, 1), 0);
  const Problem outer = problem("forward bf16 b2 h8/2 q64 k64 d64 causal");
  const Problem inner = problem("forward f16 b1 h1 q8 k8 d64 full");
  {
    const cuda::Range of_nothing(nullptr);
    const cuda::Range range(&outer);
    const cuda::Range second(&inner);
  }
  void* tool = dlopen(ATTUNE_NVTX_TOOL, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(tool, nullptr) << "NVTX did not load " << ATTUNE_NVTX_TOOL;
  const auto heard = reinterpret_cast<const char* (*)()>(dlsym(tool, "nvtx_tool_heard"));
  EXPECT_EQ(std::string(heard()),
            "domain attune\npush forward bf16 b2 h8/2 q64 k64 d64 causal\npush forward f16 b1 h1 q8 k8 d64 full\n"
            "pop\npop\n");
}

// In a separate process, because NVTX searches for a tool only once.
TEST(Nvtx, without_a_tool_no_text_is_made) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto child = [] {
    unsetenv("NVTX_INJECTION64_PATH");
    const Problem p = problem("forward bf16 b2 h8/2 q64 k64 d64 causal");
    const int before = allocations;
    for (int n = 0; n < 10; ++n) const cuda::Range range(&p);
    std::_Exit(allocations == before ? 0 : 1);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}
#else
TEST(Nvtx, is_not_in_this_build) { GTEST_SKIP() << "this build has no GPU code, or NVTX's headers are not here"; }
#endif

}  // namespace
}  // namespace attune
