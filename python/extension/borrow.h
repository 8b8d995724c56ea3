// A Python object as an attune_tensor, without a copy: by the framework's table of C functions where it has one
// (PyTorch from 2.10 on), by its attributes where it is an older PyTorch's, else by __dlpack__. Valid while the object
// and this are.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "extension/exchange.h"

namespace attune {

// A reference that is given back.
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
  int64_t sizes[2][kMostAxes];  // of a tensor that was lent by its attributes

  // `written`: memory that its owner calls read-only is refused. `stream` is what the producer is told it is used on.
  // False with an exception set.
  bool take(PyObject* object, const char* role, const char* axes, bool written, PyObject* stream);
  // And refused where PyTorch reads other numbers than its memory has: of what the caller did not make itself.
  bool take_as_stored(PyObject* object, const char* role, const char* axes, bool written, PyObject* stream);
};

Lender lender_of(PyObject* object);

PyObject* error_type();  // attune.Error
bool fail(const char* format, ...);  // sets it; false

}  // namespace attune
