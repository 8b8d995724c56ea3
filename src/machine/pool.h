// SPDX-License-Identifier: Apache-2.0
// A stream-ordered memory pool. Small freed blocks are kept by size and by the stream that freed them, so the common
// case, the same sizes on the same stream again and again, needs no driver call. Large blocks go to the driver's own
// pool, which splits and joins them. The logic is here, over a table of the few operations of a driver; cuda/pool.cpp
// fills the table for a GPU, tests fill it with a model.
//
// When a block may be reused: on the stream that freed it, at once, because the stream's order suffices. On another
// stream, only after an event that the first stream recorded after the free. The event is recorded with the free and
// never later, since the stream may be gone by then. Streams are identified by an id that is never reused, unlike
// handles.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/status.h"

namespace attune {

struct PoolStream {
  uint64_t id = 0;  // never reused for another stream
  void* handle = nullptr;
};

// The driver below a pool. It must be thread-safe: take, give, mark and finish are called without the pool's lock,
// since the driver has locks of its own that a launch may hold for long.
struct PoolDriver {
  void* self = nullptr;
  void* side = nullptr;  // the pool's own stream: blocks whose stream may be gone are returned there
  // Memory for `stream` and all work ordered after it; `full`: out of memory. Multiples of 512 bytes.
  Status (*take)(void* self, size_t bytes, void* stream, void*& out, bool& full) = nullptr;
  Status (*give)(void* self, void* data, void* stream) = nullptr;    // returns memory, in stream order
  Status (*mark)(void* self, void* stream, void*& event) = nullptr;  // records; creates a null event first
  Status (*wait)(void* self, void* stream, void* event) = nullptr;   // the stream waits, not the caller
  bool (*passed)(void* self, void* event) = nullptr;
  Status (*finish)(void* self) = nullptr;                            // the caller waits for all streams
  Status (*shrink)(void* self, size_t keep) = nullptr;               // returns unused memory to the system
  size_t (*held)(void* self) = nullptr;                              // bytes held from the system
};

struct PoolPolicy {
  bool keep = true;                    // false: every block goes straight back to the driver
  size_t keep_most = size_t(4) << 20;  // larger blocks do too: the work on them takes longer than the driver call
  size_t slack = size_t(16) << 20;     // bytes that may be kept beyond the recent peak
  size_t mark_from = size_t(1) << 20;  // blocks from this size on are freed with an event
  size_t min_homes = 8;                // smaller ones too once more streams than this have free blocks
  uint64_t epoch = 1024;               // frees; the recent peak covers this epoch and the previous one
};

// "high": maximum since the last reset_marks().
struct PoolStatistics {
  uint64_t live_buffers = 0, live_bytes = 0;  // allocated and not yet freed, in requested bytes
  uint64_t block_bytes = 0;                   // of their blocks; the excess over live_bytes is lost to rounding
  uint64_t free_blocks = 0, free_bytes = 0;   // kept for reuse
  uint64_t held_bytes = 0;                    // held by the driver from the system, in total
  uint64_t high_buffers = 0, high_bytes = 0;  // of the live ones
  uint64_t high_reserved = 0;                 // of block_bytes + free_bytes
  uint64_t hits = 0, misses = 0;              // allocations from kept blocks, and from the driver
  uint64_t crossed = 0, waited = 0;           // hits with a block of another stream; those that had to wait for it
  uint64_t given_back = 0;                    // blocks returned to the driver
  uint64_t full = 0;                          // times the driver was out of memory
};

// Block sizes: multiples of 512 bytes up to 4 KiB, then eight per octave, so at most an eighth is lost.
inline constexpr int kPoolBuckets = 8 + 8 * 36;
inline constexpr size_t kPoolMost = size_t(1) << 48;
int pool_bucket(size_t bytes);  // the smallest that fits; 1 ... kPoolMost
size_t pool_bytes(int bucket);

// The pool of one device. Thread-safe.
class Pool {
 public:
  explicit Pool(const PoolDriver& driver, const PoolPolicy& policy = {}) : driver_(driver), policy_(policy) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // The buffer may be used by work on the stream and by all work ordered after it. If the driver is out of memory, the
  // pool waits for the device, since the driver returns no memory whose free has not completed. It then gives back all
  // free blocks and tries once more. 0 bytes count as 1.
  Status allocate(size_t bytes, PoolStream stream, void*& out);
  // All use of the buffer is ordered before this point of the stream. Null is allowed.
  Status free(void* data, PoolStream stream);
  // Gives back free blocks, least recently used first, until at most `keep` bytes are left, including live ones. Waits
  // for the device.
  Status trim(size_t keep);
  PoolStatistics statistics();
  void reset_marks();

 private:
  struct Block {
    void* data = nullptr;
    size_t bytes = 0, asked = 0;
    uint64_t freed = 0;  // time, counted in frees
    int bucket = 0;      // -1: not to be kept
    bool live = false;
  };
  using Blocks = std::list<Block>;
  // The free blocks of one stream, by bucket, most recently freed first.
  struct Home {
    uint64_t id = 0;
    size_t count = 0;                // blocks, including those whose event is being recorded
    void* event = nullptr;           // stays with the home when it serves another stream
    uint64_t bare = 0, covered = 0;  // blocks freed without an event; how many of them precede the last event
    std::array<Blocks, kPoolBuckets> free{};
    bool marked() const { return event && covered == bare; }
    int first(int bucket) const;  // a bucket with a block of that size or one step larger; -1: none
  };
  using Lock = std::unique_lock<std::mutex>;

  Lock locked();
  Home* find(uint64_t id);
  Home& home_of(PoolStream);
  Status mark(Home&, void* stream, Lock&);
  void* out_of(Home&, int bucket, size_t asked);
  bool from_others(int bucket, size_t asked, PoolStream, Home*& later, void*& out);
  bool crossed(int bucket, size_t asked, PoolStream, Lock&, void*& out);
  Status grow(int bucket, size_t asked, PoolStream, Lock&, void*& out);
  void release_to(size_t bytes, uint64_t done_until);
  void count_live(const Block&);
  size_t limit(size_t wanted) const;

  const PoolDriver driver_;
  const PoolPolicy policy_;
  std::mutex mutex_;
  Blocks live_;
  std::unordered_map<void*, Blocks::iterator> blocks_;  // live and free
  std::vector<std::unique_ptr<Home>> homes_;            // empty homes are reused
  PoolStatistics now_;
  uint64_t frees_ = 0;
  size_t kept_live_ = 0;               // part of block_bytes that will be kept
  size_t peak_ = 0, peak_before_ = 0;  // of kept_live_
};

}  // namespace attune
