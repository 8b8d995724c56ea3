// SPDX-License-Identifier: Apache-2.0
#include "extension/spec.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace attune {
namespace {

struct Field {
  const char* name;
  size_t offset;
};
#define FIELD(name) {#name, offsetof(attune_problem, name)}
constexpr Field kFields[] = {
    FIELD(pass),      FIELD(dtype_q),  FIELD(dtype_kv), FIELD(dtype_out), FIELD(dtype_grad), FIELD(dtype_bias),
    FIELD(batch),     FIELD(heads_q),  FIELD(heads_kv), FIELD(len_q),     FIELD(len_k),      FIELD(dim_qk),
    FIELD(dim_v),     FIELD(mask),     FIELD(align),    FIELD(left),      FIELD(right),      FIELD(k_step),
    FIELD(k_phase),   FIELD(block_q),  FIELD(block_k),  FIELD(block_bound), FIELD(options),  FIELD(keys),
    FIELD(page),      FIELD(repro),    FIELD(precision)};
#undef FIELD

struct RoleName {
  const char* name;
  int role;
  bool written;
};
// written: in a forward that does not append; is_written handles other calls.
constexpr RoleName kRoles[] = {
    {"q", ATTUNE_Q, false}, {"k", ATTUNE_K, false}, {"v", ATTUNE_V, false}, {"out", ATTUNE_OUT, true},
    {"lse", ATTUNE_LSE, true}, {"cu_q", ATTUNE_CU_Q, false}, {"cu_k", ATTUNE_CU_K, false},
    {"used_q", ATTUNE_USED_Q, false}, {"used_k", ATTUNE_USED_K, false}, {"left_pad", ATTUNE_LEFT_PAD, false},
    {"cache_index", ATTUNE_CACHE_INDEX, false}, {"page_table", ATTUNE_PAGE_TABLE, false},
    {"positions", ATTUNE_POSITIONS, false}, {"block_begin", ATTUNE_BLOCK_BEGIN, false},
    {"block_column", ATTUNE_BLOCK_COLUMN, false}, {"block_begin_k", ATTUNE_BLOCK_BEGIN_K, false},
    {"block_row_k", ATTUNE_BLOCK_ROW_K, false}, {"slopes", ATTUNE_SLOPES, false}, {"sinks", ATTUNE_SINKS, false},
    {"bias", ATTUNE_BIAS, false}, {"seed", ATTUNE_SEED, false}, {"k_new", ATTUNE_K_NEW, false},
    {"v_new", ATTUNE_V_NEW, false}, {"rotary_cos", ATTUNE_ROTARY_COS, false},
    {"rotary_sin", ATTUNE_ROTARY_SIN, false}, {"descale_q", ATTUNE_DESCALE_Q, false},
    {"descale_k", ATTUNE_DESCALE_K, false}, {"descale_v", ATTUNE_DESCALE_V, false}, {"d_out", ATTUNE_D_OUT, false},
    {"d_lse", ATTUNE_D_LSE, false}, {"dq", ATTUNE_DQ, true}, {"dk", ATTUNE_DK, true}, {"dv", ATTUNE_DV, true},
    {"d_bias", ATTUNE_D_BIAS, true}, {"d_sinks", ATTUNE_D_SINKS, true}};

// "variant3" and "d_variant3" are tensors of the variant. False for an unknown name.
bool find_role(const std::string& name, Spec::Place& out) {
  for (const RoleName& r : kRoles)
    if (name == r.name) return out.role = r.role, out.written = r.written, true;
  constexpr std::pair<const char*, int> kNumbered[] = {{"variant", ATTUNE_VARIANT}, {"d_variant", ATTUNE_D_VARIANT}};
  for (const auto& [prefix, first] : kNumbered) {
    const size_t length = std::strlen(prefix);
    if (name.compare(0, length, prefix) != 0 || name.size() == length || name.size() > length + 2) continue;
    int n = 0;
    for (size_t i = length; i < name.size(); ++i) {
      if (name[i] < '0' || name[i] > '9') return false;
      n = 10 * n + name[i] - '0';
    }
    if (n >= ATTUNE_D_VARIANT - ATTUNE_VARIANT) return false;
    return out.role = first + n, out.written = first == ATTUNE_D_VARIANT, true;
  }
  return false;
}

// Whether a call of the problem writes the tensor: an append writes the cache, and a backward reads out and lse.
bool is_written(const attune_problem& p, const Spec::Place& place) {
  if (place.role == ATTUNE_K || place.role == ATTUNE_V) return p.options & ATTUNE_OPTION_APPEND;
  if (place.role == ATTUNE_OUT || place.role == ATTUNE_LSE) return p.pass != ATTUNE_BACKWARD;
  return place.written;
}

bool set_field(attune_problem& problem, std::string_view name, long number) {
  for (const Field& f : kFields) {
    if (name != f.name) continue;
    const int32_t narrow = number > INT32_MAX ? INT32_MAX : number < INT32_MIN ? INT32_MIN : int32_t(number);
    std::memcpy(reinterpret_cast<char*>(&problem) + f.offset, &narrow, sizeof narrow);
    return true;
  }
  return false;
}

// Removes and returns the text before `end`.
std::string_view cut(std::string_view& text, char end) {
  const size_t at = text.find(end);
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at == text.npos ? text.size() : at + 1);
  return part;
}

// UTF-8 of a str. False with an exception set.
bool text_of(PyObject* object, std::string& out) {
  Ref bytes(PyUnicode_AsUTF8String(object));
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (!bytes || PyBytes_AsStringAndSize(bytes.get(), &data, &size)) return false;
  out.assign(data, size_t(size));
  return true;
}

int32_t extent(const attune_tensor* t, const char* letters, int32_t otherwise) {
  if (!t || !t->shape) return otherwise;
  const size_t count = std::strlen(t->axes);
  for (size_t n = 0; n < count && n < size_t(t->ndim < 0 ? 0 : t->ndim); ++n)
    if (std::strchr(letters, t->axes[n])) return t->shape[n] > INT32_MAX ? INT32_MAX : int32_t(t->shape[n]);
  return otherwise;
}

int32_t dtype(const attune_tensor* t) {
  if (!t || t->dtype.lanes > 1) return ATTUNE_NONE;
  const auto [code, bits, lanes] = t->dtype;
  if (code == 2) return bits == 64 ? ATTUNE_F64 : bits == 32 ? ATTUNE_F32 : bits == 16 ? ATTUNE_F16 : ATTUNE_NONE;
  return code == 4 && bits == 16 ? ATTUNE_BF16 : code == 10 && bits == 8 ? ATTUNE_E4M3 : ATTUNE_NONE;
}

void fill(int32_t& field, int32_t value) {
  if (!field) field = value;
}

}  // namespace

bool make_spec(PyObject* fields, const char* variant, const char* backend, PyObject* places, Spec& out) {
  out.problem.size = sizeof out.problem;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(fields, &at, &key, &value);) {
    std::string name;
    if (!text_of(key, name)) return false;
    const long number = PyLong_AsLong(value);
    if (number == -1 && PyErr_Occurred()) return false;
    if (!set_field(out.problem, name, number)) return fail("attune: a problem has no field '%s'", name.c_str());
  }
  if (std::strlen(variant) >= sizeof out.problem.variant)
    return fail("attune: variant '%s' is longer than %zu letters", variant, sizeof out.problem.variant - 1);
  std::strcpy(out.problem.variant, variant);
  out.backend = backend;
  const Py_ssize_t count = PySequence_Size(places);
  for (Py_ssize_t n = 0; n < count; ++n) {
    Ref pair(PySequence_GetItem(places, n));
    Ref name(pair ? PySequence_GetItem(pair.get(), 0) : nullptr);
    Ref axes(pair ? PySequence_GetItem(pair.get(), 1) : nullptr);
    Spec::Place place;
    if (!name || !axes || !text_of(name.get(), place.name) || !text_of(axes.get(), place.axes)) return false;
    if (!find_role(place.name, place)) return fail("attune: no tensor is called '%s'", place.name.c_str());
    place.written = is_written(out.problem, place);
    out.places.push_back(place);
  }
  return count >= 0;
}

bool parse_spec(std::string_view text, Spec& out) {
  out.problem.size = sizeof out.problem;
  std::string_view fields = cut(text, '|');
  const std::string_view variant = cut(text, '|');
  while (!fields.empty()) {
    std::string_view value = cut(fields, ' ');
    const std::string_view name = cut(value, '=');
    if (!set_field(out.problem, name, std::strtol(std::string(value).c_str(), nullptr, 10))) return false;
  }
  if (variant.size() >= sizeof out.problem.variant) return false;
  std::memcpy(out.problem.variant, variant.data(), variant.size());
  while (!text.empty()) {
    std::string_view axes = cut(text, ' ');
    Spec::Place place;
    place.name = cut(axes, '=');
    place.axes = axes;
    if (!find_role(place.name, place)) return false;
    out.places.push_back(place);
  }
  return true;
}

attune_problem problem_of(const Spec& spec, const attune_args& args, int32_t len_q, int32_t len_k) {
  attune_problem p = spec.problem;
  const auto role = [&](int r) { return args.role[r]; };
  const attune_tensor *q = role(ATTUNE_Q), *k = role(ATTUNE_K), *v = role(ATTUNE_V), *table = role(ATTUNE_PAGE_TABLE);
  const attune_tensor *cu_q = role(ATTUNE_CU_Q), *cu_k = role(ATTUNE_CU_K);
  fill(p.dtype_q, dtype(q)), fill(p.dtype_kv, dtype(k));
  fill(p.batch, cu_q ? extent(cu_q, "n", 1) - 1 : extent(q, "b", 1));
  fill(p.heads_q, extent(q, "h", 1)), fill(p.heads_kv, extent(k, "h", 1));
  fill(p.dim_qk, extent(q, "d", 1)), fill(p.dim_v, extent(v ? v : q, "d", 1));
  fill(p.len_q, len_q ? len_q : extent(q, "st", 1));
  if (cu_k) p.keys = ATTUNE_RAGGED;
  if (table) {
    p.keys = ATTUNE_PAGED;
    fill(p.page, extent(k, "s", 1));
    const int64_t room = int64_t(extent(table, "n", 1)) * p.page;
    fill(p.len_k, len_k ? len_k : room > INT32_MAX ? INT32_MAX : int32_t(room));
  }
  fill(p.len_k, len_k ? len_k : extent(k ? k : q, "st", 1));
  if (role(ATTUNE_OUT)) fill(p.dtype_out, dtype(role(ATTUNE_OUT)));
  if (role(ATTUNE_BIAS)) fill(p.dtype_bias, dtype(role(ATTUNE_BIAS)));
  if (p.pass == ATTUNE_BACKWARD)
    for (int r : {ATTUNE_DQ, ATTUNE_DK, ATTUNE_DV})
      if (role(r)) fill(p.dtype_grad, dtype(role(r)));
  if (role(ATTUNE_BLOCK_COLUMN)) fill(p.block_bound, extent(role(ATTUNE_BLOCK_COLUMN), "n", 0));
  return p;
}

}  // namespace attune
