/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in the C interface, as far as it can be tested without a GPU: thread scratch on the CPU, struct versions,
 * and refusals. */
#include "world.h"

static World w;
static attune_memory m;

static void lent(void) {
  memset(&m, 0xff, sizeof m);
  m.size = sizeof m;
  expect(!attune_memory_statistics(NULL, &m), "statistics of the CPU");
  expect(m.size == sizeof m && m.live_buffers == 0 && m.live_bytes == 0 && m.keeps == 0, "nothing is lent yet");
  ask(&w, "forward f32 b1 h1 q4 k4 d8 full");
  for (int r = ATTUNE_Q; r <= ATTUNE_OUT; ++r) give(&w, r, ATTUNE_F32, "bshd", 1, 4, 1, 8);
  expect(!attune_call(&w.problem, &w.args, NULL), "a call without a workspace");
  size_t bytes = 0;
  expect(!attune_workspace(&w.problem, "cpu", &bytes), "workspace");
  expect(!attune_memory_statistics("cpu", &m), "statistics");
  expect(m.live_buffers == 1 && m.live_bytes == (bytes ? bytes : 1), "the thread keeps what the plan needs");
  expect(m.high_buffers == 1 && m.high_bytes == m.live_bytes && m.held_bytes == m.live_bytes, "marks");
  const uint64_t kept = m.live_bytes;
  expect(!attune_memory_trim("cpu", (size_t)kept), "trim to what there is");
  expect(!attune_memory_statistics("cpu", &m) && m.live_buffers == 1, "keeps it");
  expect(!attune_memory_trim("cpu", 0), "trim");
  expect(!attune_memory_statistics("cpu", &m) && m.live_buffers == 0 && m.live_bytes == 0, "nothing is kept");
  expect(m.high_bytes == kept, "the mark stays");
  expect(!attune_memory_reset("cpu"), "reset");
  expect(!attune_memory_statistics("cpu", &m) && m.high_bytes == 0 && m.high_buffers == 0, "the mark begins again");
  expect(!attune_call(&w.problem, &w.args, NULL), "a call after a trim");
}

static void versions(void) {
  struct {
    attune_memory m;
    uint64_t later[2];
  } newer;
  memset(&newer, 0xff, sizeof newer);
  newer.m.size = sizeof newer;
  expect(!attune_memory_statistics("cpu", &newer.m), "a newer caller");
  expect(newer.m.size == sizeof newer && newer.later[0] == 0 && newer.later[1] == 0, "what is not known is 0");
  memset(&m, 0xff, sizeof m);
  m.size = offsetof(attune_memory, held_bytes);
  expect(!attune_memory_statistics("cpu", &m), "an older caller");
  expect(m.free_bytes == 0 && m.held_bytes == UINT64_MAX, "nothing is written behind it");
  m.size = 4;
  refused(attune_memory_statistics("cpu", &m), "memory.size = 4 is not sizeof(attune_memory)");
}

static void refusals(void) {
  void* out = &m;
  m.size = sizeof m;
  refused(attune_memory_statistics("cpu", NULL), "out is null");
  refused(attune_memory_allocate("cuda:0", 1, NULL, NULL), "out is null");
  refused(attune_memory_allocate("cpu", 1, NULL, &out), "memory: the CPU has no pool");
  expect(out == NULL, "a refused allocation gives null");
  refused(attune_memory_free(NULL, &m, NULL), "memory: the CPU has no pool");
  refused(attune_memory_trim("h200", 0), "device 'h200' is not cpu, cuda or cuda:#");
  refused(attune_memory_reset("cuda:x"), "device 'cuda:x' is not cpu, cuda or cuda:#");
  refused(attune_memory_reset("cuda:-1"), "device 'cuda:-1' is not cpu, cuda or cuda:#");
  refused(attune_memory_statistics("cuda:1x", &m), "device 'cuda:1x' is not cpu, cuda or cuda:#");
  expect(attune_memory_allocate("cuda:4000", 1, NULL, &out) == 1 && *attune_last_error(), "no such GPU");
  expect(attune_memory_statistics("cuda:63", &m) == 1 && *attune_last_error(), "no such GPU");
}

int main(void) {
  lent();
  versions();
  refusals();
  return finish("memory");
}
