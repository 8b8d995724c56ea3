// SPDX-License-Identifier: Apache-2.0
// Content-adaptive block-sparse attention, as core/variant/adaptive.h defines it: places the rows of the lists, scores
// and selects, then attends over these lists with the scores as block bias. In a backward, the gradient of that bias is
// the gradient of the scores. CPU and GPU share one composition; only the scorer's steps run on different machines.
#include <algorithm>

#include "core/dtypes.h"
#include "core/variant/scorer.h"
#include "variants/adaptive/gpu.h"
#include "variants/blocks/blocks.h"
#include "variants/sub_plans.h"
#include "variants/adaptive/scorer.h"

namespace attune {
namespace {

using T = AdaptiveTensor;

// The attention over the lists that the scorer makes.
Problem attention(const Problem& p, const Adaptive& say) {
  Problem part = p;
  part.variant = {};
  part.mask.blocks = {say.block, say.block, int32_t(adaptive_bound(p, say))};
  part.set(Option::block_bias);
  return part;
}

Tensor compact(const Plan& plan, void* data, DType dtype, Extents e) {
  const Strides stride{e.batch > 1 ? int64_t(e.seq) * e.head * e.dim : 0, e.seq > 1 ? int64_t(e.head) * e.dim : 0,
                       e.head > 1 ? e.dim : 0};
  return {data, dtype, plan.device.kind, plan.device.index, e, stride};
}

// Everything between the arguments and the attention, without the caller's saved tensors.
struct Buffers {
  Scorer x{};
  Tensor begin, column, scores, begin_k, row_k, d_entry;
  cpu::ChooserBuffers* chooser = nullptr;  // one per worker, CPU only
  int workers = 0;
};

Weights weights(const Tensor& t) {
  return {static_cast<float*>(t.data), t.stride.seq, t.stride.head};
}

Buffers carve(Workspace& ws, const Plan& plan, const Args& a) {
  const Problem& p = plan.problem;
  const bool backward = p.pass == Pass::backward, on_cpu = plan.device.kind == DeviceKind::cpu;
  Buffers buffers;
  Scorer& x = buffers.x;
  x.say = adaptive_of(p);
  x.problem = attention(p, x.say);
  x.args = dense(a);
  const int dim = p.dim_qk, hidden = x.say.hidden, bound = x.problem.mask.blocks.bound;
  x.rows = int(ceil_div(p.len_q, x.say.block)), x.columns = int(ceil_div(p.len_k, x.say.block));
  x.nets = x.say.per_head ? p.heads_q : 1, x.units = x.say.per_head ? p.heads_q : p.heads_kv;

  const auto saved = [&](T t, DType dtype, Extents e) {
    void* const place = ws.take<int32_t>(size_t(int64_t(e.batch) * e.head * e.dim));
    return a.given(role(t)) ? a[role(t)] : compact(plan, place, dtype, e);
  };
  buffers.begin = saved(T::begin, DType::i32, {p.batch, 1, p.heads_q, x.rows + 1});
  buffers.column = saved(T::column, DType::i32, {1, 1, 1, bound});
  buffers.scores = saved(T::scores, DType::f32, {1, 1, 1, bound});
  for (int side = 0; side < 2; ++side) {
    x.mix[side] = ws.take<float>(size_t(x.nets) * dim * hidden);
    x.offset[side] = ws.take<float>(size_t(x.nets) * hidden);
    const size_t blocks = size_t(p.batch) * x.blocks(side);
    x.mean[side] = ws.take<float>(blocks * x.heads(side) * dim);
    x.term[side] = ws.take<float>(blocks * x.sides(side) * hidden);
    if (!backward) continue;
    x.d_mix[side] = ws.take<float>(size_t(x.nets) * dim * hidden);
    x.d_offset[side] = ws.take<float>(size_t(x.nets) * hidden);
    x.d_term[side] = ws.take<float>(blocks * x.sides(side) * hidden);
  }
  if (backward) {
    x.partial = ws.take<float>(size_t(p.batch) * x.rows * p.heads_q * (hidden + 2));
    const Extents first_k{p.batch, 1, p.heads_q, x.columns + 1}, entries{1, 1, 1, bound};
    int32_t* const begin_k = ws.take<int32_t>(size_t(p.batch) * p.heads_q * (x.columns + 1));
    buffers.begin_k = compact(plan, begin_k, DType::i32, first_k);
    buffers.row_k = compact(plan, ws.take<int32_t>(size_t(bound)), DType::i32, entries);
    buffers.d_entry = compact(plan, ws.take<float>(size_t(bound)), DType::f32, entries);
  } else if (on_cpu) {
    buffers.workers = std::max(1, plan.device.units);
    buffers.chooser = ws.take<cpu::ChooserBuffers>(size_t(buffers.workers));
    float* const numbers = ws.take<float>(size_t(buffers.workers) * x.columns * 3);
    for (int n = 0; buffers.chooser && n < buffers.workers; ++n) {
      float* const mine = numbers + int64_t(n) * x.columns * 3;
      buffers.chooser[n] = {mine, mine + x.columns, reinterpret_cast<int32_t*>(mine + 2 * x.columns)};
    }
  }

  x.project[0] = weights(a[role(T::wq)]), x.project_bias[0] = weights(a[role(T::bq)]);
  x.project[1] = weights(a[role(T::wk)]), x.project_bias[1] = weights(a[role(T::bk)]);
  x.w1 = weights(a[role(T::w1)]), x.b1 = weights(a[role(T::b1)]);
  x.w2 = weights(a[role(T::w2)]), x.b2 = weights(a[role(T::b2)]);
  x.d_project[0] = weights(a[d_role(T::wq)]), x.d_project_bias[0] = weights(a[d_role(T::bq)]);
  x.d_project[1] = weights(a[d_role(T::wk)]), x.d_project_bias[1] = weights(a[d_role(T::bk)]);
  x.d_w1 = weights(a[d_role(T::w1)]), x.d_b1 = weights(a[d_role(T::b1)]);
  x.d_w2 = weights(a[d_role(T::w2)]), x.d_b2 = weights(a[d_role(T::b2)]);
  x.log_temperature = static_cast<const float*>(a[role(T::log_temperature)].data);
  x.d_log_temperature = static_cast<float*>(a[d_role(T::log_temperature)].data);
  x.noise = static_cast<const int64_t*>(a[role(T::noise)].data);
  x.begin = static_cast<int32_t*>(buffers.begin.data), x.column = static_cast<int32_t*>(buffers.column.data);
  x.begin_batch = buffers.begin.stride.batch, x.begin_head = buffers.begin.stride.head;
  x.scores = static_cast<float*>(buffers.scores.data);
  x.begin_k = static_cast<int32_t*>(buffers.begin_k.data), x.row_k = static_cast<int32_t*>(buffers.row_k.data);
  x.d_entry = static_cast<float*>(buffers.d_entry.data);
  return buffers;
}

Status supports(const Problem& p, const Device& d) {
  const auto no = [](const auto&... why) { return Status::unsupported("adaptive: ", why...); };
  if (word(p.variant) != "adaptive") return not_variant("adaptive", "adaptive", p);
  if (!is_f32_or_half(p.dtype.q) || !is_f32_or_half(p.dtype.kv))
    return no("q is ", name(p.dtype.q), " and kv is ", name(p.dtype.kv), "; each must be f32, f16 or bf16");
  if (p.pass == Pass::backward && !is_f32_or_half(p.dtype.grad))
    return no("gradients are ", name(p.dtype.grad), "; they must be f32, f16 or bf16");
  const Adaptive say = adaptive_of(p);
  if (d.kind == DeviceKind::cpu) return Status::good();
  if (p.pass == Pass::backward && p.reproducible != Reproducible::no)
    return no("a backward on a GPU does not guarantee the order in which gradients of scores are summed; a "
              "reproducible one requires a CPU");
  const int64_t columns = ceil_div(p.len_k, say.block), most = cuda::most_columns(say.hidden);
  return columns <= most ? Status::good() : no("a row has ", columns, " key blocks; a GPU supports up to ", most);
}

Status shape(Plan& plan, const Planner& planner) {
  const Problem part = attention(plan.problem, adaptive_of(plan.problem));
  if (Status s = plan_part("adaptive", part, planner, plan); !s.ok()) return s;
  Workspace count;
  carve(count, plan, {});
  count.take<std::byte>(plan.sub_plans[0].workspace_bytes);
  plan.workspace_bytes = count.used;
  return Status::good();
}

Status fits(const Plan& plan, const Args& a) {
  if (plan.problem.pass != Pass::backward || !a.given(Role::cache_index)) return Status::good();
  return Status::unsupported("adaptive: a backward does not support cache_index, because sequences may share keys");
}

Status steps(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Plan& part = plan.sub_plans[0];
  const bool backward = plan.problem.pass == Pass::backward, on_cpu = plan.device.kind == DeviceKind::cpu;
  const Buffers buffers = carve(ws, plan, a);
  const Scorer& x = buffers.x;
  Args with = a;
  for (int n = int(Role::variant); n < int(Role::count); ++n) with[Role(n)] = {};
  with[Role::block_begin] = buffers.begin, with[Role::block_column] = buffers.column, with[Role::bias] = buffers.scores;
  BlockSource lists{.origin = backward ? BlockOrigin::lists : BlockOrigin::best};
  lists.pattern.density = x.say.density;
  if (backward) {
    with[Role::block_begin_k] = buffers.begin_k, with[Role::block_row_k] = buffers.row_k;
    with[Role::d_bias] = buffers.d_entry;
  }
  if (Status s = build_blocks(x.problem, with, lists, stream); !s.ok()) return s;
  if (!backward) {
    if (on_cpu) cpu::score_blocks(x, buffers.chooser, buffers.workers);
    else if (Status s = cuda::score_blocks(x, plan.device.index, stream); !s.ok()) return s;
  }
  if (Status s = part.backend->run(part, with, {ws.take<std::byte>(part.workspace_bytes)}, stream); !s.ok()) return s;
  if (!backward) return Status::good();
  if (!on_cpu) return cuda::score_gradients(x, plan.device.index, stream);
  return cpu::score_gradients(x), Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  return of_whole(plan, steps(plan, a, ws, stream));
}

}  // namespace

extern const Backend adaptive;
const Backend adaptive{.name = "adaptive", .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
