// SPDX-License-Identifier: Apache-2.0
// vendor_cudnn: cuDNN's fused attention as a backend, both part of the chain and a peer for comparison. Attention is
// written for cuDNN's graph API: the operations of a textbook, in the order of its pattern matcher. The plan that its
// heuristics select is cached per problem and tensor layout. Building one takes up to a second on the host, once; a
// later call is one lookup and the launch.
//
// Features that cuDNN has but this backend does not use (lengths per sequence, pages, bias, dropout, sinks) are
// refused. So is the case that cuDNN gets wrong: rows that see no key.
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "attention/cudnn/graph.h"
#include "attention/cudnn/lse.h"
#include "attention/cudnn/versions.h"
#include "attention/gpu/refusal.h"
#include "core/check.h"
#include "core/score.h"
#include "machine/cuda/runtime.h"
#include "plan/backend.h"

namespace attune {
namespace {

using cuda::Refusal;
using cudnn::Fold;
using cudnn::Graph;
using cudnn::Node;
using cudnn::Op;
using cudnn::Shape;
using cudnn::Type;

constexpr std::string_view kWho = "vendor_cudnn";
constexpr int64_t kScale = 1, kQ = 2, kK = 3, kV = 4, kOut = 5, kStats = 6, kDOut = 7, kDQ = 8, kDK = 9, kDV = 10,
                  kDelta = 11, kSum = 12;  // numbers of the tensors that a call passes
constexpr size_t kSpare = size_t(16) << 20;  // headroom for a plan beyond the bytes counted in carve()
constexpr int kLongOfLse = 2048;             // keys from which packing lse pays off

Type type_of(DType t) { return t == DType::f32 ? Type::f32 : t == DType::f16 ? Type::f16 : Type::bf16; }

// cuDNN's axes are [batch, head, row, column]. An axis of extent 1 has stride 0 here; cuDNN gets its packed stride.
Shape shape_of(const Tensor& t) {
  const auto [batch, seq, head, dim] = t.extent;
  const int64_t by_head = head > 1 ? t.stride.head : dim;
  const int64_t by_seq = seq > 1 ? t.stride.seq : int64_t(head) * dim;
  const int64_t by_batch = batch > 1 ? t.stride.batch : int64_t(seq) * head * dim;
  return {{batch, head, seq, dim}, {by_batch, by_head, by_seq, 1}};
}

// Sets hidden scores to minus infinity. The comparisons have the form that cuDNN's kernels match: the right bound
// first, with integers on the side of the rows; the left bound as one addition to the columns.
Node hide(Graph& g, const Problem& p, Node s) {
  const Mask& m = p.mask;
  const bool last_on_last = m.align == Align::bottom_right && p.len_q != p.len_k;  // otherwise both alignments agree
  const float hidden = cudnn::version() < 91000 ? std::numeric_limits<float>::lowest() : -INFINITY;
  const auto select = [&](const Node& seen) {
    const Node away = g.constant(hidden);
    s = g.pointwise(Op::select, s, &away, &seen);
  };
  const int32_t right = m.kind == MaskKind::causal ? 0 : m.kind == MaskKind::window ? m.right : kNoLimit;
  if (right != kNoLimit) {
    Node row = g.indices(s, 2);
    const Node column = g.indices(s, 3);
    const auto shift = [&](Op op, int32_t by) {
      const Node amount = g.constant(by);
      row = g.pointwise(op, row, &amount, nullptr, Type::i32, Type::i32);
    };
    if (last_on_last) shift(Op::add, p.len_k), shift(Op::subtract, p.len_q);
    if (right != 0) shift(Op::add, right);
    select(g.pointwise(Op::at_least, row, &column, nullptr, Type::boolean, Type::boolean));
  }
  if (m.kind == MaskKind::window && m.left != kNoLimit) {
    const Node row = g.indices(s, 2), column = g.indices(s, 3);
    const Node amount = g.constant(float(int64_t(m.left) + 1 - (last_on_last ? p.len_k - p.len_q : 0)));
    const Node moved = g.pointwise(Op::add, column, &amount, nullptr, Type::f32, Type::f32);
    select(g.pointwise(Op::greater, moved, &row, nullptr, Type::boolean, Type::boolean));
  }
  return s;
}

// A backward reads lse once per key tile. If heads are closer in memory than queries (bsh), that costs 4 % at d64
// causal and 8192 keys on an H200, so lse is packed first. The decision depends on the problem and the strides alone.
bool packs_lse(const Problem& p, const Tensor& lse) {
  return p.pass == Pass::backward && p.len_k >= kLongOfLse && p.len_q > 1 && lse.stride.seq != 1;
}

void write_forward(Graph& g, const Problem& p, const Args& a) {
  const Type in = type_of(p.dtype.q);
  const Shape row = cudnn::packed(p.batch, p.heads_q, p.len_q, 1);
  const Node scale = g.value(kScale), q = g.given(kQ, in, shape_of(a[Role::q]));
  const Node k = g.given(kK, in, cudnn::transposed(shape_of(a[Role::k]))), v = g.given(kV, in, shape_of(a[Role::v]));
  const Node dots = g.matmul(q, k);
  const Node s = hide(g, p, g.pointwise(Op::multiply, dots, &scale));
  const Node top = g.reduce(Fold::max, s, row);
  const Node below = g.pointwise(Op::subtract, s, &top), e = g.pointwise(Op::exp, below);
  const Node sum = g.reduce(Fold::add, e, row);
  const Node log = g.pointwise(Op::log, sum);
  if (a.given(Role::lse)) g.pointwise_to(Op::add, top, &log, g.given(kStats, Type::f32, shape_of(a[Role::lse])));
  else g.pointwise(Op::add, top, &log);
  const Node weights = g.pointwise(Op::divide, e, &sum, nullptr, in);
  g.matmul_to(weights, v, g.given(kOut, type_of(p.dtype.out), shape_of(a[Role::out])));
}

void write_backward(Graph& g, const Problem& p, const Args& a) {
  const Type in = type_of(p.dtype.q), grad = type_of(p.dtype.grad);
  const int64_t b = p.batch, h = p.heads_q, len_q = p.len_q, len_k = p.len_k;
  const Shape row = cudnn::packed(b, h, len_q, 1);
  const Shape pairs_transposed = cudnn::transposed(cudnn::packed(b, h, len_q, len_k));
  const Node scale = g.value(kScale), q = g.given(kQ, in, shape_of(a[Role::q]));
  const Node k = g.given(kK, in, cudnn::transposed(shape_of(a[Role::k])));
  const Node v = g.given(kV, in, cudnn::transposed(shape_of(a[Role::v])));
  const Node out = g.given(kOut, in, shape_of(a[Role::out])), d_out = g.given(kDOut, in, shape_of(a[Role::d_out]));
  const Node stats = g.given(kStats, Type::f32, packs_lse(p, a[Role::lse]) ? row : shape_of(a[Role::lse]));

  // delta, through memory.
  const Node products = g.pointwise(Op::multiply, d_out, &out), one = g.constant(1.f);
  const Node rows = g.reduce(Fold::add, products, row), delta = g.given(kDelta, Type::f32, row);
  g.pointwise_to(Op::multiply, rows, &one, delta);

  // A gradient of keys or values; with GQA, the sum over each group.
  const auto to_keys = [&](const Node& pairs, const Node& other, int64_t number, const Tensor& t) {
    const Node to = g.given(number, grad, shape_of(t));
    if (p.heads_q == p.heads_kv) return g.matmul_to(pairs, other, to);
    g.reduce_to(Fold::add, g.matmul(pairs, other, in), to);
  };
  const Node dots = g.matmul(q, k), scaled = g.pointwise(Op::multiply, dots, &scale);
  const Node s = hide(g, p, g.pointwise(Op::subtract, scaled, &stats));
  const Node weights = g.pointwise(Op::exp, s);
  to_keys(g.reshape(weights, pairs_transposed, in), d_out, kDV, a[Role::dv]);
  const Node dp = g.matmul(d_out, v), centred = g.pointwise(Op::subtract, dp, &delta);
  const Node d_logit = g.pointwise(Op::multiply, centred, &weights), ds = g.pointwise(Op::multiply, d_logit, &scale);
  to_keys(g.reshape(ds, pairs_transposed, in), q, kDK, a[Role::dk]);
  const Node sum = g.given(kSum, Type::f32, cudnn::packed(b, h, len_q, p.dim_qk));
  g.matmul_to(ds, g.reshape(k, shape_of(a[Role::k]), in), sum);
  g.pointwise_to(Op::identity, sum, nullptr, g.given(kDQ, grad, shape_of(a[Role::dq])));
}

// The key of a program: problem, GPU and layout of the tensors.
constexpr Role kLaidOut[] = {Role::q,     Role::k,  Role::v,  Role::out, Role::lse,
                             Role::d_out, Role::dq, Role::dk, Role::dv};
struct Key {
  Problem problem;
  int32_t device;
  int64_t strides[std::size(kLaidOut)][4];  // and whether the tensor is given
  bool operator<(const Key& other) const { return std::memcmp(this, &other, sizeof *this) < 0; }
};
static_assert(std::has_unique_object_representations_v<Key>);

Key key_of(const Plan& plan, const Args& a) {
  Key key{plan.problem, plan.device.index, {}};
  for (size_t n = 0; n < std::size(kLaidOut); ++n) {
    const Tensor& t = a[kLaidOut[n]];
    const int64_t strides[] = {t.stride.batch, t.stride.seq, t.stride.head, a.given(kLaidOut[n])};
    std::memcpy(key.strides[n], strides, sizeof strides);
  }
  return key;
}

// Programs by key. A refused program is stored with its reason.
struct Made {
  Status status{};
  std::unique_ptr<const cudnn::Program> program{};
};
struct Programs {
  std::shared_mutex mutex{};
  std::map<Key, Made> all{};
};

Status program_of(const Plan& plan, const Args& a, const cudnn::Program*& out) {
  static Programs& programs = *new Programs;  // never destroyed: a thread may still use it at process exit
  const Key key = key_of(plan, a);
  const auto answer = [&](const Made& made) { return out = made.program.get(), made.status; };
  {
    const std::shared_lock reading(programs.mutex);
    if (const auto it = programs.all.find(key); it != programs.all.end()) return answer(it->second);
  }
  const std::unique_lock writing(programs.mutex);
  const auto [it, is_new] = programs.all.try_emplace(key);
  if (is_new) {
    Graph g;
    plan.problem.pass == Pass::forward ? write_forward(g, plan.problem, a) : write_backward(g, plan.problem, a);
    it->second.status = g.build(plan.device.index, it->second.program);
  }
  return answer(it->second);
}

struct Carved {
  float *delta, *lse;  // [batch, head, query], in a backward
  float* sum;          // the same with [dim]
  std::byte* scratch;  // of the plan
  size_t scratch_bytes;
};
Carved carve(Workspace& w, const Problem& p) {
  const size_t back = p.pass == Pass::backward, rows = size_t(p.batch) * size_t(p.heads_q) * size_t(p.len_q);
  // Observed with cuDNN 9.26: dk and dv of every query head in 16 bits with GQA, one more f32 sum of dq, and partial
  // results of a forward with few rows, which it splits over keys.
  const size_t keys = p.heads_q == p.heads_kv ? 0 : size_t(p.batch) * size_t(p.heads_q) * size_t(p.len_k);
  const size_t splits = p.len_q <= 128 ? 16 : 0;
  Carved c{};
  c.delta = w.take<float>(back * rows), c.sum = w.take<float>(back * rows * size_t(p.dim_qk));
  c.lse = w.take<float>(p.len_k >= kLongOfLse ? back * rows : 0);
  c.scratch_bytes = kSpare + (back ? rows * size_t(p.dim_qk) * 4 + keys * size_t(p.dim_qk + p.dim_v) * 2
                                   : splits * rows * size_t(p.dim_v + 2) * 4);
  c.scratch = w.take<std::byte>(c.scratch_bytes);
  return c;
}

Refusal supports_mask(Refusal r, const Problem& p) {
  const Mask& m = p.mask;
  const bool window = m.kind == MaskKind::window, bound_left = window && m.left != kNoLimit;
  const bool bound_right = m.kind == MaskKind::causal || (window && m.right != kNoLimit);
  const bool empty_rows = p.len_q > p.len_k && (bound_left || (bound_right && m.align == Align::bottom_right));
  return r.require(m.align != Align::absolute, "does not support absolute positions")
      .require(m.k_step == 1 && !m.k_phase, "does not support keys ", m.k_step, " apart, starting at ", m.k_phase)
      .require(!m.blocks.q, "does not support block lists")
      .require(!window || m.right >= 0, "does not support a window that ends before the query")
      .require(!empty_rows, "q", p.len_q, " over k", p.len_k, " has rows that see no key, which cuDNN gets wrong");
}

Status supports(const Problem& p, const Device& d) {
  const bool backward = p.pass == Pass::backward;
  Refusal r(kWho, p, d);
  r.needs_arch_from(80).half_inputs();
  r.require(p.dtype.out == p.dtype.q && (!backward || p.dtype.grad == p.dtype.q), "dtypes ", name(p.dtype),
            " are not all the same");
  const bool narrow = backward && d.arch / 10 != 9 && !(d.arch >= 100 && p.dim_qk == 192 && p.dim_v == 128);
  for (const int dim : {p.dim_qk, p.dim_v})
    r.require(dim % 8 == 0 && dim <= (narrow ? 128 : 256), "dim ", dim, " is not a multiple of 8 up to ",
              narrow ? join("128, the limit of a backward on sm_", d.arch) : "256");
  for (int o = 0; o < int(Option::count); ++o) r.without({Option(o)});
  r.no_variant().require(p.keys == KeySource::linear, "does not support ", name(p.keys), " keys");
  r.require(p.reproducible != Reproducible::batch, "cuDNN does not guarantee repro=batch");
  r.require(p.reproducible != Reproducible::run || !backward,
            "cuDNN's backward adds in no fixed order, so repro=run is not supported");
  return supports_mask(r, p).status();
}

Status shape(Plan& plan, const Planner&) {
  if (plan.device.index >= 0) {  // a GPU that is present, not only planned for
    Status s = cudnn::found();
    if (s.ok()) s = cudnn::serves(cudnn::version(), plan.problem, plan.device);
    if (!s.ok()) return s.after(kWho, ": ");
  }
  Workspace counting;
  carve(counting, plan.problem);
  plan.workspace_bytes = counting.used;
  return Status::good();
}

Status fits(const Plan& plan, const Args& a) {
  const auto no = [](const auto&... why) { return Status::unsupported(kWho, ": ", why...); };
  const Problem& p = plan.problem;
  if (has_sequence_tensors(a)) return no("does not support lengths per sequence or a cache index");
  if (a[Role::q].extent.seq != p.len_q || a[Role::k].extent.seq != p.len_k || a[Role::k].extent.batch != p.batch)
    return no("q and k do not have the lengths of the problem");
  for (const Role r : kLaidOut) {
    const Tensor& t = a[r];
    if (!a.given(r) || r == Role::lse) continue;
    const int64_t all = reinterpret_cast<intptr_t>(t.data) |
                        (t.stride.batch | t.stride.seq | t.stride.head) * size_of(t.dtype);
    if (all % 16) return no(name(r), " has an address or a stride that is not a multiple of 16 bytes");
  }
  if (p.pass == Pass::forward) return Status::good();
  if (a.given(Role::d_lse)) return no("does not support a gradient of lse");
  for (const Role r : {Role::dq, Role::dk, Role::dv})
    if (!a.given(r)) return no("computes dq, dk and dv together, but not all of them are given");
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace workspace, Stream stream) {
  const Problem& p = plan.problem;
  const auto failed = [&](const Status& s) {
    return Status::failure(s.code, kWho, ": ", s.message, ", in: ", name(p));
  };
  if (Status s = cudnn::found(); !s.ok()) return failed(s);
  if (Status s = fits(plan, a); !s.ok()) return Status::failure(s.code, s.message, ", in: ", name(p));
  const cuda::DeviceGuard use(plan.device.index);
  if (!use.status.ok()) return failed(use.status);
  const cudnn::Program* program = nullptr;
  if (Status s = program_of(plan, a, program); !s.ok()) return failed(s);
  const Carved c = carve(workspace, p);
  if (program->workspace_bytes() > c.scratch_bytes)
    return failed(Status::unsupported("cuDNN needs ", program->workspace_bytes(),
                                      " bytes of workspace, but the plan has ", c.scratch_bytes));
  float scale = scale_of(p, a);
  cudnn::Bindings given;
  given.add(kScale, &scale), given.add(kQ, a[Role::q].data), given.add(kK, a[Role::k].data);
  given.add(kV, a[Role::v].data), given.add(kOut, a[Role::out].data);
  if (packs_lse(p, a[Role::lse])) {
    if (Status s = cudnn::pack_lse(kWho, plan, a[Role::lse], c.lse, stream); !s.ok()) return s;
    given.add(kStats, c.lse);
  } else if (a.given(Role::lse)) {
    given.add(kStats, a[Role::lse].data);
  }
  if (p.pass == Pass::backward) {
    given.add(kDOut, a[Role::d_out].data), given.add(kDQ, a[Role::dq].data), given.add(kDK, a[Role::dk].data);
    given.add(kDV, a[Role::dv].data), given.add(kDelta, c.delta), given.add(kSum, c.sum);
  }
  const Status done = program->run(plan.device.index, given, c.scratch, stream);
  return done.ok() ? done : failed(done);
}

}  // namespace

extern const Backend vendor_cudnn;
const Backend vendor_cudnn{.name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
