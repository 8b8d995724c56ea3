// SPDX-License-Identifier: Apache-2.0
// What stays constant between calls: the fields of a problem that no tensor determines, the roles of a call's tensors
// in order, and the names of their axes. Sizes and dtypes come from the tensors.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "extension/borrow.h"

namespace attune {

struct Spec {
  struct Place {
    int role = 0;
    std::string name, axes;
    bool written = false;
  };
  attune_problem problem{};
  std::vector<Place> places;
  std::string backend;  // "": the planner's choice
};

// From {field: int}, variant, backend and a sequence of (name, axes). False with an exception set.
bool make_spec(PyObject* fields, const char* variant, const char* backend, PyObject* places, Spec& out);

// From text: fields, variant and places, "mask=1 align=0|dilated rates=1 segments=8|q=bshd k=bshd". Requires no Python.
bool parse_spec(std::string_view text, Spec& out);

// Lists by key block accompany the call of a forward for its backward; the forward itself does not take them.
inline bool takes(const Spec& s, int role) {
  return s.problem.pass == ATTUNE_BACKWARD || (role != ATTUNE_BLOCK_BEGIN_K && role != ATTUNE_BLOCK_ROW_K);
}

// The problem of a call. len_q and len_k, if not 0, are bounds for lengths in a tensor (ragged, caches).
attune_problem problem_of(const Spec&, const attune_args&, int32_t len_q, int32_t len_k);

// A capsule with the XLA foreign-function handler for CUDA or for the CPU.
PyObject* xla_handler(PyObject*, PyObject* given);

}  // namespace attune
