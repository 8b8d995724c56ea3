// SPDX-License-Identifier: Apache-2.0
#include "extension/borrow.h"

#include <cstring>

#include "extension/attributes.h"

namespace attune {
namespace {

using dlpack::Exchange;

// A process uses few tensor types: each is looked up once. The type is kept alive, so its address stays valid.
struct Known {
  PyTypeObject* type = nullptr;
  Lender lender;
};
constexpr int kTileReady = 8;
Known known[kTileReady];

const Exchange* table_of(PyTypeObject* type) {
  Ref capsule(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
  if (!capsule) return PyErr_Clear(), nullptr;
  const auto* e = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  if (!e) return PyErr_Clear(), nullptr;
  while (e && e->version.major != 1) e = e->older;
  return e && e->lend && e->current_stream && e->allocate && e->give ? e : nullptr;
}

// NumPy's masked arrays lend their data without the mask.
bool is_masked(PyObject* object) {
  static PyTypeObject* plain = nullptr;  // the last type that was asked: asking takes 0.1 us
  if (Py_TYPE(object) == plain) return false;
  if (PyObject_HasAttrString(object, "_sharedmask")) return true;
  return plain = Py_TYPE(object), false;
}

// The capsule of an object with __dlpack__. Producers before DLPack 1.0 do not accept max_version and raise a
// TypeError. Only a GPU producer gets a stream: NumPy refuses any.
PyObject* capsule_of(PyObject* object, PyObject* stream) {
  Ref producer(PyObject_GetAttrString(object, "__dlpack__"));
  Ref device(producer ? PyObject_CallMethod(object, "__dlpack_device__", nullptr) : nullptr);
  if (!device) return nullptr;
  Ref kind(PySequence_GetItem(device.get(), 0));
  const long type = kind ? PyLong_AsLong(kind.get()) : -1;
  if (type == -1 && PyErr_Occurred()) return nullptr;
  Ref none(PyTuple_New(0)), with(PyDict_New()), version(Py_BuildValue("(ii)", 1, 1)), legacy(PyLong_FromLong(1));
  if (!none || !with || !version || !legacy) return nullptr;
  // 1 is CUDA's legacy default stream, on which a call runs if no stream is given.
  PyObject* told = stream ? stream : legacy.get();
  if (type == dlpack::kCuda && PyDict_SetItemString(with.get(), "stream", told)) return nullptr;
  if (PyDict_SetItemString(with.get(), "max_version", version.get())) return nullptr;
  PyObject* capsule = PyObject_Call(producer.get(), none.get(), with.get());
  if (capsule || !PyErr_ExceptionMatches(PyExc_TypeError)) return capsule;
  PyErr_Clear();
  PyDict_DelItemString(with.get(), "max_version");
  return PyObject_Call(producer.get(), none.get(), with.get());
}

// Refuses a tensor whose shape cannot be read; everything else is checked behind the C interface. Some frameworks set
// the strides of an empty tensor to 0; without elements, it counts as compact.
bool tidy(dlpack::Tensor& t, const char* role) {
  constexpr int32_t kMost = 64;  // axes of any framework
  if (t.ndim < 0 || t.ndim > kMost || (t.ndim > 0 && !t.shape))
    return fail("attune: %s: its producer lends %d axes%s", role, int(t.ndim), t.shape ? "" : " without a shape");
  for (int32_t n = 0; n < t.ndim; ++n)
    if (!t.shape[n]) t.strides = nullptr;
  return true;
}

// Turns a lender's error, which may be pages of C++ stack frames, into one sentence that names the tensor, with the
// original error as its cause. Our own errors, and non-Exceptions (Ctrl-C), are kept. Returns false.
bool not_lent(PyObject* object, const char* role, bool pytorch) {
  if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(error_type()) ||
      PyErr_ExceptionMatches(PyExc_MemoryError))
    return false;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Ref kind(type), cause(value), at(trace);
  if (!pytorch || !say_why_not_lent(object, role)) {
    Ref text(value ? PyObject_Str(value) : nullptr), end(PyUnicode_FromString("\n"));
    Ref lines(text && end ? PyUnicode_Split(text.get(), end.get(), 1) : nullptr);
    PyObject* first = lines ? PyList_GetItem(lines.get(), 0) : nullptr;  // borrowed
    if (!first) return false;
    fail("attune: %s: %U", role, first);
  }
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (cause) Py_INCREF(cause.get()), PyException_SetCause(value, cause.get());  // takes the reference
  PyErr_Restore(type, value, trace);
  return false;
}

}  // namespace

Lender lender_of(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  int n = 0;
  for (; n < kTileReady && known[n].type; ++n)
    if (known[n].type == type) return known[n].lender;
  const Lender l{.table = table_of(type), .pytorch = is_pytorch(type)};
  if (n < kTileReady) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    known[n] = {type, l};
  }
  return l;
}

bool Borrowed::take(PyObject* object, const char* role, const char* axes, bool written, PyObject* stream) {
  tensor.axes = axes;
  auto* lent = reinterpret_cast<dlpack::Tensor*>(&tensor);
  by = lender_of(object);
  if (by.table) return by.table->lend(object, lent) == 0 ? tidy(*lent, role) : not_lent(object, role, by.pytorch);
  if (by.pytorch) return lend_by_attributes(object, role, sizes, *lent) || not_lent(object, role, true);
  if (is_masked(object)) return fail("attune: %s: a masked array is not accepted: its mask would be ignored", role);
  capsule.reset(capsule_of(object, stream));
  if (!capsule) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
      PyErr_Clear();
      Ref type(PyObject_Str(reinterpret_cast<PyObject*>(Py_TYPE(object))));
      return fail("attune: %s: %U is not a tensor: it has no __dlpack__", role, type.get());
    }
    return not_lent(object, role, false);
  }
  if (PyCapsule_IsValid(capsule.get(), "dltensor_versioned")) {
    const auto* m = static_cast<const dlpack::Versioned*>(PyCapsule_GetPointer(capsule.get(), "dltensor_versioned"));
    if (m->version.major != 1) return fail("attune: %s: DLPack %u is not DLPack 1", role, m->version.major);
    if (written && (m->flags & dlpack::kReadOnly)) return fail("attune: %s: its memory is read-only", role);
    std::memcpy(lent, &m->tensor, sizeof m->tensor);
    return tidy(*lent, role);
  }
  const auto* m = static_cast<const dlpack::Managed*>(PyCapsule_GetPointer(capsule.get(), "dltensor"));
  if (!m) return false;
  std::memcpy(lent, &m->tensor, sizeof m->tensor);
  return tidy(*lent, role);
}

bool Borrowed::take_as_stored(PyObject* object, const char* role, const char* axes, bool written, PyObject* stream) {
  return take(object, role, axes, written, stream) && (!by.pytorch || is_as_stored(object, role));
}

}  // namespace attune
