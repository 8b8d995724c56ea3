// SPDX-License-Identifier: Apache-2.0
// Emulates a Hopper GPU on a CPU, for kernel code. Every thread of a CTA is a fiber with its own stack. Warps advance
// and copies land in the order of a schedule (schedule.h), and products read shared memory when they are waited for.
// Errors are sentences that name the CTA and the warp:
//   a deadlock; a barrier with too many arrivals, with unexpected bytes, or left with pending ones;
//   a wait that passes on a phase that the thread has already waited for, or two phases late;
//   an access to shared memory that no barrier orders, or before the data has arrived (clock.h);
//   a CTA that ends before its copies; a named barrier with too many threads, or with two counts.
// Not emulated: memory order among threads, registers, time.
//
// The headers in include/ replace cuda.h and the headers of machine/ that consist of PTX.
#pragma once
#include <ucontext.h>

#include <bit>
#include <bitset>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <type_traits>
#include <utility>

#include "tests/emulated/clock.h"
#include "tests/emulated/schedule.h"

#define __device__
#define __host__
#define __global__
#define __shared__
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

namespace attune::emulated {

inline constexpr int kStack = 64 * 1024;

struct Barrier {
  int arrivals = 0, missing = 0, bytes = 0;
  unsigned phase = 0;         // completed phases
  unsigned loaded = 0;        // last phase for which copies have been issued
  uint32_t agent = 0;         // index in a clock
  Clock gathered{}, given{};  // of the arrivals so far; of the completed phases
};
// A rendezvous of the lanes of a warp or the threads of a named barrier: the last to arrive releases all.
struct Meeting { int there = 0; unsigned round = 0; };
struct Named : Meeting {
  int threads = 0;
  std::bitset<kWarps * 32> who{};
  Clock gathered{}, given{};
};
struct Warp : Meeting {
  uint32_t said[2][32][4] = {};
  Clock clock{};
  bool weighed = false;           // a product with A in registers has been issued
  unsigned seen[kBarriers] = {};  // phase of each barrier when one of its lanes last waited for it
};
struct Thread;
struct Block {
  unsigned number = 0, place = 0;  // index in the grid, and among the resident CTAs
  int threads = 0, alive = 0;
  char* shared = nullptr;
  std::map<uint32_t, Barrier> barriers{};
  Warp warps[kWarps];
  Thread* of_warp[kWarps][32] = {};
  Named named[16];
  Shadow shadow{};
};
struct Range { uint32_t address; int bytes; };
// A warp's product as issued by one lane; computed for all lanes when they wait for it.
struct Issued {
  float* to = nullptr;
  void (*run)(Block&, int warp, Issued* const (&of_lanes)[32]) = nullptr;
  uint32_t a = 0, b = 0;
  bool add = false, weighs = false;  // weighs: A is in registers
  bool idle = false;                 // its result is discarded
  bool tainted = false;              // reads what another warp writes: its sums are NaN
  float rows[2][16] = {};            // A, if in registers
  std::vector<float> before{};       // accumulators; NaN until the product has been waited for
};
struct Thread {
  ucontext_t context{};
  std::unique_ptr<char[]> stack{new char[kStack]};
  Block* block = nullptr;
  unsigned number = 0;
  bool done = false;
  const char* waits = "";            // reason
  uint32_t barrier = 0, parity = 0;  // if it waits for an mbarrier
  std::function<bool()> ready{};     // empty: not waiting
  uint64_t asked = ~0ull;            // events when it last polled a counter
  unsigned seen[kBarriers] = {};     // phase of each barrier when it last waited for it
  int unread = 0, unwritten = 0;     // bulk stores that have not read shared memory yet; not written yet
  std::vector<Range> sent{};         // ranges they read, until waited for
  bool held = false;                 // does not run while anything else can
  bool unfenced = false;             // has read a counter of other CTAs, and no fence of the async proxy since
  std::vector<Issued> open{};        // products not committed to a group yet
  std::vector<std::vector<Issued>> groups{};
};
struct Copy { int delay; Block* into; std::function<void()> land; };  // into: null for copies out of shared memory

// The emulated GPU; there is only one.
struct Gpu {
  std::mt19937 random{1};
  Schedule schedule{};
  unsigned blocks = 0;
  Thread* now = nullptr;
  ucontext_t scheduler{};
  std::vector<Copy> copies;
  std::vector<int> rank;      // of the warps of all CTAs
  int lowest = 0;             // lowest rank so far
  unsigned change = 64;       // inverse probability that a warp drops to it
  bool phases_once = false;   // threads wait once per phase: a repeated wait is an error
  uint64_t events = 0;        // changes that others may wait for
  bool taints = false;        // racing products are allowed if their sums are discarded
  std::string wrong;          // the first error
  int64_t products = 0;       // product groups of all threads
  std::function<void(const char* data, int row, int head, int batch)> loads{};  // called for each loaded tile, if set
  std::function<std::string(uint32_t barrier)> barrier_name{};                  // for messages; may be empty
};
inline Gpu gpu;

inline std::string name_of(uint32_t barrier) {
  return gpu.barrier_name ? gpu.barrier_name(barrier) : "barrier " + std::to_string(barrier);
}
inline std::string who(const Thread& x) {
  return "block " + std::to_string(x.block->number) + " warp " + std::to_string(x.number / 32) + " lane " +
         std::to_string(x.number % 32);
}
inline void may_not_be(const std::string& what) {
  if (gpu.wrong.empty()) gpu.wrong = gpu.now ? who(*gpu.now) + ": " + what : what;
}
inline int lane() { return int(gpu.now->number % 32); }
inline Warp& my_warp() { return gpu.now->block->warps[gpu.now->number / 32]; }
inline Clock& my_clock() { return my_warp().clock; }
inline uint32_t my_time() { return my_clock().at[gpu.now->number / 32]; }
// Publishes this warp's clock to others; later operations get a new time.
inline void tell_clock(Clock& to) { to.join(my_clock()), ++my_clock().at[gpu.now->number / 32]; }

// A lane has announced to other CTAs what its warp wrote. Under every second seed, lanes that are behind it, and may
// not have written yet, stay behind as long as anything else can run.
inline void hold_other_lanes() {
  if (gpu.schedule.seed % 2 == 0) return;
  for (Thread* x : gpu.now->block->of_warp[gpu.now->number / 32])
    if (x && x != gpu.now) x->held = true;
}

inline void to_scheduler() {
  Thread& me = *gpu.now;
  swapcontext(&me.context, &gpu.scheduler);
  me.ready = nullptr;
}
// A point where other threads may run.
inline void pause() {
  if (gpu.random() % (gpu.schedule.pace == Pace::random ? 16 : 4)) return;
  gpu.now->waits = "its turn";
  to_scheduler();
}
// `crossing`: false for operations among the lanes of one warp.
inline void wait_until(const char* what, std::function<bool()> ready, bool crossing = true) {
  const bool random = gpu.schedule.pace == Pace::random || !crossing;
  if (crossing && gpu.schedule.pace == Pace::ranked && gpu.random() % gpu.change == 0)
    gpu.rank[gpu.now->block->place * unsigned(gpu.now->block->threads / 32) + gpu.now->number / 32] = --gpu.lowest;
  if (ready() && random && gpu.random() % 8) return;
  gpu.now->waits = what, gpu.now->ready = std::move(ready);
  to_scheduler();
}
// True for the last to arrive.
inline bool meet(Warp& m) {
  const unsigned round = m.round;
  if (++m.there == 32) {
    m.there = 0, ++m.round;
    return true;
  }
  wait_until("its warp", [&m, round] { return m.round != round; }, false);
  return false;
}
inline void meet_named(int number, int threads, const char* what, bool waits = true) {
  pause();
  Named& m = gpu.now->block->named[number];
  const unsigned round = m.round;
  if (m.there == 0) m.threads = threads;
  const std::string name = number ? "named barrier " + std::to_string(number) : what;
  if (m.threads != threads)
    may_not_be(name + " of " + std::to_string(m.threads) + " threads is one of " + std::to_string(threads));
  if (m.who[gpu.now->number]) may_not_be("comes twice to " + name + " of " + std::to_string(threads) + " threads");
  m.who[gpu.now->number] = true;
  tell_clock(m.gathered);
  if (++m.there == threads) {
    m.there = 0, ++m.round, ++gpu.events, m.given = m.gathered;
    m.who.reset();
    if (waits) my_clock().join(m.given);
  } else if (waits) {
    wait_until(what, [&m, round] { return m.round != round; });
    my_clock().join(m.given);
  }
}
// Exchanges one value per lane within the warp.
inline auto tell(const uint32_t* what, int count) -> uint32_t (*)[4] {
  Warp& warp = my_warp();
  auto* const said = warp.said[warp.round & 1];
  std::copy(what, what + count, said[lane()]);
  meet(warp);
  return said;
}
inline char* shared(uint32_t address) { return gpu.now->block->shared + address; }
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

inline Barrier& barrier_at(Block& block, uint32_t address) {
  static Barrier none;
  const auto found = block.barriers.find(address);
  if (found != block.barriers.end()) return found->second;
  may_not_be("there is no barrier at " + std::to_string(address));
  return none = {.arrivals = 1 << 20, .missing = 1 << 20, .agent = kWarps};
}
inline void settle(Barrier& b) {
  if (b.missing || b.bytes) return;
  ++b.phase, ++gpu.events, b.missing = b.arrivals;
  b.given = b.gathered, b.given.at[b.agent] = b.phase;
}
inline void init_barrier(uint32_t address, int arrivals) {
  auto& all = gpu.now->block->barriers;
  const uint32_t agent = kWarps + uint32_t(all.size());
  if (agent == kAgents) may_not_be("so many barriers are not provided for");
  if (!all.emplace(address, Barrier{.arrivals = arrivals, .missing = arrivals, .agent = agent}).second)
    may_not_be(name_of(address) + " begins twice");
}
inline void arrive_at(uint32_t address, int bytes = 0) {
  pause();
  Barrier& b = barrier_at(*gpu.now->block, address);
  b.bytes += bytes;
  tell_clock(b.gathered);
  if (--b.missing < 0)
    may_not_be("one arrival too many at " + name_of(address) + " in phase " + std::to_string(b.phase));
  settle(b);
}
// Waits by parity. If the barrier is two phases behind, the wait passes on the previous phase; if two ahead, on the
// next; both are errors. A thread that has never waited passes on the phase before the first.
inline void wait_at(uint32_t address, uint32_t parity) {
  Barrier* const b = &barrier_at(*gpu.now->block, address);
  Thread& me = *gpu.now;
  me.barrier = address, me.parity = parity;
  wait_until("", [=] { return (b->phase & 1) != parity; });
  unsigned &seen = me.seen[b->agent - kWarps], &of_warp = my_warp().seen[b->agent - kWarps];
  if (gpu.phases_once && seen && seen == b->phase)
    may_not_be("waits for phase " + std::to_string(seen + 1) + " of " + name_of(address) + ", and passes on phase " +
               std::to_string(seen - 1));
  if (b->phase >= of_warp + 3)
    may_not_be("waits for phase " + std::to_string(of_warp) + " of " + name_of(address) + ", and passes on phase " +
               std::to_string(b->phase - 1));
  seen = of_warp = b->phase;
  my_clock().join(b->given);
}

// Checks of thread accesses, in 16-byte pieces.
inline void check(const std::string& what) {
  if (!what.empty()) may_not_be(what);
}
inline void reads_shared(uint32_t address, int bytes) {
  Shadow& s = gpu.now->block->shadow;
  for (uint32_t n = address / 16; n < (address + uint32_t(bytes) + 15) / 16; ++n) {
    check(s.unseen(s.pieces[n], n * 16, my_clock(), false));
    uint32_t& last = s.pieces[n].read[gpu.now->number / 32];
    if (last != Piece::kPending) last = my_time();
  }
}
inline void writes_shared(uint32_t address, int bytes) {
  check(gpu.now->block->shadow.write(address, bytes, my_clock(), gpu.now->number / 32, my_time()));
}
// A fence publishes this warp's writes to the async proxy.
inline void publish() {
  const uint32_t warp = gpu.now->number / 32;
  gpu.now->block->shadow.published[warp] = my_clock().at[warp]++;
}

inline void land_later(int most, Block* into, std::function<void()> land) {
  // Occasionally one copy is later than all others.
  const int delay = gpu.random() % 64 == 0 ? 20 * most : int(gpu.random() % unsigned(most));
  gpu.copies.push_back({delay, into, std::move(land)});
}
// A copy of `bytes` to shared memory that completes on a barrier.
template <class Write>
void load_later(uint32_t to, int bytes, uint32_t barrier, Write write) {
  pause();
  Block* const block = gpu.now->block;
  Barrier& of_issue = barrier_at(*block, barrier);
  of_issue.loaded = of_issue.phase + 1;
  const std::string wrong = block->shadow.write(to, bytes, my_clock(), of_issue.agent, of_issue.phase + 1);
  if (!wrong.empty())
    may_not_be("a copy for phase " + std::to_string(of_issue.phase) + " of " + name_of(barrier) + " " + wrong);
  land_later(40, block, [=] {
    write(block->shared);
    Barrier& b = barrier_at(*block, barrier);
    b.bytes -= bytes;
    if (b.bytes < 0)
      may_not_be("a copy brings more bytes than " + name_of(barrier) + " expects in phase " + std::to_string(b.phase));
    settle(b);
  });
}
// A bulk store of this thread: it reads shared memory after a delay, and writes the data after another.
template <class Write>
void store_later(uint32_t from, int bytes, Write write) {
  pause();
  Thread* const who = gpu.now;
  Shadow& s = who->block->shadow;
  for (uint32_t n = from / 16; n < (from + uint32_t(bytes) + 15) / 16; ++n) {
    check(s.unseen(s.pieces[n], n * 16, my_clock(), true));
    s.pieces[n].sent[who->number / 32] = Piece::kPending;
  }
  who->sent.push_back({from, bytes});
  ++who->unread, ++who->unwritten;
  land_later(60, nullptr, [=] {
    const std::vector<char> read(who->block->shared + from, who->block->shared + from + bytes);
    --who->unread;
    land_later(60, nullptr, [=] {
      write(read.data());
      --who->unwritten;
    });
  });
}
inline void wait_stores_until(const char* what, int Thread::*left) {
  Thread* const me = gpu.now;
  wait_until(what, [=] { return me->*left == 0; });
  for (const Range& r : me->sent)
    for (uint32_t n = r.address / 16; n < (r.address + uint32_t(r.bytes) + 15) / 16; ++n)
      me->block->shadow.pieces[n].sent[me->number / 32] = my_time();
  me->sent.clear();
}

}  // namespace attune::emulated

#include "tests/emulated/builtins.h"
#include "tests/emulated/launch.h"
