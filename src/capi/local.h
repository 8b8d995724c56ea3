// SPDX-License-Identifier: Apache-2.0
// Per-thread state that is kept between calls, and the conversion of a Status to a return code and a message. Shared by
// the files of the C interface.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <utility>

#include "attune/attune.h"
#include "core/args.h"

namespace attune {

inline constexpr size_t kWorkspaceAlign = 64;  // a cache line; buffers inside are 256 bytes apart

// Totals over the buffers that all threads currently keep.
struct LentTotals {
  std::atomic<uint64_t> buffers{0}, bytes{0}, high_buffers{0}, high_bytes{0};
};
LentTotals& lent_totals();

// CPU scratch memory, lent to callers that provide none. It only grows and is freed with its thread.
class Lent {
 public:
  Lent() = default;
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() { release(); }
  std::byte* at_least(size_t wanted) { return bytes_ >= wanted ? data_ : grown(wanted); }  // null: out of memory
  size_t bytes() const { return bytes_; }
  void release();

 private:
  std::byte* grown(size_t wanted);
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

struct Local {
  Code code = Code::ok;   // of the last call
  std::string error;
  const char* last = "";  // points into `error`, or to a literal if memory ran out
  Args args;
  int given[ATTUNE_ROLES] = {}, count = 0;  // roles that are set in args
  Lent lent;
};
inline Local& local() {
  thread_local Local mine;
  return mine;
}

// No exception leaves the library: the caller gets a message.
template <class F>
int answer(F f) noexcept {
  Local& mine = local();
  try {
    Status s = f();
    mine.code = s.code;
    if (s.ok()) return mine.last = "", 0;
    mine.error = std::move(s.message);
    mine.last = mine.error.c_str();
  } catch (const std::bad_alloc&) {
    mine.code = Code::out_of_memory, mine.last = "attune: out of memory";
  } catch (...) {
    mine.code = Code::internal, mine.last = "attune: an exception inside the library";
  }
  return 1;
}

}  // namespace attune
