// The lists of selected attention the other way round: which tokens chose a key block. Built on the device in memory
// that is linear in tokens: count, place, fill, then sort, so that the order of tokens, and with it every bit of dK and
// dV, does not depend on timing. A list is cut into chunks, since block 0 is everybody's: a chunk is the work of one
// block of threads, and where a list has several, each writes a part and the parts are added in their order.
#pragma once
#include "attention/gpu/nsa/selected_params.h"

namespace attune::sm80 {

// A list: a sequence, a head of keys, a key block.
struct SelectedLists {
  int lists;       // batch * heads_kv * blocks
  int blocks;      // of a sequence, at most
  int chunk;       // tokens, at most
  int* count;      // [lists] tokens of a list, 0 before
  int* begin;      // [lists] where its tokens are
  int* cursor;     // [lists] where the next one goes
  int2* slots;     // [lists] its first part and how many; none where one chunk is all
  int* unsorted;   // [pairs] tokens
  int* tokens;     // [pairs] tokens, rising in a list
  int4* chunks;    // [chunks] list, first token, how many, part or -1
  int* total;      // [1] chunks there are
};

struct SelectedListParams {
  SelectedParams x;
  SelectedLists lists;
};

}  // namespace attune::sm80
