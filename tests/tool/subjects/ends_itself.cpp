// SPDX-License-Identifier: Apache-2.0
// Peers that end their process where there are 32 queries or more, and one that prints; elsewhere they refuse.
#include <attune/attune.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

extern "C" {
__attribute__((visibility("default"))) int prints(const attune_problem*, const attune_args*, void*) {
  std::printf("printed\n");
  (void)!write(STDOUT_FILENO, "written\n", 8);
  return ATTUNE_UNSUPPORTED;
}
__attribute__((visibility("default"))) int aborts(const attune_problem* p, const attune_args*, void*) {
  if (p->len_q >= 32) std::abort();
  return ATTUNE_UNSUPPORTED;
}
__attribute__((visibility("default"))) int leaves(const attune_problem* p, const attune_args*, void*) {
  if (p->len_q >= 32) _exit(0);
  return ATTUNE_UNSUPPORTED;
}
}
