// SPDX-License-Identifier: Apache-2.0
// Memory kept by an object of the C interface: bytes on the CPU or on a GPU, owned or borrowed.
#pragma once
#include <memory>

#include "machine/cuda/runtime.h"

namespace attune {

struct CacheStorage {
  std::byte* data = nullptr;
  std::unique_ptr<std::byte[]> here{};
  cuda::Memory there{};

  Status allocate(bool gpu, int index, size_t bytes) {
    constexpr size_t kAlign = 64;
    if (gpu) {
      if (Status s = there.allocate(index, bytes); !s.ok()) return s.after("cache: ");
      return data = there.data(), Status::good();
    }
    here.reset(new (std::nothrow) std::byte[bytes + kAlign]);
    if (!here) return Status::failure(Code::out_of_memory, "cache: ", bytes, " bytes could not be allocated");
    const uintptr_t first = reinterpret_cast<uintptr_t>(here.get());
    return data = here.get() + (kAlign - first % kAlign) % kAlign, Status::good();
  }
};

}  // namespace attune
