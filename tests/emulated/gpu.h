// A Hopper GPU for the code of a kernel, on a CPU: every thread of a block is a fiber with its own stack, warps move at
// paces of their own, copies land late and in any order, and products read shared memory when they are waited for. So a
// barrier that is short of an arrival stands still, one with too many fails, and a place that is given back early is
// overwritten. What it does not have: memory order, proxies, registers, time.
//
// The headers in include/ stand in for cuda.h and those of machine/ that are made of PTX.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __shared__
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

namespace attune::emulated {

inline constexpr int kSharedBytes = 227 * 1024, kStack = 64 * 1024;

struct Barrier { int arrivals = 0, missing = 0, bytes = 0; unsigned phase = 0; };
// What the lanes of a warp, or threads of a named barrier, do together: who comes last lets all go on.
struct Meeting { int there = 0; unsigned round = 0; };
struct Warp : Meeting { uint32_t said[2][32][4] = {}; };
struct Block {
  unsigned number = 0;
  int threads = 0;
  char* shared = nullptr;
  std::map<uint32_t, Barrier> barriers;
  Warp warps[32];
  Meeting named[16];
};
struct Thread {
  ucontext_t context{};
  std::unique_ptr<char[]> stack{new char[kStack]};
  Block* block = nullptr;
  unsigned number = 0;
  bool done = false;
  const char* waits = "";                      // for what
  std::function<bool()> ready{};               // empty: it waits for nothing
  int unread = 0, unwritten = 0;               // bulk stores that have not read shared memory yet; or written
  std::vector<std::function<void()>> open{};   // products that are not in a group yet
  std::vector<std::vector<std::function<void()>>> groups{};
};
struct Copy { int delay; std::function<void()> land; };

// One at a time.
struct Gpu {
  std::mt19937 random{1};
  unsigned blocks = 0;
  Thread* now = nullptr;
  ucontext_t scheduler{};
  std::vector<Copy> copies;
  std::string wrong;     // the first thing that may not be
  int64_t products = 0;  // groups of them, of all threads
  std::function<void(const char* data, int row, int head, int batch)> loads{};  // told of each tile, if not empty
};
inline Gpu gpu;

inline void may_not_be(const std::string& what) {
  if (gpu.wrong.empty()) gpu.wrong = what;
}
inline void wait_until(const char* what, std::function<bool()> ready) {
  if (ready() && gpu.random() % 8) return;
  Thread& me = *gpu.now;
  me.waits = what, me.ready = std::move(ready);
  swapcontext(&me.context, &gpu.scheduler);
  me.ready = nullptr;
}
inline void meet(const char* what, Meeting& m, int threads, bool stay = true) {
  const unsigned round = m.round;
  if (++m.there == threads) m.there = 0, ++m.round;
  else if (stay) wait_until(what, [&m, round] { return m.round != round; });
}
inline int lane() { return int(gpu.now->number % 32); }
// What each lane says, for all of them.
inline auto tell(const uint32_t* what, int count) -> uint32_t (*)[4] {
  Warp& warp = gpu.now->block->warps[gpu.now->number / 32];
  auto* const said = warp.said[warp.round & 1];
  std::copy(what, what + count, said[lane()]);
  meet("its warp", warp, 32);
  return said;
}
inline char* shared(uint32_t address) { return gpu.now->block->shared + address; }
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

inline void settle(Barrier& b) {
  if (b.missing == 0 && b.bytes == 0) ++b.phase, b.missing = b.arrivals;
}
inline Barrier& barrier_at(Block& block, uint32_t address) {
  const auto found = block.barriers.find(address);
  if (found == block.barriers.end()) throw std::logic_error("no barrier is there");
  return found->second;
}
inline void arrive_at(uint32_t address, int bytes = 0) {
  Barrier& b = barrier_at(*gpu.now->block, address);
  b.bytes += bytes;
  if (--b.missing < 0) may_not_be("too many arrive at barrier " + std::to_string(address));
  settle(b);
}
inline void land_later(int most, std::function<void()> land) {
  // Now and then one is later than everything.
  const int delay = gpu.random() % 64 == 0 ? 20 * most : int(gpu.random() % unsigned(most));
  gpu.copies.push_back({delay, std::move(land)});
}
// A bulk store of this thread reads shared memory some time, and writes what it has read some time after.
template <class Write>
void store_later(uint32_t from, int bytes, Write write) {
  Thread* const who = gpu.now;
  ++who->unread, ++who->unwritten;
  land_later(60, [=] {
    const std::vector<char> read(who->block->shared + from, who->block->shared + from + bytes);
    --who->unread;
    land_later(60, [=] {
      write(read.data());
      --who->unwritten;
    });
  });
}

// Runs kernel() in each thread. What stands still, or may not be, as a sentence; empty: all have ended.
template <class Kernel>
std::string launch(int blocks, int threads, unsigned seed, Kernel kernel) {
  gpu.random.seed(seed), gpu.blocks = unsigned(blocks), gpu.copies.clear(), gpu.wrong.clear();
  gpu.products = 0;
  std::vector<Block> all(blocks);
  std::vector<std::unique_ptr<char, decltype(&std::free)>> memory;
  std::vector<std::unique_ptr<Thread>> fibers;
  static Kernel* entry;
  entry = &kernel;
  void (*const begin)() = [] {
    (*entry)();
    gpu.now->done = true;
    swapcontext(&gpu.now->context, &gpu.scheduler);
  };
  for (int b = 0; b < blocks; ++b) {
    memory.emplace_back(static_cast<char*>(std::aligned_alloc(1024, kSharedBytes)), &std::free);
    std::memset(memory.back().get(), 0xFF, kSharedBytes);  // no numbers
    all[b].number = unsigned(b), all[b].threads = threads, all[b].shared = memory.back().get();
    for (int t = 0; t < threads; ++t) {
      Thread& x = *fibers.emplace_back(std::make_unique<Thread>());
      x.block = &all[b], x.number = unsigned(t);
      getcontext(&x.context);
      x.context.uc_stack.ss_sp = x.stack.get(), x.context.uc_stack.ss_size = kStack, x.context.uc_link = nullptr;
      makecontext(&x.context, begin, 0);
    }
  }
  std::vector<size_t> order(fibers.size() / 32);
  for (size_t n = 0; n < order.size(); ++n) order[n] = n;
  size_t alive = fibers.size();
  for (int still = 0; alive && gpu.wrong.empty();) {
    bool moved = false;
    alive = 0;
    std::shuffle(order.begin(), order.end(), gpu.random);
    for (const size_t warp : order) {
      const bool rests = gpu.random() % 3 == 0;
      for (size_t n = warp * 32; n < warp * 32 + 32; ++n) {
        Thread& x = *fibers[n];
        alive += !x.done;
        if (x.done || rests || gpu.random() % 16 == 0 || (x.ready && !x.ready())) continue;  // lanes come apart too
        moved = true, gpu.now = &x;
        swapcontext(&gpu.scheduler, &x.context);
      }
    }
    for (size_t n = 0; n < gpu.copies.size();) {
      if (--gpu.copies[n].delay >= 0) {
        ++n;
        continue;
      }
      const auto land = std::move(gpu.copies[n].land);
      gpu.copies.erase(gpu.copies.begin() + long(n));
      land();
      moved = true;
    }
    still = moved || !gpu.copies.empty() ? 0 : still + 1;
    if (still < 100) continue;
    may_not_be("all stand still");
    for (const auto& x : fibers)
      if (!x->done && x->number % 32 == 0)
        gpu.wrong += "; block " + std::to_string(x->block->number) + " warp " + std::to_string(x->number / 32) +
                     " waits for " + x->waits;
  }
  for (size_t n = 0; n < gpu.copies.size(); ++n) std::function<void()>(std::move(gpu.copies[n].land))();
  return gpu.wrong;
}

struct Index { unsigned x; };
template <class T>
uint32_t bits_of(T x) {
  static_assert(sizeof(T) == 4);
  return std::bit_cast<uint32_t>(x);
}

}  // namespace attune::emulated

#define threadIdx (attune::emulated::Index{attune::emulated::gpu.now->number})
#define blockIdx (attune::emulated::Index{attune::emulated::gpu.now->block->number})
#define gridDim (attune::emulated::Index{attune::emulated::gpu.blocks})

template <class A, class B>
constexpr auto min(A a, B b) { return std::min<std::common_type_t<A, B>>(a, b); }
template <class A, class B>
constexpr auto max(A a, B b) { return std::max<std::common_type_t<A, B>>(a, b); }
template <class T>
T __shfl_sync(unsigned, T x, int from) {
  const uint32_t mine = attune::emulated::bits_of(x);
  return std::bit_cast<T>(attune::emulated::tell(&mine, 1)[from][0]);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int by) { return __shfl_sync(mask, x, attune::emulated::lane() ^ by); }
inline bool __any_sync(unsigned, bool x) {
  const uint32_t mine = x;
  const auto said = attune::emulated::tell(&mine, 1);
  return std::any_of(said, said + 32, [](const uint32_t* one) { return one[0]; });
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline unsigned __reduce_or_sync(unsigned, unsigned x) {
  unsigned all = 0;
  const auto said = attune::emulated::tell(&x, 1);
  for (int n = 0; n < 32; ++n) all |= said[n][0];
  return all;
}
inline unsigned __ballot_sync(unsigned mask, bool said) {
  return __reduce_or_sync(mask, said ? 1u << attune::emulated::lane() : 0);
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline void __syncwarp() { attune::emulated::tell(nullptr, 0); }
inline void __syncthreads() {
  attune::emulated::Block& block = *attune::emulated::gpu.now->block;
  attune::emulated::meet("its block", block.named[0], block.threads);
}
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline int __vimax3_s32(int a, int b, int c) { return std::max({a, b, c}); }
inline float __fmul_rd(float a, float b) {
  const double exact = double(a) * b;
  const float near = float(exact);
  return double(near) > exact ? std::nextafter(near, -INFINITY) : near;
}
inline float __fdividef(float a, float b) { return a / b; }
namespace attune::emulated { inline float log2_of(float x) { return std::log2(x); } }
#define __log2f attune::emulated::log2_of  // glibc has one of that name
template <class T>
T __ldcg(const T* from) { return *from; }
inline void* __cvta_shared_to_generic(uint32_t address) { return attune::emulated::shared(address); }
inline unsigned long long atomicAdd(unsigned long long* to, int more) {
  const unsigned long long was = *to;
  *to += unsigned(more);
  return was;
}
template <class T>
T atomicAdd(T* to, T more) { return std::exchange(*to, *to + more); }
inline unsigned long long atomicCAS(unsigned long long* to, unsigned long long if_this, unsigned long long then) {
  const unsigned long long was = *to;
  if (was == if_this) *to = then;
  return was;
}
