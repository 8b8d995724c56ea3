// SPDX-License-Identifier: Apache-2.0
// Caches of keys and values, and of native sparse attention, as capsules. The cache provides what no tensor of a call
// holds: heads, dims and dtype of keys.
#include <type_traits>
#include <vector>

#include "extension/objects.h"

namespace attune {
namespace {

constexpr const char *kCache = "attune.cache", *kNsaCache = "attune.nsa_cache";

struct KeySizes {
  int32_t dtype = 0, heads = 0, dim_qk = 0, dim_v = 0;
};

// A cache and the sizes it was created with.
template <class T, void (*Destroy)(T*)>
struct Holder {
  T* cache = nullptr;
  KeySizes sizes{};
  ~Holder() { Destroy(cache); }
};
using Plain = Holder<attune_cache, attune_cache_destroy>;
using Nsa = Holder<attune_nsa_cache, attune_nsa_cache_destroy>;

const char* name_of(const Plain*) { return kCache; }
const char* name_of(const Nsa*) { return kNsaCache; }

template <class H>
H* holder_of(PyObject* capsule) {
  return static_cast<H*>(PyCapsule_GetPointer(capsule, name_of(static_cast<H*>(nullptr))));
}

template <class H>
PyObject* capsule_of(H* made) {
  PyObject* capsule = PyCapsule_New(made, name_of(made), [](PyObject* c) { delete holder_of<H>(c); });
  if (!capsule) delete made;
  return capsule;
}

PyObject* cache_create(PyObject*, PyObject* given) {
  attune_cache_options o{};
  o.size = sizeof o;
  if (!PyArg_ParseTuple(given, "iiiiiiiis", &o.dtype, &o.heads, &o.dim_qk, &o.dim_v, &o.sequences, &o.capacity, &o.page,
                        &o.pages, &o.device))
    return nullptr;
  auto* made = new Plain{nullptr, {o.dtype, o.heads, o.dim_qk, o.dim_v ? o.dim_v : o.dim_qk}};
  if (attune_cache_create(&o, &made->cache)) return delete made, refused();
  return capsule_of(made);
}

PyObject* nsa_cache_create(PyObject*, PyObject* given) {
  attune_nsa_cache_options o{};
  o.size = sizeof o;
  if (!PyArg_ParseTuple(given, "iiiiiiss", &o.dtype, &o.heads, &o.dim_qk, &o.dim_v, &o.sequences, &o.capacity,
                        &o.variant, &o.device))
    return nullptr;
  auto* made = new Nsa{nullptr, {o.dtype, o.heads, o.dim_qk, o.dim_v ? o.dim_v : o.dim_qk}};
  if (attune_nsa_cache_create(&o, &made->cache)) return delete made, refused();
  return capsule_of(made);
}

// Reads the numbers of sequences. False with an exception set.
bool read_sequences(PyObject* list, std::vector<int32_t>& out) {
  const Py_ssize_t count = PySequence_Size(list);
  for (Py_ssize_t n = 0; n < count; ++n) {
    Ref item(PySequence_GetItem(list, n));
    const long number = item ? PyLong_AsLong(item.get()) : -1;
    if (number == -1 && PyErr_Occurred()) return false;
    out.push_back(number < 0 || number > INT32_MAX ? -1 : int32_t(number));  // the library refuses -1 by name
  }
  return count >= 0;
}

// cache, sequences or None; then as run. Without q, the batch is that of the new tokens.
template <class H, auto Attend>
PyObject* attend(PyObject*, PyObject* const* given, Py_ssize_t count) {
  constexpr int kOwn = 2;
  if (count < kOwn) return fail("attune: attend of a cache has at least %d arguments", kOwn), nullptr;
  H* holder = holder_of<H>(given[0]);
  std::vector<int32_t> sequences;
  Call c;
  if (!holder || (given[1] != Py_None && !read_sequences(given[1], sequences)) || !c.take(given + kOwn, count - kOwn))
    return nullptr;
  attune_problem& p = c.problem;
  const KeySizes& sizes = holder->sizes;
  if (const attune_tensor* rows = c.args.role[ATTUNE_K_NEW]; !c.args.role[ATTUNE_Q] && rows && rows->ndim == 4)
    p.batch = int32_t(rows->shape[0]), p.heads_q = sizes.heads, p.dim_qk = sizes.dim_qk, p.dtype_q = sizes.dtype;
  if (given[1] != Py_None && sequences.size() != size_t(p.batch))
    return fail("attune: %zu sequences are named, and q has %d", sequences.size(), int(p.batch)), nullptr;
  p.dtype_kv = sizes.dtype, p.heads_kv = sizes.heads, p.dim_v = sizes.dim_v;
  p.len_k = c.len_k, p.keys = ATTUNE_LINEAR, p.page = 0;
  if constexpr (std::is_same_v<H, Nsa>) p.options &= ~uint32_t(ATTUNE_OPTION_APPEND), p.variant[0] = 0;
  PyThreadState* state = PyEval_SaveThread();
  const int answer = Attend(holder->cache, &p, &c.args, given[1] == Py_None ? nullptr : sequences.data(), c.stream);
  PyEval_RestoreThread(state);
  if (answer) return refused();
  Py_RETURN_NONE;
}

template <class H, auto Length>
PyObject* length(PyObject*, PyObject* given) {
  PyObject* capsule;
  int sequence;
  if (!PyArg_ParseTuple(given, "Oi", &capsule, &sequence)) return nullptr;
  H* holder = holder_of<H>(capsule);
  if (!holder) return nullptr;
  const int32_t found = Length(holder->cache, sequence);
  return found < 0 ? refused() : PyLong_FromLong(found);
}

template <class H, auto Resize>
PyObject* resize(PyObject*, PyObject* given) {
  PyObject* capsule;
  int sequence, keys;
  if (!PyArg_ParseTuple(given, "Oii", &capsule, &sequence, &keys)) return nullptr;
  H* holder = holder_of<H>(capsule);
  if (!holder) return nullptr;
  if (Resize(holder->cache, sequence, keys)) return refused();
  Py_RETURN_NONE;
}

PyObject* fork(PyObject*, PyObject* given) {
  PyObject* capsule;
  int from, to, keys;
  unsigned long long stream;
  if (!PyArg_ParseTuple(given, "OiiiK", &capsule, &from, &to, &keys, &stream)) return nullptr;
  const Plain* holder = holder_of<Plain>(capsule);
  if (!holder) return nullptr;
  if (attune_cache_fork(holder->cache, from, to, keys, reinterpret_cast<void*>(uintptr_t(stream)))) return refused();
  Py_RETURN_NONE;
}

template <class H, auto View>
PyObject* view(PyObject*, PyObject* given) {
  PyObject* capsule;
  int which, versioned;
  if (!PyArg_ParseTuple(given, "Oip", &capsule, &which, &versioned)) return nullptr;
  H* holder = holder_of<H>(capsule);
  attune_tensor t{};
  if (!holder) return nullptr;
  return View(holder->cache, which, &t) ? refused() : lent(t, capsule, versioned);
}

PyObject* free_pages(PyObject*, PyObject* capsule) {
  const Plain* holder = holder_of<Plain>(capsule);
  return holder ? PyLong_FromLong(attune_cache_free_pages(holder->cache)) : nullptr;
}

PyMethodDef methods[] = {
    {"capsule_device", function(capsule_device), METH_O, "Of a versioned DLPack capsule: (type, number)."},
    {"cache_create", function(cache_create), METH_VARARGS, "dtype and sizes in the C struct's order, device."},
    {"cache_attend", function(attend<Plain, attune_cache_attend>), METH_FASTCALL, "cache, sequences; then as run."},
    {"cache_length", function(length<Plain, attune_cache_length>), METH_VARARGS, "cache, sequence: its keys."},
    {"cache_resize", function(resize<Plain, attune_cache_resize>), METH_VARARGS, "cache, sequence, keys."},
    {"cache_fork", function(fork), METH_VARARGS, "cache, from, to, keys, stream."},
    {"cache_view", function(view<Plain, attune_cache_view>), METH_VARARGS, "cache, role, versioned: DLPack."},
    {"cache_free_pages", function(free_pages), METH_O, "cache: pages that no sequence holds."},
    {"nsa_cache_create", function(nsa_cache_create), METH_VARARGS, "dtype and sizes, variant, device."},
    {"nsa_cache_attend", function(attend<Nsa, attune_nsa_cache_attend>), METH_FASTCALL, "As cache_attend."},
    {"nsa_cache_length", function(length<Nsa, attune_nsa_cache_length>), METH_VARARGS, "cache, sequence: raw tokens."},
    {"nsa_cache_compressed", function(length<Nsa, attune_nsa_cache_compressed>), METH_VARARGS, "Compressed tokens."},
    {"nsa_cache_shorten", function(resize<Nsa, attune_nsa_cache_shorten>), METH_VARARGS, "cache, sequence, tokens."},
    {"nsa_cache_view", function(view<Nsa, attune_nsa_cache_view>), METH_VARARGS, "cache, stream, versioned: DLPack."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyMethodDef* cache_methods() { return methods; }

}  // namespace attune
