// How ranks reach each other: a table of a few functions, so that threads, MPI, NCCL and whatever a caller brings are
// the same to a variant. Between two ranks messages arrive in the order they were sent; a receive says how many bytes
// it expects, and a message of another size is an error. Nothing here waits for ever.
#pragma once
#include <cstddef>
#include <cstdint>

namespace attune {

struct Transfer {
  int32_t peer = 0;
  int32_t receive = 0;     // 0: send
  void* data = nullptr;    // the transport's until finish()
  size_t bytes = 0;
};

struct Transport {
  void* self = nullptr;
  int32_t rank = 0, ranks = 1;
  // 1: takes addresses of a GPU; the data is there when `stream` comes to start(), and `stream` goes on after finish()
  // when it has moved. 0: memory of the host only.
  int32_t gpu = 0;
  // Begins all of them and returns. `device` is the GPU, -1: memory of the host. 0 is good.
  int (*start)(void* self, const Transfer* transfers, int32_t count, int32_t device, void* stream, void** ticket) =
      nullptr;
  // Ends what start() began, within so many seconds. 0 is good. A ticket is finished once, whatever the answer.
  int (*finish)(void* self, void* ticket, double seconds, void* stream) = nullptr;
  // This rank does not go on: peers are told where that is possible, and nothing that was started touches memory any
  // more. May be null.
  void (*fail)(void* self, const char* why) = nullptr;
  const char* (*error)(void* self) = nullptr;  // of the last answer that was not 0: a sentence
  void (*destroy)(void* self) = nullptr;       // may be null
};

}  // namespace attune
