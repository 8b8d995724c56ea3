// SPDX-License-Identifier: Apache-2.0
#include "verify/world.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/dtypes.h"
#include "core/variant/dilated.h"
#include "core/forward_of.h"

namespace attune {
namespace {

constexpr int kLengths[] = {1, 31, 33, 65, 127, 1025};
constexpr int kMostPad = 5;  // maximum left padding, and spare rows at the end of a cache

uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// A few roundings of the arithmetic: f32, or better if the values are. tf32 rounds once; tf32x3 counts as f32.
double work_shake(const Problem& p) {
  return p.precision == Precision::tf32 ? 0x1p-11 : 4 * std::min(rounding_of(p.dtype.kv), rounding_of(DType::f32));
}

// Whether the problem uses a dense role that every plain problem has.
bool takes(const Problem& p, Role r) {
  const Declared variant = declared(p, {});
  return variant.dense || (variant.required | variant.optional) >> int(r) & 1;
}

// Whether used_k is given: keys are in a cache, or the variant requires it.
bool counts_keys(const Problem& p, const Variation& v) {
  const bool needed = declared(p, {}).required >> int(Role::used_k) & 1;
  return needed || ((v.cache || p.keys == KeySource::paged) && takes(p, Role::used_k));
}

Extents out_extent(const World& world) {
  const Extents q = world.args[Role::q].extent, own = declared(world.problem, world.args).out;
  return {own.batch ? own.batch : q.batch, own.seq ? own.seq : q.seq, own.head ? own.head : q.head,
          own.dim ? own.dim : world.problem.dim_v};
}

}  // namespace

uint64_t Random::next() { return mix(state += 0x9E3779B97F4A7C15u); }

double Random::normal() {  // Box-Muller, one of the two
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(6.283185307179586 * uniform());
}

double load(const Tensor& t, int64_t b, int64_t s, int64_t h, int64_t d) {
  const char* at = row_address(t, b, s, h) + d * size_of(t.dtype);
  const auto as = [at]<class T>(T x) { return std::memcpy(&x, at, sizeof x), double(x); };
  switch (t.dtype) {
    case DType::f64: return as(double());
    case DType::f32: return as(float());
    case DType::f16: return as(F16());
    case DType::bf16: return as(Bf16());
    case DType::e4m3: return as(E4m3());
    case DType::i32: return as(int32_t());
    case DType::i64: return as(int64_t());
    default: return NAN;
  }
}

void store(const Tensor& t, int64_t b, int64_t s, int64_t h, int64_t d, double value) {
  char* at = row_address(t, b, s, h) + d * size_of(t.dtype);
  const auto put = [at](auto x) { std::memcpy(at, &x, sizeof x); };
  switch (t.dtype) {
    case DType::f64: return put(value);
    case DType::f32: return put(float(value));
    case DType::f16: return put(F16(float(value)));
    case DType::bf16: return put(Bf16(float(value)));
    case DType::e4m3: return put(E4m3(float(value)));
    case DType::i32: return put(int32_t(value));
    case DType::i64: return put(int64_t(value));
    default: return;
  }
}

Owned::Owned(DType dtype, Extents e, Layout layout, int pad, unsigned char poison) : filler(poison) {
  const int64_t dim = e.dim + pad;
  Strides stride{e.seq * e.head * dim, e.head * dim, dim};
  if (layout == Layout::bhsd) stride = {e.seq * e.head * dim, dim, e.seq * dim};
  memory.assign(size_t(2 * kGuard + e.batch * stride.batch) * size_t(size_of(dtype)), filler);
  if (e.batch == 1) stride.batch = 0;
  if (e.seq == 1) stride.seq = 0;
  if (e.head == 1) stride.head = 0;
  t = {.data = memory.data() + kGuard * size_of(dtype), .dtype = dtype, .extent = e, .stride = stride};
}

void Owned::poison(int b, int s) {
  for (int h = 0; h < t.extent.head; ++h)
    std::memset(row_address(t, b, s, h), filler, size_t(t.extent.dim) * size_t(size_of(t.dtype)));
}

bool Owned::untouched(int b, int s, int h, int d) const {
  const char* at = row_address(t, b, s, h) + d * size_of(t.dtype);
  if (!before.empty())
    return !std::memcmp(at, before.data() + (at - reinterpret_cast<const char*>(memory.data())),
                        size_t(size_of(t.dtype)));
  return std::all_of(at, at + size_of(t.dtype), [this](char c) { return static_cast<unsigned char>(c) == filler; });
}

bool Owned::surroundings_intact() const {
  std::vector<unsigned char> rest = memory;
  for (int b = 0; b < t.extent.batch; ++b)
    for (int s = 0; s < t.extent.seq; ++s)
      for (int h = 0; h < t.extent.head; ++h) {
        const auto from = row_address(t, b, s, h) - reinterpret_cast<const char*>(memory.data());
        std::memset(rest.data() + from, filler, size_t(t.extent.dim) * size_t(size_of(t.dtype)));
      }
  return std::all_of(rest.begin(), rest.end(), [this](unsigned char c) { return c == filler; });
}

const Owned& Outputs::of(Role r) const {
  for (const Owned& o : owned)
    if (o.t.data == args[r].data) return o;
  std::abort();
}

World::World(const Problem& p, const Variation& v, uint32_t draw)
    : problem(p), variation(v), random_{mix(v.seed) ^ mix(uint64_t(p.len_q) << 32 | uint32_t(p.len_k)) ^ mix(draw)} {
  if (declared(p, args).self) variation.cache = false;  // the keys are those of the queries
  const bool ragged = p.keys == KeySource::ragged, paged = p.keys == KeySource::paged;
  const bool packed = v.cu_q || ragged, roomy = variation.cache && !ragged && takes(p, Role::left_pad);
  if (p.has(Option::append)) added_ = std::min(p.len_k, v.added < 0 ? p.len_q : v.added), least_k_ = added_;
  // Rotary has no table row for a query before the first key.
  if (p.rotates() && p.mask.align == Align::bottom_right) least_k_ = std::max(least_k_, std::min(p.len_q, p.len_k));
  draw_lengths();
  const bool self = declared(p, args).self;
  if (self) cu_k_ = cu_q_;
  const int capacity = p.len_k + (roomy ? kMostPad : 0), pages = paged ? int(ceil_div(capacity, p.page)) : 0;
  draw_tables(pages);
  // Without a length tensor all rows are used: the same number for every sequence.
  const bool any = v.lengths == Lengths::drawn;
  const int rows_q = any && !v.used_q ? length(p.len_q, 0) : p.len_q;
  const int rows_k = any && !roomy && !counts_keys(p, variation) ? std::max(length(p.len_k, 1), least_k_) : capacity;
  const Extents q{packed ? 1 : p.batch, packed ? cu_q_.back() : rows_q, p.heads_q, p.dim_qk};
  normal(add(Role::q, p.dtype.q, q), size_of_factors());
  add_integers();
  const Extents own = declared(p, args).k;  // requires q and used_k
  if (own.seq)
    add_keys({own.batch ? own.batch : p.batch, own.seq, p.heads_kv, p.dim_qk});
  else if (self && !ragged)
    add_keys({p.batch, rows_q, p.heads_kv, p.dim_qk});
  else
    add_keys(ragged ? Extents{1, cu_k_.back(), p.heads_kv, p.dim_qk}
           : paged ? Extents{p.batch * pages + 3, p.page, p.heads_kv, p.dim_qk}
                   : Extents{p.batch + roomy, rows_k, p.heads_kv, p.dim_qk});
  if (p.has(Option::append)) add_new_keys();
  add_mask();
  add_options();
  if (p.variant.text[0]) add_variant();
  if (p.pass == Pass::backward) add_gradients();
  poison_unused();
}

int World::length(int bound, int n) {
  if (variation.lengths == Lengths::full) return bound;
  if (variation.lengths == Lengths::odd) return std::min(bound, kLengths[size_t(n) % std::size(kLengths)]);
  return random_.below(4) ? 1 + random_.below(bound) : random_.below(2) * bound;
}

void World::draw_lengths() {
  const Problem& p = problem;
  const bool counts_rows_of_k = declared(p, {}).lengths_of_k;
  const int first = random_.below(6);
  for (int b = 0; b < p.batch; ++b) {
    cu_q_.push_back(cu_q_.back() + length(p.len_q, first + b));
    cu_k_.push_back(cu_k_.back() + length(p.len_k, first + 2 * b + 1));
    // In a packed sequence, padding and unused keys are part of its length; a cache has room beyond the bound.
    const bool ragged = p.keys == KeySource::ragged;
    const std::vector<int32_t>& rows = ragged && !counts_rows_of_k ? cu_q_ : cu_k_;
    const int own = rows[size_t(b) + 1] - rows[size_t(b)];
    const int most_pad = std::min(kMostPad, ragged ? own : kMostPad);
    left_pad_.push_back(variation.cache && takes(p, Role::left_pad) ? random_.below(most_pad + 1) : 0);
    used_k_.push_back(ragged ? left_pad_.back() + random_.below(own - left_pad_.back() + 1)
                             : std::max(length(p.len_k, first + b), least_k_) - added_ + left_pad_.back());
    // A row of q may hold fewer queries than it has room for.
    const int room = variation.cu_q || p.keys == KeySource::ragged ? cu_q_[size_t(b) + 1] - cu_q_[size_t(b)] : p.len_q;
    used_q_.push_back(room - std::min(room, random_.below(3) * random_.below(room + 1)));
  }
}

void World::draw_tables(int pages) {
  const Problem& p = problem;
  // The target of an append must not be shared: neither a cache row nor a page that is not full.
  const bool append = p.has(Option::append), share = variation.shared && !append;
  const int least = *std::min_element(used_k_.begin(), used_k_.end());
  for (int b = 0; b < p.batch; ++b) index_.push_back(share ? 1 : p.batch - b);
  // Pages in shuffled order, so neighbours in a sequence are not neighbours in memory. The first three pages are
  // unused.
  for (int n = 0; n < p.batch * pages; ++n) table_.push_back(n + 3);
  for (size_t n = table_.size(); n > 1; --n) std::swap(table_[n - 1], table_[size_t(random_.below(int(n)))]);
  const bool share_page = share || (variation.shared && least >= p.page);
  for (int b = 0; share_page && b < p.batch && pages; ++b) table_[size_t(b * pages)] = table_[0];
}

// Scale of q and k. f16 ends at 2^16, so part of a large logit comes from the scale there.
double World::size_of_factors() const {
  if (variation.large_logits) return problem.dtype.q == DType::f16 ? 0x1p12 : 0x1p17;
  return std::pow(10., variation.magnitude);
}

void World::add_keys(const Extents& k) {
  const double scale = std::pow(10., variation.magnitude);
  if (takes(problem, Role::k)) normal(add(Role::k, problem.dtype.kv, k), size_of_factors());
  if (takes(problem, Role::v)) normal(add(Role::v, problem.dtype.kv, {k.batch, k.seq, k.head, problem.dim_v}), scale);
}

void World::add_new_keys() {
  const Problem& p = problem;
  const double scale = std::pow(10., variation.magnitude);
  normal(add(Role::k_new, p.dtype.kv, {p.batch, added_, p.heads_kv, p.dim_qk}), size_of_factors());
  normal(add(Role::v_new, p.dtype.kv, {p.batch, added_, p.heads_kv, p.dim_v}), scale);
  if (!p.rotates()) return;
  // Every position that any alignment can produce.
  const int rows = (p.len_k + kMostPad) * p.mask.k_step + p.mask.k_phase + p.len_q + 5 * p.batch + 17;
  const int pairs = variation.pairs ? std::min(variation.pairs, p.dim_qk / 2) : p.dim_qk / 2;
  const auto table = [&](Role r, double (*f)(double)) {
    Owned& o = add(r, DType::f32, {1, rows, 1, pairs});
    o.each([&](int, int s, int, int d) { store(o.t, 0, s, 0, d, f(s * std::pow(1e4, -double(d) / pairs))); });
  };
  table(Role::rotary_cos, std::cos);
  table(Role::rotary_sin, std::sin);
}

void World::add_integers() {
  const Problem& p = problem;
  const bool ragged = p.keys == KeySource::ragged, paged = p.keys == KeySource::paged, cache = variation.cache;
  if (variation.cu_q || ragged) add(Role::cu_q, DType::i32, {1, 1, 1, p.batch + 1}).set(cu_q_);
  if (ragged && takes(p, Role::cu_k)) add(Role::cu_k, DType::i32, {1, 1, 1, p.batch + 1}).set(cu_k_);
  if (variation.used_q) add(Role::used_q, DType::i32, {p.batch}).set(used_q_);
  const bool pads = cache && takes(p, Role::left_pad);
  if (counts_keys(p, variation)) add(Role::used_k, DType::i32, {p.batch}).set(used_k_);
  if (pads) add(Role::left_pad, DType::i32, {p.batch}).set(left_pad_);
  if (pads && p.keys == KeySource::linear) add(Role::cache_index, DType::i32, {p.batch}).set(index_);
  if (paged) add(Role::page_table, DType::i32, {p.batch, 1, 1, int(table_.size()) / p.batch}).set(table_);
}

void World::add_mask() {
  const Problem& p = problem;
  if (p.mask.align == Align::absolute) {
    // Far beyond 32 bits and different for every sequence, except that rotary has tables of positions.
    const int64_t first = p.rotates() ? 0 : int64_t(1) << 33;
    std::vector<int64_t> at;
    for (int b = 0; b < p.batch; ++b) at.push_back(first + 17), at.push_back(first + 5 * b);
    add(Role::positions, DType::i64, {p.batch, 1, 1, 2}).set(at);
  }
  const Blocks size = p.mask.blocks;
  if (!size.q) return;
  const int rows = int(ceil_div(p.len_q, size.q)), columns = int(ceil_div(p.len_k, size.k));
  const int batch = variation.shared ? 1 : p.batch, heads = variation.shared ? 1 : p.heads_q;
  std::vector<int> begin, column, begin_k, row_k;
  for (int list = 0; list < batch * heads; ++list) {
    std::vector<std::vector<int>> by_key(static_cast<size_t>(columns));
    for (int row = 0; row <= rows; ++row) {
      const auto first = column.size();
      begin.push_back(int(first));
      for (int c = 0; row < rows && c < columns; ++c)
        if (random_.below(2) && int(column.size()) < size.bound) column.push_back(c), by_key[size_t(c)].push_back(row);
      if (variation.seed % 2 == 0) std::reverse(column.begin() + int64_t(first), column.end());  // in any order
    }
    for (int c = 0; c <= columns; ++c) {
      begin_k.push_back(int(row_k.size()));
      if (c < columns) row_k.insert(row_k.end(), by_key[size_t(c)].begin(), by_key[size_t(c)].end());
    }
  }
  column.resize(size_t(size.bound), -1), row_k.resize(size_t(size.bound), -1);  // never read
  // Lists are written head by head. The head axis comes after seq, which is 1, so the order is the same.
  add(Role::block_begin, DType::i32, {batch, 1, heads, rows + 1}).set(begin);
  add(Role::block_column, DType::i32, {1, 1, 1, size.bound}).set(column);
  if (p.pass == Pass::forward || variation.lean) return;
  add(Role::block_begin_k, DType::i32, {batch, 1, heads, columns + 1}).set(begin_k);
  add(Role::block_row_k, DType::i32, {1, 1, 1, size.bound}).set(row_k);
}

void World::add_options() {
  const Problem& p = problem;
  const auto axis = [&](int n, int extent) { return variation.bias_once >> n & 1 ? 1 : extent; };
  if (p.has(Option::alibi)) normal(add(Role::slopes, DType::f32, {1, 1, p.heads_q, 1}), 0.05, false);
  if (p.has(Option::sink)) normal(add(Role::sinks, DType::f32, {1, 1, p.heads_q, 1}), 1);
  if (p.has(Option::bias))
    normal(add(Role::bias, p.dtype.bias, {axis(0, p.batch), axis(1, p.len_q), axis(2, p.heads_q), axis(3, p.len_k)}),
           1);
  if (p.has(Option::block_bias)) normal(add(Role::bias, DType::f32, {1, 1, 1, p.mask.blocks.bound}), 1);
  const std::vector<int64_t> seed_and_offset{variation.seed + 1, int64_t(1) << 35};
  if (p.has(Option::dropout)) add(Role::seed, DType::i64, {1, 1, 1, 2}).set(seed_and_offset);
  args.softcap = p.has(Option::softcap) ? 2.f : 0.f;
  args.dropout = p.has(Option::dropout) ? 0.25f : 0.f;
  args.scale = variation.seed % 2 ? 0.f : 0.2f;
  if (variation.large_logits && p.dtype.q == DType::f16) args.scale = 37.f;
  // Gradients of a softmax dominated by one key are all cancellation, so a backward's logits stay moderate whatever the
  // size of its values.
  if (p.pass == Pass::backward && variation.magnitude)
    args.scale = float(std::pow(10., -2. * variation.magnitude) / std::sqrt(p.dim_qk));
}

void World::add_gradients() {
  const Extents q = args[Role::q].extent;
  normal(add(Role::d_out, problem.dtype.out, out_extent(*this)), 1);
  // As large as the value subtracted from it; otherwise a row that sees one key has nothing but rounding.
  if (variation.d_lse && takes(problem, Role::d_lse))
    normal(add(Role::d_lse, DType::f32, {q.batch, q.seq, q.head, 1}), std::pow(10., variation.magnitude));
}

void World::poison_unused() {
  std::vector<char> q_rows(size_t(args[Role::q].extent.batch) * size_t(args[Role::q].extent.seq));
  std::vector<char> k_rows(size_t(args[Role::k].extent.batch) * size_t(args[Role::k].extent.seq));
  const bool ragged = problem.keys == KeySource::ragged, paged = problem.keys == KeySource::paged;
  const int width_q = args[Role::q].extent.seq, width_k = args[Role::k].extent.seq;
  const bool packed = args.given(Role::cu_q);
  const Declared variant = declared(problem, args);
  const bool has_k = args.given(Role::k) && variant.lengths_of_k;
  for (int b = 0; b < problem.batch; ++b) {
    const size_t at = size_t(b);
    const int room = packed ? cu_q_[at + 1] - cu_q_[at] : width_q, used = variation.used_q ? used_q_[at] : room;
    for (int i = 0; i < used; ++i) q_rows[size_t(packed ? cu_q_[at] + i : b * width_q + i)] = 1;
    const bool counted = args.given(Role::used_k);
    const int first = counted ? left_pad_[at] : 0;
    const int last = counted ? used_k_[at] : ragged ? cu_k_[at + 1] - cu_k_[at] : width_k - added_;
    for (int j = first; has_k && j < last; ++j) {
      const int row = ragged  ? 0
                      : paged ? table_[size_t(b) * table_.size() / size_t(problem.batch) + size_t(j / problem.page)]
                      : args.given(Role::cache_index) ? index_[at]
                                                      : b;
      k_rows[size_t(row * width_k + (ragged ? cu_k_[at] + j : paged ? j % problem.page : j))] = 1;
    }
  }
  for (Owned& o : owned_) {
    const bool own_out = variant.out.seq > 0;
    bool of_q = o.t.data == args[Role::q].data || (!own_out && o.t.data == args[Role::d_out].data) ||
                o.t.data == args[Role::d_lse].data;
    bool of_k = has_k && (o.t.data == args[Role::k].data || o.t.data == args[Role::v].data);
    for (int n = 0; n < kVariantTensors; ++n) {
      if (o.t.data != args[variant_tensor(n)].data) continue;
      of_q |= variant.tensor[n].rows == RowsOf::q;
      of_k |= has_k && variant.tensor[n].rows == RowsOf::k;
    }
    if (!of_q && !of_k) continue;
    const std::vector<char>& rows = of_q ? q_rows : k_rows;
    if (rows.size() != size_t(o.t.extent.batch) * size_t(o.t.extent.seq)) continue;  // check() refuses these
    for (int b = 0; b < o.t.extent.batch; ++b)
      for (int s = 0; s < o.t.extent.seq; ++s)
        if (!rows[size_t(b * o.t.extent.seq + s)]) o.poison(b, s);
  }
}

Outputs World::outputs(bool golden) const {
  Outputs made{.args = args};
  const bool running = problem.has(Option::accumulate);
  const unsigned char poison = running ? Owned::kUnread : Owned::kUnwritten;
  const auto add = [&](Role r, DType dtype, Extents e, Layout layout, int pad) -> Owned& {
    made.args[r] = made.owned.emplace_back(golden ? DType::f64 : dtype, e, layout, pad, poison).t;
    made.roles.push_back(r);
    return made.owned.back();
  };
  const Problem& p = problem;
  const Extents q = args[Role::q].extent, k = args[Role::k].extent;
  const Layout layout = variation.layout;
  const int pad = variation.pad;
  if (p.variant.text[0]) add_variant_outputs(*this, made, golden);
  if (p.pass == Pass::backward) {
    add(Role::dq, p.dtype.grad, q, layout, pad);
    if (takes(p, Role::dk)) add(Role::dk, p.dtype.grad, k, layout, pad);
    if (takes(p, Role::dv)) add(Role::dv, p.dtype.grad, args[Role::v].extent, layout, pad);
    if ((p.has(Option::bias) || p.has(Option::block_bias)) && !variation.lean)
      add(Role::d_bias, DType::f32, args[Role::bias].extent, Layout::bshd, pad);
    if (p.has(Option::sink) && !variation.lean) add(Role::d_sinks, DType::f32, {1, 1, p.heads_q, 1}, Layout::bshd, pad);
    Random random{7};
    for (Owned& o : made.owned)
      if (running) o.each([&](int b, int s, int h, int d) { store(o.t, b, s, h, d, float(random.normal())); });
    return made;
  }
  if (!takes(p, Role::out)) return made;
  Owned& out = add(Role::out, p.dtype.out, out_extent(*this), layout, pad);
  const bool no_lse = (variation.lean && !running) || !takes(p, Role::lse);
  Owned* lse = no_lse ? nullptr : &add(Role::lse, DType::f32, {q.batch, q.seq, q.head, 1}, layout, pad);
  for (const Role r : {Role::k, Role::v}) {
    if (!p.has(Option::append)) break;
    const auto ours = [&](const Owned& o) { return o.t.data == args[r].data; };
    const auto from = std::find_if(owned_.begin(), owned_.end(), ours);
    Owned& cache = add(r, p.dtype.kv, from->t.extent, layout, pad);
    cache.filler = Owned::kUnread;
    if (golden) cache.each([&](int b, int s, int h, int d) { store(cache.t, b, s, h, d, load(from->t, b, s, h, d)); });
    else std::copy(from->memory.begin(), from->memory.end(), cache.memory.begin());
    cache.before = cache.memory;
  }
  if (!running) return made;
  Random random{7};
  const double scale = std::pow(10., variation.magnitude);
  lse->each([&](int b, int s, int h, int d) {
    const double x = random.normal();
    store(lse->t, b, s, h, d, x > 1 ? -INFINITY : float(x));  // some rows have seen nothing yet
  });
  out.each([&](int b, int s, int h, int d) {  // and theirs are not read
    const double x = float(random.normal() * scale);
    if (load(lse->t, b, s, h, 0) != -INFINITY) store(out.t, b, s, h, d, x);
  });
  return made;
}

Args World::forward_result() {
  const Extents q = args[Role::q].extent;
  const bool keeps_out = takes(problem, Role::out), keeps_lse = takes(problem, Role::lse);
  if (keeps_out) add(Role::out, problem.dtype.out, out_extent(*this));
  if (keeps_lse) add(Role::lse, DType::f32, {q.batch, q.seq, q.head, 1});
  if (problem.variant.text[0]) add_saved();
  Args forward = forward_of(args);
  if (!keeps_out && takes(forward_of(problem), Role::out)) {  // not used by the backward
    add(Role::out, problem.dtype.out, out_extent(*this));
    forward[Role::out] = std::exchange(args[Role::out], Tensor{});
  }
  return forward;
}

// In the reference, whatever the shake, dP - D is 0 wherever a row sees one key and D belongs to one branch, and the
// sum of dS over a row's keys is 0. A bias that keys share gets this sum; so do a compression and a scorer of blocks.
// A branch of dilated attention whose output is scaled takes D from the output of all, rounded to its dtype.
NaiveRounding World::naive_rounding_of(uint32_t seed) const {
  const std::string_view variant = word(problem.variant);
  if (problem.pass != Pass::backward) return {};
  const bool shared = variant == "nsa" || variant == "adaptive" || args.given(Role::bias);
  return {.sums = work_shake(problem),
          .outs = variant == "dilated" ? rounding_of(problem.dtype.out) : 0,
          .scores = shared ? largest_shake() : 0,
          .least = problem.dtype.kv == DType::f16 ? 0x1p-25 : 0,  // half of its smallest number
          .state = mix(seed + 2)};
}

double World::largest_shake() const { return std::max(rounding_of(problem.dtype.kv), work_shake(problem)); }

Outputs World::shaken(uint32_t seed) const {
  Outputs made = outputs(true);
  Random random{mix(seed + 1)};
  const double work = work_shake(problem), low = largest_shake();
  const auto shake = [&](Role r, double by) {
    if (!args.given(r)) return;
    const Tensor from = args[r];
    Owned& o = made.owned.emplace_back(DType::f64, from.extent);
    o.each([&](int b, int s, int h, int d) {
      store(o.t, b, s, h, d, load(from, b, s, h, d) * (1 + by * (2 * random.uniform() - 1)));
    });
    made.args[r] = o.t;
  };
  // Rotated values are rounded once more, and f32 may round them the other way.
  for (const Role r : {Role::q, Role::k_new}) shake(r, problem.rotates() ? low : work);
  for (const Role r : {Role::k, Role::bias}) shake(r, work);
  // With one dominant key, dS is dP minus itself: pure cancellation error of two long sums, and a naive computation
  // keeps dP in the dtype of the values.
  const bool backward = problem.pass == Pass::backward;
  for (const Role r : {Role::v, Role::v_new}) shake(r, !backward ? low : variation.large_logits ? 4 * low : work);
  for (const Role r : {Role::d_out, Role::d_lse}) shake(r, low);
  const Declared variant = declared(problem, args);
  for (int n = 0; n < kVariantTensors; ++n)
    if (variant.tensor[n].use == Use::input)
      shake(variant_tensor(n), problem.pass == Pass::backward || variant.tensor[n].dtype == DType::f32 ? work : low);
  return made;
}

uint64_t World::fingerprint() const {
  uint64_t hash = 0;
  for (const Owned& o : owned_)
    for (size_t n = 0; n < o.memory.size(); n += 8) {
      uint64_t word = 0;
      std::memcpy(&word, o.memory.data() + n, std::min<size_t>(8, o.memory.size() - n));
      hash = mix(hash ^ word) + 0x9E3779B97F4A7C15u;
    }
  return hash;
}

Owned& World::add(Role r, DType dtype, Extents e) {
  args[r] = owned_.emplace_back(dtype, e, is_floating(dtype) ? variation.layout : Layout::bshd, variation.pad).t;
  return owned_.back();
}

void World::normal(Owned& o, double scale, bool keep_sign) {
  // Benchmarks have tensors of 10^8 values, which take longer to draw than to use. Without padding, the values of a
  // large tensor repeat with a prime period, so that no two rows, heads or tiles are alike.
  constexpr size_t kPeriod = 1048573;
  const Extents& e = o.t.extent;
  const size_t size = size_t(size_of(o.t.dtype));
  const size_t count = size_t(e.batch) * size_t(e.seq) * size_t(e.head) * size_t(e.dim);
  if (count > 4 * kPeriod && o.memory.size() == (count + 2 * Owned::kGuard) * size) {
    const Tensor flat{.data = o.t.data, .dtype = o.t.dtype, .extent = {.dim = int(kPeriod)}};
    for (size_t n = 0; n < kPeriod; ++n) {
      const double x = random_.normal() * scale;
      store(flat, 0, 0, 0, int64_t(n), keep_sign ? x : std::fabs(x));
    }
    char* const first = static_cast<char*>(o.t.data);
    for (size_t at = kPeriod; at < count; at += kPeriod)
      std::memcpy(first + at * size, first, std::min(kPeriod, count - at) * size);
    return;
  }
  o.each([&](int b, int s, int h, int d) {
    const double x = random_.normal() * scale;
    store(o.t, b, s, h, d, keep_sign ? x : std::fabs(x));
  });
}

std::string name(Lengths l) { return l == Lengths::full ? "full" : l == Lengths::drawn ? "drawn" : "odd"; }
std::string name(Layout l) { return l == Layout::bshd ? "bshd" : "bhsd"; }

}  // namespace attune
