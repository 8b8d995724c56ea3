/* SPDX-License-Identifier: Apache-2.0 */
/* Two right functions, for tests of thresholds: `steady` takes the same time for every problem, `growing` a time that
 * grows with the keys that a query sees. Both end by the clock, so their ratio does not depend on the machine. */
#include <attune/attune.h>
#include <math.h>
#include <time.h>

static const double kSteady = 3.6e-3, kGrowing = 40e-6; /* seconds; of `growing` for each key: equal at 90 keys */

static struct timespec after(double seconds) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  t.tv_nsec += (long)(1e9 * seconds);
  t.tv_sec += t.tv_nsec / 1000000000, t.tv_nsec %= 1000000000;
  return t;
}

static float* row(const attune_tensor* t, int64_t b, int64_t s, int64_t h) {
  return (float*)((char*)t->data + t->byte_offset) + b * t->strides[0] + s * t->strides[1] + h * t->strides[2];
}

/* f32, any band; a row without keys is 0. */
static int attend(const attune_problem* p, const attune_args* a) {
  if (p->pass != ATTUNE_FORWARD || p->dtype_q != ATTUNE_F32 || p->keys != ATTUNE_LINEAR || p->options || p->block_q ||
      p->variant[0] || p->batch != 1 || p->heads_q != p->heads_kv)
    return ATTUNE_UNSUPPORTED;
  const float scale = a->scale != 0 ? a->scale : 1 / sqrtf((float)p->dim_qk);
  const int64_t shift = p->align == ATTUNE_BOTTOM_RIGHT ? (int64_t)(p->len_k - 1) * p->k_step - (p->len_q - 1) : 0;
  const attune_tensor* at = a->role[ATTUNE_POSITIONS]; /* of query 0 and key 0 */
  const int64_t* first = at ? (const int64_t*)((const char*)at->data + at->byte_offset) : 0;
  const int64_t none = (int64_t)1 << 40;
  const int64_t left = p->mask == ATTUNE_WINDOW && p->left >= 0 ? p->left : none;
  const int64_t right = p->mask == ATTUNE_FULL ? none : p->mask == ATTUNE_CAUSAL ? 0 : p->right;
  for (int h = 0; h < p->heads_q; ++h)
    for (int i = 0; i < p->len_q; ++i) {
      const float* q = row(a->role[ATTUNE_Q], 0, i, h);
      float *out = row(a->role[ATTUNE_OUT], 0, i, h), sum = 0;
      for (int d = 0; d < p->dim_v; ++d) out[d] = 0;
      for (int j = 0; j < p->len_k; ++j) {
        const int64_t ahead = (int64_t)j * p->k_step + p->k_phase - i - shift + (first ? first[1] - first[0] : 0);
        if (ahead > right || ahead < -left) continue;
        const float *k = row(a->role[ATTUNE_K], 0, j, h), *v = row(a->role[ATTUNE_V], 0, j, h);
        float s = 0;
        for (int d = 0; d < p->dim_qk; ++d) s += q[d] * k[d];
        const float e = expf(s * scale); /* inputs are small */
        sum += e;
        for (int d = 0; d < p->dim_v; ++d) out[d] += e * v[d];
      }
      for (int d = 0; d < p->dim_v && sum > 0; ++d) out[d] /= sum;
    }
  return ATTUNE_OK;
}

/* Asleep, because a busy machine takes the CPU away from a loop. */
static int attend_until(const attune_problem* p, const attune_args* a, struct timespec end) {
  const int code = attend(p, a);
  if (code == ATTUNE_OK) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, 0);
  return code;
}

int steady(const attune_problem* p, const attune_args* a, void* stream) {
  (void)stream;
  return attend_until(p, a, after(kSteady));
}

int growing(const attune_problem* p, const attune_args* a, void* stream) {
  (void)stream;
  const int keys = p->mask == ATTUNE_WINDOW ? p->left + p->right + 1 : p->len_k;
  return attend_until(p, a, after(kGrowing * keys));
}
