/* SPDX-License-Identifier: Apache-2.0 */
/* Common mistakes in functions of one's own, for tests: the example, called with arguments that are misread, and a
 * backward. */
#include "examples/my_attention.c"

int no_scale(const attune_problem* p, const attune_args* a, void* stream) {
  attune_args other = *a;
  other.scale = 1;
  return attention(p, &other, stream);
}

/* Every query but the last sees one key too many: the rows of a problem with one query less are aligned one key on. */
int off_by_one(const attune_problem* p, const attune_args* a, void* stream) {
  attune_problem other = *p;
  const int code = attention(p, a, stream);
  --other.len_q;
  return code ? code : attention(&other, a, stream);
}

enum { kRight, kNoScale, kOffByOne, kSwapped, kLastOfGroup };

static float dot(const float* x, const float* y, int dim) {
  float sum = 0;
  for (int d = 0; d < dim; ++d) sum += x[d] * y[d];
  return sum;
}

/* dq, dk and dv of causal attention over linear keys in f32, from the given out and lse. */
static int backward(const attune_problem* p, const attune_args* a, int mistake) {
  const attune_tensor *q = a->role[ATTUNE_Q], *k = a->role[ATTUNE_K], *v = a->role[ATTUNE_V];
  const attune_tensor *out = a->role[ATTUNE_OUT], *lse = a->role[ATTUNE_LSE], *d_out = a->role[ATTUNE_D_OUT];
  const attune_tensor* dq = a->role[ATTUNE_DQ];
  const attune_tensor* dk = a->role[mistake == kSwapped ? ATTUNE_DV : ATTUNE_DK];
  const attune_tensor* dv = a->role[mistake == kSwapped ? ATTUNE_DK : ATTUNE_DV];
  if (p->pass != ATTUNE_BACKWARD || p->dtype_q != ATTUNE_F32 || p->mask != ATTUNE_CAUSAL || p->dim_qk != p->dim_v)
    return ATTUNE_UNSUPPORTED;
  const int dim = p->dim_qk, group = p->heads_q / p->heads_kv;
  const float scale = a->scale != 0 ? a->scale : 1 / sqrtf((float)dim);
  for (int b = 0; b < p->batch; ++b)
    for (int h = 0; h < p->heads_q; ++h)
      for (int i = 0; i < p->len_q; ++i) {
        const int g = h / group, last = i + p->len_k - p->len_q + (mistake == kOffByOne);
        const float delta = dot(row(out, b, i, h), row(d_out, b, i, h), dim), known = *row(lse, b, i, h);
        float* const to = row(dq, b, i, h);
        for (int d = 0; d < dim; ++d) to[d] = 0;
        for (int j = 0; j < p->len_k; ++j) {
          float *to_k = row(dk, b, j, g), *to_v = row(dv, b, j, g);
          const int first = i == 0 && (mistake == kLastOfGroup || h % group == 0);
          for (int d = 0; first && d < dim; ++d) to_k[d] = to_v[d] = 0;
          if (j > last) continue;
          const float weight = expf(dot(row(q, b, i, h), row(k, b, j, g), dim) * scale - known);
          const float dx = weight * (dot(row(d_out, b, i, h), row(v, b, j, g), dim) - delta) *
                           (mistake == kNoScale ? 1 : scale);
          for (int d = 0; d < dim; ++d) {
            to[d] += dx * row(k, b, j, g)[d];
            to_k[d] += dx * row(q, b, i, h)[d];
            to_v[d] += weight * row(d_out, b, i, h)[d];
          }
        }
      }
  return ATTUNE_OK;
}

#define BACKWARD(symbol, mistake) \
  int symbol(const attune_problem* p, const attune_args* a, void* s) { return (void)s, backward(p, a, mistake); }
BACKWARD(right_backward, kRight)
BACKWARD(no_scale_backward, kNoScale)
BACKWARD(off_by_one_backward, kOffByOne)
BACKWARD(swapped_backward, kSwapped)
BACKWARD(last_of_group_backward, kLastOfGroup)

/* Right, and then the values are no longer what they were. */
int writes_inputs(const attune_problem* p, const attune_args* a, void* stream) {
  const int code = attention(p, a, stream);
  if (!code) ((float*)a->role[ATTUNE_V]->data)[0] += 1;
  return code;
}
