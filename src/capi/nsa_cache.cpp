// SPDX-License-Identifier: Apache-2.0
// The cache object of Native Sparse Attention. It is composed of copies of new tokens, `compress` over the tokens whose
// windows became complete, and `nsa phi=none` over the streams. The host tracks every length, so a call that does not
// fit is refused before anything is written. Kernels read their own copy of the lengths.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "capi/cache.h"
#include "capi/storage.h"
#include "core/check.h"
#include "core/variant/nsa.h"
#include "machine/append_rows.h"

using namespace attune;

namespace {

constexpr int kRaw = ATTUNE_NSA_K_COMPRESSED;  // streams of raw tokens come first
// The role that holds the new tokens of a raw stream.
constexpr int kNew[kRaw] = {ATTUNE_K_NEW,       ATTUNE_V_NEW,       ATTUNE_VARIANT,
                            ATTUNE_VARIANT + 1, ATTUNE_VARIANT + 2, ATTUNE_VARIANT + 3};
constexpr int kFirstWeight[] = {ATTUNE_VARIANT + 5, ATTUNE_VARIANT + 10}, kWeights = 5;  // for K and for V

constexpr std::string_view kWho = "nsa cache";
Status no(const auto&... why) { return Status::no(kWho, ": ", why...); }

}  // namespace

struct attune_nsa_cache {
  Nsa nsa{};
  Variant given{}, compress{}, attend{};  // as given; and for the two calls
  DType dtype = DType::none;
  int32_t heads = 0, dim_qk = 0, dim_v = 0, sequences = 0, capacity = 0;
  bool gpu = false;
  int index = 0;                          // GPU index
  CacheStorage stream[ATTUNE_NSA_STREAMS]{};
  int64_t shape[ATTUNE_NSA_STREAMS][4] = {};
  CacheStorage numbers{};                 // used_k [sequences], cache_index [sequences]
  std::vector<int32_t> length{};          // length of each sequence in raw tokens
  std::vector<int32_t> order{};           // the sequences of the call
  std::vector<char> taken{};              // marks sequences in the call
  std::vector<Copy> copies{};
  std::vector<cuda::Number> fresh{};

  bool has(int32_t s) const { return s >= 0 && s < sequences; }
  bool windowed(int n) const { return n == ATTUNE_NSA_K_WINDOW || n == ATTUNE_NSA_V_WINDOW; }
  bool has_stream(int n) const { return n >= 0 && n < ATTUNE_NSA_STREAMS && (nsa.w > 0 || !windowed(n)); }
  int32_t dim(int n) const { return n % 2 ? dim_v : dim_qk; }

  attune_tensor tensor(int n) const {
    return kept(*this, stream[n].data, shape[n], "bshd");
  }
  // `count` rows of consecutive sequences.
  Tensor rows(int n, int32_t sequence, int32_t batch, int64_t first, int64_t count) const {
    const int64_t row = int64_t(heads) * dim(n), all = shape[n][1] * row;
    Tensor t{.data = stream[n].data + (sequence * all + first * row) * size_of(dtype),
             .dtype = dtype,
             .device = gpu ? DeviceKind::cuda : DeviceKind::cpu,
             .device_index = gpu ? index : 0,
             .extent = {batch, int32_t(count), heads, dim(n)}};
    t.stride = {batch > 1 ? all : 0, count > 1 ? row : 0, heads > 1 ? dim(n) : 0};
    return t;
  }
};

namespace {

// A core tensor in the form of the C interface.
struct Said {
  int64_t shape[4], strides[4];
  attune_tensor t{};
  explicit Said(const attune_nsa_cache& c, const Tensor& x)
      : shape{x.extent.batch, x.extent.seq, x.extent.head, x.extent.dim},
        strides{x.stride.batch, x.stride.seq, x.stride.head, 1}, t(c.tensor(0)) {
    t.data = x.data, t.shape = shape, t.strides = strides;
  }
};

Status read_variant(attune_nsa_cache& c, const char* text) {
  if (!text) return no("variant is null; an example is \"nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512\"");
  if (Status s = assign(c.given, text); !s.ok()) return s;
  if (word(c.given) != "nsa") return no("variant '", text, "' is not nsa");
  Problem p{.heads_q = c.heads, .heads_kv = c.heads, .len_q = c.capacity, .len_k = c.capacity, .dim_qk = c.dim_qk,
            .dim_v = c.dim_v};
  p.mask.kind = MaskKind::causal, p.variant = c.given;
  if (Status s = read_nsa(p, c.nsa); !s.ok()) return s;
  if (c.nsa.phi == Phi::none) return no("phi=none given; the cache compresses, and requires phi=mean, conv or mlp");
  if (c.nsa.only != Branch::all)
    return no("only=", value(c.given, "only"), " given; the cache requires all three branches");
  const std::string hidden = c.nsa.hidden ? join(" hidden=", c.nsa.hidden) : "";
  const std::string compress = join("compress d=", c.nsa.d, " l=", c.nsa.l, " phi=", value(c.given, "phi"), hidden);
  if (Status s = assign(c.compress, compress); !s.ok()) return s;
  return assign(c.attend, join("nsa d=", c.nsa.d, " gate=", value(c.given, "gate"), " l=", c.nsa.l, " n=", c.nsa.n,
                               " phi=none s=", c.nsa.s, " w=", c.nsa.w));
}

Status fill(attune_nsa_cache& c, const attune_nsa_cache_options& o) {
  c.dtype = DType(o.dtype);
  if (c.dtype < DType::f64 || c.dtype > DType::bf16) return no("dtype ", o.dtype, " is not one of f64, f32, f16, bf16");
  c.heads = o.heads, c.dim_qk = o.dim_qk, c.dim_v = o.dim_v ? o.dim_v : o.dim_qk;
  c.sequences = o.sequences, c.capacity = o.capacity;
  const struct { std::string_view name; int32_t value; } sizes[] = {{"heads", c.heads},
                                                                    {"dim_qk", c.dim_qk},
                                                                    {"dim_v", c.dim_v},
                                                                    {"sequences", c.sequences},
                                                                    {"capacity", c.capacity}};
  for (const auto& [name, value] : sizes)
    if (value < 1) return no(name, " = ", value, " is below 1");
  if (Status s = read_variant(c, o.variant); !s.ok()) return s;
  if (Status s = place(c, kWho, o.device); !s.ok()) return s;
  for (int n = 0; n < ATTUNE_NSA_STREAMS; ++n) {
    if (!c.has_stream(n)) continue;
    const int64_t rows = n < kRaw ? c.capacity : std::max<int64_t>(1, c.nsa.compressed(c.capacity));
    const int64_t shape[] = {c.sequences, rows, c.heads, c.dim(n)};
    std::copy_n(shape, 4, c.shape[n]);
    const double bytes = double(c.sequences) * double(rows) * double(c.heads) * c.dim(n) * size_of(c.dtype);
    if (bytes > 0x1p60) return no("a stream exceeds 2^60 bytes");
    if (Status s = c.stream[n].allocate(c.gpu, c.index, size_t(bytes)); !s.ok()) return s;
  }
  const size_t sequences = size_t(c.sequences);
  c.length.assign(sequences, 0), c.order.assign(sequences, 0), c.taken.assign(sequences, 0);
  c.fresh.reserve(2 * sequences), c.copies.reserve(kRaw * sequences);  // calls do not allocate
  return c.numbers.allocate(c.gpu, c.index, 2 * sequences * sizeof(int32_t));
}

// Completes the problem of the attention with the fields that the cache determines.
Status complete(const attune_nsa_cache& c, const attune_problem* given, Problem& p) {
  if (Status s = problem_of(given, p); !s.ok()) return s;
  if (p.pass != Pass::forward) return no("supports only a forward, not a ", name(p.pass));
  if (p.variant.text[0] && std::memcmp(&p.variant, &c.given, sizeof p.variant))
    return no("its variant is '", c.given.text, "', but that of the problem is '", p.variant.text, "'");
  if (p.heads_kv != c.heads || p.dim_qk != c.dim_qk || p.dim_v != c.dim_v || p.dtype.kv != c.dtype)
    return no("has ", c.heads, " heads of ", name(c.dtype), " and dims ", c.dim_qk, " and ", c.dim_v, ", the problem ",
              p.heads_kv, " of ", name(p.dtype.kv), " and ", p.dim_qk, " and ", p.dim_v);
  p.variant = c.attend;
  if (!p.len_k) p.len_k = c.capacity;
  return Status::good();
}

// Collects the new tokens: c.copies into the streams, and the number added per sequence.
Status find_new(attune_nsa_cache& c, const Problem& p, const attune_args& args, int64_t& added) {
  c.copies.clear();
  added = 0;
  int given = 0, wanted = 0;
  Tensor fresh[kRaw];
  for (int n = 0; n < kRaw; ++n) {
    const attune_tensor* t = args.role[kNew[n]];
    wanted += c.has_stream(n), given += t != nullptr;
    if (t && !c.has_stream(n)) return no(name(Role(kNew[n])), " given, but with w=0 there is no window");
    if (!t) continue;
    if (Status s = tensor_of(*t, Role(kNew[n]), fresh[n]); !s.ok()) return s;
    const Extents e = fresh[n].extent;
    if (given == 1) added = e.seq;
    if (e.batch != p.batch || e.seq != added || e.head != c.heads || e.dim != c.dim(n))
      return no("new tokens ", name(Role(kNew[n])), " are [", e.batch, ", ", e.seq, ", ", e.head, ", ", e.dim,
                "], not [", p.batch, ", ", added, ", ", c.heads, ", ", c.dim(n), "]");
  }
  if (given && given != wanted) return no(given, " of the ", wanted, " streams have new tokens; give all or none");
  for (int32_t b = 0; b < p.batch; ++b) {
    const int32_t s = c.order[size_t(b)];
    const int64_t now = c.length[size_t(s)], most = std::min<int64_t>(c.capacity, p.len_k);
    if (now + added > most)
      return no("sequence ", s, " has ", now, " tokens, and ", added, " new tokens do not fit in ", most);
    for (int n = 0; added && n < kRaw; ++n) {
      if (!c.has_stream(n)) continue;
      Tensor from = fresh[n];
      from.data = row_address(from, b, 0, 0), from.extent.batch = 1, from.stride.batch = 0;
      c.copies.push_back({from, c.rows(n, s, 1, now, added)});
    }
  }
  return Status::good();
}

// Computes the compressed tokens that sequences `first` ... gain from `added` raw ones. All have the same length.
Status compress(const attune_nsa_cache& c, const attune_args& args, Reproducible reproducible, int32_t first,
                int32_t batch, int64_t added, void* stream) {
  const int64_t now = c.length[size_t(first)], before = c.nsa.compressed(now), after = c.nsa.compressed(now + added);
  if (after == before) return Status::good();
  const int64_t raw = (after - before - 1) * c.nsa.d + c.nsa.l;
  for (const int n : {ATTUNE_NSA_K, ATTUNE_NSA_V}) {
    Problem p{.batch = batch, .heads_q = c.heads, .heads_kv = c.heads, .dim_qk = c.dim(n), .dim_v = c.dim(n)};
    p.dtype = {c.dtype, c.dtype, c.dtype, DType::none, DType::none};
    // A bound with few distinct values, so that few plans are made.
    p.len_q = int32_t(std::min<uint64_t>(std::bit_ceil(uint64_t(raw)), uint64_t(std::max<int64_t>(raw, c.capacity))));
    p.len_k = int32_t(c.nsa.compressed(p.len_q));
    p.reproducible = reproducible, p.variant = c.compress;
    const Said from(c, c.rows(n, first, batch, before * c.nsa.d, raw));
    const Said to(c, c.rows(kRaw + n, first, batch, before, after - before));
    attune_args a{};
    a.size = sizeof a;
    a.role[ATTUNE_Q] = &from.t, a.role[ATTUNE_OUT] = &to.t;
    for (int w = 0; w < kWeights; ++w) a.role[ATTUNE_VARIANT + w] = args.role[kFirstWeight[n] + w];
    if (Status s = call(p, a, stream); !s.ok()) return s;
  }
  return Status::good();
}

Status send(attune_nsa_cache& c, int32_t batch, int64_t added, void* stream) {
  c.fresh.clear();
  for (int32_t b = 0; b < batch; ++b) {
    const int32_t s = c.order[size_t(b)];
    c.fresh.push_back({b, int32_t(c.length[size_t(s)] + added)}), c.fresh.push_back({c.sequences + b, s});
  }
  return store(c, kWho, c.fresh, reinterpret_cast<int32_t*>(c.numbers.data), stream);
}

Status attend(const attune_nsa_cache& c, const Problem& p, attune_args args, void* stream) {
  attune_tensor streams[ATTUNE_NSA_STREAMS];
  for (int n = 0; n < ATTUNE_NSA_STREAMS; ++n) streams[n] = c.tensor(n);
  const int64_t batch = p.batch;
  int32_t* numbers = reinterpret_cast<int32_t*>(c.numbers.data);
  const attune_tensor used = numbers_beside(streams[0], numbers, batch);
  const attune_tensor index = numbers_beside(streams[0], numbers + c.sequences, batch);
  for (const int r : {ATTUNE_K_NEW, ATTUNE_V_NEW}) args.role[r] = nullptr;
  for (const int first : kFirstWeight)
    for (int w = 0; w < kWeights; ++w) args.role[first + w] = nullptr;
  for (int n = ATTUNE_NSA_K_SELECT; n < kRaw; ++n) args.role[kNew[n]] = c.has_stream(n) ? &streams[n] : nullptr;
  args.role[ATTUNE_K] = &streams[ATTUNE_NSA_K_COMPRESSED], args.role[ATTUNE_V] = &streams[ATTUNE_NSA_V_COMPRESSED];
  args.role[ATTUNE_USED_K] = &used, args.role[ATTUNE_CACHE_INDEX] = &index;
  return call(p, args, stream);
}

Status step(attune_nsa_cache& c, const attune_problem* problem, const attune_args* given, const int32_t* sequences,
            void* stream) {
  Problem p;
  attune_args args{};
  int64_t added = 0;
  if (Status s = complete(c, problem, p); !s.ok()) return s;
  if (Status s = copy_args(given, args); !s.ok()) return s;
  for (const int role : {ATTUNE_K, ATTUNE_V, ATTUNE_USED_K, ATTUNE_CACHE_INDEX})
    if (args.role[role]) return no(name(Role(role)), " given, but the cache provides it");
  if (Status s = choose(c, kWho, sequences, p.batch); !s.ok()) return s;
  if (Status s = find_new(c, p, args, added); !s.ok()) return s;
  if (Status s = copy_all(c.copies, stream); !s.ok()) return s.after(kWho, ": ");
  const auto length = [&](int32_t b) { return c.length[size_t(c.order[size_t(b)])]; };
  for (int32_t b = 0, end; added && b < p.batch; b = end) {
    const int32_t first = c.order[size_t(b)];
    for (end = b + 1; end < p.batch && c.order[size_t(end)] == first + end - b && length(end) == length(b);) ++end;
    if (Status s = compress(c, args, p.reproducible, first, end - b, added, stream); !s.ok()) return s;
  }
  if (args.role[ATTUNE_Q]) {
    if (Status s = send(c, p.batch, added, stream); !s.ok()) return s;
    if (Status s = attend(c, p, args, stream); !s.ok()) return s;
  }
  for (int32_t b = 0; b < p.batch; ++b) c.length[size_t(c.order[size_t(b)])] += int32_t(added);
  return Status::good();
}

int32_t tokens(const attune_nsa_cache* cache, int32_t sequence, bool compressed) {
  int32_t count = -1;
  answer([&] {
    if (!cache) return Status::no("cache is null");
    if (!cache->has(sequence)) return no("sequence ", sequence, " is not in 0 ... ", cache->sequences - 1);
    const int32_t raw = cache->length[size_t(sequence)];
    count = compressed ? int32_t(cache->nsa.compressed(raw)) : raw;
    return Status::good();
  });
  return count;
}

}  // namespace

int attune_nsa_cache_create(const attune_nsa_cache_options* options, attune_nsa_cache** out) {
  return create_cache(options, "attune_nsa_cache_options", offsetof(attune_nsa_cache_options, device), fill, out);
}

void attune_nsa_cache_destroy(attune_nsa_cache* cache) { delete cache; }

int attune_nsa_cache_attend(attune_nsa_cache* cache, const attune_problem* problem, const attune_args* args,
                            const int32_t* sequences, void* stream) {
  return answer([&] { return cache ? step(*cache, problem, args, sequences, stream) : Status::no("cache is null"); });
}

int attune_nsa_cache_shorten(attune_nsa_cache* cache, int32_t sequence, int32_t length) {
  return answer([&] {
    if (!cache) return Status::no("cache is null");
    if (!cache->has(sequence)) return no("sequence ", sequence, " is not in 0 ... ", cache->sequences - 1);
    int32_t& now = cache->length[size_t(sequence)];
    if (length < 0 || length > now) return no("length ", length, " is not in 0 ... ", now);
    return now = length, Status::good();
  });
}

int32_t attune_nsa_cache_length(const attune_nsa_cache* cache, int32_t sequence) {
  return tokens(cache, sequence, false);
}

int32_t attune_nsa_cache_compressed(const attune_nsa_cache* cache, int32_t sequence) {
  return tokens(cache, sequence, true);
}

int attune_nsa_cache_view(const attune_nsa_cache* cache, int stream, attune_tensor* out) {
  return answer([&] {
    if (!cache || !out) return Status::no(cache ? "out is null" : "cache is null");
    if (!cache->has_stream(stream)) return no("stream ", stream, " is not in this cache");
    *out = cache->tensor(stream);
    return Status::good();
  });
}
