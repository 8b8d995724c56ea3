// SPDX-License-Identifier: Apache-2.0
/* Shared by the C tests of the interface: memory for every role of a small problem, and checks that count failures. */
#pragma once
#include <stdio.h>
#include <string.h>

#include "attune/attune.h"

static int failures = 0;

static inline void expect(int ok, const char* what) {
  if (!ok) ++failures, printf("FAIL %s (%s)\n", what, attune_last_error());
}

/* Expects that the last call was refused with these words. */
static inline void refused(int code, const char* words) {
  expect(code == 1 && strstr(attune_last_error(), words), words);
}

static inline int finish(const char* name) {
  if (failures) printf("%s: %d failures\n", name, failures);
  else printf("%s: all passed\n", name);
  return failures != 0;
}

enum { kRoom = 4096 }; /* number of floats per role */
typedef struct {
  attune_problem problem;
  attune_args args;
  attune_tensor tensor[ATTUNE_ROLES];
  int64_t shape[ATTUNE_ROLES][4], strides[ATTUNE_ROLES][4];
} World;

static union {
  float f[kRoom];
  int32_t i[kRoom];
  int64_t l[kRoom / 2];
} memory[ATTUNE_ROLES];

/* Allocates a role: "bshd", 2, 5, 4, 8. Unused lengths are 0. */
static inline attune_tensor* give(World* w, int role, int dtype, const char* axes, int64_t a, int64_t b, int64_t c,
                                  int64_t d) {
  const int64_t shape[] = {a, b, c, d};
  attune_tensor* t = &w->tensor[role];
  memset(t, 0, sizeof *t);
  memcpy(w->shape[role], shape, sizeof shape);
  t->data = &memory[role];
  t->device.type = 1;
  t->ndim = (int32_t)strlen(axes);
  t->dtype.code = dtype == ATTUNE_I32 || dtype == ATTUNE_I64 ? 0 : 2;
  t->dtype.bits = dtype == ATTUNE_I64 || dtype == ATTUNE_F64 ? 64 : 32;
  t->dtype.lanes = 1;
  t->shape = w->shape[role];
  t->axes = axes;
  w->args.role[role] = t;
  return t;
}

/* Explicit strides for a role, initially the compact ones. */
static inline int64_t* strided(World* w, int role) {
  int64_t step = 1;
  for (int n = w->tensor[role].ndim - 1; n >= 0; --n) w->strides[role][n] = step, step *= w->shape[role][n];
  w->tensor[role].strides = w->strides[role];
  return w->strides[role];
}

/* Parses the problem line; sets no tensors. */
static inline void ask(World* w, const char* line) {
  memset(w, 0, sizeof *w);
  w->problem.size = sizeof w->problem;
  w->args.size = sizeof w->args;
  if (attune_problem_parse(line, &w->problem)) expect(0, line);
}
