// SPDX-License-Identifier: Apache-2.0
#include "capi/convert.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "core/check.h"
#include "core/formula/of_problem.h"

namespace attune {
namespace {

// attune_problem is `size` followed by the bytes of a Problem; both consist of 32-bit fields and one text.
static_assert(sizeof(attune_problem) == sizeof(uint32_t) + sizeof(Problem));
static_assert(offsetof(attune_problem, dtype_bias) == sizeof(uint32_t) + offsetof(Problem, dtype.bias));
static_assert(offsetof(attune_problem, dim_v) == sizeof(uint32_t) + offsetof(Problem, dim_v));
static_assert(offsetof(attune_problem, block_bound) == sizeof(uint32_t) + offsetof(Problem, mask.blocks.bound));
static_assert(offsetof(attune_problem, options) == sizeof(uint32_t) + offsetof(Problem, options));
static_assert(offsetof(attune_problem, precision) == sizeof(uint32_t) + offsetof(Problem, precision));
static_assert(int(Code::invalid) == ATTUNE_INVALID && int(Code::unsupported) == ATTUNE_UNSUPPORTED);
static_assert(int(Code::out_of_memory) == ATTUNE_OUT_OF_MEMORY && int(Code::internal) == ATTUNE_INTERNAL);
static_assert(int(DType::i64) == ATTUNE_I64 && int(MaskKind::window) == ATTUNE_WINDOW);
static_assert(int(Align::absolute) == ATTUNE_ABSOLUTE && int(KeySource::paged) == ATTUNE_PAGED);
static_assert(int(Reproducible::batch) == ATTUNE_REPRO_BATCH && int(Precision::tf32x3) == ATTUNE_PRECISION_TF32X3);
static_assert(1 << int(Option::descale) == ATTUNE_OPTION_DESCALE && int(Option::count) == 11);
static_assert(1 << int(Option::block_bias) == ATTUNE_OPTION_BLOCK_BIAS);
static_assert(int(Role::count) == ATTUNE_ROLES && int(Role::variant) == ATTUNE_VARIANT);
static_assert(offsetof(attune_args, role) % sizeof(void*) == 0);
static_assert(int(Role::seed) == ATTUNE_SEED && int(Role::dq) == ATTUNE_DQ && int(Role::bias) == ATTUNE_BIAS);

DType dtype_of(const attune_tensor& t) {
  const auto [code, bits, lanes] = t.dtype;
  if (lanes > 1) return DType::none;
  if (code == 0) return bits == 32 ? DType::i32 : bits == 64 ? DType::i64 : DType::none;
  if (code == 2) return bits == 16 ? DType::f16 : bits == 32 ? DType::f32 : bits == 64 ? DType::f64 : DType::none;
  return code == 4 && bits == 16 ? DType::bf16 : code == 10 && bits == 8 ? DType::e4m3 : DType::none;
}

enum Axis { kBatch, kSeq, kHead, kDim, kAxes };
int axis_of(char letter) {
  switch (letter) {
    case 'b': case 'p': return kBatch;
    case 's': case 't': case 'q': return kSeq;
    case 'h': return kHead;
    case 'd': case 'k': case 'n': return kDim;
    default: return kAxes;
  }
}

// An empty tensor counts as given although it has no address: it gets this one, which is never read.
alignas(16) char nowhere[16];

}  // namespace

Status problem_of(const attune_problem* given, Problem& out) {
  if (!given) return Status::no("problem is null");
  const size_t size = given->size, head = sizeof given->size, known = std::min(size, sizeof *given);
  if (size < offsetof(attune_problem, mask) || size > kMostBytes)
    return Status::no("problem.size = ", size, " is not sizeof(attune_problem)");
  const char* bytes = reinterpret_cast<const char*>(given);
  for (size_t n = known; n < size; ++n)
    if (bytes[n]) return Status::no("problem: a field is set that this version does not have");
  std::array<char, sizeof(Problem)> fields{};
  std::memcpy(fields.data(), bytes + head, known - head);
  out = filled(std::bit_cast<Problem>(fields));
  // Checked here, not only in valid(): some callers read the variant before they validate the rest.
  if (out.variant.text[sizeof out.variant.text - 1]) return Status::no("problem: variant is not null-terminated");
  if (out.variant.text[0] == 'f') canonicalize_formula(out.variant);
  return Status::good();
}

Status problem_to(const Problem& p, attune_problem& out) {
  const size_t size = out.size, head = sizeof out.size, room = std::min<size_t>(size, sizeof out);
  attune_problem whole{};
  std::memcpy(reinterpret_cast<char*>(&whole) + head, &p, sizeof p);
  whole.size = uint32_t(size > kMostBytes ? 0 : room);
  Problem again;
  if (Status s = problem_of(&whole, again); !s.ok())
    return Status::no("problem.size = ", size, " is not sizeof(attune_problem)");
  if (again != p) return Status::no("problem.size = ", size, " is too small for this line");
  std::memset(reinterpret_cast<char*>(&out) + head, 0, size - head);
  std::memcpy(reinterpret_cast<char*>(&out) + head, &p, room - head);
  return Status::good();
}

namespace {

// Errors do not name the tensor.
Status read_tensor(const attune_tensor& given, Tensor& out) {
  const auto no = [](const auto&... why) { return Status::no(why...); };
  const char* axes = given.axes ? given.axes : "";
  if (given.ndim < 1 || given.ndim > kAxes || strnlen(axes, kAxes + 1) != size_t(given.ndim) || !given.shape)
    return no("axes '", std::string_view(axes, strnlen(axes, 16)), "' do not name the ", given.ndim,
              " axes of its shape");
  int64_t extent[kAxes] = {1, 1, 1, 1}, stride[kAxes] = {0, 0, 0, 1}, compact = 1;
  bool seen[kAxes] = {};
  // Strides of an empty tensor do not matter: NumPy sets them to 0, including the last.
  const bool empty = std::find(given.shape, given.shape + given.ndim, 0) != given.shape + given.ndim;
  for (int n = given.ndim - 1; n >= 0; --n) {
    const int axis = axis_of(axes[n]);
    const int64_t length = given.shape[n], step = given.strides && !empty ? given.strides[n] : compact;
    if (axis == kAxes || seen[axis]) return no("axes '", axes, "': letter '", axes[n], "' is unknown or repeated");
    if (length < 0 || length > INT32_MAX)
      return no("extent ", length, " of axis '", axes[n], "' is not in 0 ... 2^31 - 1");
    seen[axis] = true;
    extent[axis] = length;
    if (length > 1 && step < 0) return no("stride ", step, " of axis '", axes[n], "' is below 0");
    if (length > 1 || axis == kDim) stride[axis] = length > 1 ? step : 1;
    if (__builtin_mul_overflow(compact, std::max<int64_t>(length, 1), &compact)) return no("has 2^63 elements or more");
  }
  if (stride[kDim] != 1 && !empty) return no("the last axis has stride ", stride[kDim], "; it must be 1 (contiguous)");
  const auto [kind, index] = given.device;
  if (kind < 1 || kind > 3) return no("device type ", kind, " is not 1 (CPU), 2 (CUDA) or 3 (CPU, pinned)");
  const DType dtype = dtype_of(given);
  if (dtype == DType::none)
    return no("dtype of code ", given.dtype.code, ", ", given.dtype.bits, " bits and ", given.dtype.lanes,
              " lanes", given.dtype.code == 5 ? " (complex)" : "",
              " is not one of f64, f32, f16, bf16, e4m3, i32, i64");
  if (!given.data && !empty) return no("data is null");
  const uintptr_t address = reinterpret_cast<uintptr_t>(given.data) + given.byte_offset;
  if (address < given.byte_offset) return no("byte_offset ", given.byte_offset, " reaches past the end of memory");
  out = {.data = empty ? static_cast<void*>(nowhere) : reinterpret_cast<void*>(address),
         .dtype = dtype,
         .device = kind == 2 ? DeviceKind::cuda : DeviceKind::cpu,
         .device_index = kind == 2 ? index : 0,
         .extent = {int32_t(extent[kBatch]), int32_t(extent[kSeq]), int32_t(extent[kHead]), int32_t(extent[kDim])},
         .stride = {stride[kBatch], stride[kSeq], stride[kHead]}};
  return Status::good();
}

}  // namespace

Status tensor_of(const attune_tensor& given, Role role, Tensor& out) {
  Status s = read_tensor(given, out);
  return s.ok() ? s : s.after(name(role), ": ");  // a name is text, which a good call does not build
}

Status tensor_of(const attune_tensor& given, std::string_view name, Tensor& out) {
  return read_tensor(given, out).after(name, ": ");
}

Status copy_args(const attune_args* given, attune_args& out) {
  if (!given) return Status::no("args is null");
  if (given->size < offsetof(attune_args, role) || given->size > kMostBytes)
    return Status::no("args.size = ", given->size, " is not sizeof(attune_args)");
  const char* bytes = reinterpret_cast<const char*>(given);
  const size_t size = given->size - given->size % sizeof out.role[0];  // whole roles, as in a call
  for (size_t n = sizeof out; n < size; ++n)
    if (bytes[n]) return Status::no("args: role ", (n - offsetof(attune_args, role)) / sizeof out.role[0],
                                    " is unknown to this version");
  std::memcpy(&out, given, std::min(size, sizeof out));
  out.size = sizeof out;
  return Status::good();
}

}  // namespace attune
