// SPDX-License-Identifier: Apache-2.0
// Ranks for variants that span them: the library's transport over two Python functions, start and finish. A process is
// one rank, and calls take its communicator from here. Calls run without the GIL, so both functions acquire it.
#include "extension/ranks.h"

#include <string>
#include <vector>

#include "extension/call.h"

namespace attune {
namespace {

struct Transport {
  PyObject *start = nullptr, *finish = nullptr;
  std::string error;
};

attune_communicator* current = nullptr;

// Copies the exception's message for the library's error, and clears the exception.
int failed(Transport& t) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  Ref a(type), b(value), c(trace), text(value ? PyObject_Str(value) : nullptr);
  Ref bytes(text ? PyUnicode_AsUTF8String(text.get()) : nullptr);
  PyErr_Clear();
  t.error = bytes ? PyBytes_AsString(bytes.get()) : "a Python function of the transport failed";
  return 1;
}

int start(void* self, const attune_transfer* transfers, int32_t count, int32_t, void*, void** ticket) {
  Transport& t = *static_cast<Transport*>(self);
  const PyGILState_STATE state = PyGILState_Ensure();
  int answer = 0;
  {
    Ref list(PyList_New(count));
    for (int32_t n = 0; list && n < count; ++n) {
      const attune_transfer& one = transfers[n];
      PyObject* item = Py_BuildValue("iNKK", one.peer, PyBool_FromLong(one.receive),
                                     static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(one.data)),
                                     static_cast<unsigned long long>(one.bytes));
      if (!item || PyList_SetItem(list.get(), n, item)) list.reset(nullptr);
    }
    PyObject* made = list ? PyObject_CallFunctionObjArgs(t.start, list.get(), nullptr) : nullptr;
    if (made) *ticket = made;
    else answer = failed(t);
  }
  PyGILState_Release(state);
  return answer;
}

int finish(void* self, void* ticket, double seconds, void*) {
  Transport& t = *static_cast<Transport*>(self);
  const PyGILState_STATE state = PyGILState_Ensure();
  int answer = 0;
  {
    Ref begun(static_cast<PyObject*>(ticket)), limit(PyFloat_FromDouble(seconds));
    Ref done(limit ? PyObject_CallFunctionObjArgs(t.finish, begun.get(), limit.get(), nullptr) : nullptr);
    if (!done) answer = failed(t);
  }
  PyGILState_Release(state);
  return answer;
}

const char* why(void* self) { return static_cast<Transport*>(self)->error.c_str(); }

void destroy(void* self) {
  const PyGILState_STATE state = PyGILState_Ensure();
  auto* t = static_cast<Transport*>(self);
  Py_XDECREF(t->start);
  Py_XDECREF(t->finish);
  delete t;
  PyGILState_Release(state);
}

void become(attune_communicator* made) {
  if (current) attune_communicator_destroy(current);
  current = made;
}

}  // namespace

void* communicator() { return current; }

PyObject* connect(PyObject*, PyObject* given) {
  int rank, ranks;
  PyObject *begin, *end;
  if (!PyArg_ParseTuple(given, "iiOO", &rank, &ranks, &begin, &end)) return nullptr;
  auto* self = new Transport{begin, end, {}};
  Py_INCREF(begin);
  Py_INCREF(end);
  attune_transport transport{};
  transport.size = sizeof transport;
  transport.rank = rank, transport.ranks = ranks, transport.self = self;
  transport.start = start, transport.finish = finish, transport.error = why, transport.destroy = destroy;
  attune_communicator* made = nullptr;
  if (attune_transport_create(&transport, &made)) {
    refused();
    destroy(self);
    return nullptr;
  }
  become(made);
  Py_RETURN_NONE;
}

PyObject* nccl_id(PyObject*, PyObject*) {
  char id[ATTUNE_NCCL_ID];
  if (attune_nccl_id(id)) return refused();
  return PyBytes_FromStringAndSize(id, sizeof id);
}

PyObject* connect_nccl(PyObject*, PyObject* given) {
  const char *id, *device;
  Py_ssize_t bytes;
  int rank, ranks;
  if (!PyArg_ParseTuple(given, "y#iis", &id, &bytes, &rank, &ranks, &device)) return nullptr;
  if (bytes != ATTUNE_NCCL_ID)
    return fail("attune: an id of NCCL has %d bytes, not %zd", ATTUNE_NCCL_ID, bytes), nullptr;
  attune_communicator* made = nullptr;
  PyThreadState* state = PyEval_SaveThread();  // waits for the other ranks
  const int answer = attune_nccl_create(id, rank, ranks, device, &made);
  PyEval_RestoreThread(state);
  if (answer) return refused();
  become(made);
  Py_RETURN_NONE;
}

PyObject* disconnect(PyObject*, PyObject*) {
  become(nullptr);
  Py_RETURN_NONE;
}

PyObject* shard_tokens(PyObject*, PyObject* given) {
  const char* layout;
  int tokens, ranks, rank;
  if (!PyArg_ParseTuple(given, "siii", &layout, &tokens, &ranks, &rank)) return nullptr;
  int32_t count = 0;
  std::vector<int64_t> rows(size_t(tokens > 0 ? tokens : 0));
  count = int32_t(rows.size());
  if (attune_shard_tokens(layout, tokens, ranks, rank, &count, rows.data()))
    return refused();
  PyObject* list = PyList_New(count);
  for (int32_t n = 0; list && n < count; ++n) PyList_SetItem(list, n, PyLong_FromLongLong(rows[size_t(n)]));
  return list;
}

}  // namespace attune
