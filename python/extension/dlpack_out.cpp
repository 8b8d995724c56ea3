// SPDX-License-Identifier: Apache-2.0
// Exports library memory as a DLPack capsule.
#include <cstring>
#include <new>
#include <vector>

#include "extension/objects.h"

namespace attune {
namespace {

// The target of a capsule in either form, with the data that both need.
struct Lent {
  dlpack::Versioned versioned{};
  dlpack::Managed managed{};
  std::vector<int64_t> shape{}, strides{};
  PyObject* owner = nullptr;
};

void let_go(void* context) {
  auto* lent = static_cast<Lent*>(context);
  if (Py_IsInitialized()) {  // a tensor may outlive the interpreter
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_XDECREF(lent->owner);
    PyGILState_Release(state);
  }
  delete lent;
}

// A capsule that was not consumed still has its original name.
void drop_versioned(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
    let_go(static_cast<dlpack::Versioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"))->context);
}

void drop_managed(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor"))
    let_go(static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, "dltensor"))->context);
}

}  // namespace

PyObject* lent(const attune_tensor& t, PyObject* owner, bool versioned) {
  auto* made = new (std::nothrow) Lent;
  if (!made) return PyErr_NoMemory();
  made->shape.assign(t.shape, t.shape + t.ndim);
  made->strides.resize(size_t(t.ndim));
  int64_t step = 1;
  for (size_t n = made->shape.size(); n-- > 0; step *= made->shape[n]) made->strides[n] = step;
  if (t.strides) made->strides.assign(t.strides, t.strides + t.ndim);
  dlpack::Tensor tensor{};
  std::memcpy(&tensor, &t, sizeof tensor);
  tensor.shape = made->shape.data(), tensor.strides = made->strides.data();
  made->versioned.version = {1, 0};
  made->versioned.tensor = made->managed.tensor = tensor;
  made->versioned.context = made->managed.context = made;
  made->versioned.deleter = [](dlpack::Versioned* v) { let_go(v->context); };
  made->managed.deleter = [](dlpack::Managed* m) { let_go(m->context); };
  made->owner = owner;
  Py_INCREF(owner);
  PyObject* capsule = versioned ? PyCapsule_New(&made->versioned, "dltensor_versioned", drop_versioned)
                                : PyCapsule_New(&made->managed, "dltensor", drop_managed);
  if (!capsule) let_go(made);
  return capsule;
}

PyObject* capsule_device(PyObject*, PyObject* capsule) {
  const auto* v = static_cast<const dlpack::Versioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
  return v ? Py_BuildValue("ii", int(v->tensor.device_type), int(v->tensor.device_id)) : nullptr;
}

}  // namespace attune
