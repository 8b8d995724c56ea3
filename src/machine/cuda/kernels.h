// SPDX-License-Identifier: Apache-2.0
// Tables of compiled kernels, one row each: numbers that `shape` selects by, `threads`, `shared_bytes`, and the
// functions for f16 and bf16 with their opt-in state. Tables are in separate files, so that a build compiles them in
// parallel. A plan holds an index that counts through all of them.
#pragma once
#include <span>

#include "machine/cuda/launcher.h"

namespace attune::cuda {

template <class Kernel>
using KernelTable = std::span<Kernel> (*)();

// The first kernel that satisfies `wanted`, and its index; null if none does.
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

// The caller fills in the blocks.
template <class Kernel>
Launch launch_of(Kernel& k, DType q) {
  const int type = q == DType::bf16;
  return {.kernel = address(k.function[type]),
          .ready = &k.ready[type],
          .threads = k.threads,
          .shared_bytes = k.shared_bytes};
}

}  // namespace attune::cuda
