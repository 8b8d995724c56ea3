// SPDX-License-Identifier: Apache-2.0
// Library objects that live across calls: caches and modules, as capsules that own them, and their memory as DLPack.
#pragma once
#include "extension/call.h"

namespace attune {

PyMethodDef* cache_methods();
PyMethodDef* module_methods();

// A DLPack capsule of memory that `owner` keeps alive; it owns a reference. versioned: in DLPack 1.x form, else the
// older form. Null with an exception set.
PyObject* lent(const attune_tensor&, PyObject* owner, bool versioned);
PyObject* capsule_device(PyObject*, PyObject* capsule);  // (type, number) of a versioned one

}  // namespace attune
