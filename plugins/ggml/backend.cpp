// SPDX-License-Identifier: Apache-2.0
// libggml-attune.so: a ggml backend that computes FLASH_ATTN_EXT on the CPU and nothing else. ggml loads it with
// ggml_backend_load() or from GGML_BACKEND_PATH. Its device is an accelerator beside the CPU backend: tensors stay in
// host memory, and ggml's scheduler gives it the operations that supports_op() accepts. docs/llama_cpp.md.
#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "machine/host.h"
#include "plugins/ggml/attention.h"

namespace attune::ggml {
namespace {

struct State {
  Device cpu = this_cpu();
  int threads = cpu.units;
  Memories memory{};
};

bool stored_as(ggml_type type, Stored& to) {
  switch (type) {
    case GGML_TYPE_F32:
      return to = Stored::f32, true;
    case GGML_TYPE_F16:
      return to = Stored::f16, true;
    case GGML_TYPE_BF16:
      return to = Stored::bf16, true;
    case GGML_TYPE_Q8_0:
      return to = Stored::q8_0, true;
    case GGML_TYPE_Q4_0:
      return to = Stored::q4_0, true;
    default:
      return false;
  }
}

// ggml's axes: 0 dim, 1 row, 2 head, 3 sequence.
bool rows_of(const ggml_tensor* t, Rows& to) {
  if (!stored_as(t->type, to.stored) || t->nb[0] != ggml_type_size(t->type)) return false;
  to.data = static_cast<char*>(t->data), to.dim = int(t->ne[0]);
  to.row = int64_t(t->nb[1]), to.head = int64_t(t->nb[2]), to.batch = int64_t(t->nb[3]);
  return true;
}

bool mask_of(const ggml_tensor* t, const Attention& a, Mask& to) {
  if (!t) return true;
  if (t->type != GGML_TYPE_F16 && t->type != GGML_TYPE_F32) return false;
  if (t->nb[0] != ggml_type_size(t->type) || t->ne[0] < a.len_k || t->ne[1] < a.len_q) return false;
  if (t->ne[2] != 1 || a.batch % t->ne[3] != 0) return false;  // one mask for all heads
  to = {static_cast<const char*>(t->data), t->type == GGML_TYPE_F16, int64_t(t->nb[1]), int64_t(t->nb[3]),
        int(t->ne[3])};
  return true;
}

// What the operation asks for; false if this backend does not compute it. Data may not be there yet.
bool attention_of(const ggml_tensor* op, Attention& a) {
  const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *sinks = op->src[4];
  if (op->op != GGML_OP_FLASH_ATTN_EXT || !q || !k || !v) return false;
  for (int n = 5; n < GGML_MAX_SRC; ++n)
    if (op->src[n]) return false;  // an input that this version does not know
  for (const ggml_tensor* t : {q, k, v, op})
    for (int axis = 0; axis < 4; ++axis)
      if (t->ne[axis] < 1 || t->ne[axis] > INT_MAX / 64) return false;
  if (!rows_of(q, a.q) || !rows_of(k, a.k) || !rows_of(v, a.v) || !rows_of(op, a.out)) return false;
  if (a.q.stored != Stored::f32 || a.out.stored != Stored::f32 || !ggml_is_contiguous(op)) return false;
  if (!takes(a.k.dim, a.k.stored, a.v.dim, a.v.stored)) return false;
  a.batch = int(q->ne[3]), a.heads_q = int(q->ne[2]), a.heads_kv = int(k->ne[2]);
  a.len_q = int(q->ne[1]), a.len_k = int(k->ne[1]);
  if (q->ne[0] != k->ne[0] || k->ne[1] != v->ne[1] || k->ne[2] != v->ne[2] || a.heads_q % a.heads_kv) return false;
  if (k->ne[3] != a.batch || v->ne[3] != a.batch) return false;
  if (op->ne[0] != v->ne[0] || op->ne[1] != a.heads_q || op->ne[2] != a.len_q || op->ne[3] != a.batch) return false;
  if (int64_t(a.len_q) * a.heads_q * a.batch > INT_MAX) return false;
  if (!mask_of(op->src[3], a, a.mask)) return false;
  if (sinks && (sinks->type != GGML_TYPE_F32 || !ggml_is_contiguous(sinks) || sinks->ne[0] != a.heads_q)) return false;
  a.sinks = sinks ? static_cast<const float*>(sinks->data) : nullptr;
  float numbers[3];
  std::memcpy(numbers, op->op_params, sizeof numbers);
  a.scale = numbers[0], a.max_bias = numbers[1], a.softcap = numbers[2];
  return true;
}

// Operations that only name memory.
bool is_view(ggml_op op) {
  return op == GGML_OP_NONE || op == GGML_OP_RESHAPE || op == GGML_OP_VIEW || op == GGML_OP_PERMUTE ||
         op == GGML_OP_TRANSPOSE;
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph) {
  State& state = *static_cast<State*>(backend->context);
  for (int n = 0; n < ggml_graph_n_nodes(graph); ++n) {
    const ggml_tensor* op = ggml_graph_node(graph, n);
    if (is_view(op->op) || ggml_is_empty(op)) continue;
    Attention a{};
    if (!attention_of(op, a)) {
      std::fprintf(stderr, "attune: %s was given; FLASH_ATTN_EXT that supports_op() takes is accepted\n",
                   ggml_op_desc(op));
      return GGML_STATUS_FAILED;
    }
    if (!attend(a, state.cpu, state.threads, state.memory)) return GGML_STATUS_ALLOC_FAILED;
  }
  return GGML_STATUS_SUCCESS;
}

const char* name_of_backend(ggml_backend_t) { return "attune"; }
void free_backend(ggml_backend_t backend) {
  delete static_cast<State*>(backend->context);
  delete backend;
}
void set_threads(ggml_backend_t backend, int threads) {
  static_cast<State*>(backend->context)->threads = std::clamp(threads, 1, kMostThreads);
}

const char* name_of_device(ggml_backend_dev_t) { return "attune"; }
const char* describe_device(ggml_backend_dev_t) {
  static const std::string text =
      "flash attention on the CPU (" + std::string(best_kernels(DType::f32, this_cpu().features)->isa) + ")";
  return text.c_str();
}
void memory_of_device(ggml_backend_dev_t, size_t* free, size_t* total) { *free = *total = 0; }
enum ggml_backend_dev_type type_of_device(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }
void properties_of_device(ggml_backend_dev_t device, ggml_backend_dev_props* to) {
  *to = {};
  to->name = name_of_device(device), to->description = describe_device(device), to->type = type_of_device(device);
  to->caps.buffer_from_host_ptr = true;
}
bool supports_op(ggml_backend_dev_t, const ggml_tensor* op) {
  Attention a{};
  return is_view(op->op) || attention_of(op, a);
}
bool supports_buffers(ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return ggml_backend_buft_is_host(type); }
ggml_backend_buffer_type_t buffers_of_device(ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); }
ggml_backend_buffer_t buffer_from(ggml_backend_dev_t, void* data, size_t bytes, size_t) {
  return ggml_backend_cpu_buffer_from_ptr(data, bytes);
}

ggml_backend_t start(ggml_backend_dev_t device, const char*) {
  static ggml_guid guid = {'a', 't', 't', 'u', 'n', 'e', ' ', 'a', 't', 't', 'e', 'n', 't', 'i', 'o', 'n'};
  ggml_backend_i calls{};
  calls.get_name = name_of_backend, calls.free = free_backend, calls.graph_compute = compute;
  State* state = new (std::nothrow) State;
  ggml_backend_t made = state ? new (std::nothrow) ggml_backend{&guid, calls, device, state} : nullptr;
  if (!made) delete state;
  return made;
}

const char* name_of_registry(ggml_backend_reg_t) { return "attune"; }
size_t device_count(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t device_of(ggml_backend_reg_t registry, size_t) {
  static ggml_backend_device device = [registry] {
    ggml_backend_device_i calls{};
    calls.get_name = name_of_device, calls.get_description = describe_device, calls.get_memory = memory_of_device;
    calls.get_type = type_of_device, calls.get_props = properties_of_device, calls.init_backend = start;
    calls.get_buffer_type = buffers_of_device, calls.buffer_from_host_ptr = buffer_from;
    calls.supports_op = supports_op, calls.supports_buft = supports_buffers;
    return ggml_backend_device{calls, registry, nullptr};
  }();
  return &device;
}
void* function_named(ggml_backend_reg_t, const char* name) {
  return std::strcmp(name, "ggml_backend_set_n_threads") == 0 ? reinterpret_cast<void*>(set_threads) : nullptr;
}

ggml_backend_reg_t registry() {
  static ggml_backend_reg made{
      GGML_BACKEND_API_VERSION, {name_of_registry, device_count, device_of, function_named}, nullptr};
  return &made;
}

}  // namespace
}  // namespace attune::ggml

extern "C" {
__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init();
__attribute__((visibility("default"))) int ggml_backend_score();
}
ggml_backend_reg_t ggml_backend_init() { return attune::ggml::registry(); }
int ggml_backend_score() { return 1; }
