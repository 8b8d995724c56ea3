// SPDX-License-Identifier: Apache-2.0
// cuBLASLt is column-major: the row-major [m, n] = x y is its [n, m] = y' x', so its A is our y and its B our x.
#include "machine/cuda/blas.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <type_traits>
#include <unordered_map>

#include "machine/library.h"

namespace attune::cuda {
namespace {

// From cublasLt.h and library_types.h, unchanged since CUDA 11.
constexpr int kReal32 = 0, kReal16 = 2, kRealB16 = 14;  // cudaDataType
constexpr int kCompute32 = 68, kComputeTf32 = 77;       // cublasComputeType_t
constexpr int kTransposeA = 3, kTransposeB = 4;         // cublasLtMatmulDescAttributes_t
constexpr int kBatchCount = 5, kBatchStep = 6;          // cublasLtMatrixLayoutAttribute_t
constexpr int kMostScratch = 1, kAlignmentOfA = 5;      // cublasLtMatmulPreferenceAttributes_t; B, C, D follow
constexpr int kTransposed = 1;
constexpr int kAllocFailed = 3;                         // cublasStatus_t

struct Algorithm { uint64_t data[8]; };
struct Heuristic {
  Algorithm algorithm;
  size_t scratch;
  int state;
  float waves;
  int reserved[4];
};

using Handle = void*;
using Descriptor = void*;
using Setter = int(Descriptor, int, const void*, size_t);

struct Lt {
  std::string missed{};
  int (*create)(Handle*) = nullptr;
  int (*product_create)(Descriptor*, int compute, int scale) = nullptr;
  int (*layout_create)(Descriptor*, int type, uint64_t rows, uint64_t columns, int64_t pitch) = nullptr;
  int (*preference_create)(Descriptor*) = nullptr;
  int (*preference_destroy)(Descriptor) = nullptr;
  Setter *product_set = nullptr, *layout_set = nullptr, *preference_set = nullptr;
  int (*choose)(Handle, Descriptor product, Descriptor a, Descriptor b, Descriptor c, Descriptor d,
                Descriptor preference, int wanted, Heuristic*, int* found) = nullptr;
  int (*run)(Handle, Descriptor product, const void* alpha, const void* a, Descriptor of_a, const void* b,
             Descriptor of_b, const void* beta, const void* c, Descriptor of_c, void* d, Descriptor of_d,
             const Algorithm*, void* scratch, size_t bytes, void* stream) = nullptr;
  const char* (*text)(int) = nullptr;

  Lt() {
    const Library library({"libcublasLt.so.13", "libcublasLt.so.12"},
                          {"cublasLtCreate", "cublasLtMatmulDescCreate", "cublasLtMatrixLayoutCreate",
                           "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy",
                           "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutSetAttribute",
                           "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul",
                           "cublasLtGetStatusString"});
    missed = library.missed();
    const auto get = [&](auto*& f, const char* name) {
      f = library.function<std::remove_pointer_t<std::remove_reference_t<decltype(f)>>>(name);
    };
    get(create, "cublasLtCreate"), get(product_create, "cublasLtMatmulDescCreate");
    get(layout_create, "cublasLtMatrixLayoutCreate"), get(preference_create, "cublasLtMatmulPreferenceCreate");
    get(preference_destroy, "cublasLtMatmulPreferenceDestroy"), get(product_set, "cublasLtMatmulDescSetAttribute");
    get(layout_set, "cublasLtMatrixLayoutSetAttribute"), get(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    get(choose, "cublasLtMatmulAlgoGetHeuristic"), get(run, "cublasLtMatmul"), get(text, "cublasLtGetStatusString");
  }
};

const Lt& lt() {
  static const Lt opened;
  return opened;
}

Status failed(const char* call, int error, const Product& p) {
  return Status::failure(error == kAllocFailed ? Code::out_of_memory : Code::device, call, ": ", lt().text(error),
                         ", of m ", p.m, ", n ", p.n, ", k ", p.k, ", batch ", p.batch);
}

int type_of(DType t) { return t == DType::f32 ? kReal32 : t == DType::f16 ? kReal16 : kRealB16; }

// A product with its kernel from cuBLASLt. Never evicted: there are as many as shapes in use.
struct Prepared {
  Descriptor product = nullptr, a = nullptr, b = nullptr, to = nullptr;
  Algorithm algorithm{};
  size_t scratch = 0;
};

Status make_layout(const Product& p, Descriptor& out, DType type, int64_t rows, int64_t columns, int64_t pitch,
                   int64_t step) {
  int error = lt().layout_create(&out, type_of(type), uint64_t(rows), uint64_t(columns), pitch);
  if (!error) error = lt().layout_set(out, kBatchCount, &p.batch, sizeof p.batch);
  if (!error) error = lt().layout_set(out, kBatchStep, &step, sizeof step);
  return error ? failed("cublasLtMatrixLayoutCreate", error, p) : Status::good();
}

Status prepare(const Product& p, Handle handle, Prepared& out) {
  const Lt& f = lt();
  int error = f.product_create(&out.product, p.tf32 ? kComputeTf32 : kCompute32, kReal32);
  if (!error && p.y_transposed) error = f.product_set(out.product, kTransposeA, &kTransposed, sizeof kTransposed);
  if (!error && p.x_transposed) error = f.product_set(out.product, kTransposeB, &kTransposed, sizeof kTransposed);
  if (error) return failed("cublasLtMatmulDescCreate", error, p);
  const int64_t y_rows = p.y_transposed ? p.k : p.n, y_columns = p.y_transposed ? p.n : p.k;
  const int64_t x_rows = p.x_transposed ? p.m : p.k, x_columns = p.x_transposed ? p.k : p.m;
  if (Status s = make_layout(p, out.a, p.in, y_rows, y_columns, p.pitch_y, p.step_y); !s.ok()) return s;
  if (Status s = make_layout(p, out.b, p.in, x_rows, x_columns, p.pitch_x, p.step_x); !s.ok()) return s;
  if (Status s = make_layout(p, out.to, p.out, p.n, p.m, p.pitch_to, p.step_to); !s.ok()) return s;
  Descriptor preference = nullptr;
  if (error = f.preference_create(&preference); error) return failed("cublasLtMatmulPreferenceCreate", error, p);
  error = f.preference_set(preference, kMostScratch, &kBlasBytes, sizeof kBlasBytes);
  const auto alignment = uint32_t(p.align);
  for (int n = 0; n < 4 && !error; ++n)
    error = f.preference_set(preference, kAlignmentOfA + n, &alignment, sizeof alignment);
  Heuristic best{};
  int found = 0;
  if (!error)
    error = f.choose(handle, out.product, out.a, out.b, out.to, out.to, preference, 1, &best, &found);
  f.preference_destroy(preference);
  if (error || !found) return failed("cublasLtMatmulAlgoGetHeuristic", error ? error : best.state, p);
  out.algorithm = best.algorithm, out.scratch = best.scratch;
  return Status::good();
}

static_assert(std::has_unique_object_representations_v<Product>);
struct SameBytes {
  bool operator()(const Product& a, const Product& b) const { return !std::memcmp(&a, &b, sizeof a); }
};
struct HashOfBytes {
  size_t operator()(const Product& p) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&p), sizeof p});
  }
};

// Handles by device and prepared products, shared by all threads.
struct Cache {
  std::shared_mutex mutex{};
  std::unordered_map<int, Handle> handles{};
  std::unordered_map<Product, std::unique_ptr<const Prepared>, HashOfBytes, SameBytes> products{};

  Status find(const Product& p, Handle& handle, const Prepared*& out) {
    {
      const std::shared_lock reading(mutex);
      if (const auto it = products.find(p); it != products.end()) {
        handle = handles.at(p.device), out = it->second.get();
        return Status::good();
      }
    }
    const std::unique_lock writing(mutex);
    Handle& of_device = handles[p.device];
    if (!of_device)
      if (const int error = lt().create(&of_device); error) return failed("cublasLtCreate", error, p);
    auto& place = products[p];
    if (!place) {
      auto made = std::make_unique<Prepared>();
      if (Status s = prepare(p, of_device, *made); !s.ok()) return products.erase(p), s;
      place = std::move(made);
    }
    handle = of_device, out = place.get();
    return Status::good();
  }
};

}  // namespace

Status blas_found() { return lt().missed.empty() ? Status::good() : Status::unsupported(lt().missed); }

Status multiply(const Product& p, const Factors& f, void* scratch, void* stream) {
  if (Status s = blas_found(); !s.ok()) return s;
  static Cache& cache = *new Cache;  // never destroyed: a thread may still use it at process exit
  Handle handle = nullptr;
  const Prepared* ready = nullptr;
  if (Status s = cache.find(p, handle, ready); !s.ok()) return s;
  const int error = lt().run(handle, ready->product, &f.alpha, f.y, ready->a, f.x, ready->b, &f.beta,
                             f.plus ? f.plus : f.to, ready->to, f.to, ready->to, &ready->algorithm, scratch,
                             ready->scratch, stream);
  return error ? failed("cublasLtMatmul", error, p) : Status::good();
}

}  // namespace attune::cuda
