// SPDX-License-Identifier: Apache-2.0
#include "core/check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "core/overlap.h"
#include "core/softmax.h"
#include "core/variant/variants.h"

namespace attune {
namespace {

constexpr std::string_view kRole[] = {
    "q", "k", "v", "out", "lse", "cu_q", "cu_k", "used_q", "used_k", "left_pad", "cache_index", "page_table",
    "positions", "block_begin", "block_column", "block_begin_k", "block_row_k", "slopes", "sinks", "bias", "seed",
    "k_new", "v_new", "rotary_cos", "rotary_sin", "descale_q", "descale_k", "descale_v", "d_out", "d_lse", "dq", "dk",
    "dv", "d_bias", "d_sinks"};
static_assert(std::size(kRole) == size_t(Role::variant) && std::size(kRole) < 64);

struct Needs { Roles required, allowed; };

Needs needs(const Problem& p, Roles given, const Declared& variant) {
  if (!variant.dense) return {variant.required, variant.required | variant.optional};
  const bool backward = p.pass == Pass::backward, listed = p.mask.blocks.q > 0;
  constexpr Roles kByKey = roles(Role::block_begin_k, Role::block_row_k);
  const Roles required =
      roles(Role::q, Role::k, Role::v, Role::out) |
      roles_if(backward || p.has(Option::accumulate), roles(Role::lse)) |
      roles_if(p.keys == KeySource::ragged, roles(Role::cu_q, Role::cu_k)) |
      roles_if(p.keys == KeySource::paged, roles(Role::page_table)) |
      roles_if(p.mask.align == Align::absolute, roles(Role::positions)) |
      roles_if(listed, roles(Role::block_begin, Role::block_column)) |
      roles_if(listed && backward && (given & kByKey), kByKey) |
      roles_if(p.has(Option::alibi), roles(Role::slopes)) | roles_if(p.has(Option::sink), roles(Role::sinks)) |
      roles_if(p.has(Option::bias) || p.has(Option::block_bias), roles(Role::bias)) |
      roles_if(p.has(Option::dropout), roles(Role::seed)) |
      roles_if(p.has(Option::append), roles(Role::k_new, Role::v_new)) |
      roles_if(p.rotates(), roles(Role::rotary_cos, Role::rotary_sin)) |
      roles_if(p.has(Option::descale), roles(Role::descale_q, Role::descale_k, Role::descale_v)) |
      roles_if(backward, roles(Role::d_out, Role::dq, Role::dk, Role::dv));
  const Roles optional =
      roles(Role::lse, Role::cu_q, Role::used_q, Role::used_k, Role::left_pad) |
      roles_if(p.keys == KeySource::linear, roles(Role::cache_index)) | roles_if(backward, roles(Role::d_lse)) |
      roles_if(backward && (p.has(Option::bias) || p.has(Option::block_bias)), roles(Role::d_bias)) |
      roles_if(backward && p.has(Option::sink), roles(Role::d_sinks));
  return {required, required | optional};
}

// Which variant tensors, and which of their gradients, the problem accepts and requires.
Needs needs(const Problem& p, const Declared& variant) {
  Needs all{};
  const bool backward = p.pass == Pass::backward;
  for (int n = 0; n < kVariantTensors; ++n) {
    const VariantTensor& t = variant.tensor[n];
    const Roles it = Roles(1) << n, gradient = Roles(1) << (kVariantTensors + n);
    const bool read = t.use == Use::input || t.use == Use::list, saved = t.use == Use::saved;
    if (read || saved || (t.use == Use::result && !backward)) all.allowed |= it;
    if (((read || (t.use == Use::result && !backward)) && !t.optional) || (saved && backward)) all.required |= it;
    if (t.use == Use::input && backward) all.allowed |= gradient;
  }
  return all;
}
static_assert(2 * kVariantTensors <= 64);

struct Axis {
  int64_t least, most;
  bool or_one = false;  // accepts 1 as a broadcast axis
  constexpr bool holds(int64_t n) const { return (n >= least && n <= most) || (or_one && n == 1); }
};
constexpr Axis exactly(int64_t n) { return {n, n}; }
constexpr Axis at_most(int64_t n) { return {0, n}; }
constexpr Axis at_least(int64_t n) { return {n, INT32_MAX}; }
constexpr Axis one_or(Axis a) { return {a.least, a.most, true}; }

std::string text(Axis a) {
  const std::string range = a.least == a.most       ? join(a.least)
                            : a.most == INT32_MAX ? join("at least ", a.least)
                                                  : join(a.least, " ... ", a.most);
  return a.or_one ? join("1 or ", range) : range;
}

struct Wanted { DType dtype; Axis batch, seq, head, dim; };

Wanted same(DType dtype, const Extents& e, Axis head, Axis dim) {
  return {dtype, exactly(e.batch), exactly(e.seq), head, dim};
}

// The required dtype and extents of a role's tensor. Later roles take sizes from q and k, which are checked first.
Wanted wanted(Role r, const Problem& p, const Args& a, const Declared& variant) {
  constexpr DType i32 = DType::i32, i64 = DType::i64, f32 = DType::f32;
  constexpr Axis one = exactly(1), any = at_least(0);
  const Axis batch = exactly(p.batch), heads = exactly(p.heads_q), kv_heads = exactly(p.heads_kv);
  const Axis dim = exactly(p.dim_qk), dim_v = exactly(p.dim_v);
  const Extents &q = a[Role::q].extent, &k = a[Role::k].extent;
  const bool packed = a.given(Role::cu_q), linear = p.keys == KeySource::linear, paged = p.keys == KeySource::paged;
  switch (r) {
    case Role::q: {
      // Rotated queries go into the workspace, whose size is fixed before the number of tokens is known.
      const Axis tokens = p.rotates() ? at_most(std::min<int64_t>(int64_t(p.batch) * p.len_q, INT32_MAX)) : any;
      return {p.dtype.q, packed ? one : batch, packed ? tokens : at_most(p.len_q), heads, dim};
    }
    case Role::k:
      return {p.dtype.kv, paged || a.given(Role::cache_index) ? any : linear ? batch : one,
              paged ? exactly(p.page) : linear && !a.given(Role::used_k) ? at_most(p.len_k) : any, kv_heads, dim};
    case Role::v: return same(p.dtype.kv, k, kv_heads, dim_v);
    case Role::out: case Role::d_out: return same(p.dtype.out, q, heads, dim_v);
    case Role::lse: case Role::d_lse: return same(f32, q, heads, one);
    case Role::cu_q: case Role::cu_k: return {i32, one, one, one, exactly(int64_t(p.batch) + 1)};
    case Role::used_q: case Role::used_k: case Role::left_pad: case Role::cache_index:
      return {i32, batch, one, one, one};
    case Role::page_table: return {i32, batch, one, one, any};
    case Role::positions: return {i64, batch, one, one, exactly(2)};
    case Role::block_begin:
      return {i32, one_or(batch), one, one_or(heads),
              at_least(ceil_div(variant.listed ? variant.listed : p.len_q, p.mask.blocks.q) + 1)};
    case Role::block_begin_k:
      return {i32, one_or(batch), one, one_or(heads),
              at_least(ceil_div(variant.listed ? variant.listed : p.len_k, p.mask.blocks.k) + 1)};
    case Role::block_column: case Role::block_row_k: return {i32, one, one, one, at_least(p.mask.blocks.bound)};
    case Role::slopes: case Role::sinks: case Role::d_sinks: return {f32, one, one, heads, one};
    case Role::bias: {
      if (p.has(Option::block_bias)) return {f32, one, one, one, exactly(p.mask.blocks.bound)};
      const int64_t rows_q = packed ? p.len_q : q.seq;
      const int64_t rows_k = linear && k.seq < p.len_k ? k.seq : p.len_k;
      return {p.dtype.bias, one_or(batch), one_or(at_least(rows_q)), one_or(heads), one_or(at_least(rows_k))};
    }
    case Role::d_bias: {
      const Extents& bias = a[Role::bias].extent;
      return same(f32, bias, exactly(bias.head), exactly(bias.dim));
    }
    case Role::seed: return {i64, one, one, one, exactly(2)};
    case Role::k_new: return {p.dtype.kv, batch, at_most(p.len_k), kv_heads, dim};
    case Role::v_new: return same(p.dtype.kv, a[Role::k_new].extent, kv_heads, dim_v);
    case Role::rotary_cos: return {f32, one, any, one, {1, p.dim_qk / 2}};
    case Role::rotary_sin: return same(f32, a[Role::rotary_cos].extent, one, exactly(a[Role::rotary_cos].extent.dim));
    case Role::descale_q: case Role::descale_k: case Role::descale_v: return {f32, batch, one, kv_heads, one};
    case Role::dq: return same(p.dtype.grad, q, heads, dim);
    case Role::dk: return same(p.dtype.grad, k, kv_heads, dim);
    case Role::dv: return same(p.dtype.grad, k, kv_heads, dim_v);
    case Role::variant: case Role::d_variant: case Role::count: break;
  }
  const bool gradient = r >= Role::d_variant;
  const VariantTensor& t = variant.tensor[int(r) - int(gradient ? Role::d_variant : Role::variant)];
  if (t.use == Use::none) return {a[r].dtype, any, any, any, any};  // an unknown variant
  Axis head = exactly(t.extent.head);
  for (const int32_t other : t.or_heads)
    if (other && a[r].extent.head == other) head = exactly(other);
  if (gradient) head = exactly(a[variant_tensor(int(r) - int(Role::d_variant))].extent.head);
  const DType dtype = gradient && t.dtype != f32 ? p.dtype.grad : t.dtype;
  return {dtype, exactly(t.extent.batch), exactly(t.extent.seq), head, exactly(t.extent.dim)};
}

// The same, with the variant's own extents for dense roles.
Wanted wanted_here(Role r, const Problem& p, const Args& a, const Declared& variant) {
  Wanted w = wanted(r, p, a, variant);
  const bool out = r == Role::out || r == Role::d_out, k = r == Role::k;
  const Extents own = out ? variant.out : k ? variant.k : Extents{0, 0, 0, 0};
  if (own.batch) w.batch = exactly(own.batch);
  if (own.seq) w.seq = exactly(own.seq);
  if (own.head) w.head = exactly(own.head);
  if (own.dim) w.dim = exactly(own.dim);
  return w;
}

std::string name_here(Role r, const Declared& variant) {
  const int n = int(r) - int(Role::variant), of = n % kVariantTensors;
  if (n < 0 || variant.tensor[of].name.empty()) return name(r);
  return join(n < kVariantTensors ? "" : "d_", variant.tensor[of].name);
}

bool aligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % uintptr_t(size_of(t.dtype)) == 0; }
std::string place(const Tensor& t) { return t.device == DeviceKind::cpu ? "the CPU" : join("cuda:", t.device_index); }

// Builds the message for a tensor that does not fit.
Status refuse(const Wanted& w, Role r, const Args& a, const Declared& variant) {
  const auto no = [&](const auto&... why) { return Status::no(name_here(r, variant), ": ", why...); };
  const Tensor &t = a[r], &q = a[Role::q];
  if (t.dtype != w.dtype) return no("dtype ", name(t.dtype), " is not ", name(w.dtype));
  if (t.device != q.device || t.device_index != q.device_index)
    return no("is on ", place(t), ", but q is on ", place(q));
  if (!aligned(t)) return no("data is not aligned to its dtype ", name(t.dtype));
  const struct { std::string_view name; int32_t extent; Axis want; } axes[] = {
      {"batch", t.extent.batch, w.batch}, {"seq", t.extent.seq, w.seq}, {"head", t.extent.head, w.head},
      {"dim", t.extent.dim, w.dim}};
  for (const auto& [axis, extent, want] : axes)
    if (!want.holds(extent)) return no(axis, " = ", extent, " is not ", text(want));
  return Status::good();
}

bool fits(const Wanted& w, const Tensor& t, const Tensor& q) {
  return t.dtype == w.dtype && t.device == q.device && t.device_index == q.device_index && aligned(t) &&
         w.batch.holds(t.extent.batch) && w.seq.holds(t.extent.seq) && w.head.holds(t.extent.head) &&
         w.dim.holds(t.extent.dim);
}

Status check_numbers(const Problem& p, const Args& a) {
  // Kernels take the maximum before they scale; a negative factor would reverse the order.
  // Scores are multiplied in f32: a larger one makes infinities of ordinary scores, and then NaN.
  constexpr float kMostScale = 1e30f;
  if (!(a.scale >= 0 && a.scale <= kMostScale))
    return Status::no("scale = ", a.scale, " is not in 0 ... ", kMostScale);
  if (!p.has(Option::softcap) && a.softcap != 0)
    return Status::no("softcap = ", a.softcap, " given, but the problem does not have option softcap");
  if (p.has(Option::softcap) && !(a.softcap > 0 && std::isfinite(a.softcap)))
    return Status::no("softcap = ", a.softcap, " is not finite and above 0");
  if (!p.has(Option::dropout) && a.dropout != 0)
    return Status::no("dropout = ", a.dropout, " given, but the problem does not have option dropout");
  if (p.has(Option::dropout) && !(a.dropout >= 0 && a.dropout < 1))
    return Status::no("dropout = ", a.dropout, " is not in 0 <= dropout < 1");
  return Status::good();
}

bool writes(const Problem& p, const Declared& variant, Role r) {
  if (p.pass == Pass::backward)
    return r == Role::dq || r == Role::dk || r == Role::dv || r == Role::d_bias || r == Role::d_sinks ||
           r >= Role::d_variant;
  if (r >= Role::variant && r < Role::d_variant) {
    const Use use = variant.tensor[int(r) - int(Role::variant)].use;
    return use == Use::saved || use == Use::result;
  }
  if (r < Role::variant && variant.read >> int(r) & 1) return false;
  return r == Role::out || r == Role::lse || (p.has(Option::append) && (r == Role::k || r == Role::v));
}

// Checks that the given tensors have valid spans and that no tensor overlaps an output.
Status check_memory(const Problem& p, const Args& a, const Declared& variant, const Role* role, int count) {
  Bytes bytes[int(Role::count)];
  for (int n = 0; n < count; ++n)
    if (!bytes_of(a[role[n]], bytes[n]))
      return Status::no(name_here(role[n], variant),
                        ": extents or strides are negative, or reach past the end of memory");
  for (int n = 0; n < count; ++n) {
    if (!writes(p, variant, role[n])) continue;
    if (overlaps_itself(a[role[n]]))
      return Status::no(name_here(role[n], variant), ": output strides overlap: two elements share an address");
    for (int m = 0; m < count; ++m)
      if (m != n && bytes[n].meets(bytes[m]) && share_memory(a[role[n]], a[role[m]]))
        return Status::no(name_here(role[n], variant), ": output shares memory with ",
                          name_here(role[m], variant));
  }
  return Status::good();
}

}  // namespace

std::string name(Role r) {
  const int n = int(r);
  if (n >= 0 && n < int(Role::variant)) return std::string(kRole[n]);
  if (n >= int(Role::variant) && n < int(Role::d_variant)) return join("variant[", n - int(Role::variant), "]");
  if (n >= int(Role::d_variant) && n < int(Role::count)) return join("d_variant[", n - int(Role::d_variant), "]");
  return "?";
}

bool writes(const Problem& p, Role r) { return writes(p, declared(p, {}), r); }

Status check(const Problem& p, const Args& a) {
  Role role[int(Role::count)];
  int count = 0;
  Roles given = 0;
  for (int r = 0; r < int(Role::variant); ++r)
    if (a.tensor[r].data) given |= roles(Role(r)), role[count++] = Role(r);
  static constexpr Declared kNothing{};  // avoids building one for calls without a variant, the common case
  const bool plain = !p.variant.text[0], known = !plain && find_variant(word(p.variant));
  std::optional<Declared> own_tensors;
  if (known) own_tensors.emplace(declared(p, a));
  const Declared& variant = known ? *own_tensors : kNothing;
  const auto [required, allowed] = needs(p, given, variant);
  if (const Roles missing = required & ~given)
    return Status::no(name(Role(std::countr_zero(missing))), ": not given, but the problem requires it");
  if (const Roles idle = given & ~allowed)
    return Status::no(name(Role(std::countr_zero(idle))), ": given, but the problem does not use it");
  Needs own = known ? needs(p, variant) : Needs{};
  if (!plain && !known) own.allowed = ~Roles(0);
  for (int r = int(Role::variant); r < int(Role::count); ++r) {
    const Roles bit = Roles(1) << (r - int(Role::variant));
    if (!a.tensor[r].data && own.required & bit)
      return Status::no(name_here(Role(r), variant), ": not given, but the problem requires it");
    if (!a.tensor[r].data) continue;
    if (!(own.allowed & bit) || (r >= int(Role::d_variant) && p.pass == Pass::forward))
      return Status::no(name_here(Role(r), variant), ": given, but the problem does not use it");
    role[count++] = Role(r);
  }
  for (int n = 0; n < count; ++n)
    if (const Wanted w = wanted_here(role[n], p, a, variant); !fits(w, a[role[n]], a[Role::q]))
      return refuse(w, role[n], a, variant);
  if (Status s = check_numbers(p, a); !s.ok()) return s;
  return check_memory(p, a, variant, role, count);
}

Status check_aligned16(std::string_view who, Role r, const Tensor& t) {
  if (reinterpret_cast<uintptr_t>(t.data) % 16)
    return Status::unsupported(who, ": ", name(r), " is not aligned to 16 bytes");
  const std::pair<int64_t, const char*> steps[] = {
      {t.stride.batch, "batch"}, {t.stride.seq, "seq"}, {t.stride.head, "head"}};
  for (const auto& [step, axis] : steps)
    if (step * size_of(t.dtype) % 16)
      return Status::unsupported(who, ": ", name(r), " has a ", axis, " stride of ", step,
                                 " elements, not a multiple of 16 bytes");
  return Status::good();
}

Status check_aligned16(std::string_view who, const Args& a, std::initializer_list<Role> roles) {
  for (const Role r : roles)
    if (a.given(r))
      if (Status s = check_aligned16(who, r, a[r]); !s.ok()) return s;
  return Status::good();
}

}  // namespace attune
