// Backward attention for Hopper, of lists, by steps of 80 queries: the queries of a step are gathered, each 16 of them
// from anywhere in the list. A thread walks the lists and says what a step visits, another loads that.
#pragma once
#include "attention/backward.sm90.ahead.h"
#include "attention/backward.sm90.producer.h"

namespace attune::sm90 {

// Takes tiles of keys as blocks that stay do, and is a few steps ahead of the products. A step is told of when the next
// begins: it may be the last of its tile.
template <class C>
struct ListWalker {
  const typename C::Params& x;
  const uint32_t shared;
  uint32_t step = 0;
  int have = 0;    // grains of queries that the step has
  int behind = 0;  // the last of them
  int bit = 0;     // of the last run, in the visit
  int round = 0;   // of tiles
  int marks = 0;

  __device__ GatheredVisit& now() const { return gathered<C>(shared, step); }
  // The tile of keys, in shared memory: there are 24 registers.
  __device__ KeyTile& own() const { return *static_cast<KeyTile*>(__cvta_shared_to_generic(shared + C::kWalked)); }

  __device__ void begin(int tile) {
    wait(shared + C::kGatheredEmpty + 8 * (step % kVisitsAhead), (step / kVisitsAhead & 1) ^ 1);
    now().tile = tile, now().round = round, now().runs = 0, bit = 0;
  }
  __device__ void tell(int more) {
    now().marks = marks | more;
    arrive(shared + C::kGatheredFull + 8 * (step % kVisitsAhead));
    ++step, have = marks = 0;
  }
  __device__ bool hides(int query) const {
    const int key = own().key;
    return key + C::kTileK > x.keys || key + C::kTileK - 1 > query + x.high ||
           key < query + GatheredVisit::kRows - 1 + x.low;
  }
  __device__ void add(int query, int n, int tile) {
    if (have == GatheredVisit::kGrains) tell(0);
    if (have == 0) {
      begin(tile);
      const int head = own().head * x.group + n;
      now().head = head, now().batch = own().batch;
      now().dq = x.dq + (int64_t(own().batch) * x.heads + head) * x.padded * C::kWide;
    }
    if (have > 0 && query != behind) bit += GatheredRun::kBits;
    now().runs += 1 << bit;
    now().query[have++] = query, behind = query + GatheredVisit::kRows;
    if (hides(query)) marks |= GatheredVisit::kHides;
  }
  // Those that the band shows, of the n-th head that shares the keys. The last step is filled up with rows that no
  // sequence has.
  __device__ void walk(int tile, int n) {
    const int head = own().head * x.group + n, number = own().number;
    const BlockList list{x.blocks, x.list_begin + own().batch * x.list_batch + head * x.list_head, x.list_row};
    int at = list.entry(number);
    const int end = at + list.count(number);
#pragma unroll 1
    for (; at < end; ++at) {
      const int64_t first = int64_t(x.list_row[at]) * x.blocks.q;
      const int stop = int(min(first + x.blocks.q, int64_t(own().stop)));
#pragma unroll 1
      for (int query = int(max(first, int64_t(own().start))); query < stop; query += GatheredVisit::kRows)
        add(query, n, tile);
    }
    constexpr int kRows = GatheredVisit::kRows;
    for (int query = (x.rows + kRows - 1) / kRows * kRows; have % GatheredVisit::kGrains > 0; query += kRows)
      add(query, n, tile);
  }
  __device__ void run() {
    int tile = int(blockIdx.x);
#pragma unroll 1
    for (; tile < works<C>(x); tile = grid_size() + atomicAdd(x.taken, 1), ++round) {
      own() = find_work<C>(x, tile);
      marks = GatheredVisit::kBegins;
#pragma unroll 1
      for (int n = 0; n < x.group; ++n) walk(tile, n);
      if (have == 0) begin(tile);
      tell(GatheredVisit::kEnds);
    }
    begin(tile);
    tell(0);
  }
};

// Of a step everything is made anew where it is wanted: there are 24 registers.
template <class C>
struct GatheringProducer {
  const typename C::Params& x;
  const uint32_t shared;

  static __device__ uint32_t stage(int step) { return uint32_t(step) % C::kStages; }
  static __device__ uint32_t parity(int step) { return uint32_t(step) / C::kStages & 1; }
  // A number of the step's visit, by its offset there.
  __device__ int told(int step, uint32_t offset) const {
    return int(load_shared(shared + C::kGathered + uint32_t(step) % kVisitsAhead * sizeof(GatheredVisit) + offset));
  }
  __device__ int tile_of(int step) const { return told(step, offsetof(GatheredVisit, tile)); }
  __device__ int round_of(int step) const { return told(step, offsetof(GatheredVisit, round)); }
  __device__ bool begins(int step) const { return told(step, offsetof(GatheredVisit, marks)) & GatheredVisit::kBegins; }
  __device__ bool has_queries(int step) const { return told(step, offsetof(GatheredVisit, runs)); }
  // Of q or d_out; with q also statistics.
  template <bool OfQ>
  __device__ void load_rows(int& step) const {
    constexpr int kTo = OfQ ? C::kQ : C::kO, kFull = OfQ ? C::kQFull : C::kOFull;
    if (!has_queries(step)) return arrive(shared + kFull + 8 * stage(step));
    arrive_expect(shared + kFull + 8 * stage(step), C::kBytesQ + OfQ * C::kBytesStats);
#pragma unroll 1
    for (GatheredRun run{told(step, offsetof(GatheredVisit, runs))}; run.left; run.next()) {
      own_register(step), own_register(run.first);
      const uint32_t full = shared + kFull + 8 * stage(step);
      const int head = told(step, offsetof(GatheredVisit, head)), batch = told(step, offsetof(GatheredVisit, batch));
      const int query = told(step, 4 * uint32_t(run.first));
      const uint32_t row = run.first * GatheredVisit::kRows;
      const uint32_t at = shared + kTo + stage(step) * C::kBytesQ + row * 128;
#pragma unroll
      for (int grains = 0; grains < GatheredVisit::kGrains; ++grains) {  // a map that is chosen takes more registers
        if (run.count() != grains + 1) continue;
#pragma unroll
        for (int n = 0; n < C::kPanels; ++n)
          load_tile(at + n * C::kPanelQ, OfQ ? x.q_run[grains] : x.d_out_run[grains], full, n * 64, query, head, batch,
                    Keep::last_to_go);
        if constexpr (OfQ)
          load_tile(shared + C::kStats + stage(step) * C::kBytesStats + row * 8, x.stats_run[grains], full, 2 * query,
                    head, batch, 0, Keep::last_to_go);
      }
    }
  }
  __device__ void load_queries(int& step) const {
    own_register(step);
    wait(shared + C::kQEmpty + 8 * stage(step), parity(step) ^ 1);
    load_rows<true>(step);
  }
  __device__ void load_d_out(int& step) const {
    own_register(step);
    wait(shared + C::kOEmpty + 8 * stage(step), parity(step) ^ 1);
    load_rows<false>(step);
  }
  __device__ void run() const {
    int step = 0;
#pragma unroll 1
    for (;; ++step) {
      wait(shared + C::kGatheredFull + 8 * (uint32_t(step) % kVisitsAhead), uint32_t(step) / kVisitsAhead & 1);
      if (tile_of(step) >= works<C>(x)) break;
      if (begins(step)) {
        const KeyTile t = find_work<C>(x, tile_of(step));
        wait_ready<C>(x, t);
        BackwardProducer<C>{x, shared, t}.prefetch_keys();
      }
      load_queries(step);
      if (begins(step)) {
        const KeyTile t = find_work<C>(x, tile_of(step));
        BackwardProducer<C>{x, shared, t}.load_round(round_of(step), tile_of(step));
      }
      load_d_out(step);
      arrive(shared + C::kGatheredEmpty + 8 * (uint32_t(step) % kVisitsAhead));
    }
    BackwardProducer<C>{x, shared, {}}.tell_tile(uint32_t(round_of(step)), works<C>(x));
  }
};

// The warps beside the warpgroups.
template <class C>
__device__ void gather(const typename C::Params& x, uint32_t shared) {
  if (threadIdx.x >= 64) return prepare_others<C>(x);
  if (threadIdx.x == 32) ListWalker<C>{x, shared}.run();
  if (threadIdx.x == 0) GatheringProducer<C>{x, shared}.run();
}

}  // namespace attune::sm90
