// SPDX-License-Identifier: Apache-2.0
// The cache object of the C interface. The host tracks every length and page, so a call that does not fit is refused
// before anything is written. Kernels read their own copy of the call's lengths and pages, updated in stream order.
#include <algorithm>
#include <cstring>
#include <vector>

#include "capi/cache.h"
#include "capi/storage.h"
#include "core/check.h"
#include "core/dtypes.h"
#include "machine/tensor_ops.h"

using namespace attune;

namespace {

constexpr int64_t kMostNumbers = INT32_MAX;

// The data a call reads, in one allocation: used_k [sequences], cache_index [sequences], page_table [sequences][most].
struct OfCall {
  CacheStorage memory{};
  std::vector<cuda::Number> fresh{};  // values to store before the next call

  int32_t* data() const { return reinterpret_cast<int32_t*>(memory.data); }
};

// The n-th page of a sequence was shared, and the sequence is about to write to it: it has a page of its own instead.
struct Moved { int32_t sequence, n, from, to; };

}  // namespace

struct attune_cache {
  DType dtype = DType::none;
  int32_t heads = 0, dim_qk = 0, dim_v = 0, sequences = 0, capacity = 0, page = 0, pages = 0;
  bool gpu = false;
  int index = 0;                   // GPU index
  int32_t most = 0;                // maximum pages per sequence
  CacheStorage k{}, v{};
  std::vector<int32_t> length{};   // length of each sequence
  std::vector<int32_t> table{};    // [sequences][most]: the pages of a sequence, held(length) of them
  std::vector<int32_t> unused{};   // free pages, the next one last
  std::vector<int32_t> users{};    // [pages]: how many sequences hold each page
  OfCall numbers{};
  std::vector<int32_t> row_of{};   // the sequence that row b of the numbers describes,
  std::vector<int32_t> known{};    // and how many of its pages are stored already
  std::vector<int32_t> order{};    // the sequences of the call
  std::vector<char> taken{};       // marks sequences in the call
  std::vector<int32_t> leaving{};  // [pages]: how many sequences of the call will leave a shared page; 0 between calls
  std::vector<Moved> moved{};      // the pages that sequences of the call left
  int64_t k_shape[4] = {}, v_shape[4] = {};

  int32_t held(int64_t keys) const { return page ? int32_t(ceil_div(keys, page)) : 0; }
  bool has(int32_t s) const { return s >= 0 && s < sequences; }
  int32_t* pages_of(int32_t s) { return table.data() + int64_t(s) * most; }

  int32_t take_page() {
    const int32_t taken_page = unused.back();
    unused.pop_back();
    users[size_t(taken_page)] = 1;
    return taken_page;
  }
  void give_page(int32_t given) {
    if (!--users[size_t(given)]) unused.push_back(given);
  }
  // The pages of a sequence from the n-th on are not those that the kernels know.
  void forget(int32_t s, int32_t n) {
    for (int32_t b = 0; b < sequences; ++b)
      if (row_of[size_t(b)] == s) known[size_t(b)] = std::min(known[size_t(b)], n);
  }
  // Takes or returns pages as a sequence changes from one length to the other.
  void take_pages(int32_t s, int64_t from, int64_t to) {
    for (int32_t n = held(from); n < held(to); ++n) pages_of(s)[n] = take_page();
  }
  void give_pages(int32_t s, int64_t from, int64_t to) {
    for (int32_t n = held(from); n-- > held(to);) give_page(pages_of(s)[n]);
    forget(s, held(to));
  }

  // The page that rows after `keys` would be written to, if other sequences hold it too; else -1.
  int32_t shared_end(int32_t s, int64_t keys) const {
    if (!page || keys % page == 0) return -1;
    const int32_t last = table[size_t(int64_t(s) * most + keys / page)];
    return users[size_t(last)] > 1 ? last : -1;
  }
  // Gives a sequence a page of its own in place of one that it shares. The rows are not copied here.
  void leave_shared_end(int32_t s, int64_t keys) {
    const int32_t from = shared_end(s, keys), n = int32_t(keys / (page ? page : 1));
    if (from < 0) return;
    pages_of(s)[n] = take_page();
    give_page(from);
    forget(s, n);
    moved.push_back({s, n, from, pages_of(s)[n]});
  }
  void return_to_shared_ends() {
    for (auto m = moved.rbegin(); m != moved.rend(); ++m) {
      give_page(m->to), ++users[size_t(m->from)];
      pages_of(m->sequence)[m->n] = m->from;
      forget(m->sequence, m->n);
    }
    moved.clear();
  }

  attune_tensor tensor(int role) const {
    const bool key = role == ATTUNE_K;
    return kept(*this, key ? k.data : v.data, key ? k_shape : v_shape, page ? "pshd" : "bshd");
  }
};

namespace {

constexpr std::string_view kWho = "cache";
Status no(const auto&... why) { return Status::no(kWho, ": ", why...); }

Status fill(attune_cache& c, const attune_cache_options& o) {
  c.dtype = DType(o.dtype);
  if (!is_floating(c.dtype)) return no("dtype ", o.dtype, " is not one of f64, f32, f16, bf16, e4m3");
  c.heads = o.heads, c.dim_qk = o.dim_qk, c.dim_v = o.dim_v ? o.dim_v : o.dim_qk;
  c.sequences = o.sequences, c.capacity = o.capacity, c.page = o.page, c.pages = o.pages;
  const struct { std::string_view name; int32_t value, least; } sizes[] = {
      {"heads", c.heads, 1},         {"dim_qk", c.dim_qk, 1}, {"dim_v", c.dim_v, 1}, {"sequences", c.sequences, 1},
      {"capacity", c.capacity, 1},   {"page", c.page, 0},     {"pages", c.pages, 0}};
  for (const auto& [name, value, least] : sizes)
    if (value < least) return no(name, " = ", value, " is below ", least);
  if (!c.page && c.pages) return no("pages = ", c.pages, " given, but page = 0");
  c.most = c.held(c.capacity);
  const int64_t needed = int64_t(c.sequences) * c.most;
  if (int64_t(c.sequences) * (2 + int64_t(c.most)) > kMostNumbers)
    return no(c.sequences, " sequences of ", c.most, " pages exceed 2^31 numbers");
  if (c.page && !c.pages) c.pages = int32_t(needed);
  if (!o.k != !o.v) return no(o.k ? "k" : "v", " given without ", o.k ? "v" : "k", "; give both or neither");

  if (Status s = place(c, kWho, o.device); !s.ok()) return s;
  const int64_t outer = c.page ? c.pages : c.sequences, rows = c.page ? c.page : c.capacity;
  for (const bool key : {true, false}) {
    const int64_t shape[] = {outer, rows, c.heads, key ? c.dim_qk : c.dim_v};
    std::copy_n(shape, 4, key ? c.k_shape : c.v_shape);
    const double bytes = double(outer) * double(rows) * double(c.heads) * double(shape[3]) * size_of(c.dtype);
    if (bytes > 0x1p60) return no(key ? "keys" : "values", " exceed 2^60 bytes");
    CacheStorage& to = key ? c.k : c.v;
    if (o.k) to.data = static_cast<std::byte*>(key ? o.k : o.v);
    else if (Status s = to.allocate(c.gpu, c.index, size_t(bytes)); !s.ok()) return s;
  }
  const size_t sequences = size_t(c.sequences), numbers = sequences * (2 + size_t(c.most));
  c.length.assign(sequences, 0), c.row_of.assign(sequences, -1), c.known.assign(sequences, 0);
  c.order.assign(sequences, 0), c.taken.assign(sequences, 0), c.table.assign(size_t(needed), -1);
  c.users.assign(size_t(c.pages), 0), c.leaving.assign(size_t(c.pages), 0), c.moved.reserve(sequences);
  for (int32_t n = c.pages; n-- > 0;) c.unused.push_back(n);
  c.numbers.fresh.reserve(numbers);  // calls do not allocate
  return c.numbers.memory.allocate(c.gpu, c.index, numbers * sizeof(int32_t));
}

// How many pages the sequences of the call need so that none writes to a page of another one. The last that holds a
// shared page keeps it.
int64_t own_pages(attune_cache& c, const Problem& p) {
  int64_t pages = 0;
  const auto each = [&](auto f) {
    for (int32_t b = 0; b < p.batch; ++b) {
      const int32_t s = c.order[size_t(b)];
      if (const int32_t end = c.shared_end(s, c.length[size_t(s)]); end >= 0) f(size_t(end));
    }
  };
  each([&](size_t end) {
    if (c.users[end] - c.leaving[end] > 1) ++c.leaving[end], ++pages;
  });
  each([&](size_t end) { c.leaving[end] = 0; });
  return pages;
}

// Whether every sequence of the call has room for `added` more keys.
Status has_room(attune_cache& c, const Problem& p, int64_t added) {
  int64_t pages = added ? own_pages(c, p) : 0;
  for (int32_t b = 0; b < p.batch; ++b) {
    const int32_t s = c.order[size_t(b)];
    const int64_t now = c.length[size_t(s)], then = now + added;
    if (then > c.capacity)
      return no("sequence ", s, " has ", now, " keys, and ", added, " new keys do not fit in its ", c.capacity);
    pages += c.held(then) - c.held(now);
  }
  if (pages > int64_t(c.unused.size()))
    return no(pages, " more pages are needed, but ", c.unused.size(), " of ", c.pages, " are free");
  return Status::good();
}

// Copies the call's lengths and pages to the kernels' memory.
Status send(attune_cache& c, int32_t batch, int64_t added, void* stream) {
  std::vector<cuda::Number>& fresh = c.numbers.fresh;
  fresh.clear();
  const int32_t index_at = c.sequences, table_at = 2 * c.sequences;
  for (int32_t b = 0; b < batch; ++b) {
    const int32_t s = c.order[size_t(b)], pages = c.held(c.length[size_t(s)] + added);
    int32_t &row = c.row_of[size_t(b)], &known = c.known[size_t(b)];
    fresh.push_back({b, c.length[size_t(s)]});
    if (row != s) fresh.push_back({index_at + b, s}), row = s, known = 0;
    for (int32_t n = known; n < pages; ++n) fresh.push_back({table_at + b * c.most + n, c.pages_of(s)[n]});
    known = pages;
  }
  Status s = store(c, kWho, fresh, c.numbers.data(), stream);
  if (!s.ok()) std::fill(c.row_of.begin(), c.row_of.end(), -1);  // the stored values are now unknown
  return s;
}

// Copies the first rows of keys and values from one sequence's row, or one page, to another one.
Status copy_rows(const attune_cache& c, int32_t from, int32_t to, int64_t rows, void* stream) {
  for (const bool key : {true, false}) {
    const CacheStorage& memory = key ? c.k : c.v;
    const int64_t* shape = key ? c.k_shape : c.v_shape;
    const int64_t row = shape[2] * shape[3] * size_of(c.dtype);
    std::byte *source = memory.data + from * shape[1] * row, *target = memory.data + to * shape[1] * row;
    if (!c.gpu) {
      std::memcpy(target, source, size_t(rows * row));
      continue;
    }
    const cuda::DeviceGuard use(c.index);
    if (!use.status.ok()) return use.status.after(kWho, ": ");
    const int64_t some[] = {1, rows, shape[2], shape[3]};
    const attune_tensor given[] = {kept(c, source, some, "bshd"), kept(c, target, some, "bshd")};
    Tensor read, written;
    if (Status s = tensor_of(given[0], key ? Role::k : Role::v, read); !s.ok()) return s;
    if (Status s = tensor_of(given[1], key ? Role::k : Role::v, written); !s.ok()) return s;
    if (Status s = convert(read, written, stream); !s.ok()) return s.after(kWho, ": ");
  }
  return Status::good();
}

// Copies the rows that the sequences of the call had in pages which they left.
Status copy_moved(const attune_cache& c, void* stream) {
  for (const Moved& m : c.moved)
    if (Status s = copy_rows(c, m.from, m.to, c.length[size_t(m.sequence)] % c.page, stream); !s.ok()) return s;
  return Status::good();
}

// Completes the problem with the fields that the cache determines.
Status complete(const attune_cache& c, const attune_problem* given, Problem& p) {
  if (Status s = problem_of(given, p); !s.ok()) return s;
  const KeySource keys = c.page ? KeySource::paged : KeySource::linear;
  if (p.pass != Pass::forward) return no("supports only a forward, not a ", name(p.pass));
  if (p.keys != KeySource::linear && (p.keys != keys || p.page != c.page))
    return no("its keys are ", name(keys), c.page ? join(c.page) : "", ", but those of the problem are ", name(p.keys),
              p.page ? join(p.page) : "");
  p.keys = keys, p.page = c.page;
  if (!p.len_k) p.len_k = c.capacity;
  return Status::good();
}

Status attend(attune_cache& c, const attune_problem* problem, const attune_args* given, const int32_t* sequences,
              void* stream) {
  Problem p;
  attune_args args{};
  if (Status s = complete(c, problem, p); !s.ok()) return s;
  if (Status s = copy_args(given, args); !s.ok()) return s;
  for (const int role : {ATTUNE_K, ATTUNE_V, ATTUNE_USED_K, ATTUNE_CACHE_INDEX, ATTUNE_PAGE_TABLE})
    if (args.role[role]) return no(name(Role(role)), " given, but the cache provides it");
  if (Status s = choose(c, kWho, sequences, p.batch); !s.ok()) return s;
  int64_t added = 0;
  if (Tensor k_new; p.has(Option::append) && args.role[ATTUNE_K_NEW]) {
    if (Status s = tensor_of(*args.role[ATTUNE_K_NEW], Role::k_new, k_new); !s.ok()) return s;
    added = k_new.extent.seq;
  }
  if (Status s = has_room(c, p, added); !s.ok()) return s;
  for (int32_t b = 0; b < p.batch && !args.role[ATTUNE_LEFT_PAD]; ++b)
    if (const int64_t keys = c.length[size_t(c.order[size_t(b)])] + added; keys > p.len_k)
      return no("sequence ", c.order[size_t(b)], " would have ", keys, " keys, which exceed the bound ", p.len_k);

  const auto each = [&](auto f) {
    for (int32_t b = 0; b < p.batch; ++b) f(c.order[size_t(b)], c.length[size_t(c.order[size_t(b)])]);
  };
  c.moved.clear();
  each([&](int32_t s, int64_t now) {
    if (added) c.leave_shared_end(s, now);
    c.take_pages(s, now, now + added);
  });
  Status done = copy_moved(c, stream);
  if (done.ok()) done = send(c, p.batch, added, stream);
  if (done.ok()) {
    const int64_t batch = p.batch, of_table[] = {p.batch, c.most};
    const attune_tensor k = c.tensor(ATTUNE_K), v = c.tensor(ATTUNE_V);
    const attune_tensor used = numbers_beside(k, c.numbers.data(), batch);
    const attune_tensor index = numbers_beside(k, c.numbers.data() + c.sequences, batch);
    attune_tensor table = numbers_beside(k, c.numbers.data() + 2 * int64_t(c.sequences), batch);
    table.ndim = 2, table.shape = of_table, table.axes = "bn";
    args.role[ATTUNE_K] = &k, args.role[ATTUNE_V] = &v, args.role[ATTUNE_USED_K] = &used;
    args.role[c.page ? ATTUNE_PAGE_TABLE : ATTUNE_CACHE_INDEX] = c.page ? &table : &index;
    done = call(p, args, stream);
  }
  if (done.ok()) each([&](int32_t s, int32_t now) { c.length[size_t(s)] = now + int32_t(added); });
  else each([&](int32_t s, int64_t now) { c.give_pages(s, now + added, now); }), c.return_to_shared_ends();
  return done;
}

Status resize(attune_cache& c, int32_t s, int32_t length) {
  if (!c.has(s)) return no("sequence ", s, " is not in 0 ... ", c.sequences - 1);
  const int64_t now = c.length[size_t(s)];
  if (length < 0 || length > c.capacity) return no("length ", length, " is not in 0 ... ", c.capacity);
  const bool leaves = length > now && c.shared_end(s, now) >= 0;  // the caller will write behind shared rows
  if (const int64_t pages = c.held(length) - c.held(now) + leaves; pages > int64_t(c.unused.size()))
    return no(pages, " more pages are needed, but ", c.unused.size(), " of ", c.pages, " are free");
  if (leaves) {
    c.moved.clear();
    c.leave_shared_end(s, now);
    Status done = c.gpu ? cuda::wait_all(c.index) : Status::good();  // there is no stream to order the copy on
    if (done.ok()) done = copy_moved(c, nullptr);
    if (done.ok() && c.gpu) done = cuda::wait_all(c.index);
    if (!done.ok()) return c.return_to_shared_ends(), done;
  }
  length > now ? c.take_pages(s, now, length) : c.give_pages(s, now, length);
  c.length[size_t(s)] = length;
  return Status::good();
}

Status fork(attune_cache& c, int32_t from, int32_t to, int32_t length, void* stream) {
  for (const int32_t s : {from, to})
    if (!c.has(s)) return no("sequence ", s, " is not in 0 ... ", c.sequences - 1);
  const int32_t there = c.length[size_t(from)];
  if (from == to) return no("sequence ", to, " is forked into itself; another one is accepted");
  if (const int32_t keys = c.length[size_t(to)])
    return no("sequence ", to, " has ", keys, " keys; an empty sequence is accepted");
  if (length < 0 || length > there)
    return no("length ", length, " is not in 0 ... ", there, ", the keys of sequence ", from);
  if (!c.page && length) {
    if (Status s = copy_rows(c, from, to, length, stream); !s.ok()) return s;
  }
  for (int32_t n = 0; n < c.held(length); ++n) {
    const int32_t shared = c.pages_of(to)[n] = c.pages_of(from)[n];
    ++c.users[size_t(shared)];
  }
  c.length[size_t(to)] = length;
  return Status::good();
}

}  // namespace

int attune_cache_create(const attune_cache_options* options, attune_cache** out) {
  return create_cache(options, "attune_cache_options", offsetof(attune_cache_options, device), fill, out);
}

void attune_cache_destroy(attune_cache* cache) { delete cache; }

int attune_cache_attend(attune_cache* cache, const attune_problem* problem, const attune_args* args,
                        const int32_t* sequences, void* stream) {
  return answer([&] {
    return cache ? attend(*cache, problem, args, sequences, stream) : Status::no("cache is null");
  });
}

int attune_cache_resize(attune_cache* cache, int32_t sequence, int32_t length) {
  return answer([&] { return cache ? resize(*cache, sequence, length) : Status::no("cache is null"); });
}

int attune_cache_fork(attune_cache* cache, int32_t from, int32_t to, int32_t length, void* stream) {
  return answer([&] { return cache ? fork(*cache, from, to, length, stream) : Status::no("cache is null"); });
}

int32_t attune_cache_length(const attune_cache* cache, int32_t sequence) {
  int32_t length = -1;
  answer([&] {
    if (!cache) return Status::no("cache is null");
    if (!cache->has(sequence)) return no("sequence ", sequence, " is not in 0 ... ", cache->sequences - 1);
    length = cache->length[size_t(sequence)];
    return Status::good();
  });
  return length;
}

int32_t attune_cache_free_pages(const attune_cache* cache) { return cache ? int32_t(cache->unused.size()) : 0; }

const int32_t* attune_cache_pages(const attune_cache* cache, int32_t sequence) {
  if (!cache || !cache->page || !cache->has(sequence)) return nullptr;
  return cache->table.data() + int64_t(sequence) * cache->most;
}

int attune_cache_view(const attune_cache* cache, int role, attune_tensor* out) {
  return answer([&] {
    if (!cache || !out) return Status::no(cache ? "out is null" : "cache is null");
    if (role != ATTUNE_K && role != ATTUNE_V) return no("role ", role, " is neither ATTUNE_K nor ATTUNE_V");
    *out = cache->tensor(role);
    return Status::good();
  });
}
