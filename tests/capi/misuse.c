/* SPDX-License-Identifier: Apache-2.0 */
/* Caller mistakes, from C. Each one gets an error that names it; nothing crashes and no output is touched. Every
 * mistake is one change to a correct call, which is run first. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "world.h"

static World w;
enum { kPoison = 0x5A };
static const int kOutputs[] = {ATTUNE_OUT, ATTUNE_LSE, ATTUNE_DQ, ATTUNE_DK, ATTUNE_DV, ATTUNE_D_BIAS, ATTUNE_D_SINKS};

static void poison(void) {
  for (size_t n = 0; n < sizeof kOutputs / sizeof *kOutputs; ++n)
    memset(&memory[kOutputs[n]], kPoison, sizeof memory[0]);
}

static int untouched(void) {
  for (size_t n = 0; n < sizeof kOutputs / sizeof *kOutputs; ++n) {
    const unsigned char* bytes = (const unsigned char*)&memory[kOutputs[n]];
    for (size_t b = 0; b < sizeof memory[0]; ++b)
      if (bytes[b] != kPoison) return 0;
  }
  return 1;
}

/* attune_check and attune_call both return the error, and nothing is written. */
static void wrong(const char* words) {
  poison();
  refused(attune_check(&w.problem, &w.args), words);
  refused(attune_call(&w.problem, &w.args, NULL), words);
  expect(untouched(), "outputs are untouched after:");
  if (!untouched()) puts(words);
}

/* attune_check only: no backend needs to support the problem. */
static void wrong_for_all(const char* words) {
  poison();
  refused(attune_check(&w.problem, &w.args), words);
  expect(untouched(), words);
}

static void right(const char* what) { expect(!attune_call(&w.problem, &w.args, NULL), what); }
static void right_for_all(const char* what) { expect(!attune_check(&w.problem, &w.args), what); }

/* Two sequences of 5 queries and 7 keys, 4 query heads, 2 KV heads. */
static void dense(const char* line) {
  ask(&w, line);
  give(&w, ATTUNE_Q, ATTUNE_F32, "bshd", 2, 5, 4, 8);
  give(&w, ATTUNE_K, ATTUNE_F32, "bshd", 2, 7, 2, 8);
  give(&w, ATTUNE_V, ATTUNE_F32, "bshd", 2, 7, 2, 8);
  give(&w, ATTUNE_OUT, ATTUNE_F32, "bshd", 2, 5, 4, 8);
  give(&w, ATTUNE_LSE, ATTUNE_F32, "bsh", 2, 5, 4, 0);
}
static void plain(void) { dense("forward f32 b2 h4/2 q5 k7 d8 causal"); }

static void nothing_given(void) {
  plain();
  right("the plain call");
  refused(attune_call(NULL, &w.args, NULL), "problem is null");
  refused(attune_call(&w.problem, NULL, NULL), "args is null");
  refused(attune_check(&w.problem, NULL), "args is null");
  refused(attune_problem_parse(NULL, &w.problem), "line is null");
  refused(attune_problem_parse("forward", NULL), "out is null");
  refused(attune_problem_format(&w.problem, NULL, 10), "out is null");
  refused(attune_workspace(&w.problem, NULL, NULL), "bytes is null");
  refused(attune_plan_create(&w.problem, NULL, NULL, NULL), "out is null");
  refused(attune_plan_run(NULL, &w.args, NULL), "plan is null");
  expect(attune_plan_workspace(NULL) == 0 && !*attune_plan_why(NULL) && !*attune_plan_backend(NULL), "of no plan");
  attune_plan_destroy(NULL);
  w.args.role[ATTUNE_V] = NULL;
  wrong("v: not given, but the problem requires it");
  plain(), give(&w, ATTUNE_SINKS, ATTUNE_F32, "h", 4, 0, 0, 0);
  wrong("sinks: given, but the problem does not use it");
  plain(), give(&w, ATTUNE_D_VARIANT + 23, ATTUNE_F32, "h", 4, 0, 0, 0);
  wrong("d_variant[23]: given, but the problem does not use it");
  plain(), w.tensor[ATTUNE_K].data = NULL;
  wrong("k: data is null");
  plain(), w.problem.size = 0;
  wrong("problem.size = 0 is not sizeof(attune_problem)");
  plain(), w.args.size = 8;
  wrong("args.size = 8 is not sizeof(attune_args)");
}

static void axes(void) {
  plain(), w.tensor[ATTUNE_Q].axes = NULL;
  wrong("q: axes '' do not name the 4 axes of its shape");
  plain(), w.tensor[ATTUNE_Q].axes = "bsh";
  wrong("q: axes 'bsh' do not name the 4 axes");
  plain(), w.tensor[ATTUNE_Q].axes = "bshx";
  wrong("q: axes 'bshx': letter 'x' is unknown or repeated");
  plain(), w.tensor[ATTUNE_Q].axes = "bthq";
  wrong("letter 't' is unknown or repeated");
  plain(), w.tensor[ATTUNE_Q].ndim = 0;
  wrong("q: axes 'bshd' do not name the 0 axes");
  plain(), w.tensor[ATTUNE_Q].ndim = 9, w.tensor[ATTUNE_Q].axes = "bshdbshdb";
  wrong("do not name the 9 axes");
  plain(), w.tensor[ATTUNE_Q].shape = NULL;
  wrong("q: axes 'bshd' do not name");
  plain(), w.tensor[ATTUNE_Q].axes = "bhsd"; /* the classic mistake: two axes swapped */
  wrong("q: head = 5 is not 4");
}

static void devices_and_dtypes(void) {
  plain(), w.tensor[ATTUNE_K].device.type = 2;
  wrong("k: is on cuda:0, but q is on the CPU");
  plain();
  for (int r = ATTUNE_Q; r <= ATTUNE_LSE; ++r) w.tensor[r].device.type = 2, w.tensor[r].device.id = 3;
  refused(attune_call(&w.problem, &w.args, NULL), "cuda:3");
  plain(), w.tensor[ATTUNE_Q].device.type = 7;
  wrong("q: device type 7 is not 1 (CPU), 2 (CUDA)");
  plain(), w.tensor[ATTUNE_K].dtype.bits = 16;
  wrong("k: dtype f16 is not f32");
  plain(), w.tensor[ATTUNE_LSE].dtype.bits = 64;
  wrong("lse: dtype f64 is not f32");
  plain(), w.tensor[ATTUNE_K].dtype.code = 5;
  wrong("k: dtype of code 5, 32 bits and 1 lanes (complex) is not one of f64, f32");
  plain(), w.tensor[ATTUNE_K].dtype.lanes = 4;
  wrong("4 lanes is not one of");
  plain(), w.tensor[ATTUNE_V].data = (char*)&memory[ATTUNE_V] + 2;
  wrong("v: data is not aligned to its dtype f32");
  plain(), w.tensor[ATTUNE_OUT].byte_offset = 1;
  wrong("out: data is not aligned to its dtype f32");
  plain(), w.problem.dtype_q = ATTUNE_I32;
  refused(attune_call(&w.problem, &w.args, NULL), "problem: dtype i32 is not one of f64, f32, f16, bf16, e4m3");
}

static void sizes(void) {
  plain(), w.shape[ATTUNE_K][1] = -7;
  wrong("k: extent -7 of axis 's' is not in 0 ... 2^31 - 1");
  plain(), w.shape[ATTUNE_K][1] = (int64_t)1 << 32;
  wrong("k: extent 4294967296 of axis 's' is not in 0");
  plain();
  for (int n = 0; n < 4; ++n) w.shape[ATTUNE_K][n] = INT32_MAX;
  wrong("k: has 2^63 elements or more");
  plain(), w.shape[ATTUNE_K][1] = 8;
  wrong("k: seq = 8 is not 0 ... 7");
  plain(), w.shape[ATTUNE_V][1] = 6;
  wrong("v: seq = 6 is not 7");
  plain(), w.shape[ATTUNE_Q][0] = 3;
  wrong("q: batch = 3 is not 2");
  plain(), w.shape[ATTUNE_Q][2] = 2;
  wrong("q: head = 2 is not 4");
  plain(), w.shape[ATTUNE_K][2] = 4;
  wrong("k: head = 4 is not 2");
  plain(), w.shape[ATTUNE_OUT][3] = 16;
  wrong("out: dim = 16 is not 8");
  plain(), w.shape[ATTUNE_LSE][2] = 2;
  wrong("lse: head = 2 is not 4");
  plain(), w.problem.heads_kv = 3;
  refused(attune_call(&w.problem, &w.args, NULL), "heads_kv = 3 does not divide heads_q = 4");
  plain(), w.problem.batch = -1;
  refused(attune_call(&w.problem, &w.args, NULL), "batch = -1 is not in 1 ...");
  for (int r = ATTUNE_Q; r <= ATTUNE_LSE; ++r) /* no tokens and therefore no memory: legal */
    plain(), w.shape[ATTUNE_Q][1] = w.shape[ATTUNE_K][1] = w.shape[ATTUNE_V][1] = w.shape[ATTUNE_OUT][1] =
                 w.shape[ATTUNE_LSE][1] = 0,
             w.tensor[r].data = NULL, right("an empty call");
  for (int64_t step = -1; step <= 2; ++step) { /* NumPy uses 0 for these strides */
    plain(), w.shape[ATTUNE_K][1] = w.shape[ATTUNE_V][1] = 0;
    int64_t* const of[] = {strided(&w, ATTUNE_K), strided(&w, ATTUNE_V)};
    for (int n = 0; n < 8; ++n) of[n / 4][n % 4] = step;
    right("strides of an empty tensor do not matter");
  }
}

static void strides(void) {
  plain(), strided(&w, ATTUNE_Q)[1] = -32;
  wrong("q: stride -32 of axis 's' is below 0");
  plain(), strided(&w, ATTUNE_K)[1] = INT64_MAX;
  wrong("k: extents or strides are negative, or reach past the end of memory");
  plain(), strided(&w, ATTUNE_K)[0] = (int64_t)1 << 56;
  wrong("k: extents or strides are negative, or reach past the end of memory");
  plain(), strided(&w, ATTUNE_V)[3] = 2;
  wrong("v: the last axis has stride 2; it must be 1 (contiguous)");
  plain(), w.tensor[ATTUNE_V].byte_offset = UINT64_MAX - 3;
  wrong("v: byte_offset 18446744073709551612 reaches past the end of memory");
  plain(), w.tensor[ATTUNE_V].data = (void*)(UINTPTR_MAX - 15);
  wrong("v: extents or strides are negative, or reach past the end of memory");
  plain(), strided(&w, ATTUNE_OUT)[1] = 0;
  wrong("out: output strides overlap: two elements share an address");
  plain(), strided(&w, ATTUNE_OUT)[2] = 7;
  wrong("out: output strides overlap: two elements share an address");
  plain(), strided(&w, ATTUNE_LSE)[0] = 19;
  wrong("lse: output strides overlap: two elements share an address");
  plain(), strided(&w, ATTUNE_K)[0] = 0; /* an input may broadcast */
  right("keys shared by the batch");
}

static void overlaps(void) {
  plain(), w.tensor[ATTUNE_OUT].data = &memory[ATTUNE_Q];
  wrong("out: output shares memory with q");
  plain(), w.tensor[ATTUNE_OUT].data = &memory[ATTUNE_V].f[223];
  wrong("out: output shares memory with v");
  plain(), w.tensor[ATTUNE_OUT].data = &memory[ATTUNE_V].f[224];
  right("out right behind v");
  plain(), w.tensor[ATTUNE_LSE].data = &memory[ATTUNE_OUT];
  wrong("out: output shares memory with lse");
  plain(), w.tensor[ATTUNE_V].data = w.tensor[ATTUNE_K].data;
  right("inputs may be one tensor");

  /* q, k and v as slices of one packed tensor [2, 7, 8, 8], and their gradients likewise. */
  dense("backward f32 b2 h4/2 q7 k7 d8 causal");
  const int slices[][3] = {{ATTUNE_Q, 0, 4},  {ATTUNE_K, 4, 2},  {ATTUNE_V, 6, 2},
                           {ATTUNE_DQ, 0, 4}, {ATTUNE_DK, 4, 2}, {ATTUNE_DV, 6, 2}};
  give(&w, ATTUNE_OUT, ATTUNE_F32, "bshd", 2, 7, 4, 8);
  give(&w, ATTUNE_D_OUT, ATTUNE_F32, "bshd", 2, 7, 4, 8);
  give(&w, ATTUNE_LSE, ATTUNE_F32, "bsh", 2, 7, 4, 0);
  for (int n = 0; n < 6; ++n) {
    const int role = slices[n][0], home = role < ATTUNE_DQ ? ATTUNE_Q : ATTUNE_DQ;
    give(&w, role, ATTUNE_F32, "bshd", 2, 7, slices[n][2], 8)->data = &memory[home].f[slices[n][1] * 8];
    int64_t* s = strided(&w, role);
    s[0] = 7 * 64, s[1] = 64;
  }
  right_for_all("packed gradients");
  w.tensor[ATTUNE_DK].data = &memory[ATTUNE_DQ].f[3 * 8];
  wrong_for_all("dq: output shares memory with dk");
  w.tensor[ATTUNE_DK].data = &memory[ATTUNE_DQ].f[5 * 8];
  wrong_for_all("dk: output shares memory with dv");
}

static void numbers(void) {
  plain(), w.args.scale = NAN;
  wrong("scale = nan is not in 0 ... 1e+30");
  plain(), w.args.scale = -1;
  wrong("scale = -1 is not in 0 ... 1e+30");
  plain(), w.args.scale = 1e38f;
  wrong("scale = 1e+38 is not in 0 ... 1e+30");
  plain(), w.args.scale = INFINITY;
  wrong("scale = inf is not in 0 ... 1e+30");
  plain(), w.args.scale = 1e30f;
  right("the largest scales");
  plain(), w.args.softcap = 2;
  wrong("softcap = 2 given, but the problem does not have option softcap");
  plain(), w.args.dropout = 0.5f;
  wrong("dropout = 0.5 given, but the problem does not have option dropout");
  dense("forward f32 b2 h4/2 q5 k7 d8 causal softcap");
  wrong("softcap = 0 is not finite and above 0");
  w.args.softcap = INFINITY;
  wrong("softcap = inf is not finite and above 0");
  w.args.softcap = 30;
  right("a softcap");
  dense("forward f32 b2 h4/2 q5 k7 d8 causal dropout");
  wrong("seed: not given, but the problem requires it");
  give(&w, ATTUNE_SEED, ATTUNE_I32, "n", 2, 0, 0, 0);
  wrong("seed: dtype i32 is not i64");
  give(&w, ATTUNE_SEED, ATTUNE_I64, "n", 1, 0, 0, 0);
  wrong("seed: dim = 1 is not 2");
  give(&w, ATTUNE_SEED, ATTUNE_I64, "n", 2, 0, 0, 0);
  w.args.dropout = 1;
  wrong("dropout = 1 is not in 0 <= dropout < 1");
  w.args.dropout = -0.1f;
  wrong("dropout = -0.1 is not in 0 <= dropout < 1");
  w.args.dropout = 0.1f;
  right("a dropout");
}

static void options(void) {
  dense("forward f32 b2 h4/2 q5 k7 d8 full bias");
  give(&w, ATTUNE_BIAS, ATTUNE_F32, "bhqk", 2, 3, 5, 7);
  wrong("bias: head = 3 is not 1 or 4");
  give(&w, ATTUNE_BIAS, ATTUNE_F32, "bhqk", 1, 4, 5, 6);
  wrong("bias: dim = 6 is not 1 or at least 7");
  give(&w, ATTUNE_BIAS, ATTUNE_F32, "qk", 5, 7, 0, 0);
  right("a broadcast bias");
  dense("forward f32 b2 h4/2 q5 k7 d8 full alibi sink");
  give(&w, ATTUNE_SLOPES, ATTUNE_F32, "h", 4, 0, 0, 0), give(&w, ATTUNE_SINKS, ATTUNE_F32, "h", 2, 0, 0, 0);
  wrong("sinks: head = 2 is not 4");
  give(&w, ATTUNE_SINKS, ATTUNE_F32, "h", 4, 0, 0, 0);
  right("slopes and sinks");
  dense("forward f32 b2 h4/2 q5 k7 d8 full accumulate");
  w.args.role[ATTUNE_LSE] = NULL;
  wrong("lse: not given, but the problem requires it");
  dense("forward f32 b2 h4/2 q5 k7 d8 causal@absolute");
  give(&w, ATTUNE_POSITIONS, ATTUNE_I64, "bn", 2, 2, 0, 0);
  memory[ATTUNE_POSITIONS].l[3] = ((int64_t)1 << 40) + 1;
  wrong("positions of sequence 1: 1099511627777 is not in -2^40 ... 2^40");
  memory[ATTUNE_POSITIONS].l[3] = -((int64_t)1 << 40);
  right("positions as far as they go");
}

static void ragged(void) {
  int32_t *cu_q = memory[ATTUNE_CU_Q].i, *cu_k = memory[ATTUNE_CU_K].i;
  ask(&w, "forward f32 b2 h4/2 q5 k7 d8 causal ragged");
  give(&w, ATTUNE_Q, ATTUNE_F32, "thd", 8, 4, 8, 0), give(&w, ATTUNE_OUT, ATTUNE_F32, "thd", 8, 4, 8, 0);
  give(&w, ATTUNE_K, ATTUNE_F32, "thd", 12, 2, 8, 0), give(&w, ATTUNE_V, ATTUNE_F32, "thd", 12, 2, 8, 0);
  give(&w, ATTUNE_CU_Q, ATTUNE_I32, "n", 3, 0, 0, 0);
  wrong("cu_k: not given, but the problem requires it");
  give(&w, ATTUNE_CU_K, ATTUNE_I32, "n", 2, 0, 0, 0);
  wrong("cu_k: dim = 2 is not 3");
  give(&w, ATTUNE_CU_K, ATTUNE_I32, "n", 3, 0, 0, 0);
  cu_q[0] = 0, cu_q[1] = 3, cu_q[2] = 8, cu_k[0] = 0, cu_k[1] = 5, cu_k[2] = 12;
  right("two sequences");
  cu_q[1] = 9;
  wrong("cu_q of sequence 0: 9 exceeds the 8 tokens of q");
  cu_q[1] = -1;
  wrong("cu_q of sequence 0: -1 is before its start 0");
  cu_q[0] = -1, cu_q[1] = 3;
  wrong("cu_q of sequence 0: -1 is below 0");
  cu_q[0] = 0, cu_q[1] = 6;
  wrong("cu_q of sequence 0: 6 tokens exceed the bound 5");
  cu_q[1] = 3, cu_k[1] = 4;
  wrong("cu_k of sequence 1: 8 tokens exceed the bound 7");
  cu_k[1] = 5, cu_k[2] = 13;
  wrong("cu_k of sequence 1: 13 exceeds the 12 tokens of k");
  cu_k[2] = 4;
  wrong("cu_k of sequence 1: 4 is before its start 5");
  cu_k[2] = 12, give(&w, ATTUNE_CACHE_INDEX, ATTUNE_I32, "b", 2, 0, 0, 0);
  wrong("cache_index: given, but the problem does not use it");
}

static void caches(void) {
  int32_t *used_q = memory[ATTUNE_USED_Q].i, *used = memory[ATTUNE_USED_K].i, *pad = memory[ATTUNE_LEFT_PAD].i;
  int32_t* index = memory[ATTUNE_CACHE_INDEX].i;
  plain();
  give(&w, ATTUNE_K, ATTUNE_F32, "bshd", 3, 10, 2, 8), give(&w, ATTUNE_V, ATTUNE_F32, "bshd", 3, 10, 2, 8);
  give(&w, ATTUNE_USED_Q, ATTUNE_I32, "b", 2, 0, 0, 0), give(&w, ATTUNE_USED_K, ATTUNE_I32, "b", 2, 0, 0, 0);
  wrong("k: batch = 3 is not 2");
  give(&w, ATTUNE_LEFT_PAD, ATTUNE_I32, "b", 2, 0, 0, 0), give(&w, ATTUNE_CACHE_INDEX, ATTUNE_I32, "b", 2, 0, 0, 0);
  used_q[0] = 5, used_q[1] = 2, used[0] = 7, used[1] = 10, pad[1] = 4, index[0] = index[1] = 2;
  right("a cache with padding, shared by both");
  used_q[1] = 6;
  wrong("used_q of sequence 1: 6 is not in 0 ... 5");
  used_q[1] = 2, used[0] = 11;
  wrong("used_k of sequence 0: 11 is not in 0 ... 10");
  used[0] = -1;
  wrong("used_k of sequence 0: -1 is not in 0 ... 10");
  used[0] = 8;
  wrong("used_k of sequence 0: 8 keys exceed the bound 7");
  used[0] = 7, pad[1] = 11;
  wrong("left_pad of sequence 1: 11 is not in 0 ... 10");
  pad[1] = -1;
  wrong("left_pad of sequence 1: -1 is not in 0 ... 10");
  pad[1] = 4, index[1] = 3;
  wrong("cache_index of sequence 1: 3 is not one of the 3 rows of k");
  index[1] = -1;
  wrong("cache_index of sequence 1: -1 is not one of the 3 rows of k");

  dense("forward f32 b2 h4/2 q5 k10 d8 causal append rotary");
  give(&w, ATTUNE_K, ATTUNE_F32, "bshd", 2, 10, 2, 8), give(&w, ATTUNE_V, ATTUNE_F32, "bshd", 2, 10, 2, 8);
  give(&w, ATTUNE_K_NEW, ATTUNE_F32, "bshd", 2, 5, 2, 8), give(&w, ATTUNE_V_NEW, ATTUNE_F32, "bshd", 2, 5, 2, 8);
  give(&w, ATTUNE_USED_K, ATTUNE_I32, "b", 2, 0, 0, 0);
  give(&w, ATTUNE_ROTARY_COS, ATTUNE_F32, "sd", 10, 4, 0, 0);
  give(&w, ATTUNE_ROTARY_SIN, ATTUNE_F32, "sd", 10, 4, 0, 0);
  used[0] = 5, used[1] = 0;
  right_for_all("room for the new keys");
  used[0] = 6;
  wrong_for_all("used_k of sequence 0: 6 keys and 5 new keys do not fit in a cache of 10");
  used[0] = 5, give(&w, ATTUNE_CACHE_INDEX, ATTUNE_I32, "b", 2, 0, 0, 0), index[0] = index[1] = 1;
  wrong_for_all("cache_index: row 1 is appended to twice");
  index[0] = 0, strided(&w, ATTUNE_K)[0] = 0;
  wrong_for_all("k: output strides overlap: two elements share an address");
  w.tensor[ATTUNE_K].strides = NULL, w.tensor[ATTUNE_V].data = &memory[ATTUNE_K].f[100];
  wrong_for_all("k: output shares memory with v");
  w.tensor[ATTUNE_V].data = &memory[ATTUNE_V], w.shape[ATTUNE_V_NEW][1] = 4;
  wrong_for_all("v_new: seq = 4 is not 5");
  w.shape[ATTUNE_V_NEW][1] = 5, w.shape[ATTUNE_ROTARY_COS][0] = w.shape[ATTUNE_ROTARY_SIN][0] = 9;
  wrong_for_all("rotary_cos: 9 positions do not cover 5 ... 9 of sequence 0");
  w.shape[ATTUNE_ROTARY_COS][0] = w.shape[ATTUNE_ROTARY_SIN][0] = 10, w.shape[ATTUNE_ROTARY_COS][1] = 5;
  wrong_for_all("rotary_cos: dim = 5 is not 1 ... 4");
  w.shape[ATTUNE_ROTARY_COS][1] = 4, w.problem.align = ATTUNE_ABSOLUTE;
  give(&w, ATTUNE_POSITIONS, ATTUNE_I64, "bn", 2, 2, 0, 0);
  memset(&memory[ATTUNE_POSITIONS], 0, sizeof memory[0]);
  right_for_all("given positions inside the table");
  memory[ATTUNE_POSITIONS].l[1] = 3; /* for key 0; the queries still fit */
  wrong_for_all("rotary_cos: 10 positions do not cover 8 ... 12 of sequence 0");
}

static void pages(void) {
  int32_t *used = memory[ATTUNE_USED_K].i, *table = memory[ATTUNE_PAGE_TABLE].i;
  ask(&w, "forward f32 b2 h4/2 q1 k8 d8 causal paged4");
  give(&w, ATTUNE_Q, ATTUNE_F32, "bshd", 2, 1, 4, 8), give(&w, ATTUNE_OUT, ATTUNE_F32, "bshd", 2, 1, 4, 8);
  give(&w, ATTUNE_K, ATTUNE_F32, "pshd", 5, 4, 2, 8), give(&w, ATTUNE_V, ATTUNE_F32, "pshd", 5, 4, 2, 8);
  wrong("page_table: not given, but the problem requires it");
  give(&w, ATTUNE_PAGE_TABLE, ATTUNE_I32, "bn", 2, 2, 0, 0), give(&w, ATTUNE_USED_K, ATTUNE_I32, "b", 2, 0, 0, 0);
  table[0] = 4, table[1] = 0, table[2] = 4, table[3] = 77, used[0] = 8, used[1] = 4;
  right("a shared first page; what is not used may be anything");
  used[1] = 5;
  wrong("page_table of sequence 1: 77 is not one of 5 pages");
  table[3] = -2;
  wrong("page_table of sequence 1: -2 is not one of 5 pages");
  used[1] = 9;
  wrong("used_k of sequence 1: 9 is not in 0 ... 8");
  used[1] = 4, w.shape[ATTUNE_K][1] = 3;
  wrong("k: seq = 3 is not 4");
  w.shape[ATTUNE_K][1] = 4, w.shape[ATTUNE_PAGE_TABLE][0] = 1;
  wrong("page_table: batch = 1 is not 2");

  dense("forward f32 b2 h4/2 q5 k8 d8 causal append paged4");
  give(&w, ATTUNE_K, ATTUNE_F32, "pshd", 5, 4, 2, 8), give(&w, ATTUNE_V, ATTUNE_F32, "pshd", 5, 4, 2, 8);
  give(&w, ATTUNE_K_NEW, ATTUNE_F32, "bshd", 2, 1, 2, 8), give(&w, ATTUNE_V_NEW, ATTUNE_F32, "bshd", 2, 1, 2, 8);
  give(&w, ATTUNE_PAGE_TABLE, ATTUNE_I32, "bn", 2, 2, 0, 0), give(&w, ATTUNE_USED_K, ATTUNE_I32, "b", 2, 0, 0, 0);
  table[0] = 4, table[1] = 0, table[2] = 4, table[3] = 1, used[0] = used[1] = 4;
  right_for_all("a shared first page, and a page each to append to");
  used[0] = used[1] = 3;
  wrong_for_all("page_table: page 4 is appended to twice");
  used[0] = 8;
  wrong_for_all("used_k of sequence 0: 8 keys and 1 new keys do not fit in a cache of 8");
}

static void block_lists(void) {
  int32_t *begin = memory[ATTUNE_BLOCK_BEGIN].i, *column = memory[ATTUNE_BLOCK_COLUMN].i;
  int32_t *begin_k = memory[ATTUNE_BLOCK_BEGIN_K].i, *row_k = memory[ATTUNE_BLOCK_ROW_K].i;
  const int32_t good_begin[] = {0, 2, 3}, good_column[] = {1, 0, 1, 99};
  dense("forward f32 b2 h4/2 q5 k7 d8 full blocks4x4x4");
  give(&w, ATTUNE_BLOCK_BEGIN, ATTUNE_I32, "n", 3, 0, 0, 0);
  give(&w, ATTUNE_BLOCK_COLUMN, ATTUNE_I32, "n", 3, 0, 0, 0);
  wrong("block_column: dim = 3 is not at least 4");
  give(&w, ATTUNE_BLOCK_COLUMN, ATTUNE_I32, "n", 4, 0, 0, 0);
  memcpy(begin, good_begin, sizeof good_begin), memcpy(column, good_column, sizeof good_column);
  right("one list for every sequence and head");
  column[1] = 1;
  wrong("block_column of sequence 0: 1 occurs twice in row 0");
  column[1] = 2;
  wrong("block_column of sequence 0: 2 is not one of 2 key blocks");
  column[1] = -1;
  wrong("block_column of sequence 0: -1 is not one of 2 key blocks");
  column[1] = 0, begin[2] = 5;
  wrong("block_begin of sequence 0: 5 exceeds the bound 4");
  begin[2] = 1;
  wrong("block_begin of sequence 0: 1 is before its start 2");
  begin[2] = 3, begin[0] = -1;
  wrong("block_begin of sequence 0: -1 is below 0");
  begin[0] = 0, w.shape[ATTUNE_BLOCK_BEGIN][0] = 2;
  wrong("block_begin: dim = 2 is not at least 3");

  dense("backward f32 b2 h4/2 q5 k7 d8 full blocks4x4x4");
  give(&w, ATTUNE_D_OUT, ATTUNE_F32, "bshd", 2, 5, 4, 8), give(&w, ATTUNE_DQ, ATTUNE_F32, "bshd", 2, 5, 4, 8);
  give(&w, ATTUNE_DK, ATTUNE_F32, "bshd", 2, 7, 2, 8), give(&w, ATTUNE_DV, ATTUNE_F32, "bshd", 2, 7, 2, 8);
  give(&w, ATTUNE_BLOCK_BEGIN, ATTUNE_I32, "n", 3, 0, 0, 0), give(&w, ATTUNE_BLOCK_COLUMN, ATTUNE_I32, "n", 4, 0, 0, 0);
  right_for_all("a backward with the list by query block");
  give(&w, ATTUNE_BLOCK_BEGIN_K, ATTUNE_I32, "n", 3, 0, 0, 0);
  wrong_for_all("block_row_k: not given, but the problem requires it");
  give(&w, ATTUNE_BLOCK_ROW_K, ATTUNE_I32, "n", 4, 0, 0, 0);
  begin_k[0] = 0, begin_k[1] = 1, begin_k[2] = 3, row_k[0] = 0, row_k[1] = 1, row_k[2] = 0;
  right_for_all("both lists");
  row_k[0] = 1;
  wrong_for_all("block_begin_k of sequence 0: does not list the same blocks as block_begin");
  begin_k[1] = 2, row_k[0] = 0, row_k[1] = 1, row_k[2] = 0; /* the same number of entries per row, in another column */
  wrong_for_all("block_begin_k of sequence 0: does not list the same blocks as block_begin");
  row_k[0] = 2;
  wrong_for_all("block_row_k of sequence 0: 2 is not one of 2 query blocks");
}

static void workspaces(void) {
  attune_plan* plan = NULL;
  size_t bytes = 0;
  plain();
  expect(!attune_plan_create(&w.problem, NULL, NULL, &plan) && !attune_workspace(&w.problem, "cpu", &bytes), "a plan");
  expect(attune_plan_workspace(plan) == bytes, "plan and problem need the same workspace");
  char* room = aligned_alloc(64, (bytes + 191) / 64 * 64);
  w.args.workspace = room, w.args.workspace_bytes = bytes;
  expect(!attune_plan_run(plan, &w.args, NULL), "a workspace of one's own");
  poison();
  if (bytes) {
    w.args.workspace_bytes = bytes - 1;
    refused(attune_plan_run(plan, &w.args, NULL), "the plan needs");
  }
  w.args.workspace = room + 4, w.args.workspace_bytes = bytes + 8;
  refused(attune_plan_run(plan, &w.args, NULL), "workspace: is not aligned to 64 bytes");
  w.args.workspace = NULL;
  refused(attune_plan_run(plan, &w.args, NULL), "workspace: null given, the plan needs ");
  w.args.workspace = (void*)(UINTPTR_MAX - 63), w.args.workspace_bytes = bytes + 128;
  refused(attune_plan_run(plan, &w.args, NULL), "bytes reach past the end of memory");
  w.args.workspace = (void*)((uintptr_t)&memory[ATTUNE_K] & ~(uintptr_t)63), w.args.workspace_bytes = bytes + 64;
  refused(attune_plan_run(plan, &w.args, NULL), "workspace: shares memory with ");
  expect(untouched(), "outputs are untouched after a refused workspace");
  attune_plan_destroy(plan);
  free(room);
}

static void plans(void) {
  attune_plan* plan = NULL;
  plain();
  refused(attune_plan_create(&w.problem, "abacus", NULL, &plan), "device 'abacus' is unknown");
  refused(attune_plan_create(&w.problem, NULL, "abacus", &plan), "backend 'abacus' is not one of ");
  refused(attune_plan_create(&w.problem, NULL, "cpu_backward", &plan), "backend 'cpu_backward' does not support");
  refused(attune_plan_create(&w.problem, "h200", "cpu_forward", &plan), "backend 'cpu_forward' does not support");
  expect(plan == NULL, "no plan after a refusal");
  expect(!attune_plan_create(&w.problem, "cpu:scalar", "reference", &plan), "the reference");
  expect(!strcmp(attune_plan_backend(plan), "reference"), "backend");
  expect(!strcmp(attune_plan_why(plan), "reference: selected by name"), attune_plan_why(plan));
  expect(!attune_plan_run(plan, &w.args, NULL), "the reference runs");
  poison(), w.tensor[ATTUNE_V].data = NULL;
  refused(attune_plan_run(plan, &w.args, NULL), "v: data is null");
  expect(untouched(), "outputs are untouched after a refused run");
  attune_plan_destroy(plan);
  refused(attune_set_threads(-1), "threads = -1 is not in 0 ... ");
  refused(attune_set_threads(1 << 20), "threads = 1048576 is not in 0 ... ");
  expect(!attune_set_threads(3) && attune_threads() == 3, "threads");
  plain(), right("a call with three threads");
  expect(!attune_set_threads(0) && attune_threads() >= 1, "threads again");
  expect(!*attune_last_error() && attune_last_code() == ATTUNE_OK, "no error after a success");
}

static void lines(void) {
  char text[256];
  plain();
  refused(attune_problem_parse("sideways f32", &w.problem), "is not a pass, with which a line begins");
  refused(attune_problem_parse("forward f32 b2 h4 q0 k7 d8 full", &w.problem), "len_q = 0 is not in 1 ...");
  refused(attune_problem_format(&w.problem, text, 5), "capacity = 5, but the line needs ");
  expect(!attune_problem_format(&w.problem, text, sizeof text) && !strcmp(text, "forward f32 b2 h4/2 q5 k7 d8 causal"),
         "a refused line leaves the problem as it was");
}

int main(void) {
  nothing_given();
  axes();
  devices_and_dtypes();
  sizes();
  strides();
  overlaps();
  numbers();
  options();
  ragged();
  caches();
  pages();
  block_lists();
  workspaces();
  plans();
  lines();
  return finish("misuse");
}
