// SPDX-License-Identifier: Apache-2.0
// The arguments of one call, from Python objects to the structs of the C interface.
#pragma once
#include "extension/spec.h"

namespace attune {

inline constexpr const char* kSpec = "attune.spec";

const Spec* spec_of(PyObject* capsule);
PyObject* refused();  // raises the library's last error; returns null

// Also owns the tensors of the call.
struct Call {
  static constexpr int kNumbers = 7;  // spec, scale, softcap, dropout, len_q, len_k, stream; then tensors
  const Spec* spec = nullptr;
  attune_args args{};
  attune_problem problem{};
  int32_t len_q = 0, len_k = 0;
  void* stream = nullptr;
  Borrowed tensors[ATTUNE_ROLES];

  // False with an exception set.
  bool take(PyObject* const* given, Py_ssize_t count);
};

// The stream that the framework's own call would use, from its first GPU tensor. False with an exception set.
bool current_stream(const Borrowed* tensors, size_t count, void*& stream);

template <class F>
constexpr PyCFunction function(F f) { return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f)); }

}  // namespace attune
