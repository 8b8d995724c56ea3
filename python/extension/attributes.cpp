// SPDX-License-Identifier: Apache-2.0
// PyTorch tensors without a C exchange table (before 2.10), read through their attributes. __dlpack__ would take ten
// times as long, and refuses tensors that require a gradient.
#include "extension/attributes.h"

namespace attune {
namespace {

// PyTorch objects, looked up once and never released. Methods are those of torch.Tensor: calling them by name would
// create an object each time.
struct PyTorch {
  PyObject *type = nullptr, *data_ptr = nullptr, *stride = nullptr, *get_device = nullptr, *is_neg = nullptr;
  PyObject *shape = nullptr, *dtype = nullptr, *is_cpu = nullptr, *is_cuda = nullptr;  // names
};
PyTorch torch;

struct Format {
  const char* name;
  uint8_t code, bits;  // DLPack code
  PyObject* dtype;
};
Format formats[] = {{"float32", 2, 32, nullptr},  {"bfloat16", 4, 16, nullptr}, {"float16", 2, 16, nullptr},
                    {"int32", 0, 32, nullptr},    {"int64", 0, 64, nullptr},    {"uint8", 1, 8, nullptr},
                    {"float64", 2, 64, nullptr},  {"bool", 6, 8, nullptr},      {"float8_e4m3fn", 10, 8, nullptr},
                    {"int8", 0, 8, nullptr},      {"int16", 0, 16, nullptr}};

Ref imported(const char* name) {
  Ref text(PyUnicode_FromString(name));
  return Ref(text ? PyImport_GetModule(text.get()) : nullptr);
}

// False without an exception: PyTorch, or something required of it, is not present.
bool find_pytorch() {
  if (torch.type) return true;
  Ref module = imported("torch");
  Ref type(module ? PyObject_GetAttrString(module.get(), "Tensor") : nullptr);
  if (!type) return PyErr_Clear(), false;
  const struct {
    const char* name;
    PyObject** to;
  } methods[] = {{"data_ptr", &torch.data_ptr}, {"stride", &torch.stride}, {"get_device", &torch.get_device},
                 {"is_neg", &torch.is_neg}},
    names[] = {{"shape", &torch.shape}, {"dtype", &torch.dtype}, {"is_cpu", &torch.is_cpu},
               {"is_cuda", &torch.is_cuda}};
  for (const auto& [name, to] : methods)
    if (!(*to = PyObject_GetAttrString(type.get(), name))) return PyErr_Clear(), false;
  for (const auto& [name, to] : names)
    if (!(*to = PyUnicode_InternFromString(name))) return PyErr_Clear(), false;
  for (Format& f : formats)
    if (!(f.dtype = PyObject_GetAttrString(module.get(), f.name))) PyErr_Clear();  // older versions have no e4m3
  Py_INCREF(type.get());
  torch.type = type.get();
  return true;
}

PyObject* called(PyObject* method, PyObject* object) {
  return PyObject_CallFunctionObjArgs(method, object, static_cast<PyObject*>(nullptr));
}

// -1 with an exception set.
int is_true(PyObject* object, PyObject* name) {
  Ref value(PyObject_GetAttr(object, name));
  return value ? PyObject_IsTrue(value.get()) : -1;
}

bool read_numbers(PyObject* tuple, Py_ssize_t count, int64_t* out) {
  for (Py_ssize_t n = 0; n < count; ++n) {
    PyObject* number = PyTuple_GetItem(tuple, n);  // borrowed
    out[n] = number ? PyLong_AsLongLong(number) : -1;
    if (out[n] == -1 && PyErr_Occurred()) return false;
  }
  return true;
}

}  // namespace

bool is_pytorch(PyTypeObject* type) {
  return find_pytorch() && PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(torch.type));
}

bool is_as_stored(PyObject* object, const char* role) {
  Ref negated(called(torch.is_neg, object));
  if (!negated) return false;
  return negated.get() == Py_False ||
         fail("attune: %s: a view that PyTorch negates when it reads it: give resolve_neg() of it", role);
}

bool lend_by_attributes(PyObject* object, const char* role, int64_t (&sizes)[2][kMostAxes], dlpack::Tensor& out) {
  const int on_cpu = is_true(object, torch.is_cpu), on_cuda = on_cpu ? 0 : is_true(object, torch.is_cuda);
  if (on_cpu < 0 || on_cuda < 0) return false;
  if (!on_cpu && !on_cuda) return fail("attune: %s: the tensor is neither on the CPU nor on CUDA", role);
  out.device_type = on_cpu ? dlpack::kCpu : dlpack::kCuda, out.device_id = 0;
  if (on_cuda) {
    Ref device(called(torch.get_device, object));
    out.device_id = device ? int32_t(PyLong_AsLong(device.get())) : -1;
    if (PyErr_Occurred()) return false;
  }
  Ref shape(PyObject_GetAttr(object, torch.shape));
  Ref strides(shape ? called(torch.stride, object) : nullptr), data(strides ? called(torch.data_ptr, object) : nullptr);
  Ref dtype(data ? PyObject_GetAttr(object, torch.dtype) : nullptr);
  if (!dtype) return false;
  const Format* format = nullptr;
  for (const Format& f : formats)
    if (f.dtype == dtype.get()) format = &f;
  if (!format) return fail("attune: %s: dtype %S is not one that is read here", role, dtype.get());
  const Py_ssize_t axes = PyTuple_Size(shape.get());
  if (axes < 0) return false;
  if (axes > kMostAxes) return fail("attune: %s has %zd axes; no tensor here has more than %d", role, axes, kMostAxes);
  if (!read_numbers(shape.get(), axes, sizes[0]) || !read_numbers(strides.get(), axes, sizes[1])) return false;
  out.data = PyLong_AsVoidPtr(data.get());
  out.code = format->code, out.bits = format->bits, out.lanes = 1;
  out.ndim = int32_t(axes), out.shape = sizes[0], out.strides = sizes[1], out.byte_offset = 0;
  return !PyErr_Occurred();
}

bool say_why_not_lent(PyObject* object, const char* role) {
  Ref layout(PyObject_GetAttrString(object, "layout")), text(layout ? PyObject_Str(layout.get()) : nullptr);
  if (!text) return PyErr_Clear(), false;
  if (PyUnicode_CompareWithASCIIString(text.get(), "torch.strided") != 0) {
    fail("attune: %s: a tensor of layout %U, whose memory is not its numbers row by row: give to_dense() of it", role,
         text.get());
    return true;
  }
  int64_t sizes[2][kMostAxes];
  dlpack::Tensor lent;
  if (lend_by_attributes(object, role, sizes, lent)) return false;
  if (PyErr_ExceptionMatches(error_type())) return true;
  return PyErr_Clear(), false;
}

bool current_stream_of_pytorch(int32_t device, void*& stream) {
  Ref cuda = imported("torch.cuda");
  Ref current(cuda ? PyObject_CallMethod(cuda.get(), "current_stream", "i", int(device)) : nullptr);
  Ref address(current ? PyObject_GetAttrString(current.get(), "cuda_stream") : nullptr);
  if (!address) return PyErr_Occurred() ? false : fail("attune: torch.cuda is not imported");
  stream = PyLong_AsVoidPtr(address.get());
  return !PyErr_Occurred();
}

}  // namespace attune
