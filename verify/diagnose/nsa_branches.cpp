// SPDX-License-Identifier: Apache-2.0
#include "verify/diagnose/nsa_branches.h"

#include <algorithm>
#include <cmath>

namespace attune {
namespace {

double rounded(double x, DType dtype) {
  double kept = 0;
  const Tensor one{.data = &kept, .dtype = dtype, .extent = {1, 1, 1, 1}};
  store(one, 0, 0, 0, 0, x);
  return load(one, 0, 0, 0, 0);
}

}  // namespace

NsaBranches::NsaBranches(const Problem& problem, const Args& args, int batch, int head)
    : p(problem), a(args), nsa(nsa_of(problem)), b(batch), h(head), kv_head(head / (p.heads_q / p.heads_kv)),
      scale(double(scale_of(problem, args))), window(nsa.w) {}

Row NsaBranches::read(const Tensor& t, int64_t seq, int64_t head) const {
  return swapped ? read_swapped(t, b, seq, head) : read_row(t, b, seq, head);
}

Row NsaBranches::query(int i) const { return read(a[Role::q], i, h); }

Row NsaBranches::key(int branch, int64_t j, bool value) const {
  if (branch > 0) return read(a[variant_tensor(2 * (branch - 1) + value)], j, kv_head);
  const Tensor& t = a[value ? Role::v : Role::k];
  if (nsa.phi == Phi::none) return read(t, j, kv_head);
  Row mean(size_t(t.extent.dim));
  for (int n = 0; n < nsa.l; ++n) {
    const Row x = read(t, j * nsa.d + n, kv_head);
    for (size_t d = 0; d < mean.size(); ++d) mean[d] += x[d] / nsa.l;
  }
  for (double& x : mean) x = rounded(x, p.dtype.kv);  // as stored in a cache
  return mean;
}

std::vector<int64_t> NsaBranches::keys(int branch, int i) const {
  std::vector<int64_t> all;
  const int64_t t = position(i);
  if (branch == 0)
    for (int64_t c = 0; c * nsa.d + nsa.l - 1 <= t; ++c) all.push_back(c);
  if (branch == 2)
    for (int64_t j = std::max<int64_t>(0, t - window + 1); j <= t; ++j) all.push_back(j);
  for (int n = 0; branch == 1 && n < nsa.n; ++n)
    for (int64_t m = blocks(i, n), j = m * nsa.s, end = tail ? tokens() - 1 : t; m >= 0 && j < (m + 1) * nsa.s; ++j)
      if (j <= end) all.push_back(j);
  if (only_key && !all.empty()) all = {only_key > 0 ? all.front() : all.back()};
  return all;
}

void NsaBranches::gates(int i, double gate[3]) const {
  gate[0] = gate[1] = gate[2] = 1;
  if (!whole()) return;
  const Tensor& t = a[variant_tensor(kNsaGates)];
  const Row logit = read_row(t, b, i, int64_t(h) * t.extent.head / p.heads_q);
  const double top = std::max({logit[0], logit[1], logit[2]});
  double sum = 0;
  for (const double x : logit) sum += std::exp(x - top);
  for (size_t n = 0; n < 3; ++n)
    gate[n] = nsa.gate == GateOf::none      ? logit[n]
              : nsa.gate == GateOf::sigmoid ? 1 / (1 + std::exp(-logit[n]))
                                            : std::exp(logit[n] - top) / sum;
}

}  // namespace attune
