// SPDX-License-Identifier: Apache-2.0
// Modules and the factory of the library, as capsules.
#include "extension/objects.h"
#include "extension/ranks.h"

namespace attune {
namespace {

constexpr const char* kModule = "attune.module";
constexpr uintptr_t kAlign = 64;  // alignment of a tape, in bytes

attune_module* module_of(PyObject* capsule) {
  return static_cast<attune_module*>(PyCapsule_GetPointer(capsule, kModule));
}

PyObject* module_create(PyObject*, PyObject* given) {
  const char *text, *device;
  PyObject* shares;
  if (!PyArg_ParseTuple(given, "ssO", &text, &device, &shares)) return nullptr;
  attune_module_options o{};
  o.size = sizeof o, o.device = device;
  if (shares != Py_None && !(o.shares = module_of(shares))) return nullptr;
  attune_module* made = nullptr;
  if (attune_module_create(text, &o, &made)) return refused();
  PyObject* capsule = PyCapsule_New(made, kModule, [](PyObject* c) { attune_module_destroy(module_of(c)); });
  if (!capsule) attune_module_destroy(made);
  return capsule;
}

PyObject* module_about(PyObject*, PyObject* capsule) {
  const attune_module* m = module_of(capsule);
  attune_module_sizes sizes{};
  sizes.size = sizeof sizes;
  if (!m) return nullptr;
  if (attune_module_measure(m, &sizes)) return refused();
  PyObject* names = PyList_New(0);
  for (int32_t n = 0; names && n < sizes.parameters; ++n) {
    Ref name(PyUnicode_FromString(attune_module_parameter_name(m, n)));
    if (!name || PyList_Append(names, name.get())) return Py_DECREF(names), nullptr;
  }
  return Py_BuildValue("(ssNK)", attune_module_text(m), attune_module_why(m), names,
                       static_cast<unsigned long long>(sizes.tape));
}

PyObject* module_view(PyObject*, PyObject* given) {
  PyObject* capsule;
  const char* name;
  int is_gradient, versioned;
  if (!PyArg_ParseTuple(given, "Ospp", &capsule, &name, &is_gradient, &versioned)) return nullptr;
  const attune_module* m = module_of(capsule);
  attune_tensor t{};
  if (!m) return nullptr;
  if (is_gradient ? attune_module_gradient(m, name, &t) : attune_module_parameter(m, name, &t)) return refused();
  return lent(t, capsule, versioned);
}

PyObject* module_load(PyObject*, PyObject* given) {
  PyObject *capsule, *path;
  const char* prefix;
  int convert;
  if (!PyArg_ParseTuple(given, "OO&sp", &capsule, PyUnicode_FSConverter, &path, &prefix, &convert)) return nullptr;
  Ref bytes(path);
  attune_module* m = module_of(capsule);
  if (!m) return nullptr;
  if (attune_module_load(m, PyBytes_AsString(path), prefix, convert)) return refused();
  Py_RETURN_NONE;
}

PyObject* module_save(PyObject*, PyObject* given) {
  PyObject *capsule, *path;
  const char* prefix;
  if (!PyArg_ParseTuple(given, "OO&s", &capsule, PyUnicode_FSConverter, &path, &prefix)) return nullptr;
  Ref bytes(path);
  const attune_module* m = module_of(capsule);
  if (!m) return nullptr;
  if (attune_module_save(m, PyBytes_AsString(path), prefix)) return refused();
  Py_RETURN_NONE;
}

// module, whether backward, whether gradients accumulate, stream; x, memory, out, d_out, dx, d_memory, seed, tape, each
// a tensor or None.
PyObject* module_run(PyObject*, PyObject* const* given, Py_ssize_t count) {
  constexpr int kOwn = 4, kTensors = 8, kTape = 7;
  if (count != kOwn + kTensors) return fail("attune: module_run has %d arguments", kOwn + kTensors), nullptr;
  const attune_module* m = module_of(given[0]);
  if (!m) return nullptr;
  const int is_backward = PyObject_IsTrue(given[1]), add = PyObject_IsTrue(given[2]);
  PyObject* told = given[3] == Py_None ? nullptr : given[3];
  void* stream = told ? PyLong_AsVoidPtr(told) : nullptr;
  if (PyErr_Occurred()) return nullptr;
  attune_module_args a{};
  a.size = sizeof a, a.add = add, a.communicator = communicator();
  const struct {
    const char *name, *axes;
    const attune_tensor** to;
  } places[kTensors] = {{"x", "bsd", &a.x},         {"memory", "bsd", &a.memory}, {"out", "bsd", &a.out},
                        {"d_out", "bsd", &a.d_out}, {"dx", "bsd", &a.dx},         {"d_memory", "bsd", &a.d_memory},
                        {"seed", "n", &a.seed},     {"tape", "n", nullptr}};
  Borrowed tensors[kTensors];
  for (int n = 0; n < kTensors; ++n) {
    if (given[kOwn + n] == Py_None) continue;
    const bool written = n == 2 || n == 4 || n == 5 || (n == kTape && !is_backward);
    if (!tensors[n].take_as_stored(given[kOwn + n], places[n].name, places[n].axes, written, told)) return nullptr;
    if (places[n].to) *places[n].to = &tensors[n].tensor;
  }
  if (const attune_tensor& t = tensors[kTape].tensor; t.data) {
    attune_module_sizes sizes{};
    sizes.size = sizeof sizes;
    if (attune_module_measure(m, &sizes)) return refused();
    const attune_tensor& x = tensors[0].tensor;
    const bool gpu = t.device.type == dlpack::kCuda;
    const bool elsewhere = t.device.type != x.device.type || (gpu && t.device.id != x.device.id);
    if (x.data && (elsewhere || (t.ndim == 1 && t.shape[0] > 1 && t.strides && t.strides[0] != 1)))
      return fail("attune: tape is not compact memory on the device of x"), nullptr;
    const uintptr_t at = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
    const uintptr_t begin = (at + kAlign - 1) / kAlign * kAlign;
    const uint64_t bytes = t.ndim == 1 && t.dtype.bits == 8 ? uint64_t(t.shape[0]) : 0;
    if (bytes < sizes.tape + (begin - at))
      return fail("attune: tape has %llu bytes; %llu are needed", static_cast<unsigned long long>(bytes),
                  static_cast<unsigned long long>(sizes.tape + kAlign)), nullptr;
    a.tape = reinterpret_cast<void*>(begin);
  }
  if (!told && !current_stream(tensors, kTensors, stream)) return nullptr;
  PyThreadState* state = PyEval_SaveThread();
  const int answer = is_backward ? attune_module_backward(m, &a, stream) : attune_module_forward(m, &a, stream);
  PyEval_RestoreThread(state);
  if (answer) return refused();
  Py_RETURN_NONE;
}

// The factory: name, then the options in the order of the C struct; texts are None if not given.
PyObject* choose(PyObject*, PyObject* given) {
  const char* name;
  attune_make_options o{};
  o.size = sizeof o;
  if (!PyArg_ParseTuple(given, "siiiiiiiiiiiifszzzz", &name, &o.dtype, &o.batch, &o.len, &o.heads, &o.heads_kv, &o.dim,
                        &o.dim_v, &o.embed, &o.causal, &o.backward, &o.ranks, &o.block, &o.density, &o.device,
                        &o.segments, &o.rates, &o.pattern, &o.nsa))
    return nullptr;
  attune_choice* made = nullptr;
  if (attune_choose(name, &o, &made)) return refused();
  PyObject* answer = Py_BuildValue("sissz", attune_choice_name(made), attune_choice_is_module(made),
                                   attune_choice_line(made), attune_choice_pattern(made), attune_choice_why(made));
  attune_choice_destroy(made);
  return answer;
}

PyMethodDef methods[] = {
    {"module_create", function(module_create), METH_VARARGS, "text, device, module whose parameters it shares."},
    {"module_about", function(module_about), METH_O, "module: (text, why, names of parameters, bytes of a tape)."},
    {"module_view", function(module_view), METH_VARARGS, "module, name, is gradient, versioned: DLPack."},
    {"module_load", function(module_load), METH_VARARGS, "module, path, prefix, convert."},
    {"module_save", function(module_save), METH_VARARGS, "module, path, prefix."},
    {"module_run", function(module_run), METH_FASTCALL, "module, backward, add, stream, then 8 tensors."},
    {"choose", function(choose), METH_VARARGS, "name, options: (name, is module, line, pattern, why)."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyMethodDef* module_methods() { return methods; }

}  // namespace attune
