// SPDX-License-Identifier: Apache-2.0
// Runs the CTAs of a kernel under a schedule.
#pragma once
#include "tests/emulated/gpu.h"

namespace attune::emulated {

struct Grid {
  int blocks = 1, threads = 128;
  // For kernels with a fixed shared-memory address: CTAs run one after another in this memory.
  char* memory = nullptr;
};

// All resident CTAs.
struct Running {
  std::vector<Block> blocks;
  std::vector<std::unique_ptr<char, decltype(&std::free)>> memory;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<uint64_t> idle;  // per warp: events when none of its lanes could run
  size_t alive = 0;

  Running(const Grid& grid, int first, int count, void (*begin)()) : blocks(size_t(count)) {
    for (Block& b : blocks) {
      b.place = unsigned(&b - blocks.data()), b.number = unsigned(first) + b.place;
      b.threads = b.alive = grid.threads, b.shared = grid.memory, b.shadow.taints = gpu.taints;
      for (uint32_t w = 0; w < kWarps; ++w) b.warps[w].clock.at[w] = 1;
      if (!grid.memory) {
        memory.emplace_back(static_cast<char*>(std::aligned_alloc(1024, kSharedBytes)), &std::free);
        b.shared = memory.back().get();
      }
      std::memset(b.shared, 0xFF, kSharedBytes);  // NaN
      for (int t = 0; t < grid.threads; ++t) {
        Thread& x = *threads.emplace_back(std::make_unique<Thread>());
        x.block = &b, x.number = unsigned(t), b.of_warp[t / 32][t % 32] = &x;
        getcontext(&x.context);
        x.context.uc_stack.ss_sp = x.stack.get(), x.context.uc_stack.ss_size = kStack, x.context.uc_link = nullptr;
        makecontext(&x.context, begin, 0);
      }
    }
    alive = threads.size(), idle.assign(warps(), ~0ull);
  }
  size_t warps() const { return threads.size() / 32; }

  // Runs all lanes of a warp that can run, except those left out. Returns false if none could run.
  template <class LeaveOut>
  bool step(size_t warp, LeaveOut leave_out) {
    if (idle[warp] == gpu.events) return false;
    bool moved = false, could = false;
    for (size_t n = warp * 32; n < warp * 32 + 32; ++n) {
      Thread& x = *threads[n];
      if (x.done || x.held || (x.ready && !x.ready())) continue;
      could = true;
      if (leave_out(n)) continue;
      moved = true, gpu.now = &x;
      swapcontext(&gpu.scheduler, &x.context);
      if (x.done) end(x);
      gpu.now = nullptr;
    }
    if (!could) idle[warp] = gpu.events;
    return moved;
  }
  void end(const Thread& x) {
    --alive, ++gpu.events;
    if (x.unread) may_not_be("ends before a bulk store has read shared memory");
    if (!x.groups.empty() || !x.open.empty()) may_not_be("ends before its products");
    if (--x.block->alive) return;
    for (const auto& [address, b] : x.block->barriers) {
      const auto heard = [&b = b](const Warp& w) { return w.clock.at[b.agent] >= b.loaded; };
      if (std::none_of(std::begin(x.block->warps), std::end(x.block->warps), heard))
        may_not_be("the block ends before a copy to it, for phase " + std::to_string(b.loaded - 1) + " of " +
                   name_of(address) + ", has been waited for");
      if (b.bytes) may_not_be(name_of(address) + " is left with " + std::to_string(b.bytes) + " bytes to come");
    }
  }
  // Lets lanes run that were held back. Returns whether there was one.
  bool let_go() {
    bool any = false;
    for (const auto& x : threads) any |= !x->done && x->held, x->held = false;
    gpu.events += any;
    return any;
  }
  void stand_still() {
    gpu.now = nullptr;
    may_not_be("all stand still");
    for (const auto& x : threads) {
      if (x->done) continue;
      // Lanes that wait for the same event are reported once.
      const Thread* const before = x->number % 32 ? (&x)[-1].get() : nullptr;
      if (before && !before->done && before->waits == x->waits && before->barrier == x->barrier) continue;
      gpu.wrong += "; " + who(*x) + " waits for ";
      if (*x->waits) {
        gpu.wrong += x->waits;
        continue;
      }
      const Barrier& b = barrier_at(*x->block, x->barrier);
      gpu.wrong += name_of(x->barrier) + ", which is in phase " + std::to_string(b.phase) + " and lacks " +
                   std::to_string(b.missing) + " arrivals and " + std::to_string(b.bytes) + " bytes";
    }
  }
};

inline bool land(size_t n) {
  const auto copy = std::move(gpu.copies[n].land);
  gpu.copies.erase(gpu.copies.begin() + long(n));
  ++gpu.events;
  copy();
  return true;
}
// Lands copies after a step of the warps. `stuck`: nothing else can run.
inline bool land_some(bool stuck, bool tick) {
  bool moved = false;
  std::vector<Copy>& all = gpu.copies;
  switch (all.empty() ? Landing::at_once : gpu.schedule.landing) {
    case Landing::at_once:
      while (!all.empty()) moved = land(0);
      return moved;
    case Landing::last: return stuck && land(0);
    case Landing::reverse: return stuck && land(all.size() - 1);
    case Landing::random: break;
  }
  const auto sooner = [](const Copy& a, const Copy& b) { return a.delay < b.delay; };
  const int pass = stuck ? std::min_element(all.begin(), all.end(), sooner)->delay + 1 : tick;
  for (Copy& c : all) c.delay -= pass;
  for (size_t n = 0; n < all.size();) {
    if (all[n].delay >= 0) ++n;
    else moved = land(n);
  }
  return moved;
}

// Runs until all threads have ended or an error occurs.
inline void run(Running& x) {
  const size_t warps = x.warps(), per_block = warps / x.blocks.size();
  const Schedule& schedule = gpu.schedule;
  std::vector<size_t> order(warps);
  for (size_t n = 0; n < warps; ++n) order[n] = n;
  const size_t victim = schedule.victim < 0 ? gpu.random() % per_block : size_t(schedule.victim) % per_block;
  const size_t lane = gpu.random() % 32;
  const bool starved = schedule.pace == Pace::starved, starved_lane = schedule.pace == Pace::starved_lane;
  const auto all = [](size_t) { return false; };
  const auto most = [](size_t) { return gpu.random() % 16 == 0; };  // makes lanes diverge
  const auto others = [&](size_t n) {
    return (n / 32 % per_block == victim && n % 32 == lane) || gpu.random() % 16 == 0;
  };
  gpu.rank.resize(warps), gpu.lowest = 0, gpu.change = 8u << gpu.random() % 3 * 3;
  for (int& r : gpu.rank) r = int(gpu.random() % 1024);
  while (x.alive && gpu.wrong.empty()) {
    bool moved = false;
    if (schedule.pace == Pace::ranked) {
      std::sort(order.begin(), order.end(), [](size_t a, size_t b) { return gpu.rank[a] > gpu.rank[b]; });
      for (size_t n = 0; n < warps && !moved; ++n) moved = x.step(order[n], all);
    } else {
      std::shuffle(order.begin(), order.end(), gpu.random);
      for (const size_t warp : order) {
        if (gpu.random() % 3 == 0 || (starved && warp % per_block == victim)) continue;
        moved |= starved_lane ? x.step(warp, others) : x.step(warp, most);
        for (size_t n = victim; schedule.pace == Pace::greedy && n < warps; n += per_block)
          for (int steps = 0; steps < 64 && x.step(n, all); ++steps) moved = true;
      }
    }
    moved |= land_some(false, schedule.pace != Pace::ranked || gpu.random() % warps == 0);
    if (moved || !gpu.wrong.empty() || !x.alive) continue;
    // Nothing ran. Retry the warps that were skipped; then starved warps or copies, in either order.
    for (size_t n = 0; n < warps; ++n)
      if (!starved || n % per_block != victim) moved |= starved_lane ? x.step(n, others) : x.step(n, all);
    if (moved) continue;
    const bool copies_first = gpu.random() % 2;
    if (copies_first && land_some(true, true)) continue;
    for (size_t n = 0; n < warps; ++n) moved |= x.step(n, all);
    if (!moved && !land_some(true, true) && !x.let_go()) x.stand_still();
  }
  gpu.now = nullptr;
  while (!gpu.copies.empty()) land(0);
}

// Runs kernel() in each thread. Returns an error message, or "" if all threads ended correctly.
template <class Kernel>
std::string launch(const Grid& grid, const Schedule& schedule, Kernel kernel) {
  gpu.random.seed(schedule.seed), gpu.schedule = schedule, gpu.blocks = unsigned(grid.blocks);
  gpu.copies.clear(), gpu.wrong.clear(), gpu.products = 0, gpu.events = 0, gpu.now = nullptr;
  static Kernel* entry;
  entry = &kernel;
  void (*const begin)() = [] {
    (*entry)();
    gpu.now->done = true;
    swapcontext(&gpu.now->context, &gpu.scheduler);
  };
  const int together = grid.memory ? 1 : grid.blocks;
  for (int first = 0; first < grid.blocks && gpu.wrong.empty(); first += together) {
    Running all(grid, first, together, begin);
    run(all);
  }
  return gpu.wrong;
}
template <class Kernel>
std::string launch(int blocks, int threads, unsigned seed, Kernel kernel) {
  return launch({blocks, threads}, Schedule::number(seed), kernel);
}

}  // namespace attune::emulated
