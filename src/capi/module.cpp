// SPDX-License-Identifier: Apache-2.0
// Modules in the C interface: struct versions, tensors and memory. Everything else is in src/modules.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "capi/convert.h"
#include "capi/local.h"
#include "capi/struct.h"
#include "machine/cuda/pool.h"
#include "machine/host.h"
#include "modules/module.h"
#include "modules/safetensors.h"

using namespace attune;

struct attune_module {
  std::unique_ptr<Module> module{};
  std::string text{};
};

namespace {

Status no(const auto&... why) { return Status::no("module: ", why...); }

// A tensor of a call; null leaves it empty.
Status tensor_of(const attune_tensor* given, const char* name, Tensor& out) {
  return given ? attune::tensor_of(*given, name, out).after("module: ") : Status::good();
}

// Describes a parameter's memory as an attune_tensor. The shape is stored in the module.
attune_tensor described(const attune_module& m, const Parameter& p, void* data, DType dtype) {
  constexpr const char* kAxes[] = {"", "d", "sd", "shd"};
  const Device& d = m.module->graph().device;
  attune_tensor t{};
  t.data = data;
  t.device.type = d.kind == DeviceKind::cuda ? 2 : 1, t.device.id = d.kind == DeviceKind::cuda ? d.index : 0;
  t.ndim = int32_t(p.shape.size());
  t.dtype.code = dtype == DType::bf16 ? 4 : 2, t.dtype.bits = uint8_t(8 * size_of(dtype)), t.dtype.lanes = 1;
  t.shape = p.shape.data();
  t.axes = kAxes[std::min<size_t>(p.shape.size(), 3)];
  return t;
}

Status find(const attune_module* m, const char* name, const Parameter*& out) {
  if (!m || !name) return Status::no(m ? "name is null" : "module is null");
  out = m->module->find(name);
  return out ? Status::good() : no("'", name, "' is not a parameter of '", m->text, "'");
}

Status run(const attune_module* m, const attune_module_args* given, Pass pass, void* stream) {
  if (!m || !given) return Status::no(m ? "args is null" : "module is null");
  attune_module_args a;
  if (Status s = copied(given, "args", a); !s.ok()) return s;
  ModuleCall c;
  const struct { const attune_tensor* from; const char* name; Tensor& to; } tensors[] = {
      {a.x, "x", c.x},    {a.memory, "memory", c.memory},       {a.out, "out", c.out},   {a.d_out, "d_out", c.d_out},
      {a.dx, "dx", c.dx}, {a.d_memory, "d_memory", c.d_memory}, {a.seed, "seed", c.seed}};
  for (const auto& [from, name, to] : tensors)
    if (Status s = ::tensor_of(from, name, to); !s.ok()) return s;
  c.add = a.add, c.communicator = a.communicator, c.stream = stream;
  c.tape = static_cast<std::byte*>(a.tape);
  const Module& module = *m->module;
  const size_t needed = module.workspace_bytes(pass, a.tape);
  const bool gpu = module.graph().device.kind == DeviceKind::cuda;
  for (const void* p : {a.tape, a.workspace})
    if (reinterpret_cast<uintptr_t>(p) % kWorkspaceAlign)
      return no(p == a.tape ? "tape" : "workspace", " is not aligned to ", kWorkspaceAlign, " bytes");
  cuda::Borrowed borrowed;
  if (a.workspace || a.workspace_bytes) {
    if (!a.workspace || a.workspace_bytes < needed)
      return no("workspace: ", a.workspace ? a.workspace_bytes : 0, " bytes given, the module needs ", needed);
    c.workspace = static_cast<std::byte*>(a.workspace);
  } else if (gpu) {
    if (Status s = borrowed.take(module.graph().device.index, std::max<size_t>(needed, 1), stream); !s.ok())
      return s.after("module: workspace: ");
    c.workspace = borrowed.data();
  } else {
    c.workspace = local().lent.at_least(std::max<size_t>(needed, 1));
    if (!c.workspace)
      return Status::failure(Code::out_of_memory, "module: workspace: ", needed, " bytes could not be allocated");
  }
  Status ran = pass == Pass::forward ? module.forward(c) : module.backward(c);
  Status returned = borrowed.give_back();  // in stream order: after the launches
  return ran.ok() ? returned : ran;
}

}  // namespace

int attune_module_create(const char* text, const attune_module_options* options, attune_module** out) {
  return answer([&] {
    if (!text || !out) return Status::no(text ? "out is null" : "text is null");
    attune_module_options o;
    if (Status s = copied(options, "options", o); !s.ok()) return s;
    Settings settings;
    Device device;
    if (Status s = read_settings(text, settings); !s.ok()) return s;
    if (Status s = device_named(o.device ? o.device : "cpu", device); !s.ok()) return s;
    auto made = std::make_unique<attune_module>();
    const Module* shares = o.shares ? o.shares->module.get() : nullptr;
    if (Status s = Module::make(settings, device, shares, made->module); !s.ok()) return s;
    made->text = name(settings);
    *out = made.release();
    return Status::good();
  });
}

void attune_module_destroy(attune_module* module) { delete module; }
const char* attune_module_text(const attune_module* module) { return module ? module->text.c_str() : ""; }
const char* attune_module_why(const attune_module* module) { return module ? module->module->why().c_str() : ""; }

int attune_module_measure(const attune_module* module, attune_module_sizes* out) {
  return answer([&] {
    if (!module || !out) return Status::no(module ? "out is null" : "module is null");
    const size_t size = out->size;
    if (size < sizeof out->size || size > kMostBytes)
      return Status::no("sizes.size = ", size, " is not sizeof(attune_module_sizes)");
    const Graph& g = module->module->graph();
    const attune_module_sizes all{.size = uint32_t(size), .parameters = int32_t(g.parameters.size()),
                                  .parameter_bytes = g.parameter_bytes, .gradient_bytes = g.gradient_bytes,
                                  .tape = g.tape_bytes, .forward = g.forward_bytes, .forward_only = g.lean_bytes,
                                  .backward = g.backward_bytes};
    std::memset(out, 0, size);
    std::memcpy(out, &all, std::min(size, sizeof all));
    return Status::good();
  });
}

const char* attune_module_parameter_name(const attune_module* module, int32_t n) {
  if (!module || n < 0 || size_t(n) >= module->module->graph().parameters.size()) return nullptr;
  return module->module->graph().parameters[size_t(n)].name.c_str();
}

int attune_module_parameter(const attune_module* module, const char* name, attune_tensor* out) {
  return answer([&] {
    const Parameter* p = nullptr;
    if (Status s = find(module, name, p); !s.ok()) return s;
    if (!out) return Status::no("out is null");
    *out = described(*module, *p, module->module->data(*p), p->dtype);
    return Status::good();
  });
}

int attune_module_gradient(const attune_module* module, const char* name, attune_tensor* out) {
  return answer([&] {
    const Parameter* p = nullptr;
    std::byte* gradients = nullptr;
    if (Status s = find(module, name, p); !s.ok()) return s;
    if (!out) return Status::no("out is null");
    if (Status s = module->module->gradients(gradients); !s.ok()) return s;
    *out = described(*module, *p, gradients + p->gradient_at, DType::f32);
    return Status::good();
  });
}

int attune_module_tape(const attune_module* module, void** out) {
  return answer([&] {
    if (!module || !out) return Status::no(module ? "out is null" : "module is null");
    std::byte* memory = nullptr;
    if (Status s = module->module->tape(memory); !s.ok()) return s;
    return *out = memory, Status::good();
  });
}

int attune_module_load(attune_module* module, const char* path, const char* prefix, int convert) {
  return answer([&] {
    if (!module || !path) return Status::no(module ? "path is null" : "module is null");
    return load(*module->module, path, prefix ? prefix : "", convert);
  });
}

int attune_module_save(const attune_module* module, const char* path, const char* prefix) {
  return answer([&] {
    if (!module || !path) return Status::no(module ? "path is null" : "module is null");
    return save(*module->module, path, prefix ? prefix : "");
  });
}

int attune_module_forward(const attune_module* module, const attune_module_args* args, void* stream) {
  return answer([&] { return run(module, args, Pass::forward, stream); });
}

int attune_module_backward(const attune_module* module, const attune_module_args* args, void* stream) {
  return answer([&] { return run(module, args, Pass::backward, stream); });
}
