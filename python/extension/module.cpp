// SPDX-License-Identifier: Apache-2.0
// attune._core: the C interface as Python functions. Built on the limited API, so one file serves every Python from
// 3.10 on. Numbers and tensors are positional, because this is on the path of every call; the package adds names.
#include <cstdarg>
#include <cstring>
#include <new>

#include "extension/call.h"
#include "extension/objects.h"
#include "extension/ranks.h"

namespace attune {
namespace {

PyObject* error = nullptr;

void destroy_spec(PyObject* capsule) { delete spec_of(capsule); }

// The device for a plan requested by name.
std::string device_of(const attune_tensor& t) {
  return t.device.type == dlpack::kCuda ? "cuda:" + std::to_string(t.device.id) : "cpu";
}

int run_plan(const Spec& spec, const attune_problem& problem, const attune_args& args, void* stream) {
  attune_plan* plan = nullptr;
  const attune_tensor* q = args.role[ATTUNE_Q];
  if (attune_plan_create(&problem, q ? device_of(*q).c_str() : "cpu", spec.backend.c_str(), &plan)) return 1;
  const int answer = attune_plan_run(plan, &args, stream);
  attune_plan_destroy(plan);
  return answer;
}

// False with an exception set.
bool started(Call& c) {
  PyThreadState* state = PyEval_SaveThread();
  const int answer = c.spec->backend.empty() ? attune_call(&c.problem, &c.args, c.stream)
                                             : run_plan(*c.spec, c.problem, c.args, c.stream);
  PyEval_RestoreThread(state);
  if (answer) refused();
  return !answer;
}

PyObject* run(PyObject*, PyObject* const* given, Py_ssize_t count) {
  Call c;
  if (!c.take(given, count) || !started(c)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* check(PyObject*, PyObject* const* given, Py_ssize_t count) {
  Call c;
  if (!c.take(given, count)) return nullptr;
  if (attune_check(&c.problem, &c.args)) return refused();
  Py_RETURN_NONE;
}

PyObject* line(PyObject*, PyObject* const* given, Py_ssize_t count) {
  Call c;
  char text[1024];
  if (!c.take(given, count)) return nullptr;
  if (attune_problem_format(&c.problem, text, sizeof text)) return refused();
  return PyUnicode_FromString(text);
}

// pattern, batch and heads of the lists, whether every sequence has the full length; then as run. Returns the largest
// number of entries of the pattern.
PyObject* blocks_bound(PyObject*, PyObject* const* given, Py_ssize_t count) {
  constexpr int kOwn = 4;
  if (count < kOwn) return fail("attune: blocks_bound has at least %d arguments", kOwn), nullptr;
  Ref pattern(PyUnicode_AsUTF8String(given[0]));
  const long batch = PyLong_AsLong(given[1]), heads = PyLong_AsLong(given[2]);
  const int full = PyObject_IsTrue(given[3]);
  Call c;
  if (!pattern || PyErr_Occurred() || !c.take(given + kOwn, count - kOwn)) return nullptr;
  int64_t bound = 0;
  if (attune_blocks_bound(&c.problem, PyBytes_AsString(pattern.get()), int32_t(batch), int32_t(heads), full, &bound))
    return refused();
  return PyLong_FromLongLong(bound);
}

// pattern or None, mask or None; then as run, with the lists to write among the tensors.
PyObject* blocks_build(PyObject*, PyObject* const* given, Py_ssize_t count) {
  constexpr int kOwn = 2;
  if (count < kOwn) return fail("attune: blocks_build has at least %d arguments", kOwn), nullptr;
  Ref pattern(given[0] == Py_None ? nullptr : PyUnicode_AsUTF8String(given[0]));
  Borrowed mask;
  Call c;
  if (PyErr_Occurred() || !c.take(given + kOwn, count - kOwn)) return nullptr;
  if (given[1] != Py_None && !mask.take(given[1], "mask", "bhqk", false, nullptr)) return nullptr;
  attune_blocks blocks{};
  blocks.size = sizeof blocks;
  blocks.pattern = pattern ? PyBytes_AsString(pattern.get()) : nullptr;
  blocks.mask = given[1] != Py_None ? &mask.tensor : nullptr;
  if (attune_blocks_build(&c.problem, &c.args, &blocks, c.stream)) return refused();
  Py_RETURN_NONE;
}

PyObject* spec(PyObject*, PyObject* given) {
  PyObject *fields, *places;
  const char *variant, *backend;
  if (!PyArg_ParseTuple(given, "OssO", &fields, &variant, &backend, &places)) return nullptr;
  if (!PyDict_Check(fields)) return fail("attune: fields of a problem are a dict"), nullptr;
  Spec* made = new (std::nothrow) Spec;
  if (!made) return PyErr_NoMemory();
  PyObject* capsule = nullptr;
  if (make_spec(fields, variant, backend, places, *made)) capsule = PyCapsule_New(made, kSpec, destroy_spec);
  if (!capsule) delete made;
  return capsule;
}

void say(void*, const char*, const char* message) { PyErr_SetString(PyExc_RuntimeError, message); }

// Allocates an lse for q with the layout's axes, from q's framework, at a third of the cost of the framework's Python
// function.
PyObject* empty_lse(const dlpack::Exchange& by, const attune_tensor& q, const std::string& axes) {
  if (size_t(q.ndim) != axes.size())
    return fail("attune: q has %d axes, and layout '%s' has %zu", q.ndim, axes.c_str(), axes.size()), nullptr;
  int64_t shape[3];
  int ndim = 0;
  for (const char letter : {'b', 'h', 's', 't'})
    if (const size_t at = axes.find(letter); at != axes.npos) shape[ndim++] = q.shape[at];
  dlpack::Tensor wanted;
  std::memcpy(&wanted, &q, sizeof wanted);
  wanted.data = nullptr, wanted.byte_offset = 0, wanted.strides = nullptr;
  wanted.code = 2, wanted.bits = 32, wanted.lanes = 1;
  wanted.ndim = ndim, wanted.shape = shape;
  dlpack::Versioned* made = nullptr;
  void* object = nullptr;
  if (by.allocate(&wanted, &made, nullptr, say) || by.give(made, &object)) return nullptr;
  return static_cast<PyObject*>(object);
}

// run for a forward with only q, k and v, whose last tensor, lse, is allocated here and returned. Returns None without
// a run if q's framework has no exchange table.
PyObject* run_with_lse(PyObject*, PyObject* const* given, Py_ssize_t count) {
  constexpr int kLse = Call::kNumbers + 4;
  if (count != kLse + 1) return fail("attune: run_with_lse has %d arguments", kLse + 1), nullptr;
  Call c;
  if (!lender_of(given[Call::kNumbers]).table) Py_RETURN_NONE;
  if (!c.take(given, count)) return nullptr;
  const Spec::Place& place = c.spec->places.back();
  Ref lse(empty_lse(*c.tensors[0].by.table, c.tensors[0].tensor, c.spec->places.front().axes));
  if (!lse || !c.tensors[4].take(lse.get(), "lse", place.axes.c_str(), true, nullptr)) return nullptr;
  c.args.role[place.role] = &c.tensors[4].tensor;
  return started(c) ? lse.release() : nullptr;
}

PyObject* plan(PyObject*, PyObject* given) {
  const char *text, *device, *backend;
  if (!PyArg_ParseTuple(given, "szz", &text, &device, &backend)) return nullptr;
  attune_problem problem{};
  problem.size = sizeof problem;
  attune_plan* made = nullptr;
  if (attune_problem_parse(text, &problem) || attune_plan_create(&problem, device, backend, &made)) return refused();
  PyObject* answer = Py_BuildValue("sKs", attune_plan_backend(made),
                                   static_cast<unsigned long long>(attune_plan_workspace(made)), attune_plan_why(made));
  attune_plan_destroy(made);
  return answer;
}

PyObject* set_threads(PyObject*, PyObject* given) {
  int threads;
  if (!PyArg_ParseTuple(given, "i", &threads)) {
    PyObject* const number = PyTuple_Size(given) == 1 ? PyTuple_GetItem(given, 0) : nullptr;  // borrowed
    if (!number) return nullptr;
    PyErr_Clear();
    return fail("attune: threads %R is not a whole number of 0 ... 4096", number), nullptr;
  }
  if (attune_set_threads(threads)) return refused();
  Py_RETURN_NONE;
}

PyObject* last_code(PyObject*, PyObject*) { return PyLong_FromLong(attune_last_code()); }
PyObject* threads(PyObject*, PyObject*) { return PyLong_FromLong(attune_threads()); }
PyObject* version(PyObject*, PyObject*) { return PyUnicode_FromString(attune_version()); }

PyMethodDef methods[] = {
    {"spec", function(spec), METH_VARARGS, "What stays the same from call to call."},
    {"run", function(run), METH_FASTCALL, "spec, scale, softcap, dropout, len_q, len_k, stream, then tensors."},
    {"check", function(check), METH_FASTCALL, "Only the checks of run, values in integer tensors among them."},
    {"line", function(line), METH_FASTCALL, "The problem line of run."},
    {"blocks_bound", function(blocks_bound), METH_FASTCALL, "The most entries of a pattern's lists."},
    {"blocks_build", function(blocks_build), METH_FASTCALL, "Writes block lists by a pattern or a mask."},
    {"run_with_lse", function(run_with_lse), METH_FASTCALL, "As run, of q, k, v, out and None: makes lse, returns it."},
    {"plan", function(plan), METH_VARARGS, "line, device, backend: (backend, workspace bytes, why)."},
    {"last_code", function(last_code), METH_NOARGS, "What kind of failure the last Error of this thread was."},
    {"set_threads", function(set_threads), METH_VARARGS, "Threads of the CPU; 0: all this process may run on."},
    {"threads", function(threads), METH_NOARGS, "Threads of the CPU."},
    {"xla_handler", function(xla_handler), METH_VARARGS, "A foreign function of XLA: of CUDA, or of the CPU."},
    {"connect", function(connect), METH_VARARGS, "rank, ranks, start, finish: this process is a rank."},
    {"nccl_id", function(nccl_id), METH_NOARGS, "Bytes that rank 0 brings to the others."},
    {"connect_nccl", function(connect_nccl), METH_VARARGS, "id, rank, ranks, device: this process is a rank of NCCL."},
    {"disconnect", function(disconnect), METH_NOARGS, "It is none any more."},
    {"shard_tokens", function(shard_tokens), METH_VARARGS, "layout, tokens, ranks, rank: the rank's tokens."},
    {"version", function(version), METH_NOARGS, "Of the library."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "attune._core", "The C interface of attune.", -1, methods,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyObject* error_type() { return error; }

bool fail(const char* format, ...) {
  va_list list;
  va_start(list, format);
  PyErr_FormatV(error, format, list);
  va_end(list);
  return false;
}

}  // namespace attune

PyMODINIT_FUNC PyInit__core() {
  using namespace attune;
  PyObject* module = PyModule_Create(&definition);
  if (!module) return nullptr;
  // Derives from both, because frameworks raise either for the same mistakes.
  Ref bases(PyTuple_Pack(2, PyExc_ValueError, PyExc_RuntimeError));
  error = bases ? PyErr_NewExceptionWithDoc("attune.Error", "What was asked cannot be done; the sentence says why.",
                                            bases.get(), nullptr)
                : nullptr;
  if (!error || PyModule_AddObjectRef(module, "Error", error)) return Py_DECREF(module), nullptr;
  for (PyMethodDef* more : {cache_methods(), module_methods()})
    if (PyModule_AddFunctions(module, more)) return Py_DECREF(module), nullptr;
  return module;
}
