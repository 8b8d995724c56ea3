// Compiled kernels in tables, a row each: numbers that `shape` chooses by, `threads`, `shared_bytes`, and functions for
// f16 and bf16 with what is ready of them. Tables lie in files of their own, so that a build compiles them side by
// side; a plan holds a number that counts through all of them.
#pragma once
#include <span>

#include "machine/cuda/launch.h"

namespace attune::cuda {

template <class Kernel>
using KernelTable = std::span<Kernel> (*)();

// The first that is wanted, and its number; null where none is.
template <class Kernel, size_t N, class F>
Kernel* find_kernel(const KernelTable<Kernel> (&tables)[N], F wanted, int* number = nullptr) {
  int n = 0;
  for (const auto table : tables)
    for (Kernel& k : table()) {
      if (wanted(k)) return number ? *number = n : 0, &k;
      ++n;
    }
  return nullptr;
}

template <class Kernel, size_t N>
Kernel& kernel_at(const KernelTable<Kernel> (&tables)[N], int number) {
  return *find_kernel(tables, [&](const Kernel&) { return number-- == 0; });
}

// For the caller to say who, how many blocks, where and in which stream.
template <class Kernel>
Launch launch_of(Kernel& k, DType q) {
  const int type = q == DType::bf16;
  return {.kernel = reinterpret_cast<const void*>(k.function[type]),
          .ready = &k.ready[type],
          .threads = k.threads,
          .shared_bytes = k.shared_bytes};
}

}  // namespace attune::cuda
