/* SPDX-License-Identifier: Apache-2.0 */
/* Callers compiled against another version of the header: older structs are shorter, newer ones longer. */
#include "world.h"

static World w;

static void older_problems(void) {
  char line[256];
  ask(&w, "forward f32 b2 h8 q16 k16 d64 causal");
  w.problem.size = offsetof(attune_problem, left); /* before windows existed */
  w.problem.left = w.problem.page = -1;            /* fields beyond size are not read */
  memset(w.problem.variant, 'x', sizeof w.problem.variant);
  expect(!attune_problem_format(&w.problem, line, sizeof line), "an older caller");
  expect(!strcmp(line, "forward f32 b2 h8 q16 k16 d64 causal"), line);
  expect(!attune_problem_parse("forward f32 b4 h8 q16 k16 d64 causal", &w.problem), "an older caller reads");
  expect(w.problem.batch == 4 && w.problem.left == -1 && w.problem.variant[0] == 'x', "nothing is written behind it");
  refused(attune_problem_parse("forward f32 b5 h8 q16 k16 d64 causal sink", &w.problem),
          "problem.size = 64 is too small for this line");
  expect(w.problem.batch == 4, "a refused line leaves the problem as it was");
  w.problem.size = offsetof(attune_problem, dim_v);
  refused(attune_problem_format(&w.problem, line, sizeof line), "problem.size = 52 is not sizeof(attune_problem)");
}

static void newer_problems(void) {
  char line[256];
  const size_t room = sizeof line;
  struct {
    attune_problem p;
    int32_t later[4];
  } newer;
  memset(&newer, 0, sizeof newer);
  newer.p.size = sizeof newer;
  newer.later[3] = 1;
  expect(!attune_problem_parse("forward f32 b2 h8 q16 k16 d64 causal", &newer.p), "a newer caller reads");
  expect(newer.later[3] == 0, "what this version does not know becomes 0");
  expect(!attune_problem_format(&newer.p, line, sizeof line), "a newer caller that sets nothing new");
  newer.later[3] = 1;
  refused(attune_problem_format(&newer.p, line, room), "problem: a field is set that this version does not have");
  newer.p.size = 1u << 31;
  refused(attune_problem_format(&newer.p, line, room), "problem.size = 2147483648 is not sizeof(attune_problem)");
  ask(&w, "forward f32 b2 h8 q16 k16 d64 causal");
  w.problem.options = 1u << 20;
  refused(attune_problem_format(&w.problem, line, sizeof line), "unknown to this version");
  w.problem.options = 0, w.problem.mask = 9;
  refused(attune_problem_format(&w.problem, line, sizeof line), "unknown to this version");
  w.problem.mask = 0, w.problem.variant[sizeof w.problem.variant - 1] = 'x';
  refused(attune_problem_format(&w.problem, line, sizeof line), "variant is not null-terminated");
}

/* Every call that takes a problem; none may search for a terminator behind the field. */
static void variants_without_an_end(void) {
  const char* const words = "problem: variant is not null-terminated";
  char line[256];
  size_t bytes = 0;
  int64_t bound = 0;
  attune_plan* plan = NULL;
  attune_cache* cache = NULL;
  attune_nsa_cache* nsa = NULL;
  attune_blocks blocks = {.size = sizeof blocks, .pattern = "local 1"};
  attune_cache_options c = {.size = sizeof c, .dtype = ATTUNE_F32, .heads = 1, .dim_qk = 8, .sequences = 1};
  attune_nsa_cache_options n = {.size = sizeof n, .dtype = ATTUNE_F32, .heads = 1, .dim_qk = 8, .sequences = 1};
  c.capacity = n.capacity = 64, n.variant = "nsa d=4 gate=none l=8 n=4 phi=mean s=8 w=9";
  expect(!attune_cache_create(&c, &cache) && !attune_nsa_cache_create(&n, &nsa), "caches");
  ask(&w, "forward f32 b1 h1 q4 k4 d8 full");
  for (int r = ATTUNE_Q; r <= ATTUNE_OUT; ++r) give(&w, r, ATTUNE_F32, "bshd", 1, 4, 1, 8);
  memset(w.problem.variant, 'x', sizeof w.problem.variant);
  refused(attune_problem_format(&w.problem, line, sizeof line), words);
  refused(attune_call(&w.problem, &w.args, NULL), words);
  refused(attune_check(&w.problem, &w.args), words);
  refused(attune_workspace(&w.problem, "cpu", &bytes), words);
  refused(attune_plan_create(&w.problem, "cpu", NULL, &plan), words);
  refused(attune_cache_attend(cache, &w.problem, &w.args, NULL, NULL), words);
  refused(attune_nsa_cache_attend(nsa, &w.problem, &w.args, NULL, NULL), words);
  w.problem.block_q = w.problem.block_k = 4;
  refused(attune_blocks_bound(&w.problem, "local 1", 1, 1, 0, &bound), words);
  refused(attune_blocks_build(&w.problem, &w.args, &blocks, NULL), words);
  attune_nsa_cache_destroy(nsa), attune_cache_destroy(cache);
}

static void args(void) {
  const attune_tensor* const more = &w.tensor[ATTUNE_Q];
  struct {
    attune_args a;
    const attune_tensor* later[3];
  } newer;
  ask(&w, "forward f32 b1 h1 q4 k4 d8 full");
  for (int r = ATTUNE_Q; r <= ATTUNE_OUT; ++r) give(&w, r, ATTUNE_F32, "bshd", 1, 4, 1, 8);
  memset(&newer, 0, sizeof newer);
  newer.a = w.args;
  newer.a.size = sizeof newer;
  expect(!attune_call(&w.problem, &newer.a, NULL), "a newer caller that gives nothing new");
  newer.later[1] = more;
  refused(attune_call(&w.problem, &newer.a, NULL), "is unknown to this version");
  /* An older caller's struct ends with the role out; nothing behind it is read. */
  w.args.size = (uint32_t)(offsetof(attune_args, role) + (ATTUNE_OUT + 1) * sizeof w.args.role[0]);
  for (int r = ATTUNE_OUT + 1; r < ATTUNE_ROLES; ++r) w.args.role[r] = (const attune_tensor*)1;
  expect(!attune_call(&w.problem, &w.args, NULL), "an older caller");
}

/* No version of a struct ends inside a pointer, so half a pointer is never read. */
static void sizes_inside_a_pointer(void) {
  attune_module* module = NULL;
  attune_cache* cache = NULL;
  attune_choice* choice = NULL;
  const char* const line = "feed_forward f32 b1 s2 e8";
  attune_module_options o = {.device = "cpu"};
  attune_cache_options c = {.dtype = ATTUNE_F32, .heads = 1, .dim_qk = 8, .sequences = 1, .capacity = 8};
  attune_make_options m = {.len = 16, .device = "cpu"};
  c.device = "cpu";
  for (uint32_t n = 1; n < sizeof o; ++n) {
    o.size = n;
    const int failed = attune_module_create(line, &o, &module);
    expect(failed == (n % sizeof(void*) != 0), "a size of attune_module_options");
    if (!failed) attune_module_destroy(module);
  }
  o.size = 12;
  refused(attune_module_create(line, &o, &module), "options.size = 12 is not the size of its struct");
  c.size = offsetof(attune_cache_options, device) + 4;
  refused(attune_cache_create(&c, &cache), "options.size = 44 is not the size of its struct");
  m.size = offsetof(attune_make_options, device) + 4;
  refused(attune_choose("dense", &m, &choice), "options.size = 60 is not the size of its struct");

  /* For the roles of a call, an older caller has as many as fit into size. */
  c.size = sizeof c;
  expect(!attune_cache_create(&c, &cache) && !attune_cache_resize(cache, 0, 4), "a cache");
  ask(&w, "forward f32 b1 h1 q4 k4 d8 full");
  give(&w, ATTUNE_Q, ATTUNE_F32, "bshd", 1, 4, 1, 8), give(&w, ATTUNE_OUT, ATTUNE_F32, "bshd", 1, 4, 1, 8);
  for (int r = ATTUNE_OUT + 1; r < ATTUNE_ROLES; ++r) w.args.role[r] = (const attune_tensor*)1;
  w.args.size = (uint32_t)(offsetof(attune_args, role) + (ATTUNE_OUT + 1) * sizeof w.args.role[0] + 4);
  expect(!attune_cache_attend(cache, &w.problem, &w.args, NULL, NULL), "an older caller of a cache");
  expect(!attune_module_create(line, NULL, &module), "a module");
  attune_module_args a = {.size = offsetof(attune_module_args, x) + 4, .x = &w.tensor[ATTUNE_Q]};
  refused(attune_module_forward(module, &a, NULL), "args.size = 12 is not the size of its struct");
  attune_module_destroy(module);
  attune_cache_destroy(cache);
}

static void zero_is_the_default(void) {
  char line[256];
  attune_problem p = {.size = sizeof p, .dtype_q = ATTUNE_BF16, .batch = 2, .heads_q = 8, .len_q = 16, .len_k = 32};
  p.dim_qk = 64;
  expect(!attune_problem_format(&p, line, sizeof line) && !strcmp(line, "forward bf16 b2 h8 q16 k32 d64 full"), line);
  p.pass = ATTUNE_BACKWARD, p.options = ATTUNE_OPTION_BIAS | ATTUNE_OPTION_SINK, p.heads_kv = 2, p.dim_v = 32;
  p.mask = ATTUNE_WINDOW, p.left = ATTUNE_NO_LIMIT, p.right = 3, p.align = ATTUNE_TOP_LEFT, p.repro = ATTUNE_REPRO_RUN;
  expect(!attune_problem_format(&p, line, sizeof line), "more fields");
  expect(!strcmp(line, "backward bf16 b2 h8/2 q16 k32 d64/32 window*,3@top_left bias sink repro=run"), line);
  expect(!strncmp(attune_version(), "0.", 2), "version");
}

int main(void) {
  older_problems();
  newer_problems();
  variants_without_an_end();
  args();
  sizes_inside_a_pointer();
  zero_is_the_default();
  return finish("versions");
}
