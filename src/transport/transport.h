// SPDX-License-Identifier: Apache-2.0
// How ranks reach each other: a table of a few functions, so that threads, MPI, NCCL and a caller's own transport look
// the same to a variant. Messages between two ranks arrive in order. A receive states its size, and a message of
// another size is an error. Nothing here waits forever.
#pragma once
#include <cstddef>
#include <cstdint>

namespace attune {

struct Transfer {
  int32_t peer = 0;
  int32_t receive = 0;     // 0: send
  void* data = nullptr;    // owned by the transport until finish()
  size_t bytes = 0;
};

struct Transport {
  void* self = nullptr;
  int32_t rank = 0, ranks = 1;
  // 1: accepts GPU addresses. The data is valid when `stream` reaches start(), and `stream` continues after finish()
  // once it has moved. 0: host memory only.
  int32_t gpu = 0;
  // Starts all transfers and returns. `device` is the GPU; -1: host memory. 0 means success.
  int (*start)(void* self, const Transfer* transfers, int32_t count, int32_t device, void* stream, void** ticket) =
      nullptr;
  // Finishes a start() within `seconds`. 0 means success. A ticket is finished exactly once, whatever the result.
  int (*finish)(void* self, void* ticket, double seconds, void* stream) = nullptr;
  // This rank stops: tells its peers if possible, and started transfers no longer touch memory. May be null.
  void (*fail)(void* self, const char* why) = nullptr;
  const char* (*error)(void* self) = nullptr;  // message for the last nonzero result
  void (*destroy)(void* self) = nullptr;       // may be null
};

}  // namespace attune
