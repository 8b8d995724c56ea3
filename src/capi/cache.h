// SPDX-License-Identifier: Apache-2.0
// The common part of the two cache objects of the C interface: creation, memory, the sequences of a call, and the
// transfer of a call's numbers to the kernels. C is either type: it has dtype, gpu, index, sequences, order, taken.
#pragma once
#include <cstring>
#include <memory>
#include <span>

#include "capi/local.h"
#include "capi/struct.h"
#include "machine/cuda/runtime.h"
#include "machine/host.h"

namespace attune {

// Creates a cache from the given options; `least` is their size in the first version.
template <class C, class O>
int create_cache(const O* given, const char* type, size_t least, Status (*fill)(C&, const O&), C** out) {
  return answer([&] {
    if (!out) return Status::no("out is null");
    if (!given) return Status::no("options is null");
    if (given->size < least || given->size > kMostBytes)
      return Status::no("options.size = ", given->size, " is not sizeof(", type, ")");
    O options;
    if (Status s = copied(given, "options", options); !s.ok()) return s;
    auto made = std::make_unique<C>();
    if (Status s = fill(*made, options); !s.ok()) return s;
    *out = made.release();
    return Status::good();
  });
}

template <class C>
Status place(C& c, std::string_view who, const char* device) {
  Device d;
  if (Status s = device_named(device ? device : "cpu", d); !s.ok()) return s;
  c.gpu = d.kind == DeviceKind::cuda, c.index = d.index;
  return c.gpu && d.index < 0 ? Status::no(who, ": device '", device, "' is not present") : Status::good();
}

// Stores the sequences of a call in c.order and checks that each exists and occurs once.
template <class C>
Status choose(C& c, std::string_view who, const int32_t* sequences, int32_t batch) {
  const auto no = [&](const auto&... why) { return Status::no(who, ": ", why...); };
  if (batch < 1 || batch > c.sequences) return no("batch = ", batch, " is not in 1 ... ", c.sequences);
  std::fill(c.taken.begin(), c.taken.end(), char(0));
  for (int32_t b = 0; b < batch; ++b) {
    const int32_t s = sequences ? sequences[b] : b;
    if (!c.has(s)) return no("sequence ", s, " is not in 0 ... ", c.sequences - 1);
    if (c.taken[size_t(s)]++) return no("sequence ", s, " is given twice");
    c.order[size_t(b)] = s;
  }
  return Status::good();
}

// Keys or values stored in the cache, compact. `shape` remains owned by the caller.
template <class C>
attune_tensor kept(const C& c, std::byte* data, const int64_t (&shape)[4], const char* axes) {
  attune_tensor t{};
  t.data = data;
  t.device.type = c.gpu ? 2 : 1, t.device.id = c.gpu ? c.index : 0;
  t.ndim = 4;
  t.dtype.code = c.dtype == DType::bf16 ? 4 : c.dtype == DType::e4m3 ? 10 : 2;
  t.dtype.bits = uint8_t(8 * size_of(c.dtype)), t.dtype.lanes = 1;
  t.shape = shape, t.axes = axes;
  return t;
}

// One number per sequence of a call, on the device of `beside`. `batch` remains owned by the caller.
inline attune_tensor numbers_beside(const attune_tensor& beside, int32_t* data, const int64_t& batch) {
  attune_tensor t{};
  t.device = beside.device, t.dtype.bits = 32, t.dtype.lanes = 1;
  t.data = data, t.ndim = 1, t.shape = &batch, t.axes = "b";
  return t;
}

// Copies the numbers of a call to the kernels' memory, in stream order.
template <class C>
Status store(const C& c, std::string_view who, std::span<const cuda::Number> fresh, int32_t* to, void* stream) {
  if (c.gpu) {
    const cuda::DeviceGuard use(c.index);
    const Status s = use.status.ok() ? cuda::scatter(to, fresh, stream) : use.status;
    return s.after(who, ": ");
  }
  for (const cuda::Number& n : fresh) to[n.at] = n.value;
  return Status::good();
}

inline Status call(const Problem& p, const attune_args& args, void* stream) {
  attune_problem whole{};
  whole.size = sizeof whole;
  if (Status s = problem_to(p, whole); !s.ok()) return s;
  return attune_call(&whole, &args, stream) ? Status{local().code, attune_last_error()} : Status::good();
}

}  // namespace attune
