// SPDX-License-Identifier: Apache-2.0
// A Python object as an attune_tensor, without a copy: through the framework's C exchange table if it has one (PyTorch
// from 2.10 on), through attributes for an older PyTorch, else through __dlpack__. Valid while the object and this are.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "extension/exchange.h"

namespace attune {

// An owned reference, released on destruction.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }
  void reset(PyObject* owned) {
    PyObject* before = object_;
    object_ = owned;
    Py_XDECREF(before);
  }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* mine = object_;
    object_ = nullptr;
    return mine;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

inline constexpr int kMostAxes = 8;

// How tensors of a type are lent.
struct Lender {
  const dlpack::Exchange* table = nullptr;
  bool pytorch = false;

  bool by_attributes() const { return pytorch && !table; }
};

struct Borrowed {
  attune_tensor tensor{};
  Lender by;
  Ref capsule;
  int64_t sizes[2][kMostAxes];  // of a tensor lent through its attributes

  // `written`: refuses memory that its owner declares read-only. `stream` is passed to the producer. False with an
  // exception set.
  bool take(PyObject* object, const char* role, const char* axes, bool written, PyObject* stream);
  // Also refuses tensors whose memory differs from the values that PyTorch reads; for tensors that the package did not
  // make.
  bool take_as_stored(PyObject* object, const char* role, const char* axes, bool written, PyObject* stream);
};

Lender lender_of(PyObject* object);

PyObject* error_type();              // attune.Error
bool fail(const char* format, ...);  // sets it; returns false

}  // namespace attune
