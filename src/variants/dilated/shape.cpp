// SPDX-License-Identifier: Apache-2.0
#include "variants/dilated/shape.h"

#include <algorithm>
#include <numeric>

#include "core/forward_of.h"
#include "core/variant/dilated_offsets.h"

namespace attune {
namespace {

using Norm = Dilated::Norm;

// Whether heads in different calls share the rows of a KV head.
bool shares_keys(const Dilated& d, const Problem& p) {
  const int group = p.heads_q / p.heads_kv;
  if (d.mode == Dilated::Mode::headgroup) return group > 1;
  if (dilated_offsets(p) == DilatedOffsets::contiguous) return false;  // those of one offset are in one call
  return group % d.rate[0] != 0 && d.rate[0] < group;
}

bool has_every_row(const Dilated& d) {
  if (d.mode == Dilated::Mode::longnet) return first_has_all(d);
  return std::all_of(d.rate, d.rate + d.branches, [](int r) { return r == 1; });
}

int64_t bytes_of_row(const DilatedShape& s, const Problem& p) {
  const int64_t q = p.heads_q, kv = p.heads_kv, f32 = 4;
  int64_t bytes = 0;
  if (s.sums_apart) bytes += f32 * (s.backward ? q * p.dim_qk + kv * (p.dim_qk + p.dim_v) : q * p.dim_v);
  if (s.own_parts) bytes += q * (p.dim_v * (s.backward ? size_of(p.dtype.out) : f32) + f32);
  return p.batch * bytes;
}

// The queries of a forward may be split anywhere, preferably at segment starts. The keys of a backward accumulate over
// all queries of their segment, so it is split only where every branch starts a segment.
int64_t rows_of_chunk(const DilatedShape& s, const Problem& p, int64_t least_sums) {
  const Dilated& d = s.d;
  const int64_t length = p.len_q, row = bytes_of_row(s, p);
  const int64_t tensors =
      int64_t(size_of(p.dtype.q)) * p.batch * (int64_t(p.heads_q) + p.heads_kv) * (p.dim_qk + p.dim_v) * length;
  const int64_t budget = std::max(least_sums, tensors / 6) * (s.backward ? 6 : 1);
  if (!row || row * length <= budget) return length;
  const int64_t most = std::max<int64_t>(budget / row, 1);
  int64_t unit = 1;
  for (int n = 0; n < d.branches && unit < length; ++n) {
    if (s.backward) unit = std::lcm(unit, int64_t(d.segment[n]));
    else if (d.segment[n] <= most) unit = std::max(unit, int64_t(d.segment[n]));  // only longer segments are split
  }
  // As few chunks as possible, of about equal size.
  const int64_t chunks = ceil_div(length, std::max(unit, most / unit * unit));
  return std::min(length, round_up(ceil_div(length, chunks), unit));
}

}  // namespace

DilatedShape::DilatedShape(const Problem& p, int64_t least_sums)
    : d(dilated_of(p)), backward(p.pass == Pass::backward) {
  adds = d.sums() || (backward && shares_keys(d, p));
  own_parts = d.sums() && (d.norm != Norm::lse || (backward && d.detached));
  sums_apart = adds && (backward ? p.dtype.grad : p.dtype.out) != DType::f32;
  const bool joins = backward || d.norm == Norm::lse;  // parts accumulate anyway
  clears = !has_every_row(d) || (adds && (!joins || !d.sums()));
  chunk = rows_of_chunk(*this, p, least_sums);
}

DilatedShape::Parts DilatedShape::parts(int branch) const {
  Parts made;
  const bool joins = backward || d.norm == Norm::lse;
  const bool writes = !adds || !joins || (!clears && branch == branch_at(d, 0));
  if (backward && own_parts) made.part[made.count++] = DilatedPart::again;
  made.part[made.count++] = writes ? DilatedPart::write : DilatedPart::add;
  return made;
}

Problem DilatedShape::problem(const Problem& p, const DilatedCall& call, DilatedPart part) const {
  Problem made = part == DilatedPart::again ? forward_of(p) : p;
  made.variant = {};
  made.mask.align = Align::bottom_right;
  made.batch = call.q.along_batch.count;
  made.heads_q = call.q.along_head.count, made.heads_kv = call.k.along_head.count;
  made.len_q = call.q.rows, made.len_k = call.k.rows;
  if (part == DilatedPart::add) made.set(Option::accumulate);
  if (part != DilatedPart::again && adds) (backward ? made.dtype.grad : made.dtype.out) = DType::f32;
  return made;
}

DilatedBetween carve_dilated(Workspace& ws, const Problem& p, const DilatedShape& s, const Tensor& q) {
  const auto make = [&](DType dtype, int heads, int dim) {
    const int64_t row = int64_t(heads) * dim;
    return Tensor{.data = ws.take<std::byte>(size_t(p.batch * s.chunk * row) * size_t(size_of(dtype))),
                  .dtype = dtype,
                  .device = q.device,
                  .device_index = q.device_index,
                  .extent = {p.batch, int32_t(s.chunk), heads, dim},
                  .stride = {s.chunk * row, row, dim}};
  };
  DilatedBetween b;
  if (!s.backward && s.sums_apart) b.out = make(DType::f32, p.heads_q, p.dim_v);
  if (!s.backward && s.adds) b.lse = make(DType::f32, p.heads_q, 1);
  if (s.backward && s.sums_apart) {
    b.dq = make(DType::f32, p.heads_q, p.dim_qk);
    b.dk = make(DType::f32, p.heads_kv, p.dim_qk);
    b.dv = make(DType::f32, p.heads_kv, p.dim_v);
  }
  if (s.own_parts) {
    b.own_out = make(s.backward ? p.dtype.out : DType::f32, p.heads_q, p.dim_v);
    b.own_lse = make(DType::f32, p.heads_q, 1);
  } else if (s.backward && s.d.factor() != 1.f) {
    b.own_out = make(p.dtype.out, p.heads_q, p.dim_v);  // the given out is a scaled copy of the branch's own
  }
  return b;
}

}  // namespace attune
