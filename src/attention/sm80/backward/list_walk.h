// SPDX-License-Identifier: Apache-2.0
// The work of a CTA of the dK/dV kernel: the keys it owns, and the query tiles and heads it visits. Visits come from a
// cursor that only adds, and those in flight lie in shared memory: the loop contains no division.
#pragma once
#include "attention/gpu/backward_pre_post.h"

namespace attune::sm80 {

// The shared memory per CTA that a kernel requires. Code for GPUs that never select a kernel leaves it empty. Every
// architecture has the small kernels: sm_86 runs the code of sm_80, and sm_120 that of sm_90.
enum class SharedMemory { any, small, middle, large };

constexpr int kLargeFrom = 900;
constexpr bool is_middle(int code) { return code == 800 || code == 870; }
__device__ constexpr bool compiled([[maybe_unused]] SharedMemory shared_memory) {
#ifdef __CUDA_ARCH__
  return shared_memory == SharedMemory::middle ? is_middle(__CUDA_ARCH__)
                                               : shared_memory != SharedMemory::large || __CUDA_ARCH__ >= kLargeFrom;
#else
  return true;
#endif
}

// Compile-time configuration: how the work of a CTA is divided over its warps.
struct KeysConfig {
  int dim = 128;
  int tile_q = 64, tile_k = 64;
  int warps_k = 4, warps_q = 2;  // S: warps over keys, over queries
  int step_q = 32;               // queries that a warp holds in registers at once
  int sum_warps_k = 4;           // dK and dV: warps over keys; the rest over columns
  int dq_warps_q = 2;            // dQ: warps over queries; the rest over columns
  int stages = 1;                // stages of Q and dO
  int blocks = 1;                // CTAs per SM
  bool options = false;          // options that change scores
  SharedMemory shared_memory = SharedMemory::any;
};

template <KeysConfig C>
struct KeyShape {
  static constexpr int kTileQ = C.tile_q, kTileK = C.tile_k, kWarpsK = C.warps_k, kWarpsQ = C.warps_q;
  static constexpr int kStepQ = C.step_q, kSumWarpsK = C.sum_warps_k, kDqWarpsQ = C.dq_warps_q;
  static constexpr int kStages = C.stages, kBlocks = C.blocks;
  static constexpr int kWarps = kWarpsK * kWarpsQ, kThreads = kWarps * 32;
  static constexpr int kWarpsOfHalf = 4;  // warps w and w + 4 share a scheduler
  static constexpr bool kPingPong = kWarpsQ > 1 && kStages == 3;  // half of the warps run one tile behind the others
  static constexpr SharedMemory kSharedMemory = C.shared_memory;
};

// Addresses of the 16-byte chunks of one row at multiples of 16, from a warp's first column on. `kSpan`: their extent.
template <class Layout, int kSpan>
struct Chunks {
  uint32_t tile, first;
  int row, column;
  __device__ Chunks(uint32_t tile_address, int at_row, int at_column)
      : tile(tile_address), first(tile_address + Layout::offset(at_row, at_column)), row(at_row), column(at_column) {}
  __device__ uint32_t operator[](int further) const {
    if constexpr ((kSpan & (kSpan - 1)) == 0) return Layout::further(first, further);
    else return tile + Layout::offset(row, column + further);
  }
};

// A query tile of one head of the group; only rows in [from, until) count. `partial`: it has hidden pairs, or a row of
// the launch has large logits (core/large_logit.h) and this kernel has no separate path for them.
struct Visit {
  uint32_t head : 31, partial : 1;
  int first, from, until;
};

// Without a list, `minor` is a query and `major` a head; with one, a tile of a query block and an index into `hit`.
struct Cursor { int major, minor; };

constexpr int kHits = 64;   // query blocks of a round
constexpr int kVisits = 4;  // visits known at a time
struct KeyPlace {
  Sequence seq;
  int b, head_kv, group, tile;
  int first, count;            // keys
  const char *q, *d_out;       // query 0 of the first head of the GQA group
  int64_t row;                 // its index in the padded rows of all heads
  int low, high;               // range of queries that see any of the keys
  int open_first, open_last;   // range of queries that see all keys; empty unless the tile is whole
  int start, limit, step;      // cursor
  int head, block;             // list: head of the group and first query block of this round
  int of_warp[2], hit[kHits];  // query blocks of the round that list this key block
  int by_key;                  // list by key block is available
  int visits;                  // of this round
  int large_logits;            // a row of the launch has large logits
  Cursor next;                 // cursor after those in `visit`
  Visit visit[kVisits];        // the n-th visit at n % kVisits
  int before[kVisits];         // deterministic: CTAs that add to its rows of dQ before this one
};
static_assert(sizeof(KeyPlace) <= 512);

// For block_bias in kernels with options: list entries of the hits of a round and of the visits.
struct Entries { int of_hit[kHits], of_visit[kVisits]; };

template <class Shape>
struct KeyWalk {
  static constexpr int kTileQ = Shape::kTileQ, kTileK = Shape::kTileK;
  const BackwardParams& x;
  const Problem& p;
  const DenseArgs& a;
  KeyPlace& at;
  int2* const seen;        // [kTileK]: queries that see each key; kNone beyond the last key
  Entries* const entries;  // null without options
  static constexpr int kNone = INT32_MAX;

  __device__ QueryWalk walk() const { return {at.seq.band, at.seq.len_q, 1}; }

  // Called by one thread.
  __device__ void find_place() const {
    uint32_t n = x.tickets         ? uint32_t(atomicAdd(x.tickets, 1)) % gridDim.x
                 : x.order.place ? uint32_t(x.order.place[blockIdx.x])
                                 : blockIdx.x;
    int tile = int(n % x.tiles);               // causal: longest first
    if (x.tickets) tile = x.tiles - 1 - tile;  // deterministic: last queries first, so that few CTAs wait
    n /= x.tiles, at.tile = tile;
    at.head_kv = int(n % p.heads_kv), at.b = x.first_batch + int(n / p.heads_kv), at.group = x.group;
    at.seq = sequence_of(x, at.b);
    const int head = at.head_kv * x.group;
    at.q = row_address(a[Role::q], at.seq.q_batch, at.seq.q_first, head);
    at.d_out = row_address(a[Role::d_out], at.seq.q_batch, at.seq.q_first, head);
    at.row = (int64_t(at.b) * p.heads_q + head) * x.padded;
    const Blocks size = p.mask.blocks;
    int64_t first = int64_t(tile) * kTileK, last = first + kTileK;
    if (size.k) {  // a tile lies within one key block
      const int per_block = (size.k + kTileK - 1) / kTileK;
      const int64_t start = int64_t(tile / per_block) * size.k;
      first = start + tile % per_block * kTileK, last = min(first + kTileK, start + size.k);
    }
    at.first = clamp(first, 0, at.seq.len_k), at.count = clamp(last, 0, at.seq.len_k) - at.first;
    if (at.count <= 0) return;
    const int end = at.first + at.count - 1;
    at.low = walk().first_query(at.first), at.high = walk().last_query(end);
    at.open_first = walk().first_query(end), at.open_last = at.count == kTileK ? walk().last_query(at.first) : 0;
    at.by_key = a.given(Role::block_begin_k) && (!x.disjoint || *x.disjoint);
    at.head = 0, at.block = size.q ? first_block() : 0;
    const int grid = x.tickets ? kTileQ : 16;  // CTAs that share tickets need the same tiles
    at.start = size.q ? 0 : at.low / grid * grid, at.limit = size.q ? tiles_per_block() : at.high;
    at.step = size.q ? 1 : kTileQ;
  }

  __device__ void find_seen() const {
    for (int n = thread_index(); n < kTileK; n += Shape::kThreads)
      seen[n] =
          n < at.count ? int2{walk().first_query(at.first + n), walk().last_query(at.first + n)} : int2{kNone, kNone};
  }

  // Without a list: tiles of one head.
  __device__ int tiles() const { return at.high > at.low ? (at.high - at.start + kTileQ - 1) / kTileQ : 0; }
  // Tiles of a query block. Tiles begin at multiples of 16, blocks anywhere.
  __device__ int tiles_per_block() const {
    const int size = p.mask.blocks.q;
    return (size + (size % 16 ? 15 : 0) + kTileQ - 1) / kTileQ;
  }

  // Called by one thread.
  __device__ void begin(int visits) const {
    at.visits = visits, at.next = {0, at.start};
    at.large_logits = __ldcg(reinterpret_cast<const unsigned long long*>(x.large_logits)) == x.launch;
    find_visit(0);
  }
  // Finds the n-th visit. Called by one thread.
  __device__ void find_visit(int n) const {
    Cursor c = at.next;
    Visit t = visit(c);
    const bool lowers = !Shape::kPingPong && at.large_logits;
    t.partial = lowers || t.first < max(t.from, at.open_first) || t.first + kTileQ > min(t.until, at.open_last);
    at.visit[n % kVisits] = t;
    if (entries && p.has(Option::block_bias)) entries->of_visit[n % kVisits] = entries->of_hit[min(c.major, kHits - 1)];
    if (x.tickets) {  // CTAs add to a tile of dQ in order, from its last key tile down
      const BandWalk rows{at.seq.band, at.seq.len_k, kTileK};
      at.before[n % kVisits] = (rows.last_key(min(c.minor + kTileQ, at.seq.len_q) - 1) - 1) / kTileK - at.tile;
    }
    c.minor += at.step;
    if (c.minor >= at.limit) c.minor = at.start, ++c.major;
    at.next = c;
  }
  // Log-sum-exp of a row of a visit; rows beyond the last use the last.
  __device__ float lse(const Visit& t, int row) const {
    const int64_t i = at.seq.q_first + int64_t(min(t.first + row, at.seq.len_q - 1));
    return *a.row<const float>(Role::lse, at.seq.q_batch, i, at.head_kv * at.group + int(t.head));
  }
  // Ticket of the n-th visit.
  __device__ int* ticket(int n) const {
    const Visit& t = at.visit[n % kVisits];
    return x.tickets + 1 + (at.row + int64_t(t.head) * x.padded + t.first) / kTicketRows;
  }
  __device__ Visit visit(const Cursor& c) const {
    if (!p.mask.blocks.q) return {.head = uint32_t(c.major), .first = c.minor, .from = 0, .until = at.seq.len_q};
    const int64_t begin = int64_t(at.hit[min(c.major, kHits - 1)]) * p.mask.blocks.q,
                  first = begin / 16 * 16 + c.minor * kTileQ;
    const int until = clamp(begin + p.mask.blocks.q, 0, at.seq.len_q);
    // A tile beyond the end of the block has no rows of its own.
    return {.head = uint32_t(at.head), .first = clamp(first, 0, until / 16 * 16),
            .from = first < until ? int(begin) : INT32_MAX, .until = until};
  }

  // With a list, visits come in rounds: one head, and the query blocks from at.block on.
  __device__ int first_block() const { return at.by_key ? 0 : at.low / p.mask.blocks.q; }
  __device__ BlockList list_by_key() const {
    return {p.mask.blocks, a.row<const int32_t>(Role::block_begin_k, at.b, 0, at.head_kv * at.group + at.head),
            a.row<const int32_t>(Role::block_row_k)};
  }
  __device__ bool next_round() const {
    __syncthreads();
    if (thread_index() == 0) {
      at.block += kHits;
      const bool more = at.by_key ? at.block < list_by_key().count(at.first / p.mask.blocks.k)
                                  : int64_t(at.block) * p.mask.blocks.q < at.high;
      if (!more) ++at.head, at.block = first_block();
    }
    __syncthreads();
    return at.head < at.group;
  }
  __device__ BlockList list() const {
    return {p.mask.blocks, a.row<const int32_t>(Role::block_begin, at.b, 0, at.head_kv * at.group + at.head),
            a.row<const int32_t>(Role::block_column)};
  }
  // Finds the query blocks of this round that list this key block, in order. Returns the number of visits.
  __device__ int find_hits() const {
    const int key_block = at.first / p.mask.blocks.k, lane = thread_index() % 32, warp = thread_index() / 32;
    const int64_t n = int64_t(at.block) + thread_index();
    int block = -1;
    if (thread_index() < kHits && at.by_key) {
      if (n < list_by_key().count(key_block)) block = list_by_key().key_block(key_block, int(n));
      if (int64_t(block) * p.mask.blocks.q >= at.high) block = -1;
    } else if (thread_index() < kHits && n * p.mask.blocks.q < at.high) {
      if (list().find(int(n), key_block) >= 0) block = int(n);
    }
    const uint32_t hits = __ballot_sync(~0u, block >= 0);
    if (lane == 0 && warp < 2) at.of_warp[warp] = __popc(hits);
    __syncthreads();
    const int before = __popc(hits & ((1u << lane) - 1)) + (warp == 1 ? at.of_warp[0] : 0);
    if (block >= 0) at.hit[before] = block;
    if (block >= 0 && entries && p.has(Option::block_bias))
      entries->of_hit[before] = max(0, list().find(block, key_block));
    const int all = at.of_warp[0] + at.of_warp[1];
    __syncthreads();
    return all * tiles_per_block();
  }
};

}  // namespace attune::sm80
