// SPDX-License-Identifier: Apache-2.0
// cuda_standard: textbook attention on a GPU, both passes. cuBLASLt computes the products, with one softmax kernel
// between them. It is the baseline for the fused kernels, and the last backend of the chain on GPUs from sm_75 on.
//   forward   S = Q K'  ->  P = softmax(S)  ->  out = P V
//   backward  S, dP = dO V'  ->  P, dS  ->  dV = P' dO, dK = dS' Q, dQ = dS K
// Scores are f32, since rounding a score to bf16 loses more than a whole fused kernel does; P and dS replace them in
// the dtype of the inputs. KV heads, each with its query heads, are processed in chunks whose scores stay below
// kBudget, with all KV heads of a chunk in one batched product.
//
// Where every sequence fills its tensors and rows are aligned, products read and write the tensors directly. Otherwise
// (ragged, paged, used lengths, padding, query heads not contiguous, accumulate) rows are packed before and unpacked
// after, which costs len * dim where the products cost len * len * dim.
#include <cmath>

#include "attention/gpu/append.h"
#include "attention/gpu/refusal.h"
#include "attention/gpu/standard_rows.h"
#include "machine/cuda/blas.h"
#include "machine/cuda/launcher.h"
#include "plan/backend.h"

namespace attune {
namespace {

using standard::Params;

constexpr std::string_view kWho = "cuda_standard";
constexpr int64_t kBudget = int64_t(1) << 30;      // bytes of f32 scores per chunk; a backward has two such matrices
constexpr int64_t kMostOfHead = int64_t(1) << 36;  // bytes of the scores of one KV head; keeps the rows within a grid
constexpr int kMostListed = 1 << 18;               // key blocks of a list: one bit each in shared memory

int64_t head_rows(const Problem& p) { return int64_t(p.heads_q / p.heads_kv) * p.len_q; }
int64_t pitch_of(int64_t width) { return round_up(width, 8); }
double head_bytes(const Problem& p) { return double(head_rows(p)) * double(pitch_of(p.len_k)) * 4; }
int64_t heads_total(const Problem& p) { return int64_t(p.batch) * p.heads_kv; }
int64_t chunk_of(const Problem& p) {
  const auto fit = int64_t(double(kBudget) / head_bytes(p));
  return fit < 1 ? 1 : fit < heads_total(p) ? fit : heads_total(p);
}
bool with_options(const Problem& p) { return needs_general(p) || p.mask.blocks.q > 0; }

struct Carved {
  Params params;
  std::byte* scratch;  // of products
};

Carved carve(Workspace& w, const Problem& p) {
  const size_t heads = size_t(chunk_of(p)), rows = heads * size_t(head_rows(p)), keys = heads * size_t(p.len_k);
  const size_t pitch_s = size_t(pitch_of(p.len_k)), pitch_qk = size_t(pitch_of(p.dim_qk));
  const size_t pitch_v = size_t(pitch_of(p.dim_v));
  const size_t in = size_t(size_of(p.dtype.q)), grad = size_t(size_of(p.dtype.grad)), back = p.pass == Pass::backward;
  Carved c{};
  Params& x = c.params;
  x.problem = p, x.group = p.heads_q / p.heads_kv;
  x.pitch_s = int32_t(pitch_s), x.pitch_qk = int32_t(pitch_qk), x.pitch_v = int32_t(pitch_v);
  c.scratch = w.take<std::byte>(cuda::kBlasBytes);
  x.s = w.take<float>(rows * pitch_s), x.dp = w.take<float>(back * rows * pitch_s);
  x.db = w.take<float>(back && (p.has(Option::bias) || p.has(Option::block_bias)) ? rows * pitch_s : 0);
  x.q = w.take<char>(rows * pitch_qk * in), x.k = w.take<char>(keys * pitch_qk * in);
  x.v = w.take<char>(keys * pitch_v * in);
  x.out = w.take<char>((1 - back) * rows * pitch_v * size_t(size_of(p.dtype.out)));
  x.before = w.take<float>((1 - back) * rows);
  x.d_out = w.take<char>(back * rows * pitch_v * in), x.dq = w.take<char>(back * rows * pitch_qk * grad);
  x.dk = w.take<char>(back * keys * pitch_qk * grad), x.dv = w.take<char>(back * keys * pitch_v * grad);
  const bool sinks = back && p.has(Option::sink);
  x.sink_terms = w.take<float>(sinks ? size_t(p.batch) * size_t(p.heads_q) * size_t(p.len_q) : 0);
  return c;
}

// One matrix per KV head: query rows (of all heads of the group) or key rows.
struct Operand {
  char* data = nullptr;
  DType type = DType::none;
  int64_t pitch = 0;            // elements from row to row
  int64_t head = 0, batch = 0;  // elements from KV head to KV head, and from sequence to sequence
  bool packed = false;          // `head` is then the stride between KV heads of the chunk

  int64_t to_sequence(const Problem& p) const { return packed ? p.heads_kv * head : batch; }
  bool even(const Problem& p) const { return packed || p.batch == 1 || batch == p.heads_kv * head; }
  char* at(const Problem& p, int64_t first, int64_t u) const {
    const int64_t elements = packed ? (u - first) * head : u / p.heads_kv * batch + u % p.heads_kv * head;
    return data + elements * size_of(type);
  }
};

// Describes a tensor in place. Returns false if a product cannot take its rows.
bool as_it_lies(const Problem& p, const Tensor& t, int len, int dim, int group, Operand& out) {
  const int64_t size = size_of(t.dtype);
  if (t.extent.seq != len || t.extent.batch != p.batch || dim % 8) return false;
  int64_t pitch = len > 1 ? t.stride.seq : dim;
  if (group > 1) {  // the rows of the group's heads are contiguous
    if (len == 1) pitch = t.stride.head;
    else if (t.stride.head != len * t.stride.seq) return false;
  }
  out = {static_cast<char*>(t.data), t.dtype, pitch, p.heads_kv > 1 ? group * t.stride.head : t.stride.batch,
         t.stride.batch, false};
  const int64_t bytes = reinterpret_cast<intptr_t>(t.data) | pitch * size | out.head * size | out.batch * size;
  return bytes % 16 == 0 && pitch >= dim;
}

// One call: its matrices and the products between them.
struct Call {
  const Plan& plan;
  const Problem& p;
  const Args& a;
  const cuda::Launcher& launcher;
  Params x;
  std::byte* scratch;
  bool direct = false;
  float scale = 1.f;
  Operand q{}, k{}, v{}, out{}, d_out{}, dq{}, dk{}, dv{}, s{}, dp{}, weights{}, ds{};

  Call(const Plan& made, const Args& args, const Carved& c, const cuda::Launcher& launches)
      : plan(made), p(made.problem), a(args), launcher(launches), x(c.params), scratch(c.scratch) {
    x.args = dense(args);
    if (!a.given(Role::d_sinks)) x.sink_terms = nullptr;
    if (!a.given(Role::d_bias) || (rows_own_bias() && !p.has(Option::accumulate))) x.db = nullptr;
    x.uniform = p.keys == KeySource::linear && !has_sequence_tensors(a);
    if (x.uniform) x.seq = sequence(p, a, 0);
    // Half of the scale goes to dS, half to its products. For ordinary logits, queries and keys have magnitude 1 /
    // sqrt(scale). The stored dS then has the magnitude of dQ and dK, and lies within the range of f16 if they do.
    scale = scale_of(p, a), x.in_ds = std::sqrt(std::abs(scale));
    direct = find_direct();
    if (!direct) find_packed();
    const int64_t rows = head_rows(p);
    const DType type = p.dtype.q;
    const int64_t narrow = int64_t(x.pitch_s) * 4 / size_of(type);
    s = {reinterpret_cast<char*>(x.s), DType::f32, x.pitch_s, rows * x.pitch_s, 0, true};
    dp = {reinterpret_cast<char*>(x.dp), DType::f32, x.pitch_s, rows * x.pitch_s, 0, true};
    weights = {s.data, type, narrow, rows * narrow, 0, true};
    ds = {dp.data, type, narrow, rows * narrow, 0, true};
  }

  // True if sequences may have different lengths or rows. Positions only move the mask.
  bool has_lengths() const {
    for (const Role r : kSequenceRoles)
      if (r != Role::positions && a.given(r)) return true;
    return false;
  }
  // True if no two rows of scores add to the same row of d_bias.
  bool rows_own_bias() const {
    const Extents e = a[Role::d_bias].extent;
    return !p.has(Option::block_bias) && e.batch == p.batch && e.seq == p.len_q && e.head == p.heads_q;
  }
  bool find_direct() {
    if (p.keys != KeySource::linear || p.has(Option::accumulate) || has_lengths()) return false;
    const auto queries = [&](Role r, int dim, Operand& o) {
      return !a.given(r) || as_it_lies(p, a[r], p.len_q, dim, x.group, o);
    };
    const auto keys = [&](Role r, int dim, Operand& o) {
      return !a.given(r) || as_it_lies(p, a[r], p.len_k, dim, 1, o);
    };
    return queries(Role::q, p.dim_qk, q) && keys(Role::k, p.dim_qk, k) && keys(Role::v, p.dim_v, v) &&
           (p.pass == Pass::backward || queries(Role::out, p.dim_v, out)) && queries(Role::d_out, p.dim_v, d_out) &&
           queries(Role::dq, p.dim_qk, dq) && keys(Role::dk, p.dim_qk, dk) && keys(Role::dv, p.dim_v, dv);
  }
  void find_packed() {
    const int64_t rows = head_rows(p), len_k = p.len_k;
    const DType in = p.dtype.q, grad = p.dtype.grad;
    const auto packed = [](char* data, DType type, int64_t len, int64_t pitch) {
      return Operand{data, type, pitch, len * pitch, 0, true};
    };
    q = packed(x.q, in, rows, x.pitch_qk), k = packed(x.k, in, len_k, x.pitch_qk);
    v = packed(x.v, in, len_k, x.pitch_v);
    out = packed(x.out, p.dtype.out, rows, x.pitch_v), d_out = packed(x.d_out, in, rows, x.pitch_v);
    dq = packed(x.dq, grad, rows, x.pitch_qk), dk = packed(x.dk, grad, len_k, x.pitch_qk);
    dv = packed(x.dv, grad, len_k, x.pitch_v);
  }

  // to = left right, for the KV heads of the chunk. One call if every operand has a constant stride; otherwise one per
  // sequence or one per head, whichever is fewer. A product of 16 heads of 512 x 512 takes 10 us on an H200, and 4 of
  // them are its prologue and epilogue.
  struct Factor { const Operand& of; bool transposed = false; };
  Status multiply(int64_t m, int64_t n, int64_t depth, Factor x_factor, Factor y_factor, const Operand& to,
                  float alpha = 1.f) const {
    const Operand &left = x_factor.of, &right = y_factor.of;
    const bool even = left.even(p) && right.even(p) && to.even(p);
    const bool whole = x.first_head == 0 && x.kv_heads % p.heads_kv == 0;  // all heads of every sequence
    const bool by_head = !even && whole && x.kv_heads / p.heads_kv > p.heads_kv;
    const auto step = [&](const Operand& o) { return by_head ? o.to_sequence(p) : o.head; };
    const int64_t last = x.first + (by_head ? p.heads_kv : x.kv_heads);
    for (int64_t u = x.first; u < last;) {
      const int64_t left_over = last - u, of_sequence = p.heads_kv - u % p.heads_kv;
      const int64_t next = by_head ? 1 : even || left_over < of_sequence ? left_over : of_sequence;
      const int64_t count = by_head ? x.kv_heads / p.heads_kv : next;
      const cuda::Product product{
          .in = left.type, .out = to.type, .m = int32_t(m), .n = int32_t(n), .k = int32_t(depth),
          .batch = int32_t(count), .x_transposed = x_factor.transposed, .y_transposed = y_factor.transposed,
          .tf32 = p.precision == Precision::tf32, .device = plan.device.index, .pitch_x = left.pitch,
          .pitch_y = right.pitch, .pitch_to = to.pitch, .step_x = step(left), .step_y = step(right),
          .step_to = step(to)};
      const cuda::Factors factors{.x = left.at(p, x.first, u), .y = right.at(p, x.first, u),
                                  .to = to.at(p, x.first, u), .alpha = alpha};
      if (Status f = cuda::multiply(product, factors, scratch, launcher.stream()); !f.ok()) return launcher.failed(f);
      u += next;
    }
    return Status::good();
  }

  template <auto Kernel>
  Status launch(int64_t blocks, int threads, int shared = 0) const {
    static constinit cuda::SharedMemoryOptIn ready;
    return launcher({.kernel = cuda::address(Kernel), .ready = &ready, .blocks = blocks, .threads = threads,
                     .shared_bytes = shared},
                    x);
  }
  // One warp per row: `which` is 0 for query rows, 1 for key rows.
  template <auto Kernel>
  Status each_row(int which) {
    x.which = which, x.rows = x.kv_heads * (which == 0 ? head_rows(p) : p.len_k);
    return launch<Kernel>(ceil_div(x.rows, standard::kWarpsOfCopy), standard::kWarpsOfCopy * 32);
  }
  Status clear(Role r) {
    if (!a.given(r)) return Status::good();
    const Extents e = a[r].extent;
    x.cleared = r, x.rows = int64_t(e.batch) * e.seq * e.head;
    return launch<standard::clear_kernel>(ceil_div(x.rows, standard::kWarpsOfCopy), standard::kWarpsOfCopy * 32);
  }
  int list_bytes() const {
    return p.mask.blocks.q ? int(ceil_div(ceil_div(p.len_k, p.mask.blocks.k), 32)) * 4 : 0;
  }

  template <class T, int Threads, int Vectors>
  Status soften_plain() const {
    constexpr int kRows = standard::rows_of_block(Threads);
    return launch<standard::soften_plain_kernel<T, Threads, Vectors>>(ceil_div(x.rows, kRows), Threads * kRows);
  }
  template <class T>
  Status soften() {
    x.rows = x.kv_heads * head_rows(p);
    if (with_options(p)) return launch<standard::soften_kernel<T, General, 256>>(x.rows, 256, list_bytes());
    if (p.len_k <= 512) return soften_plain<T, 32, 4>();
    if (p.len_k <= 1024) return soften_plain<T, 32, 8>();
    if (p.len_k <= 2048) return soften_plain<T, 64, 8>();
    if (p.len_k <= 4096) return soften_plain<T, 128, 8>();
    if (p.len_k <= 8192) return soften_plain<T, 256, 8>();
    if (p.len_k <= 16384) return soften_plain<T, 512, 8>();
    return launch<standard::soften_kernel<T, Plain, 512>>(x.rows, 512);
  }
  template <class T>
  Status differentiate() {
    const int64_t rows = x.rows = x.kv_heads * head_rows(p);
    constexpr int kRows = standard::kRowsOfGradients;
    if (!with_options(p))
      return launch<standard::differentiate_plain_kernel<T>>(ceil_div(rows, kRows), kRows * 32);
    if (Status f = launch<standard::differentiate_kernel<T, 256>>(rows, 256, list_bytes()); !f.ok()) return f;
    if (!x.db) return Status::good();
    if (p.has(Option::block_bias)) return launch<standard::block_bias_kernel>(1, 256);
    // Rows of d_bias that this chunk adds to, and the number of chunk rows for each.
    const Extents e = a[Role::d_bias].extent;
    const int64_t sequences = (x.first_head + x.kv_heads - 1) / p.heads_kv + 1;
    const int64_t sums = (e.batch > 1 ? sequences : 1) * int64_t(e.seq) * e.head, of_each = ceil_div(rows, sums);
    x.columns = e.dim == 1 ? 1 : of_each >= 16 ? 32 : 256;
    return launch<standard::bias_kernel>(sums * ceil_div(e.dim, x.columns), 256);
  }

  template <class T>
  Status forward() {
    const int64_t rows = head_rows(p);
    if (Status f = multiply(rows, p.len_k, p.dim_qk, {q}, {.of = k, .transposed = true}, s); !f.ok()) return f;
    if (Status f = soften<T>(); !f.ok()) return f;
    if (Status f = multiply(rows, p.dim_v, p.len_k, {weights}, {v}, out); !f.ok()) return f;
    return direct ? Status::good() : each_row<standard::scatter_kernel>(0);
  }

  template <class T>
  Status backward(bool shared) {
    const int64_t rows = head_rows(p);
    if (Status f = multiply(rows, p.len_k, p.dim_qk, {q}, {.of = k, .transposed = true}, s); !f.ok()) return f;
    if (Status f = multiply(rows, p.len_k, p.dim_v, {d_out}, {.of = v, .transposed = true}, dp); !f.ok()) return f;
    if (Status f = differentiate<T>(); !f.ok()) return f;
    if (a.given(Role::dv))
      if (Status f = multiply(p.len_k, p.dim_v, rows, {.of = weights, .transposed = true}, {d_out}, dv); !f.ok())
        return f;
    if (a.given(Role::dk))
      if (Status f = multiply(p.len_k, p.dim_qk, rows, {.of = ds, .transposed = true}, {q}, dk, scale / x.in_ds);
          !f.ok())
        return f;
    if (a.given(Role::dq)) {
      if (Status f = multiply(rows, p.dim_qk, p.len_k, {ds}, {k}, dq, scale / x.in_ds); !f.ok()) return f;
      if (!direct)
        if (Status f = each_row<standard::scatter_kernel>(0); !f.ok()) return f;
    }
    if (direct || !(a.given(Role::dk) || a.given(Role::dv))) return Status::good();
    if (!shared) return each_row<standard::scatter_kernel>(1);
    return launch<standard::add_keys_kernel>(2 * p.heads_kv * ceil_div(max(p.dim_qk, p.dim_v), 64), 64);
  }

  template <class T>
  Status run() {
    const bool back = p.pass == Pass::backward;
    const bool clears = back && !p.has(Option::accumulate);
    if (clears && !direct)
      for (const Role r : {Role::dk, Role::dv})
        if (Status f = clear(r); !f.ok()) return f;
    if (clears)
      if (Status f = clear(Role::d_bias); !f.ok()) return f;
    const bool shared = p.keys == KeySource::paged || a.given(Role::cache_index);
    const int64_t all = heads_total(p), chunk = chunk_of(p);
    for (x.first = 0; x.first < all; x.first += chunk) {
      x.kv_heads = int32_t(all - x.first < chunk ? all - x.first : chunk);
      x.first_b = int32_t(x.first / p.heads_kv), x.first_head = int32_t(x.first % p.heads_kv);
      if (!direct)
        for (const int which : {0, 1})
          if (Status f = each_row<standard::gather_kernel>(which); !f.ok()) return f;
      if (Status f = back ? backward<T>(shared) : forward<T>(); !f.ok()) return f;
    }
    return x.sink_terms ? launch<standard::sink_kernel>(p.heads_q, 256) : Status::good();
  }
};

Status supports(const Problem& p, const Device& d) {
  const Blocks blocks = p.mask.blocks;
  cuda::Refusal r(kWho, p, d);
  r.needs_arch_from(75).f32_or_half(p.dtype.q);
  r.require(p.dtype.q != DType::bf16 || d.arch >= 80, "bf16 requires sm_80 or later, but ", d.name, " is sm_", d.arch);
  r.kv_like_q();
  p.pass == Pass::backward ? r.half_gradients() : r.out_like_q_or_f32();
  r.without({Option::descale}).no_variant();
  r.require(p.reproducible != Reproducible::batch, "cuBLASLt does not guarantee repro=batch; repro=run is supported");
  r.require(head_bytes(p) < double(kMostOfHead), "h", p.heads_q / p.heads_kv, " x q", p.len_q, " x k", p.len_k,
            " scores take 2^36 bytes or more");
  r.require(!blocks.q || ceil_div(p.len_k, blocks.k) <= kMostListed, "k", p.len_k, " in blocks of ", blocks.k,
            " are over 2^18 key blocks");
  return r.status();
}

Status shape(Plan& plan, const Planner&) {
  if (plan.device.index >= 0)  // a GPU that is present, not only planned for
    if (Status s = cuda::blas_found(); !s.ok()) return s.after(kWho, ": ");
  Workspace counting;
  carve_rotated(counting, plan.problem);
  carve(counting, plan.problem);
  plan.workspace_bytes = counting.used;
  return Status::good();
}

Status attend(const Plan& plan, const Args& a, Workspace workspace, Stream stream) {
  const cuda::Launcher launcher(kWho, plan.problem, plan.device.index, stream);
  if (!launcher.status.ok()) return launcher.status;
  Call call(plan, a, carve(workspace, plan.problem), launcher);
  switch (plan.problem.dtype.q) {
    case DType::f32: return call.run<float>();
    case DType::f16: return call.run<F16>();
    default: return call.run<Bf16>();
  }
}

Status run(const Plan& plan, const Args& a, Workspace workspace, Stream stream) {
  if (Status s = cuda::blas_found(); !s.ok()) return s.after(kWho, ": ");
  return cuda::append_then(attend, plan, a, workspace, stream);
}

}  // namespace

extern const Backend cuda_standard;
const Backend cuda_standard{.name = kWho, .supports = supports, .shape = shape, .run = run};

}  // namespace attune
