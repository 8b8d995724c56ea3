// SPDX-License-Identifier: Apache-2.0
// A PyTorch tensor read through its attributes, if it has no C exchange table; and properties that no table provides.
#pragma once
#include "extension/borrow.h"

namespace attune {

// Whether the type is torch.Tensor or derived from it. Nothing is imported: a tensor implies that PyTorch is imported.
bool is_pytorch(PyTypeObject* type);

// False with an exception set: the tensor is a view that PyTorch negates on read, so its memory holds other values.
// Neither the table nor DLPack reports this.
bool is_as_stored(PyObject* object, const char* role);

// Valid while the object and `sizes` (shape and strides) are. False with an exception set.
bool lend_by_attributes(PyObject* object, const char* role, int64_t (&sizes)[2][kMostAxes], dlpack::Tensor& out);

// Sets the message for a tensor that was not lent because of its layout, device, dtype or axes; otherwise returns false
// without an exception.
bool say_why_not_lent(PyObject* object, const char* role);

// False with an exception set.
bool current_stream_of_pytorch(int32_t device, void*& stream);

}  // namespace attune
