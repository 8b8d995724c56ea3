// SPDX-License-Identifier: Apache-2.0
#include "extension/call.h"

#include <cstring>

#include "extension/attributes.h"
#include "extension/ranks.h"

namespace attune {

const Spec* spec_of(PyObject* capsule) { return static_cast<const Spec*>(PyCapsule_GetPointer(capsule, kSpec)); }

PyObject* refused() {
  const char* const why = attune_last_error();  // may quote a file name or a file that is not UTF-8
  if (PyObject* const text = PyUnicode_DecodeUTF8(why, Py_ssize_t(std::strlen(why)), "replace")) {
    PyErr_SetObject(error_type(), text);
    Py_DECREF(text);
  }
  return nullptr;
}

bool current_stream(const Borrowed* tensors, size_t count, void*& stream) {
  for (size_t n = 0; n < count; ++n) {
    const Borrowed& t = tensors[n];
    if (t.tensor.device.type != dlpack::kCuda) continue;
    if (t.by.table) return t.by.table->current_stream(dlpack::kCuda, t.tensor.device.id, &stream) == 0;
    // A producer called through __dlpack__ got the legacy default stream, which is a null pointer.
    return !t.by.by_attributes() || current_stream_of_pytorch(t.tensor.device.id, stream);
  }
  return true;
}

bool Call::take(PyObject* const* given, Py_ssize_t count) {
  if (count < kNumbers) return fail("attune: a call has at least %d arguments", kNumbers);
  spec = spec_of(given[0]);
  if (!spec) return false;
  if (size_t(count - kNumbers) != spec->places.size() || count - kNumbers > ATTUNE_ROLES)
    return fail("attune: %zd tensors are given, and the call has %zu", count - kNumbers, spec->places.size());
  args.size = sizeof args;
  if (spec->problem.variant[0]) args.communicator = communicator();
  args.scale = float(PyFloat_AsDouble(given[1]));
  args.softcap = float(PyFloat_AsDouble(given[2]));
  args.dropout = float(PyFloat_AsDouble(given[3]));
  const long q = PyLong_AsLong(given[4]), k = PyLong_AsLong(given[5]);
  PyObject* told = given[6] == Py_None ? nullptr : given[6];
  if (told) stream = PyLong_AsVoidPtr(told);
  if (PyErr_Occurred()) return false;
  if (q < 0 || q > INT32_MAX || k < 0 || k > INT32_MAX)
    return fail("attune: lengths %ld and %ld are not in 0 ... 2^31 - 1", q, k);
  len_q = int32_t(q), len_k = int32_t(k);
  for (size_t n = 0; n < spec->places.size(); ++n) {
    PyObject* object = given[kNumbers + n];
    if (object == Py_None) continue;
    const Spec::Place& place = spec->places[n];
    if (!takes(*spec, place.role)) continue;
    Borrowed& t = tensors[n];
    // The package makes results or checks those that are given; a check through PyTorch costs 0.15 us per tensor.
    const bool result = place.written && place.role != ATTUNE_K && place.role != ATTUNE_V;
    const auto take = result ? &Borrowed::take : &Borrowed::take_as_stored;
    if (!(t.*take)(object, place.name.c_str(), place.axes.c_str(), place.written, told)) return false;
    args.role[place.role] = &t.tensor;
  }
  if (!told && !current_stream(tensors, spec->places.size(), stream)) return false;
  problem = problem_of(*spec, args, len_q, len_k);
  return true;
}

}  // namespace attune
