// SPDX-License-Identifier: Apache-2.0
// The tensors that the words of Native Sparse Attention take and return.
#include <algorithm>

#include "core/variant/nsa.h"
#include "core/variant/variants.h"

namespace attune {
namespace {

struct Shape {
  const Problem& p;
  const Args& a;
  const Nsa nsa;
  const Extents q, k;
  const bool packed, ragged, backward;

  Shape(const Problem& problem, const Args& args)
      : p(problem), a(args), nsa(nsa_of(problem)), q(args[Role::q].extent), k(args[Role::k].extent),
        packed(args.given(Role::cu_q)), ragged(problem.keys == KeySource::ragged),
        backward(problem.pass == Pass::backward) {}

  // Rows of compressed tokens for the given raw rows, at least one: a tensor must not be empty.
  int compressed_rows(int rows, bool together) const {
    return int(std::max<int64_t>(1, together ? rows / nsa.d : nsa.compressed(rows)));
  }
  VariantTensor of_query(std::string_view name, Use use, DType dtype, int head, int dim) const {
    return {.name = name, .use = use, .dtype = dtype, .extent = {q.batch, q.seq, head, dim}, .rows = RowsOf::q};
  }
};

// The weights of a phi, in tensors `first` ... `first` + 4.
void declare_phi(const Shape& x, int dim, VariantTensor* to) {
  const Nsa& nsa = x.nsa;
  const int hidden = nsa.width(dim);
  const auto weight = [](std::string_view name, Extents e, double inputs) {
    return VariantTensor{.name = name, .use = Use::input, .dtype = DType::f32, .extent = e, .inputs = inputs};
  };
  if (nsa.phi == Phi::conv) {
    to[0] = weight("taps", {1, nsa.l, 1, dim}, nsa.l);
    to[0].or_heads = {x.p.heads_kv, 0};
  }
  if (nsa.phi != Phi::mlp) return;
  to[0] = weight("position", {1, nsa.l, 1, dim}, 1);
  to[1] = weight("w1", {1, hidden, nsa.l, dim}, double(nsa.l) * dim);
  to[2] = weight("b1", {1, 1, 1, hidden}, 1);
  to[3] = weight("w2", {1, dim, 1, hidden}, hidden);
  to[4] = weight("b2", {1, 1, 1, dim}, 1);
}

void declare_compress(const Shape& x, Declared& out) {
  out.dense = false;
  out.required = x.backward ? roles(Role::q, Role::d_out, Role::dq) : roles(Role::q, Role::out);
  out.required |= roles_if(x.ragged, roles(Role::cu_q));
  out.optional = roles(Role::cu_q, Role::used_q);
  out.lengths_of_k = false;
  out.out = {x.packed ? 1 : x.p.batch, x.compressed_rows(x.q.seq, x.packed), 0, 0};
  declare_phi(x, x.p.dim_qk, out.tensor);
}

void declare_select(const Shape& x, Declared& out) {
  out.dense = false;
  out.required = roles(Role::q, Role::k) | roles_if(x.ragged, roles(Role::cu_q)) |
                 roles_if(x.p.len_q != x.p.len_k, roles(Role::used_k));
  // Without lse, a backend computes it from the scores alone, in a fixed order. A query then selects the same blocks,
  // bit for bit, regardless of what else is in the call.
  out.optional =
      roles(Role::lse, Role::cu_q, Role::used_q, Role::used_k) | roles_if(!x.ragged, roles(Role::cache_index));
  out.read = roles(Role::lse);
  out.lengths_of_k = false;
  // A cache may have more rows than there are tokens.
  if (x.ragged) out.k = {1, x.compressed_rows(x.q.seq, true), 0, 0};
  else if (x.p.len_q == x.p.len_k && !x.a.given(Role::used_k)) out.k.seq = x.compressed_rows(x.q.seq, false);
  else if (!x.a.given(Role::k)) out.k.seq = x.compressed_rows(x.p.len_k, false);
  out.tensor[0] = x.of_query("blocks", Use::result, DType::i32, x.p.heads_kv, x.nsa.n);
}

void declare_gate(const Shape& x, Declared& out) {
  const int heads = x.p.heads_kv, given = x.a.given(variant_tensor(0)) ? x.a[variant_tensor(0)].extent.head : 0;
  out.dense = false;
  out.required = x.backward ? roles(Role::q, Role::d_out, Role::dq) : roles(Role::q, Role::out);
  out.optional = roles(Role::cu_q, Role::used_q);
  out.lengths_of_k = false;
  out.out.head = heads;
  out.tensor[0] = x.of_query("gates", Use::input, DType::f32, heads, 3);
  const int fewer = given > 0 ? given : heads % 2 == 0 ? heads / 2 : 1;  // any divisor of the head count
  out.tensor[0].or_heads = {heads % fewer == 0 ? fewer : 1, 1};
}

void declare_reads(const Shape& x, Declared& out) {
  out.dense = false;
  out.required = roles(Role::q) | roles_if(x.p.len_q != x.p.len_k, roles(Role::used_k));
  out.optional = roles(Role::cu_q, Role::used_q, Role::used_k);
  out.lengths_of_k = false;
  out.tensor[0] = x.of_query("blocks", Use::list, DType::i32, x.p.heads_kv, x.nsa.n);
  out.tensor[1] = {.name = "tokens_read", .use = Use::result, .dtype = DType::i64, .extent = {1, 1, 1, 4}};
}

void declare_nsa(const Shape& x, Declared& out) {
  const Problem& p = x.p;
  const Branch only = x.nsa.only;
  const bool alone = only != Branch::all, scores = only != Branch::window;
  const bool values = only == Branch::all || only == Branch::compressed;
  const bool chunk = p.len_q != p.len_k, none = x.nsa.phi == Phi::none, used = x.a.given(Role::used_k);
  out.dense = false;
  out.self = !chunk;
  out.lengths_of_k = !none && scores;
  const Roles forward = roles(Role::q) | roles_if(scores, roles(Role::k)) | roles_if(values, roles(Role::v)) |
                        roles_if(x.ragged, roles(Role::cu_q, Role::cu_k)) | roles_if(chunk, roles(Role::used_k));
  out.required = forward | (x.backward ? roles(Role::d_out, Role::dq) : roles(Role::out)) |
                 roles_if(x.backward && alone, roles(Role::out, Role::lse));
  out.optional = roles_if(!x.ragged, roles(Role::used_k)) | roles_if(!x.ragged && none, roles(Role::cache_index)) |
                 roles_if(!x.backward, roles(Role::used_q)) | roles_if(alone, roles(Role::lse)) |
                 roles_if(alone && x.backward, roles(Role::d_lse)) |
                 roles_if(x.backward && scores && only != Branch::selected, roles(Role::dk)) |
                 roles_if(x.backward && values, roles(Role::dv));
  if (none && scores) {
    if (x.ragged) out.k = {1, x.compressed_rows(x.q.seq, true), 0, 0};
    else if (!chunk && !used) out.k.seq = x.compressed_rows(x.q.seq, false);
    else if (!x.a.given(Role::k)) out.k.seq = x.compressed_rows(p.len_k, false);
  }

  // Streams of raw tokens have the rows of q; with used_k they are caches with their own rows.
  const auto stream = [&](int n, std::string_view name, int dim) {
    const Extents given = x.a[variant_tensor(n)].extent;
    Extents e{x.q.batch, x.q.seq, p.heads_kv, dim};
    if (chunk) e.seq = p.len_k;
    if (used && x.a.given(variant_tensor(n))) e.batch = given.batch, e.seq = given.seq;
    out.tensor[n] = {.name = name, .use = Use::input, .dtype = p.dtype.kv, .extent = e, .rows = RowsOf::k};
  };
  if (only == Branch::all || only == Branch::selected)
    stream(kNsaSelect, "k_select", p.dim_qk), stream(kNsaSelect + 1, "v_select", p.dim_v);
  if ((only == Branch::all && x.nsa.w > 0) || only == Branch::window)
    stream(kNsaWindow, "k_window", p.dim_qk), stream(kNsaWindow + 1, "v_window", p.dim_v);
  if (scores) declare_phi(x, p.dim_qk, out.tensor + kNsaPhiK);
  if (values) declare_phi(x, p.dim_v, out.tensor + kNsaPhiV);
  if (only == Branch::all || only == Branch::selected)
    out.tensor[kNsaBlocks] = x.of_query("blocks", Use::saved, DType::i32, p.heads_kv, x.nsa.n);
  if (alone) return;
  out.tensor[kNsaGates] = x.of_query("gates", Use::input, DType::f32, p.heads_q, 3);
  out.tensor[kNsaGates].or_heads = {p.heads_kv, 1};
  out.tensor[kNsaBranchOut] = x.of_query("branch_out", Use::saved, p.dtype.out, 3 * p.heads_q, p.dim_v);
  out.tensor[kNsaBranchLse] = x.of_query("branch_lse", Use::saved, DType::f32, 3 * p.heads_q, 1);
  out.tensor[kNsaReads] = {.name = "tokens_read", .use = Use::result, .dtype = DType::i64, .extent = {1, 1, 1, 4},
                    .optional = true};
}

}  // namespace

Status valid_nsa(const Problem& p) {
  Nsa read;
  return read_nsa(p, read);
}

void declare_nsa(const Problem& p, const Args& a, Declared& out) {
  const Shape x(p, a);
  const std::string_view what = word(p.variant);
  if (what == "compress") declare_compress(x, out);
  if (what == "select") declare_select(x, out);
  if (what == "selected") out.tensor[0] = x.of_query("blocks", Use::list, DType::i32, p.heads_kv, x.nsa.n);
  if (what == "gate") declare_gate(x, out);
  if (what == "reads") declare_reads(x, out);
  if (what == "nsa") declare_nsa(x, out);
}

}  // namespace attune
