/* SPDX-License-Identifier: Apache-2.0 */
/* Your own attention, in a shared library, in `attune bench`:
 *   cc -O3 -shared -fPIC -I include examples/my_attention.c -lm -o libmine.so
 *   attune bench --len 256,512 --dtype f32 --peer ./libmine.so:attention
 * It receives the structs of the C interface and writes out (in a backward dq, dk and dv). On a GPU the work goes to
 * the stream. What it does not serve returns ATTUNE_UNSUPPORTED; attention_error() says why. Results are checked. */
#include <attune/attune.h>
#include <math.h>

const char* attention_error(void) { return "serves an f32 forward over linear keys, full or causal, without options"; }

static float* row(const attune_tensor* t, int64_t b, int64_t s, int64_t h) { /* axes are "bshd" */
  return (float*)((char*)t->data + t->byte_offset) + b * t->strides[0] + s * t->strides[1] + h * t->strides[2];
}

int attention(const attune_problem* p, const attune_args* a, void* stream) {
  (void)stream;
  if (p->pass != ATTUNE_FORWARD || p->dtype_q != ATTUNE_F32 || p->keys != ATTUNE_LINEAR || p->options || p->block_q ||
      p->mask == ATTUNE_WINDOW || p->align != ATTUNE_BOTTOM_RIGHT || p->k_step != 1 || p->k_phase || p->variant[0] ||
      a->role[ATTUNE_Q]->device.type != 1)
    return ATTUNE_UNSUPPORTED;
  const attune_tensor *q = a->role[ATTUNE_Q], *k = a->role[ATTUNE_K], *v = a->role[ATTUNE_V];
  const attune_tensor* out = a->role[ATTUNE_OUT];
  const float scale = a->scale != 0 ? a->scale : 1 / sqrtf((float)p->dim_qk);
  for (int b = 0; b < p->batch; ++b)
    for (int h = 0; h < p->heads_q; ++h)
      for (int i = 0; i < p->len_q; ++i) {
        const int kv = h / (p->heads_q / p->heads_kv);
        const int last = p->mask == ATTUNE_CAUSAL ? i + p->len_k - p->len_q : p->len_k - 1;
        const float* qi = row(q, b, i, h);
        float *to = row(out, b, i, h), most = -INFINITY, sum = 0;
        for (int d = 0; d < p->dim_v; ++d) to[d] = 0;
        for (int j = 0; j <= last && j < p->len_k; ++j) { /* one pass: the sum is rescaled when the maximum rises */
          const float *kj = row(k, b, j, kv), *vj = row(v, b, j, kv);
          float s = 0;
          for (int d = 0; d < p->dim_qk; ++d) s += qi[d] * kj[d];
          s *= scale;
          const float rise = s > most ? expf(most - s) : 1;
          if (s > most) most = s;
          const float e = expf(s - most);
          sum = sum * rise + e;
          for (int d = 0; d < p->dim_v; ++d) to[d] = to[d] * rise + e * vj[d];
        }
        if (sum > 0)
          for (int d = 0; d < p->dim_v; ++d) to[d] /= sum;
      }
  return ATTUNE_OK;
}
