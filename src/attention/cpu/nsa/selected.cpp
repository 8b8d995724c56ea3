// SPDX-License-Identifier: Apache-2.0
// cpu_selected: attention in which every token has its own list of key blocks, shared by the heads of a group. Block by
// block, for all tokens of a task that chose it:
//   scores, hide, admit, weights, accumulate
// If the heads of a group fill panels, a token's queries are packed once, and its running sums are the panels to
// accumulate into. Otherwise rows of several tokens share panels that differ from block to block; their queries are
// packed, and their sums loaded and stored, each time. A row meets its blocks in ascending order, independent of other
// rows, so its bits depend on nothing else.
#include <cmath>

#include "attention/cpu/nsa/selected.h"

namespace attune {
namespace {

using namespace cpu;

// Rows per task: their queries and running sums stay in L2 (at d128 in f32, 1 MiB), and all tokens that chose a packed
// block use it. With 16 times as many rows, the sums come from memory, block after block: 0.72 of a dense kernel's rate
// instead of 0.81 (Neoverse-V1, f32, d128, 16 heads per group, random blocks of 64).
constexpr int kTaskRows = 1024;
// In a long sequence few of them choose the same block, and loading a block for a handful of rows is wasteful. With
// random blocks, this many rows or more choose each.
constexpr int kRowsOfBlock = 160;

struct Scratch {
  std::byte *q, *k, *v, *p;
  float *o, *s, *row;      // o: a panel that several tokens share
  const void** rows;
  float *out, *ref, *sum;  // running, for all rows of the task
  Choosers choosers;
};

// Keys packed at a time: a block, or a tile of it.
int keys_of_tile(const CpuKernels& m, const Nsa& nsa) {
  return int(std::min<int64_t>(round_up(nsa.s, m.keys), m.tile));
}

// All keys, packed once for all tasks; empty if packing the chosen blocks per task is less work.
struct PackedKeys {
  std::byte *k = nullptr, *v = nullptr;  // [batch][KV head][block][tile]
  int64_t tiles_per_block = 1;
  int64_t slots = 0;                     // tiles per head

  explicit operator bool() const { return slots > 0; }
  int64_t first(int64_t set, int64_t slot, int64_t tile) const { return (set * slots + slot) * tile; }
};

PackedKeys carve_keys(Workspace& ws, const Plan& plan, const CpuKernels& m, const Nsa& nsa) {
  const Problem& p = plan.problem;
  const int64_t blocks = blocks_of(p, nsa), sets = int64_t(p.batch) * p.heads_kv;
  if (plan.tile_q >= p.len_q || int64_t(p.len_q) * nsa.n < blocks) return {};
  PackedKeys all{.tiles_per_block = ceil_div(nsa.s, keys_of_tile(m, nsa))};
  all.slots = blocks * all.tiles_per_block;
  const size_t keys = size_t(sets * all.slots) * size_t(keys_of_tile(m, nsa)) * size_t(m.operand_bytes);
  all.k = ws.take<std::byte>(keys * size_t(padded(m, p.dim_qk)));
  all.v = ws.take<std::byte>(keys * size_t(padded(m, p.dim_v)));
  return all;
}

Scratch carve(Workspace& ws, const Plan& plan, const CpuKernels& m, const Nsa& nsa) {
  const Problem& p = plan.problem;
  const size_t rows = size_t(m.rows), tile = size_t(keys_of_tile(m, nsa)), bytes = size_t(m.operand_bytes);
  const size_t dim_qk = size_t(padded(m, p.dim_qk)), dim_v = size_t(padded(m, p.dim_v));
  const size_t all = size_t(plan.tile_q) * size_t(group(p));
  return {.q = ws.take<std::byte>((own_panels(p, m) ? all : rows) * dim_qk * bytes),
          .k = ws.take<std::byte>(tile * dim_qk * bytes),
          .v = ws.take<std::byte>(tile * dim_v * bytes),
          .p = ws.take<std::byte>(tile * rows * bytes),
          .o = ws.take<float>(rows * dim_v),
          .s = ws.take<float>(tile * rows),
          .row = ws.take<float>(rows * dim_v),
          .rows = ws.take<const void*>(tile),
          .out = ws.take<float>(all * dim_v),
          .ref = ws.take<float>(all),
          .sum = ws.take<float>(all),
          .choosers = Choosers::carve(ws, plan.tile_q, blocks_of(p, nsa), nsa.n)};
}

void pack_keys(const Unit& u, const CpuKernels& m, int key, int count, int capacity, const void** rows, std::byte* k,
               std::byte* v) {
  gather_keys(u, Role::k, key, count, rows);
  m.pack_k(rows, count, u.problem->dim_qk, k);
  gather_keys(u, Role::v, key, count, rows);
  m.pack_v(rows, count, u.problem->dim_v, v, capacity);
}

Unit group_of(const Problem& p, const Args& a, int64_t set) {
  const int b = int(set / p.heads_kv), g = int(set % p.heads_kv), heads = group(p);
  return {&p, &a, b, g, g * heads, heads, sequence(p, a, b), nullptr};
}

// Tokens [first, last) of one sequence and group.
class Task {
 public:
  Task(const Plan& plan, const Args& a, const CpuKernels& m, const Nsa& nsa, const Scratch& x, const PackedKeys& keys,
       const Unit& unit, Rows tokens)
      : p_(plan.problem), a_(a), m_(m), nsa_(nsa), x_(x), keys_(keys), u_(unit), tokens_(tokens),
        own_(own_panels(p_, m)), shares_(own_ && unit.group == 4 && m.scores_gathered),
        panels_(token_panels(m, unit.group)), tile_(keys_of_tile(m, nsa)),
        dim_qk_(padded(m, p_.dim_qk)), dim_v_(padded(m, p_.dim_v)) {
    const float scale = scale_of(p_, a) * kLog2e;
    scale_q_ = m.scale_in_q ? scale : 1.f, scale_s_ = m.scale_in_q ? 1.f : scale;
  }

  void run() {
    const int rows = (tokens_.last - tokens_.first) * u_.group;
    std::fill_n(x_.out, int64_t(rows) * dim_v_, 0.f);
    std::fill_n(x_.ref, rows, -INFINITY);
    std::fill_n(x_.sum, rows, 0.f);
    for (int row = 0; own_ && row < rows; row += u_.group) pack_own(row);
    const int blocks = int(ceil_div(u_.seq.len_k, nsa_.s));
    x_.choosers.fill(a_, nsa_, u_.seq, u_.head_kv, tokens_, {0, blocks});
    for (int m = 0; m < blocks; ++m)
      if (x_.choosers.count(m)) visit(m);
    for (int row = 0; row < rows; row += u_.group)
      for (int panel = 0; panel < panels_.count(); ++panel) {
        const int first = panels_.first(panel);
        store(panels_[panel], row + first, std::min(panels_[panel].rows, u_.group - first));
      }
  }

 private:
  struct Keys { int first, count; const std::byte *k, *v; };  // a packed block, or a tile of one

  // Row `row` of a block's choosers: its token, and its head.
  int token(int block, int row) const { return x_.choosers.token[x_.choosers.begin[block] + row / u_.group]; }
  int head(int row) const { return u_.head_q + row % u_.group; }

  void visit(int block) {
    const int rows = x_.choosers.count(block) * u_.group;
    const int end = clamp(int64_t(block + 1) * nsa_.s, 0, u_.seq.len_k);
    int64_t slot = block * keys_.tiles_per_block;
    for (int key = block * nsa_.s; key < end; key += tile_, ++slot) {
      Keys keys{key, std::min(tile_, end - key), x_.k, x_.v};
      if (keys_) {
        const int64_t first = keys_.first(int64_t(u_.b) * p_.heads_kv + u_.head_kv, slot, tile_);
        keys.k = at(keys_.k, m_, first * dim_qk_), keys.v = at(keys_.v, m_, first * dim_v_);
      } else {
        pack_keys(u_, m_, key, keys.count, tile_, x_.rows, x_.k, x_.v);
      }
      if (own_) {
        const int32_t* i = x_.choosers.token + x_.choosers.begin[block];
        const int32_t* const end = i + x_.choosers.count(block);
        for (const int many = m_.rows / 4; shares_ && end - i >= many; i += many) {
          if (seen(i[0], keys) == keys.count) own_together(i, keys);  // tokens ascend: the others see at least as much
          else std::for_each(i, i + many, [&](int one) { own(one, keys); });
        }
        for (; i < end; ++i) own(*i, keys);
        continue;
      }
      for (int row = 0; row < rows; row += m_.rows) panel(block, row, std::min(m_.rows, rows - row), keys);
    }
  }

  // Packs the heads of a token, starting at running row `row`.
  void pack_own(int row) {
    const void* rows[kSelectedMaxRows];
    const int i = tokens_.first + row / u_.group;
    for (int panel = 0; panel < panels_.count(); ++panel) {
      const CpuKernels& m = panels_[panel];
      const int first = panels_.first(panel);
      for (int r = 0; r < m.rows; ++r)
        rows[r] = row_address(a_[Role::q], u_.seq.q_batch, u_.seq.q_first + i, u_.head_q + first + r);
      m.pack_q(rows, m.rows, p_.dim_qk, scale_q_, at(x_.q, m, int64_t(row + first) * dim_qk_));
    }
  }

  int seen(int i, const Keys& keys) const {
    return clamp(u_.seq.band.q_position(i) + 1 - keys.first, 0, keys.count);
  }

  // Processes the panels of as many tokens as fill a large one. Each has a small panel and sees all keys; a packed key
  // is then loaded for twelve rows instead of four.
  void own_together(const int32_t* tokens, const Keys& keys) {
    const int n = int(round_up(keys.count, m_.keys)), many = m_.rows / 4;
    const void* q[kSelectedMaxRows / 4];
    float top[kSelectedMaxRows], ref[kSelectedMaxRows], sum[kSelectedMaxRows] = {}, *o[kSelectedMaxRows / 4];
    for (int t = 0; t < many; ++t) {
      const int64_t row = int64_t(tokens[t] - tokens_.first) * 4;
      q[t] = at(x_.q, m_, row * dim_qk_), o[t] = x_.out + row * dim_v_;
    }
    m_.scores_gathered(q, keys.k, n, dim_qk_, x_.s, top);
    if (keys.count < n) {
      int from[kSelectedMaxRows] = {}, until[kSelectedMaxRows];
      std::fill_n(until, m_.rows, keys.count);
      m_.hide(x_.s, n, from, until, top);
    }
    for (int t = 0; t < many; ++t) raise_own(panels_[0], (tokens[t] - tokens_.first) * 4, top + 4 * t);
    for (int r = 0; r < m_.rows; ++r) ref[r] = x_.ref[(tokens[r / 4] - tokens_.first) * 4 + r % 4];
    m_.weights(x_.s, n, scale_s_, ref, sum, x_.p);
    m_.accumulate_scattered(x_.p, keys.v, tile_, n, dim_v_, o);
    for (int r = 0; r < m_.rows; ++r) x_.sum[(tokens[r / 4] - tokens_.first) * 4 + r % 4] += sum[r];
  }

  // Moves the references of a panel of running rows that their logits exceed, and rescales their sums.
  void raise_own(const CpuKernels& m, int row, const float* top) {
    float factor[kSelectedMaxRows];
    bool moved = false;
    for (int r = 0; r < m.rows; ++r) {
      float& ref = x_.ref[row + r];
      const bool empty = ref == -INFINITY;  // nothing to rescale: o is 0
      factor[r] = raise(ref, top[r] * scale_s_);
      x_.sum[row + r] *= factor[r];
      moved |= factor[r] != 1.f && !empty;
    }
    if (moved) m.rescale(x_.out + int64_t(row) * dim_v_, dim_v_, factor);
  }

  // Processes the panels of token i against the keys.
  void own(int i, const Keys& keys) {
    const int seen = this->seen(i, keys);
    if (!seen) return;
    const int n = int(round_up(seen, m_.keys)), first = (i - tokens_.first) * u_.group;
    for (int panel = 0; panel < panels_.count(); ++panel) {
      const CpuKernels& m = panels_[panel];
      const int row = first + panels_.first(panel);
      float top[kSelectedMaxRows];
      m.scores(at(x_.q, m, int64_t(row) * dim_qk_), keys.k, n, dim_qk_, x_.s, top);
      if (seen < n) {
        int from[kSelectedMaxRows] = {}, until[kSelectedMaxRows];
        std::fill_n(until, m.rows, seen);
        m.hide(x_.s, n, from, until, top);
      }
      raise_own(m, row, top);
      m.weights(x_.s, n, scale_s_, x_.ref + row, x_.sum + row, x_.p);
      int until[kSelectedMaxRows];
      std::fill_n(until, m.rows, seen);
      accumulate(m, keys, n, seen, m.rows, until, x_.ref + row, x_.out + int64_t(row) * dim_v_);
    }
  }

  // o += P V for n keys, of which every row sees the first `least`, and row r the first until[r]. If a later row of v
  // is not finite (finite.h), these are added one by one.
  void accumulate(const CpuKernels& m, const Keys& keys, int n, int least, int count, const int* until,
                  const float* ref, float* o) {
    const int last = std::min(n, keys.count);
    if (least < last) gather_keys(u_, Role::v, keys.first + least, last - least, x_.rows);
    if (least >= last || m.finite(x_.rows, last - least, p_.dim_v))
      return m.accumulate(x_.p, keys.v, tile_, 0, n, dim_v_, o);
    const int first = least / m.keys * m.keys;
    if (first) m.accumulate(x_.p, keys.v, tile_, 0, first, dim_v_, o);
    constexpr int kMostKeys = 32;  // of a step, for all instruction sets
    float s[kSelectedMaxRows * kMostKeys], v[256] = {}, x[256];
    for (int key = first; key < last; ++key) {
      if ((key - first) % m.keys == 0) m.read_scores(x_.s + int64_t(key) * m.rows, m.keys, s, m.keys);
      m.widen(key_address(u_, Role::v, keys.first + key), p_.dim_v, v);
      for (int r = 0; r < count; ++r) {
        if (key >= until[r]) continue;
        const float weight = std::exp2(s[r * m.keys + (key - first) % m.keys] * scale_s_ - ref[r]);
        for (int d = 0; d < dim_v_; ++d) x[d] = weight * v[d];
        m.add_row(x, dim_v_, r, o);
      }
    }
  }

  // Processes rows of several tokens against the keys.
  void panel(int block, int row, int count, const Keys& keys) {
    const void* at[kSelectedMaxRows];
    int mine[kSelectedMaxRows], from[kSelectedMaxRows] = {}, until[kSelectedMaxRows];
    int n = 0, least = keys.count, h = row % u_.group;
    const int32_t* chooser = x_.choosers.token + x_.choosers.begin[block] + row / u_.group;
    for (int r = 0; r < m_.rows; ++r) {
      const int i = *chooser;
      until[r] = clamp(u_.seq.band.q_position(i) + 1 - keys.first, 0, keys.count);
      n = std::max(n, until[r]), least = std::min(least, until[r]);
      if (r >= count) continue;
      at[r] = row_address(a_[Role::q], u_.seq.q_batch, u_.seq.q_first + i, u_.head_q + h);
      mine[r] = (i - tokens_.first) * u_.group + h;
      if (r + 1 < count && ++h == u_.group) h = 0, ++chooser;
    }
    if (!n) return;
    n = int(round_up(n, m_.keys));
    float top[kSelectedMaxRows], ref[kSelectedMaxRows], sum[kSelectedMaxRows], *to[kSelectedMaxRows];
    m_.pack_q(at, count, p_.dim_qk, scale_q_, x_.q);
    m_.scores(x_.q, keys.k, n, dim_qk_, x_.s, top);
    if (least < n) m_.hide(x_.s, n, from, until, top);
    for (int r = 0; r < m_.rows; ++r) {
      ref[r] = r < count ? x_.ref[mine[r]] : -INFINITY, sum[r] = 0.f;
      const bool empty = ref[r] == -INFINITY;  // nothing to rescale: out is 0
      const float move = r < count ? raise(ref[r], top[r] * scale_s_) : 1.f;
      if (move == 1.f) continue;
      x_.ref[mine[r]] = ref[r];
      if (empty) continue;
      x_.sum[mine[r]] *= move;
      float* out = x_.out + int64_t(mine[r]) * p_.dim_v;
      for (int d = 0; d < p_.dim_v; ++d) out[d] *= move;
    }
    m_.weights(x_.s, n, scale_s_, ref, sum, x_.p);
    std::fill_n(x_.o, m_.rows * dim_v_, 0.f);
    accumulate(m_, keys, n, least, count, until, ref, x_.o);
    for (int r = 0; r < count; ++r)
      x_.sum[mine[r]] += sum[r], to[r] = x_.out + int64_t(mine[r]) * p_.dim_v;
    add_panel(m_, x_.o, p_.dim_v, 1.f, count, x_.row, to);
  }

  // Stores rows of the task, at most one panel.
  void store(const CpuKernels& m, int first, int count) {
    float now[kSelectedMaxRows];
    for (int r = 0; r < count; ++r) {
      const RowEnd end(SoftmaxRow{x_.ref[first + r], x_.sum[first + r]});
      now[r] = end.now;
      const int i = tokens_.first + (first + r) / u_.group;
      if (float* lse = a_.row<float>(Role::lse, u_.seq.q_batch, u_.seq.q_first + i, head(first + r))) *lse = end.lse;
    }
    if (own_) m.unpack(x_.out + int64_t(first) * dim_v_, p_.dim_v, now, count, x_.row, p_.dim_v);
    for (int r = 0; r < count; ++r) {
      float* out = own_ ? x_.row + int64_t(r) * p_.dim_v : x_.out + int64_t(first + r) * p_.dim_v;
      for (int d = 0; !own_ && d < p_.dim_v; ++d) out[d] *= now[r];
      const int i = tokens_.first + (first + r) / u_.group;
      char* to = row_address(a_[Role::out], u_.seq.q_batch, u_.seq.q_first + i, head(first + r));
      if (p_.dtype.out == DType::f32) std::copy_n(out, p_.dim_v, reinterpret_cast<float*>(to));
      else m_.narrow(out, p_.dim_v, to);
    }
  }

  const Problem& p_;
  const Args& a_;
  const CpuKernels& m_;
  const Nsa& nsa_;
  const Scratch& x_;
  const PackedKeys& keys_;
  const Unit& u_;
  const Rows tokens_;
  const bool own_, shares_;  // shares_: a token's panel is part of a large one
  const Panels panels_;      // of a token's heads
  const int tile_, dim_qk_, dim_v_;
  float scale_q_, scale_s_;
};

Status supports(const Problem& p, const Device& d) { return selected_supports("cpu_selected", Pass::forward, p, d); }

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  const CpuKernels& m = kernels_of(p, plan.device);
  const Nsa nsa = nsa_of(p);
  const int64_t sets = int64_t(p.batch) * p.heads_kv;
  const int64_t rows = std::max<int64_t>(kTaskRows, kRowsOfBlock * blocks_of(p, nsa) / nsa.n);
  int64_t tasks = ceil_div(int64_t(p.len_q) * group(p), rows);
  while (sets * tasks < 2 * plan.device.units && p.len_q / (tasks + 1) >= 64) ++tasks;
  plan.tile_q = int(ceil_div(p.len_q, tasks)), plan.tile_k = keys_of_tile(m, nsa);
  Workspace count;
  carve_keys(count, plan, m, nsa);
  return count_workspace(plan, count, [&](Workspace& own) { carve(own, plan, m, nsa); });
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream) {
  const Problem& p = plan.problem;
  const CpuKernels& m = kernels_of(p, plan.device);
  const Nsa nsa = nsa_of(p);
  const PackedKeys keys = carve_keys(ws, plan, m, nsa);
  const auto scratch_of = by_worker(ws, [&](Workspace& own) { return carve(own, plan, m, nsa); });
  const Longest most = longest(p, a);  // lengths in a problem are only bounds
  const int64_t q_tiles = ceil_div(most.q, plan.tile_q), sets = int64_t(p.batch) * p.heads_kv;
  const int64_t slots = keys ? ceil_div(most.k, nsa.s) * keys.tiles_per_block : 0;
  each_task(sets * slots, plan.device.units, [&](int worker, int64_t n) {
    const int64_t set = n / slots, slot = n % slots;
    const Unit unit = group_of(p, a, set);
    const int64_t block = slot / keys.tiles_per_block, key = block * nsa.s + slot % keys.tiles_per_block * plan.tile_k;
    const int64_t count = std::min<int64_t>({key + plan.tile_k, (block + 1) * nsa.s, unit.seq.len_k}) - key;
    const int64_t first = keys.first(set, slot, plan.tile_k);
    if (count > 0)
      pack_keys(unit, m, int(key), int(count), plan.tile_k, scratch_of(worker).rows,
                at(keys.k, m, first * padded(m, p.dim_qk)), at(keys.v, m, first * padded(m, p.dim_v)));
  });
  each_task(sets * q_tiles, plan.device.units, [&](int worker, int64_t n) {
    const Scratch x = scratch_of(worker);
    const int64_t tile = q_tiles - 1 - n / sets;
    const Unit unit = group_of(p, a, n % sets);
    const Rows tokens{clamp(tile * plan.tile_q, 0, unit.seq.len_q),
                      clamp((tile + 1) * plan.tile_q, 0, unit.seq.len_q)};
    if (tokens.first < tokens.last) Task(plan, a, m, nsa, x, keys, unit, tokens).run();
  });
  return Status::good();
}

}  // namespace

extern const Backend cpu_selected{.name = "cpu_selected", .supports = supports, .shape = shape, .run = run};

}  // namespace attune
