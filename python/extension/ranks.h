// SPDX-License-Identifier: Apache-2.0
// The rank of this process, for calls of variants that span ranks.
#pragma once
#include "extension/borrow.h"

namespace attune {

void* communicator();                                // null: not connected
PyObject* connect(PyObject*, PyObject* given);       // rank, ranks, start(transfers), finish(ticket, seconds)
PyObject* nccl_id(PyObject*, PyObject*);             // bytes that rank 0 sends to the others
PyObject* connect_nccl(PyObject*, PyObject* given);  // id, rank, ranks, device
PyObject* disconnect(PyObject*, PyObject*);
PyObject* shard_tokens(PyObject*, PyObject* given);  // layout, tokens, ranks, rank

}  // namespace attune
