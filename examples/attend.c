/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention from C: two query heads share one KV head. Checked against the formula, written out. */
#include <attune/attune.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { kHeads = 2, kLen = 33, kDim = 64 };
static float q[kLen * kHeads * kDim], k[kLen * kDim], v[kLen * kDim], out[kLen * kHeads * kDim], lse[kLen * kHeads];

/* f32 on the CPU, compact. */
static attune_tensor tensor(void* data, const char* axes, const int64_t* shape) {
  attune_tensor t = {.data = data, .ndim = (int32_t)strlen(axes), .shape = shape, .axes = axes};
  t.device.type = 1;
  t.dtype.code = 2, t.dtype.bits = 32, t.dtype.lanes = 1;
  return t;
}

/* out and lse of one query of one head. */
static double expected(int i, int h, double* row) {
  double logit[kLen], top = -INFINITY, sum = 0;
  for (int j = 0; j <= i; ++j) {
    logit[j] = 0;
    for (int d = 0; d < kDim; ++d) logit[j] += (double)q[(i * kHeads + h) * kDim + d] * k[j * kDim + d];
    logit[j] /= sqrt(kDim);
    if (logit[j] > top) top = logit[j];
  }
  memset(row, 0, kDim * sizeof *row);
  for (int j = 0; j <= i; ++j) {
    const double weight = exp(logit[j] - top);
    sum += weight;
    for (int d = 0; d < kDim; ++d) row[d] += weight * v[j * kDim + d];
  }
  for (int d = 0; d < kDim; ++d) row[d] /= sum;
  return top + log(sum);
}

int main(void) {
  for (int n = 0; n < kLen * kHeads * kDim; ++n) q[n] = sinf(0.7f * (float)n);
  for (int n = 0; n < kLen * kDim; ++n) k[n] = sinf(1.3f * (float)n), v[n] = cosf(0.3f * (float)n);

  attune_problem problem = {.size = sizeof problem};
  if (attune_problem_parse("forward f32 b1 h2/1 q33 k33 d64 causal", &problem)) return puts(attune_last_error()), 1;

  const int64_t queries[] = {1, kLen, kHeads, kDim}, keys[] = {1, kLen, 1, kDim}, rows[] = {1, kLen, kHeads};
  attune_tensor tq = tensor(q, "bshd", queries), tk = tensor(k, "bshd", keys), tv = tensor(v, "bshd", keys);
  attune_tensor to = tensor(out, "bshd", queries), tl = tensor(lse, "bsh", rows);
  attune_args args = {.size = sizeof args};
  args.role[ATTUNE_Q] = &tq, args.role[ATTUNE_K] = &tk, args.role[ATTUNE_V] = &tv;
  args.role[ATTUNE_OUT] = &to, args.role[ATTUNE_LSE] = &tl;
  if (attune_call(&problem, &args, NULL)) return puts(attune_last_error()), 1;

  double sum = 0, row[kDim]; /* of squared errors */
  for (int i = 0; i < kLen; ++i)
    for (int h = 0; h < kHeads; ++h) {
      sum += pow(expected(i, h, row) - lse[i * kHeads + h], 2);
      for (int d = 0; d < kDim; ++d) sum += pow(row[d] - out[(i * kHeads + h) * kDim + d], 2);
    }
  const double error = sqrt(sum / (kLen * kHeads * (kDim + 1)));
  printf("attune %s: root mean square error %.1e\n", attune_version(), error);
  return !(error < 1e-6);
}
