// SPDX-License-Identifier: Apache-2.0
// The transposed lists of selected attention: the tokens that chose each key block. Built on the device in memory
// linear in the tokens: count, place, fill, then sort. The order of tokens, and with it every bit of dK and dV, is
// therefore independent of timing. Lists are divided into chunks, since every token chooses block 0. A chunk is the
// work of one CTA; if a list has several, each writes a partial result, and these are added in order.
#pragma once
#include "attention/gpu/nsa/selected_params.h"

namespace attune::sm80 {

// A list belongs to a sequence, a KV head and a key block.
struct SelectedLists {
  int lists;      // batch * heads_kv * blocks
  int blocks;     // per sequence, upper bound
  int chunk;      // tokens per chunk, upper bound
  int* count;     // [lists] tokens per list, initially 0
  int* begin;     // [lists] position of its tokens
  int* cursor;    // [lists] position of the next token
  int2* slots;    // [lists] its first partial result and their number; none if one chunk suffices
  int* unsorted;  // [pairs] tokens
  int* tokens;    // [pairs] tokens, ascending within a list
  int4* chunks;   // [chunks] list, first token, token count, partial result or -1
  int* total;     // [1] number of chunks
};

struct SelectedListParams {
  SelectedParams x;
  SelectedLists lists;
};

}  // namespace attune::sm80
