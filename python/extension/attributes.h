// A tensor of PyTorch by its attributes, where it has no table of C functions; and what no table says.
#pragma once
#include "extension/borrow.h"

namespace attune {

// Whether the type is torch.Tensor or derived from it. Nothing is imported: who has a tensor has imported PyTorch.
bool is_pytorch(PyTypeObject* type);

// False with an exception set: the tensor is a view whose numbers PyTorch negates when it reads them, and its memory
// has the others. Nothing that lends the memory says so.
bool is_as_stored(PyObject* object, const char* role);

// Valid while the object and `sizes`, shape and strides, are. False with an exception set.
bool lend_by_attributes(PyObject* object, const char* role, int64_t (&sizes)[2][kMostAxes], dlpack::Tensor& out);

// Sets the sentence for a tensor that was not lent, where its layout, device, dtype or axes are why; else false, and
// no exception is set.
bool say_why_not_lent(PyObject* object, const char* role);

// False with an exception set.
bool current_stream_of_pytorch(int32_t device, void*& stream);

}  // namespace attune
