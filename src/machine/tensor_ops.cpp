// SPDX-License-Identifier: Apache-2.0
// tensor_ops.h on the CPU. Rows are divided evenly over the library's threads, so a result has the same bits
// for any number of threads.
#include "machine/tensor_ops.h"

#include <algorithm>
#include <cmath>

#include "core/dtypes.h"
#include "core/problem.h"
#include "core/softmax.h"
#include "machine/cpu/kernels.h"
#include "machine/cpu/threads.h"
#include "machine/host.h"

namespace attune {
namespace {

using detail::Combine;
using detail::Merge;

constexpr int64_t kLeast = 1 << 14;  // elements that justify a thread
constexpr int kChunk = 256;          // elements of a row, kept in registers and L1

std::string text(const Extents& e) { return join("[", e.batch, ", ", e.seq, ", ", e.head, ", ", e.dim, "]"); }
int64_t rows_of(const Tensor& t) { return int64_t(t.extent.batch) * t.extent.seq * t.extent.head; }

// Checks that `from` can be read wherever `to` is written.
Status matches(std::string_view who, const Tensor& from, const Tensor& to, int dim) {
  const auto no = [&](const auto&... why) { return Status::no(who, ": ", why...); };
  if (!is_floating(from.dtype)) return no("dtype ", name(from.dtype), " is not a floating-point type");
  if (from.device != to.device || from.device_index != to.device_index)
    return no("the tensors are on different devices");
  const auto covers = [](int32_t n, int32_t wanted) { return n == wanted || n == 1; };
  const Extents &f = from.extent, &t = to.extent;
  if (!covers(f.batch, t.batch) || !covers(f.seq, t.seq) || !covers(f.head, t.head) || f.dim != dim)
    return no("extents ", text(f), " do not cover ", text({t.batch, t.seq, t.head, dim}));
  return Status::good();
}

// An axis of extent 1 is broadcast, whatever its stride.
Tensor broadcast(Tensor t) {
  if (t.extent.batch == 1) t.stride.batch = 0;
  if (t.extent.seq == 1) t.stride.seq = 0;
  if (t.extent.head == 1) t.stride.head = 0;
  return t;
}

template <class Real>
void read(const char* from, DType dtype, int first, int n, Real* to) {
  const auto copy = [&]<class T>(const T* x) {
    for (int d = 0; d < n; ++d) to[d] = Real(x[first + d]);
  };
  switch (dtype) {
    case DType::f64: return copy(reinterpret_cast<const double*>(from));
    case DType::f32: return copy(reinterpret_cast<const float*>(from));
    case DType::f16: return copy(reinterpret_cast<const F16*>(from));
    case DType::bf16: return copy(reinterpret_cast<const Bf16*>(from));
    default: return copy(reinterpret_cast<const E4m3*>(from));
  }
}

template <class Real>
void write(const Real* from, DType dtype, int first, int n, char* to) {
  const auto copy = [&]<class T>(T* x) {
    for (int d = 0; d < n; ++d) {
      if constexpr (std::is_same_v<T, double>) x[first + d] = double(from[d]);
      else x[first + d] = T(float(from[d]));
    }
  };
  switch (dtype) {
    case DType::f64: return copy(reinterpret_cast<double*>(to));
    case DType::f32: return copy(reinterpret_cast<float*>(to));
    case DType::f16: return copy(reinterpret_cast<F16*>(to));
    case DType::bf16: return copy(reinterpret_cast<Bf16*>(to));
    default: return copy(reinterpret_cast<E4m3*>(to));
  }
}

// Calls f(batch, seq, head) for every row of `to`.
template <class F>
void each_row(const Tensor& to, F f) {
  const int64_t rows = rows_of(to), heads = to.extent.head, seq = to.extent.seq;
  const int64_t most = rows * to.extent.dim / kLeast;
  const int workers = int(std::clamp<int64_t>(most, 1, default_threads()));
  auto work = [&](int worker) {
    for (int64_t n = rows * worker / workers; n < rows * (worker + 1) / workers; ++n)
      f(n / heads / seq, n / heads % seq, n % heads);
  };
  parallel(workers, work);
}

template <class Real>
void combine(const Combine& c) {
  each_row(c.to, [&](int64_t b, int64_t s, int64_t h) {
    char* to = row_address(c.to, b, s, h);
    const char* from = c.factor != 0.f ? row_address(c.from, b, s, h) : nullptr;
    for (int first = 0; first < c.to.extent.dim; first += kChunk) {
      const int n = std::min(kChunk, c.to.extent.dim - first);
      Real sum[kChunk], x[kChunk];
      std::fill_n(sum, n, Real(c.constant));
      if (from) {
        read(from, c.from.dtype, first, n, x);
        for (int d = 0; d < n; ++d) sum[d] += Real(c.factor) * x[d];
      }
      if (c.keep != 0.f) {
        read(to, c.to.dtype, first, n, x);
        for (int d = 0; d < n; ++d) sum[d] += Real(c.keep) * x[d];
      }
      write(sum, c.to.dtype, first, n, to);
    }
  });
}

// Fast path for plain rounding of f32 rows, by the instruction set's own loop.
bool narrowed(const Combine& c) {
  if (c.constant != 0.f || c.factor != 1.f || c.keep != 0.f || c.from.dtype != DType::f32) return false;
  const CpuKernels* const m = best_kernels(c.to.dtype, this_cpu().features);
  if (!m) return false;
  each_row(c.to, [&](int64_t b, int64_t s, int64_t h) {
    m->narrow(reinterpret_cast<const float*>(row_address(c.from, b, s, h)), c.to.extent.dim,
              row_address(c.to, b, s, h));
  });
  return true;
}

Status combine(const Combine& c, void* stream) {
  if (!rows_of(c.to) || !c.to.extent.dim) return Status::good();
  if (c.to.device == DeviceKind::cuda) return cuda::combine(c, stream);
  const bool f64 = c.to.dtype == DType::f64 || (c.factor != 0.f && c.from.dtype == DType::f64);
  if (f64) combine<double>(c);
  else if (!narrowed(c)) combine<float>(c);
  return Status::good();
}

void merge_rows(const Merge& m) {
  each_row(m.out, [&](int64_t b, int64_t s, int64_t h) {
    float& running = *view<float>(m.lse).row(b, s, h);
    const Share share = attune::merge(running, *view<const float>(m.partial_lse).row(b, s, h));
    running = share.lse;
    float* out = view<float>(m.out).row(b, s, h);
    const char* partial = row_address(m.partial_out, b, s, h);
    for (int first = 0; first < m.out.extent.dim; first += kChunk) {
      const int n = std::min(kChunk, m.out.extent.dim - first);
      float x[kChunk] = {};
      if (share.b != 0.f) read(partial, m.partial_out.dtype, first, n, x);
      for (int d = 0; d < n; ++d)
        out[first + d] = (share.a == 0.f ? 0.f : out[first + d] * share.a) + x[d] * share.b;
    }
  });
}

Status merge_all(const Merge& m, void* stream) {
  if (!rows_of(m.out)) return Status::good();
  if (m.out.device == DeviceKind::cuda) return cuda::merge(m, stream);
  merge_rows(m);
  return Status::good();
}

}  // namespace

Status fill(const Tensor& to, float value, void* stream) {
  if (!is_floating(to.dtype)) return Status::no("fill: dtype ", name(to.dtype), " is not a floating-point type");
  return combine({.to = to, .constant = value}, stream);
}

Status convert(const Tensor& from, const Tensor& to, void* stream) { return scale_add(from, 1.f, to, 0.f, stream); }
Status add(const Tensor& from, const Tensor& to, void* stream) { return scale_add(from, 1.f, to, 1.f, stream); }

Status scale_add(const Tensor& from, float factor, const Tensor& to, float keep, void* stream) {
  if (Status s = matches("scale_add", from, to, to.extent.dim); !s.ok()) return s;
  if (!is_floating(to.dtype)) return Status::no("scale_add: dtype ", name(to.dtype), " is not a floating-point type");
  return combine({.from = broadcast(from), .to = to, .factor = factor, .keep = keep}, stream);
}

Status merge(const Tensor& partial_out, const Tensor& partial_lse, const Tensor& out, const Tensor& lse, void* stream) {
  if ((out.data && out.dtype != DType::f32) || lse.dtype != DType::f32 || partial_lse.dtype != DType::f32)
    return Status::no("merge: out ", name(out.data ? out.dtype : DType::f32), ", lse ", name(lse.dtype), " and ",
                      name(partial_lse.dtype), " given; all must be f32");
  if (!out.data) {  // rows without elements, in the layout of lse
    Tensor none = lse;
    none.extent.dim = 0;
    if (Status s = matches("merge", partial_lse, lse, 1); !s.ok()) return s;
    return merge_all({none, broadcast(partial_lse), none, lse}, stream);
  }
  if (Status s = matches("merge", partial_out, out, out.extent.dim); !s.ok()) return s;
  for (const Tensor& t : {partial_lse, lse})
    if (Status s = matches("merge", t, out, 1); !s.ok()) return s;
  const Merge m{broadcast(partial_out), broadcast(partial_lse), out, lse};
  return merge_all(m, stream);
}

}  // namespace attune
