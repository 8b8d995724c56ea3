// SPDX-License-Identifier: Apache-2.0
#include "variants/nsa/steps.h"

#include <algorithm>

namespace attune {

NsaShape::NsaShape(const Problem& problem)
    : p(problem), nsa(nsa_of(problem)), backward(problem.pass == Pass::backward),
      ragged(problem.keys == KeySource::ragged), sums_apart(backward && problem.dtype.grad != DType::f32) {}

int64_t NsaShape::compressed_bound() const { return std::max<int64_t>(1, nsa.compressed(p.len_k)); }

bool NsaShape::takes(NsaStep s) const {
  const bool made = nsa.phi != Phi::none, all = nsa.only == Branch::all;
  switch (s) {
    case NsaStep::compress_k:
      return made && (has(Branch::compressed) || (nsa.only == Branch::selected && !backward));
    case NsaStep::compress_v: return made && has(Branch::compressed);
    case NsaStep::compressed: return !backward && has(Branch::compressed);
    case NsaStep::select: return !backward && has(Branch::selected);
    case NsaStep::selected: return !backward && has(Branch::selected);
    case NsaStep::window: return !backward && has(Branch::window);
    case NsaStep::gate: return !backward && all;
    case NsaStep::reads: return !backward && all;
    case NsaStep::gate_backward: return backward && all;
    case NsaStep::selected_backward: return backward && has(Branch::selected);
    case NsaStep::window_backward: return backward && has(Branch::window) && (nsa.w > 0 || !all);
    case NsaStep::compressed_backward: return backward && has(Branch::compressed);
    case NsaStep::compress_k_backward: case NsaStep::compress_v_backward:
      return backward && made && has(Branch::compressed);
    case NsaStep::count: break;
  }
  return false;
}

int NsaShape::index(NsaStep s) const {
  int n = 0;
  for (int before = 0; before < int(s); ++before) n += takes(NsaStep(before));
  return n;
}

Problem NsaShape::problem(NsaStep s) const {
  Problem part = p;
  part.variant = {};
  const bool gradient = s >= NsaStep::gate_backward;
  part.pass = gradient ? Pass::backward : Pass::forward;
  part.dtype.grad = gradient ? DType::f32 : DType::none;
  const auto variant = [&](const auto&... text) { (void)assign(part.variant, join(text...)); };
  const auto compress = [&](int dim) {
    constexpr std::string_view kPhi[] = {"mean", "conv", "mlp", "none"};
    part.mask = {}, part.keys = KeySource::linear;
    part.heads_q = p.heads_kv, part.len_q = p.len_k, part.len_k = int(compressed_bound());
    part.dim_qk = part.dim_v = dim;
    part.dtype.q = part.dtype.out = p.dtype.kv;
    if (gradient) part.dtype.out = DType::f32, part.dtype.grad = p.dtype.grad;  // for the sums over queries
    variant("compress d=", nsa.d, " l=", nsa.l, " phi=", kPhi[int(nsa.phi)],
            nsa.hidden ? join(" hidden=", nsa.hidden) : std::string());
  };
  switch (s) {
    case NsaStep::compress_k: case NsaStep::compress_k_backward: compress(p.dim_qk); break;
    case NsaStep::compress_v: case NsaStep::compress_v_backward: compress(p.dim_v); break;
    case NsaStep::compressed: case NsaStep::compressed_backward:
      part.len_k = int(compressed_bound());
      // Compressed token i has the position of the last of its l tokens.
      part.mask = {.kind = MaskKind::causal, .align = Align::absolute, .k_step = nsa.d, .k_phase = nsa.l - 1};
      break;
    case NsaStep::select:
      part.dtype.out = p.dtype.q, part.dim_v = p.dim_qk;
      variant("select d=", nsa.d, " l=", nsa.l, " n=", nsa.n, " s=", nsa.s);
      break;
    case NsaStep::selected: case NsaStep::selected_backward: variant("selected n=", nsa.n, " s=", nsa.s); break;
    case NsaStep::window: case NsaStep::window_backward:
      // An empty window starts after its end: every row sees nothing.
      part.mask = {.kind = MaskKind::window, .left = std::max(0, nsa.w - 1), .right = nsa.w ? 0 : -1};
      break;
    case NsaStep::gate: case NsaStep::gate_backward: {
      constexpr std::string_view kGate[] = {"sigmoid", "softmax", "none"};
      part.mask = {}, part.keys = KeySource::linear;
      part.dtype.q = part.dtype.kv = p.dtype.out, part.len_k = p.len_q;
      if (gradient) part.dtype.grad = p.dtype.out;  // gradients of the branches' outputs
      part.heads_q = 3 * p.heads_q, part.heads_kv = p.heads_q, part.dim_qk = p.dim_v;
      variant("gate act=", kGate[int(nsa.gate)]);
      break;
    }
    case NsaStep::reads: variant("reads d=", nsa.d, " l=", nsa.l, " n=", nsa.n, " s=", nsa.s, " w=", nsa.w); break;
    case NsaStep::count: break;
  }
  const bool adds = s == NsaStep::window_backward || s == NsaStep::compressed_backward;
  if (adds && nsa.only == Branch::all) part.set(Option::accumulate);
  return part;
}

}  // namespace attune
