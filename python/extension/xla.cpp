// SPDX-License-Identifier: Apache-2.0
// attune as foreign functions of XLA, for attune.jax. The options of a call are text in its attributes, so a compiled
// program can be stored and loaded elsewhere; its buffers are tensors in the order of the text's roles.
#include "extension/xla.h"

#include <cstring>
#include <string_view>

#include "extension/spec.h"

namespace attune {
namespace {

struct Numbers {
  float scale = 0, softcap = 0, dropout = 0;
  int32_t len_q = 0, len_k = 0;
  std::string_view spec;
};

bool read(const xla::Attributes& a, Numbers& out) {
  for (int64_t n = 0; n < a.count; ++n) {
    const std::string_view name(a.names[n]->data, a.names[n]->length);
    if (a.types[n] == 4 && name == "spec") {
      const auto* text = static_cast<const xla::Text*>(a.items[n]);
      out.spec = {text->data, text->length};
      continue;
    }
    void* to = name == "scale"     ? static_cast<void*>(&out.scale)
               : name == "softcap" ? static_cast<void*>(&out.softcap)
               : name == "dropout" ? static_cast<void*>(&out.dropout)
               : name == "len_q"   ? static_cast<void*>(&out.len_q)
               : name == "len_k"   ? static_cast<void*>(&out.len_k)
                                   : nullptr;
    if (!to || a.types[n] != 3) return false;
    std::memcpy(to, static_cast<const xla::Scalar*>(a.items[n])->value, 4);
  }
  return !out.spec.empty();
}

bool set_dtype(int32_t xla, attune_tensor& t) {
  t.dtype.lanes = 1;
  switch (xla) {
    case 4: t.dtype.code = 0, t.dtype.bits = 32; return true;
    case 5: t.dtype.code = 0, t.dtype.bits = 64; return true;
    case 10: t.dtype.code = 2, t.dtype.bits = 16; return true;
    case 11: t.dtype.code = 2, t.dtype.bits = 32; return true;
    case 12: t.dtype.code = 2, t.dtype.bits = 64; return true;
    case 16: t.dtype.code = 4, t.dtype.bits = 16; return true;
    default: return false;
  }
}

template <bool Cuda>
xla::Error* handle(xla::Call* call) {
  for (xla::Extension* e = call->extensions; e; e = e->next)
    if (e->type == xla::kMetadata) {
      xla::Metadata& m = *reinterpret_cast<xla::MetadataExtension*>(e)->metadata;
      m.version.major = 0, m.version.minor = 1;
      m.traits = 0;  // incompatible with command buffers: a call borrows a workspace, and child graphs may not allocate
      return nullptr;
    }
  const auto no = [&](const char* why) {
    xla::ErrorArgs args{sizeof args, nullptr, why, xla::kInvalid};
    return call->api->error(&args);
  };
  Numbers numbers;
  Spec spec;
  if (!read(call->attributes, numbers) || !parse_spec(numbers.spec, spec))
    return no("attune: the attributes of the call are not those of attune.jax");
  const int64_t inputs = call->arguments.count, count = inputs + call->results.count;
  if (size_t(count) != spec.places.size() || count > ATTUNE_ROLES) return no("attune: the call has other tensors");
  int32_t device = 0;
  void* stream = nullptr;
  if constexpr (Cuda) {
    xla::StreamArgs s{sizeof s, nullptr, call->context, nullptr};
    if (xla::Error* e = call->api->stream(&s)) return e;
    stream = s.stream;
    if (call->api->size >= sizeof(xla::Api)) {
      xla::OrdinalArgs o{sizeof o, nullptr, call->context, 0};
      if (xla::Error* e = call->api->ordinal(&o)) return e;
      device = o.ordinal;
    }
  }
  attune_args args{};
  args.size = sizeof args;
  args.scale = numbers.scale, args.softcap = numbers.softcap, args.dropout = numbers.dropout;
  attune_tensor tensors[ATTUNE_ROLES]{};
  for (int64_t n = 0; n < count; ++n) {
    const auto* b = static_cast<const xla::Buffer*>(n < inputs ? call->arguments.items[n]
                                                               : call->results.items[n - inputs]);
    attune_tensor& t = tensors[n];
    t.data = b->data, t.ndim = int32_t(b->rank), t.shape = b->dims;
    t.device.type = Cuda ? 2 : 1, t.device.id = device;
    t.axes = spec.places[size_t(n)].axes.c_str();
    if (!set_dtype(b->dtype, t)) return no("attune: a tensor has a dtype that is not served");
    if (const int role = spec.places[size_t(n)].role; takes(spec, role)) args.role[role] = &t;
  }
  const attune_problem problem = problem_of(spec, args, numbers.len_q, numbers.len_k);
  return attune_call(&problem, &args, stream) ? no(attune_last_error()) : nullptr;
}

}  // namespace

PyObject* xla_handler(PyObject*, PyObject* given) {
  int cuda;
  if (!PyArg_ParseTuple(given, "p", &cuda)) return nullptr;
  return PyCapsule_New(reinterpret_cast<void*>(cuda ? &handle<true> : &handle<false>), "xla._CUSTOM_CALL_TARGET",
                       nullptr);
}

}  // namespace attune
