// SPDX-License-Identifier: Apache-2.0
// The part of DLPack 1.x that is used here: the tensor in a capsule, and the table of functions with which a framework
// lends tensors to C without Python calls (`__dlpack_c_exchange_api__`, from DLPack 1.3 on). Both are stable binary
// interfaces. attune_tensor begins with the fields of a DLTensor, so a lent tensor is filled in place.
#pragma once
#include <cstddef>
#include <cstdint>

#include "attune/attune.h"

namespace attune::dlpack {

struct Tensor {  // DLTensor
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
static_assert(sizeof(Tensor) == offsetof(attune_tensor, axes));
static_assert(offsetof(Tensor, shape) == offsetof(attune_tensor, shape));

struct Managed {  // DLManagedTensor, in capsules named "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct Version {
  uint32_t major, minor;
};

struct Versioned {  // DLManagedTensorVersioned, in capsules named "dltensor_versioned"
  Version version;
  void* context;
  void (*deleter)(Versioned*);
  uint64_t flags;
  Tensor tensor;
};
inline constexpr uint64_t kReadOnly = 1;

struct Exchange {  // DLPackExchangeAPI
  Version version;
  const Exchange* older;
  int (*allocate)(Tensor*, Versioned**, void*, void (*)(void*, const char*, const char*));
  int (*own)(void* object, Versioned** out);
  int (*give)(Versioned*, void** object);
  int (*lend)(void* object, Tensor* out);  // valid while the object is; may be null
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out);
};

inline constexpr int32_t kCpu = 1, kCuda = 2;

}  // namespace attune::dlpack
