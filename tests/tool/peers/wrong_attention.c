/* SPDX-License-Identifier: Apache-2.0 */
/* Two common mistakes in a function of one's own, for tests: the example, called with arguments that are misread. */
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
