// SPDX-License-Identifier: Apache-2.0
// Fuzzes the C interface with hostile arguments. The first bytes define a small problem and the tensors that fit it;
// the remaining bytes change fields of both. Every tensor has exactly the memory it describes, so AddressSanitizer
// catches any access outside. Invariants: no crash; an error has a message and leaves every output untouched; a success
// has no message.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "attune/attune.h"
#include "core/check.h"
#include "fuzz/require.h"

#if defined(__SANITIZE_ADDRESS__)
#define ATTUNE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ATTUNE_ASAN 1
#endif
#endif

#ifdef ATTUNE_ASAN  // a plan for absurd lengths may request absurd scratch memory: that must be an error, not an abort
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1:max_allocation_size_mb=512"; }
#endif

namespace {

constexpr size_t kRoom = 1 << 16;  // bytes per tensor; a tensor that claims more has no memory
constexpr char kPoison = 0x5A;

struct Bytes {
  const uint8_t* at;
  size_t left;

  uint8_t byte() { return left ? --left, *at++ : 0; }
  int up_to(int n) { return byte() % (n + 1); }
  template <class T>
  T raw() {
    T x{};
    for (size_t n = 0; n < sizeof x; ++n) x = T(uint64_t(x) << 8 | byte());
    return x;
  }
  // Small, near a limit, or arbitrary.
  int64_t number() {
    switch (up_to(5)) {
      case 0: return up_to(40);
      case 1: return -up_to(4);
      case 2: return INT32_MAX - up_to(2);
      case 3: return int64_t(1) << up_to(62);
      case 4: return raw<int32_t>();
      default: return raw<int64_t>();
    }
  }
};

struct Given {
  attune_tensor tensor{};
  int64_t shape[4] = {}, strides[4] = {};
  std::string axes{};
  std::unique_ptr<char[]> memory{};
  size_t bytes = 0;
};

struct World {
  Bytes in;
  attune_problem p{};
  attune_args args{};
  Given given[ATTUNE_ROLES];

  void problem() {
    p.size = sizeof p;
    p.pass = in.up_to(3) == 3;
    p.dtype_q = ATTUNE_F32 + in.up_to(2);
    p.batch = 1 + in.up_to(2);
    p.heads_kv = 1 + in.up_to(1);
    p.heads_q = p.heads_kv * (1 + in.up_to(1));
    p.len_q = 1 + in.up_to(39), p.len_k = 1 + in.up_to(39);
    p.dim_qk = 8 * (1 + in.up_to(3)), p.dim_v = 8 * (1 + in.up_to(3));
    p.mask = in.up_to(2), p.align = in.up_to(2);
    if (p.mask == ATTUNE_WINDOW) p.left = in.up_to(9), p.right = in.up_to(9);
    p.k_step = 1 + in.up_to(1);
    if (in.up_to(3) == 3) p.block_q = 1 + in.up_to(31), p.block_k = 1 + in.up_to(31), p.block_bound = 1 + in.up_to(31);
    p.options = in.raw<uint16_t>() & in.raw<uint16_t>() & 0x3FF;
    if (p.pass) p.options &= ~uint32_t(ATTUNE_OPTION_ACCUMULATE | ATTUNE_OPTION_APPEND);
    if (p.options & ATTUNE_OPTION_ACCUMULATE) p.dtype_out = ATTUNE_F32;
    if (!(p.options & ATTUNE_OPTION_APPEND)) p.options &= ~uint32_t(ATTUNE_OPTION_ROTARY | ATTUNE_OPTION_ROTARY_HALF);
    p.keys = in.up_to(2);
    if (p.keys == ATTUNE_RAGGED) p.options &= ~uint32_t(ATTUNE_OPTION_APPEND);
    if (p.keys == ATTUNE_PAGED) p.page = 1 + in.up_to(15);
  }

  void give(int role, int dtype, const char* axes, std::vector<int64_t> shape) {
    Given& g = given[role];
    g.axes = axes;
    std::copy(shape.begin(), shape.end(), g.shape);
    attune_tensor& t = g.tensor;
    t.device.type = 1;
    t.ndim = int32_t(shape.size());
    const bool integer = dtype == ATTUNE_I32 || dtype == ATTUNE_I64;
    t.dtype.code = uint8_t(integer ? 0 : dtype == ATTUNE_BF16 ? 4 : 2);
    t.dtype.bits = uint8_t(dtype == ATTUNE_I64 ? 64 : dtype == ATTUNE_F16 || dtype == ATTUNE_BF16 ? 16 : 32);
    t.dtype.lanes = 1;
    int64_t step = 1;
    for (int n = t.ndim - 1; n >= 0; --n) g.strides[n] = step, step *= std::max<int64_t>(g.shape[n], 1);
    args.role[role] = &t;
  }

  void tensors() {
    const int64_t b = p.batch, hq = p.heads_q, hk = p.heads_kv, q = p.len_q, k = p.len_k;
    const bool packed = p.keys == ATTUNE_RAGGED || in.up_to(3) == 3, ragged = p.keys == ATTUNE_RAGGED;
    const bool paged = p.keys == ATTUNE_PAGED;
    const int dt = p.dtype_q, out = p.dtype_out ? p.dtype_out : dt;
    const int64_t qb = packed ? 1 : b, qs = packed ? b * q : q;
    const int64_t kb = ragged ? 1 : paged ? 1 + in.up_to(9) : b, ks = ragged ? b * k : paged ? p.page : k;
    const auto has = [&](int option) { return (p.options & uint32_t(option)) != 0; };
    give(ATTUNE_Q, dt, "bshd", {qb, qs, hq, p.dim_qk});
    give(ATTUNE_K, dt, "bshd", {kb, ks, hk, p.dim_qk});
    give(ATTUNE_V, dt, "bhsd", {kb, hk, ks, p.dim_v});
    give(ATTUNE_OUT, out, "bhsd", {qb, hq, qs, p.dim_v});
    if (p.pass || has(ATTUNE_OPTION_ACCUMULATE) || in.up_to(1)) give(ATTUNE_LSE, ATTUNE_F32, "bhs", {qb, hq, qs});
    if (packed) give(ATTUNE_CU_Q, ATTUNE_I32, "n", {b + 1});
    if (ragged) give(ATTUNE_CU_K, ATTUNE_I32, "n", {b + 1});
    if (in.up_to(3) == 3) give(ATTUNE_USED_Q, ATTUNE_I32, "b", {b});
    if (paged || in.up_to(1)) give(ATTUNE_USED_K, ATTUNE_I32, "b", {b});
    if (in.up_to(3) == 3) give(ATTUNE_LEFT_PAD, ATTUNE_I32, "b", {b});
    if (!ragged && !paged && in.up_to(3) == 3) give(ATTUNE_CACHE_INDEX, ATTUNE_I32, "b", {b});
    if (paged) give(ATTUNE_PAGE_TABLE, ATTUNE_I32, "bn", {b, (k + p.page - 1) / p.page});
    if (p.align == ATTUNE_ABSOLUTE) give(ATTUNE_POSITIONS, ATTUNE_I64, "bn", {b, 2});
    if (p.block_q) {
      give(ATTUNE_BLOCK_BEGIN, ATTUNE_I32, "bhn", {in.up_to(1) ? b : 1, in.up_to(1) ? hq : 1, (q - 1) / p.block_q + 2});
      give(ATTUNE_BLOCK_COLUMN, ATTUNE_I32, "n", {p.block_bound});
    }
    if (has(ATTUNE_OPTION_ALIBI)) give(ATTUNE_SLOPES, ATTUNE_F32, "h", {hq});
    if (has(ATTUNE_OPTION_SINK)) give(ATTUNE_SINKS, ATTUNE_F32, "h", {hq});
    if (has(ATTUNE_OPTION_BIAS)) give(ATTUNE_BIAS, ATTUNE_F32, "hqk", {in.up_to(1) ? hq : 1, q, k});
    if (has(ATTUNE_OPTION_DROPOUT)) give(ATTUNE_SEED, ATTUNE_I64, "n", {2});
    if (has(ATTUNE_OPTION_APPEND)) {
      const int64_t added = in.up_to(3);
      give(ATTUNE_K_NEW, dt, "bshd", {b, added, hk, p.dim_qk}), give(ATTUNE_V_NEW, dt, "bshd", {b, added, hk, p.dim_v});
    }
    if (has(ATTUNE_OPTION_ROTARY) || has(ATTUNE_OPTION_ROTARY_HALF))
      for (const int r : {ATTUNE_ROTARY_COS, ATTUNE_ROTARY_SIN}) give(r, ATTUNE_F32, "sd", {64, p.dim_qk / 2});
    if (has(ATTUNE_OPTION_DESCALE))
      for (int r = ATTUNE_DESCALE_Q; r <= ATTUNE_DESCALE_V; ++r) give(r, ATTUNE_F32, "bh", {b, hk});
    if (!p.pass) return;
    give(ATTUNE_D_OUT, out, "bhsd", {qb, hq, qs, p.dim_v});
    give(ATTUNE_DQ, dt, "bshd", {qb, qs, hq, p.dim_qk});
    give(ATTUNE_DK, dt, "bshd", {kb, ks, hk, p.dim_qk});
    give(ATTUNE_DV, dt, "bhsd", {kb, hk, ks, p.dim_v});
    if (in.up_to(1)) give(ATTUNE_D_LSE, ATTUNE_F32, "bhs", {qb, hq, qs});
    if (has(ATTUNE_OPTION_SINK)) give(ATTUNE_D_SINKS, ATTUNE_F32, "h", {hq});
    if (has(ATTUNE_OPTION_BIAS))
      give(ATTUNE_D_BIAS, ATTUNE_F32, "hqk", {given[ATTUNE_BIAS].shape[0], q, k});
  }

  // A given role, or any.
  int some_role() {
    if (in.up_to(7) == 7) return in.up_to(ATTUNE_ROLES - 1);
    int there[ATTUNE_ROLES] = {}, count = 0;
    for (int role = 0; role < ATTUNE_ROLES; ++role)
      if (args.role[role]) there[count++] = role;
    return there[in.up_to(std::max(count, 1) - 1)];
  }

  // Changes one thing.
  void spoil() {
    const int role = some_role();
    Given& g = given[role];
    const int axis = in.up_to(3);
    switch (in.up_to(13)) {
      case 0: g.shape[axis] = in.up_to(1) ? in.number() : g.shape[axis] - 1 + in.up_to(2); break;
      case 1: g.strides[axis] = in.number(), g.tensor.strides = g.strides; break;
      case 2: g.tensor.strides = g.strides, g.strides[axis] += in.up_to(32); break;
      case 3: g.tensor.dtype.bits = in.byte(); break;
      case 4: g.tensor.dtype.code = in.byte(); break;
      case 5: g.tensor.ndim = int32_t(in.number()); break;
      case 6: for (char& c : g.axes) c = "bpstqhdknx"[in.up_to(9)]; break;
      case 7: g.tensor.device.type = in.up_to(3); break;
      case 8: g.tensor.byte_offset = in.up_to(1) ? uint64_t(in.number()) : uint64_t(in.up_to(16)); break;
      case 9: args.role[role] = args.role[role] ? nullptr : &g.tensor; break;
      case 10: args.scale = float(in.number()) / 7.f; break;
      case 11: std::memcpy(reinterpret_cast<char*>(&p) + 4 * in.up_to(31), g.shape, 4); break;
      case 12: {
        const int32_t x = int32_t(in.number());
        std::memcpy(reinterpret_cast<char*>(&p) + 4 * (1 + in.up_to(30)), &x, 4);
        break;
      }
      default: args.role[role] = args.role[some_role()]; break;  // one tensor in two roles
    }
  }

  // The bytes that a tensor claims, from its first; -1 for nonsense that the library has to refuse.
  static int64_t extent_of(const Given& g) {
    const attune_tensor& t = g.tensor;
    if (t.ndim < 1 || t.ndim > 4) return -1;
    constexpr int64_t kFar = int64_t(1) << 57;  // times 32 bytes
    int64_t last = 0, step = 1;
    for (int n = t.ndim - 1; n >= 0; --n) {
      const int64_t length = g.shape[n], stride = t.strides ? g.strides[n] : step;
      int64_t reach;
      if (!length) return 0;
      if (length < 0 || (stride < 0 && length > 1)) return -1;
      if (__builtin_mul_overflow(length - 1, stride, &reach) || __builtin_mul_overflow(step, length, &step)) return -1;
      if (reach > kFar || (last += reach) > kFar) return -1;
    }
    return (last + 1) * ((t.dtype.bits + 7) / 8);
  }

  void allocate() {
    for (int role = 0; role < ATTUNE_ROLES; ++role) {
      Given& g = given[role];
      attune_tensor& t = g.tensor;
      t.shape = g.shape;
      t.axes = g.axes.c_str();
      if (!args.role[role]) continue;
      const int64_t bytes = extent_of(g);
      if (bytes > int64_t(kRoom)) continue;  // no memory: "data is null"
      g.bytes = size_t(std::max<int64_t>(bytes, 1)) + (t.byte_offset <= 64 ? size_t(t.byte_offset) : 0);
      g.memory = std::make_unique<char[]>(g.bytes);
      t.data = g.memory.get();
      if (t.byte_offset > 64 && bytes >= 0) t.byte_offset = UINT64_MAX - 8;  // past the end, but not into other memory
      fill(role, g);
    }
  }
  void fill(int role, Given& g) {
    const bool integers = role >= ATTUNE_CU_Q && role <= ATTUNE_BLOCK_ROW_K;
    const size_t width = role == ATTUNE_POSITIONS ? 8 : 4;
    if (!integers) return void(std::memset(g.memory.get(), role == ATTUNE_OUT ? kPoison : 0x3C, g.bytes));
    int64_t last = 0;
    for (size_t at = 0; at + width <= g.bytes; at += width) {
      const uint8_t how = in.byte();
      const int64_t x = how < 240 ? how % 41 : in.number();
      last = role == ATTUNE_CU_Q || role == ATTUNE_CU_K || role == ATTUNE_BLOCK_BEGIN ? last + x % 12 : x;
      if (how < 240 && at == 0 && role != ATTUNE_USED_K) last = how % 2;
      std::memcpy(g.memory.get() + at, &last, width);  // little-endian
    }
  }

  bool poisoned() const {
    const Given& g = given[ATTUNE_OUT];
    return std::all_of(g.memory.get(), g.memory.get() + g.bytes, [](char c) { return c == kPoison; });
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool one_thread = attune_set_threads(1) == 0;  // the same bytes must take the same path
  auto w = std::make_unique<World>();
  w->in = {data, size};
  w->args.size = sizeof w->args;
  w->problem();
  w->tensors();
  if (w->p.options & ATTUNE_OPTION_SOFTCAP) w->args.softcap = 20.f;
  if (w->p.options & ATTUNE_OPTION_DROPOUT) w->args.dropout = 0.25f;
  for (int n = w->in.up_to(7) - 3; n > 0; --n) w->spoil();
  w->p.size = sizeof w->p;
  w->allocate();
  const bool whole = one_thread && w->given[ATTUNE_OUT].memory != nullptr;

  const bool checked = attune_check(&w->p, &w->args) == 0;
  require(checked == !*attune_last_error(), "an error has a sentence, a success has none");
  require(!whole || w->poisoned(), "a check writes nothing");
  const bool done = attune_call(&w->p, &w->args, nullptr) == 0;
  require(done == !*attune_last_error(), "an error has a sentence, a success has none");
  require(!done || checked, "what runs was right");
  require(done || !whole || w->poisoned(), "a refused call writes nothing");

  attune_plan* plan = nullptr;
  if (attune_plan_create(&w->p, "cpu:scalar", w->in.up_to(1) ? nullptr : "reference", &plan) == 0) {
    const bool ran = attune_plan_run(plan, &w->args, nullptr) == 0;
    require(!ran || checked, "what runs was right");
    attune_plan_destroy(plan);
  }
  char line[1024];
  if (attune_problem_format(&w->p, line, sizeof line) == 0) {
    attune_problem again{};
    again.size = sizeof again;
    require(attune_problem_parse(line, &again) == 0, "a formatted problem reads back");
  }
  return 0;
}
