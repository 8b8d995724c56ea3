// sm90_forward at d128 with and without first and last steps as code of their own, and lists that wait for their table
// or do not, taking turns in one process. Whether each agrees with attention in f32, then times: full and causal masks
// of 16384 tokens and 2048 columns, and lists of density 0.1. A program of its own, which needs no library:
//   nvcc -O3 -std=c++20 --expt-relaxed-constexpr -DATTUNE_CUDA -Isrc -Iinclude --split-compile 0 \
//     -gencode arch=compute_90a,code=sm_90a bench/forward_ends.cu -o forward_ends && ./forward_ends
// `forward_ends check` times nothing: for compute-sanitizer. Exit code 0 only if all agree.
#include <cuda_bf16.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "attention/forward.sm90.cu"
#include "attention/forward.sm90.table.cu"

static void must(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "forward_ends: %s\n", cudaGetErrorString(code));
  std::exit(1);
}

// What the library has elsewhere: names, maps, launches. Other kernels are not here.
namespace attune {
std::string name(DType) { return ""; }
std::string name(Pass) { return ""; }
std::string name(Option) { return ""; }
std::string name(KeySource) { return ""; }
std::string name(Role) { return ""; }
std::string name(const Mask&) { return ""; }
std::string name(const Problem&) { return ""; }
std::string_view word(const Variant&) { return ""; }

namespace cuda {
Use::Use(int) {}
Use::~Use() {}
Status mappable(std::string_view, Role, const Tensor&) { return Status::good(); }
Status tensor_map(const Tensor& t, int rows, CUtensorMap& out, int heads) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult how;
    must(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &how));
    return reinterpret_cast<decltype(cuTensorMapEncodeTiled)*>(found);
  }();
  const cuuint64_t extent[] = {cuuint64_t(t.extent.dim), cuuint64_t(t.extent.seq), cuuint64_t(t.extent.head),
                               cuuint64_t(t.extent.batch)};
  const cuuint64_t stride[] = {cuuint64_t(t.stride.seq) * 2, cuuint64_t(t.stride.head) * 2,
                               cuuint64_t(t.stride.batch) * 2};
  const cuuint32_t box[] = {64, cuuint32_t(rows), cuuint32_t(heads), 1}, each[] = {1, 1, 1, 1};
  const CUresult r = encode(&out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, t.data, extent, stride, box, each,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return r == CUDA_SUCCESS ? Status::good() : Status::no("cuTensorMapEncodeTiled: ", int(r));
}
Status launch(const Launch& l, const Problem&, const void* params) {
  if (l.shared_bytes && !l.ready->devices) {
    must(cudaFuncSetAttribute(l.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared_bytes));
    l.ready->devices = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(l.blocks)), config.blockDim = dim3(unsigned(l.threads));
  config.dynamicSmemBytes = size_t(l.shared_bytes);
  cudaLaunchAttribute early[2]{};
  early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early[0].val.programmaticStreamSerializationAllowed = 1;
  early[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  early[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  config.attrs = early, config.numAttrs = l.early ? 2 : 0;
  void* all[] = {const_cast<void*>(params)};
  must(cudaLaunchKernelExC(&config, l.kernel, all));
  return Status::good();
}
}  // namespace cuda

namespace sm90 {
template <Lists From>
using Shape = ForwardShape<Bf16, 128, 128, 128, 2, 2, 2, false, false, false, From>;
struct OneStep : Shape<Lists::none> { static constexpr bool kEnds = false; };
struct Waits : Shape<Lists::one> { static constexpr bool kAhead = false; };
template <class B>
ForwardKernel one() {
  return {128,   128,        B::kTileQ,  B::kTileK, B::kThreads,     false, B::kLists,
          false, B::kEither, B::kShares, B::kAhead, B::kSharedBytes, {forward_kernel<B>, forward_kernel<B>}};
}
ForwardKernels forward_kernels_128() {
  static ForwardKernel all[] = {one<OneStep>(), one<Shape<Lists::none>>(), one<Waits>(), one<Shape<Lists::one>>()};
  return all;
}
ForwardKernels forward_kernels_64() { return {}; }
ForwardKernels forward_kernels_96() { return {}; }
ForwardKernels forward_kernels_192() { return {}; }
ForwardKernels forward_kernels_256() { return {}; }
ForwardKernels forward_kernels_64_options() { return {}; }
ForwardKernels forward_kernels_128_options() { return {}; }
ForwardKernels forward_kernels_256_options() { return {}; }
ForwardKernels forward_kernels_64_lists() { return {}; }
ForwardKernels forward_kernels_128_lists() { return {}; }
ForwardKernels forward_kernels_256_lists() { return {}; }
Status few_run(std::string_view, const Plan&, const Args&, Stream) { return Status::good(); }
Status join_parts(std::string_view, const Problem&, const PartsParams&, int, Stream) { return Status::good(); }
}  // namespace sm90

namespace {

enum class Kind { full, causal, window, list };
struct Way { const char* name; int kernel; bool list; };
const Way ways[] = {{"before", 0, false}, {"ends", 1, false}, {"before", 2, true}, {"ahead", 3, true}};
const char* const names[] = {"full", "causal", "window", "lists"};

using B = __nv_bfloat16;
struct Sizes {
  int batch, heads, q, k;
  Kind kind;
  int window;     // keys
  float size = 1.7f;
  double density = 0.1;
};

// Attention in f32, a block for a row: [batch, row, head, column].
__global__ void plain(const B* q, const B* k, const B* v, float* out, const uint8_t* seen, Sizes n, float scale) {
  extern __shared__ float weights[];
  __shared__ float all[128];
  const int i = blockIdx.x % n.q, h = blockIdx.x / n.q % n.heads, b = blockIdx.x / n.q / n.heads, d = threadIdx.x;
  const int stand = i + n.k - n.q;
  const int to = n.kind == Kind::list || n.kind == Kind::full ? n.k : max(min(stand + 1, n.k), 0);
  const int from = n.kind == Kind::window ? max(stand + 1 - n.window, 0) : 0;
  const int64_t at = ((int64_t(b) * n.q + i) * n.heads + h) * 128;
  const auto row_k = [&](int j) { return ((int64_t(b) * n.k + j) * n.heads + h) * 128; };
  const int across = (n.k + 127) / 128;
  float top = -INFINITY;
  for (int j = from + d; j < to; j += 128) {
    float sum = 0.f;
    for (int c = 0; c < 128; ++c) sum += __bfloat162float(q[at + c]) * __bfloat162float(k[row_k(j) + c]);
    const bool there = n.kind != Kind::list || seen[((b * n.heads + h) * ((n.q + 127) / 128) + i / 128) * across + j / 128];
    weights[j] = there ? sum * scale : -INFINITY;
    top = fmaxf(top, weights[j]);
  }
  const auto over_block = [&](float mine, auto join) {
    __syncthreads();
    all[d] = mine;
    for (int m = 64; m; m /= 2) {
      __syncthreads();
      if (d < m) all[d] = join(all[d], all[d + m]);
    }
    __syncthreads();
    return all[0];
  };
  top = over_block(top, [](float a, float c) { return fmaxf(a, c); });
  float sum = 0.f;
  for (int j = from + d; j < to; j += 128) sum += weights[j] = top == -INFINITY ? 0.f : expf(weights[j] - top);
  sum = over_block(sum, [](float a, float c) { return a + c; });
  float y = 0.f;
  for (int j = from; j < to; ++j) y += weights[j] * __bfloat162float(v[row_k(j) + d]);
  out[at + d] = sum > 0.f ? y / sum : 0.f;
}
__global__ void fill(B* to, int64_t count, uint32_t seed, float size) {
  for (int64_t n = blockIdx.x * 256ll + threadIdx.x; n < count; n += gridDim.x * 256ll) {
    uint32_t x = uint32_t(n) * 2654435761u ^ seed * 0x9E3779B9u;
    x ^= x >> 15, x *= 0x2C1B3C6Du, x ^= x >> 12, x *= 0x297A2D39u, x ^= x >> 15;
    to[n] = __float2bfloat16((float(x) / 2147483648.f - 1.f) * size);
  }
}
__global__ void compare(const B* got, const float* wanted, const B* other, int64_t count, double* sums) {
  double square = 0, error = 0, differ = 0;
  for (int64_t n = blockIdx.x * 256ll + threadIdx.x; n < count; n += gridDim.x * 256ll) {
    const double w = wanted[n], e = double(__bfloat162float(got[n])) - w;
    square += w * w, error += e == e ? e * e : INFINITY;
    differ += __bfloat162float(got[n]) != __bfloat162float(other[n]);
  }
  atomicAdd(sums, square), atomicAdd(sums + 1, error), atomicAdd(sums + 2, differ);
}

template <class T>
T* room(size_t count) {
  T* p = nullptr;
  must(cudaMalloc(&p, count * sizeof(T)));
  must(cudaMemset(p, 0xFF, count * sizeof(T)));  // no numbers
  return p;
}

// Tensors of one problem.
struct Case {
  Sizes n;
  size_t of_q, of_k;
  B *q, *k, *v, *out;
  uint8_t* seen = nullptr;
  int *begin = nullptr, *column = nullptr;
  Problem p{};
  Args a{};
  std::byte* memory = nullptr;

  explicit Case(Sizes sizes) : n(sizes) {
    of_q = size_t(n.batch) * size_t(n.heads) * size_t(n.q) * 128;
    of_k = size_t(n.batch) * size_t(n.heads) * size_t(n.k) * 128;
    for (B** t : {&q, &out}) *t = room<B>(of_q);
    for (B** t : {&k, &v}) *t = room<B>(of_k);
    fill<<<1024, 256>>>(q, int64_t(of_q), 1, n.size);
    fill<<<1024, 256>>>(k, int64_t(of_k), 3, 1.7f), fill<<<1024, 256>>>(v, int64_t(of_k), 4, 1.f);
    p.pass = Pass::forward, p.dtype = {DType::bf16, DType::bf16, DType::bf16, DType::bf16, DType::none};
    p.batch = n.batch, p.heads_q = p.heads_kv = n.heads, p.len_q = n.q, p.len_k = n.k, p.dim_qk = p.dim_v = 128;
    p.mask.kind = n.kind == Kind::list || n.kind == Kind::full ? MaskKind::full : n.kind == Kind::window ? MaskKind::window : MaskKind::causal;
    if (n.kind == Kind::window) p.mask.left = n.window - 1;
    const auto tensor = [&](Role r, B* data, int rows) {
      const int64_t line = 128;
      a[r] = {data, DType::bf16, DeviceKind::cuda, 0, {n.batch, rows, n.heads, 128},
              {line * rows * n.heads, line * n.heads, line}};
    };
    tensor(Role::q, q, n.q), tensor(Role::out, out, n.q), tensor(Role::k, k, n.k), tensor(Role::v, v, n.k);
    if (n.kind == Kind::list) make_lists();
    memory = room<std::byte>(8 << 20);
  }
  void make_lists() {
    const int down = (n.q + 127) / 128, across = (n.k + 127) / 128, units = n.batch * n.heads;
    std::vector<int> begins, columns;
    std::vector<uint8_t> there(size_t(units) * size_t(down) * size_t(across));
    std::mt19937 random(1);
    std::uniform_real_distribution<double> from(0, 1);
    for (int u = 0; u < units; ++u)
      for (int r = 0; r <= down; ++r) {
        begins.push_back(int(columns.size()));
        for (int c = 0; r < down && c < across; ++c)
          if (from(random) < n.density) {
            columns.push_back(c);
            there[(size_t(u) * size_t(down) + size_t(r)) * size_t(across) + size_t(c)] = 1;
          }
      }
    seen = room<uint8_t>(there.size()), begin = room<int>(begins.size()), column = room<int>(columns.size() + 1);
    must(cudaMemcpy(seen, there.data(), there.size(), cudaMemcpyHostToDevice));
    must(cudaMemcpy(begin, begins.data(), begins.size() * 4, cudaMemcpyHostToDevice));
    must(cudaMemcpy(column, columns.data(), columns.size() * 4, cudaMemcpyHostToDevice));
    p.mask.blocks = {128, 128, int(columns.size())};
    a[Role::block_begin] = {begin, DType::i32, DeviceKind::cuda, 0, {n.batch, 1, n.heads, down + 1},
                            {int64_t(n.heads) * (down + 1), 0, down + 1}};
    a[Role::block_column] = {column, DType::i32, DeviceKind::cuda, 0, {1, 1, 1, int(columns.size())}, {0, 0, 0}};
  }
  ~Case() {
    for (void* t : {(void*)q, (void*)k, (void*)v, (void*)out, (void*)seen, (void*)begin, (void*)column, (void*)memory})
      cudaFree(t);
  }
  void run(int kernel) const {
    Plan plan;
    const sm90::ForwardKernel& row = sm90::forward_kernels_128()[size_t(kernel)];
    plan.problem = p, plan.device = {.kind = DeviceKind::cuda, .arch = 90, .units = 132};
    plan.tile_q = row.tile_q, plan.tile_k = row.tile_k, plan.splits = 1, plan.kernel = kernel;
    if (const Status s = attune::run(plan, a, Workspace{memory}, nullptr); !s.ok())
      std::fprintf(stderr, "%s\n", s.message.c_str()), exit(1);
  }
};

bool agrees(Sizes n) {
  const Case c(n);
  float* wanted = room<float>(c.of_q);
  B* before = room<B>(c.of_q);
  must(cudaFuncSetAttribute(plain, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
  plain<<<n.batch * n.heads * n.q, 128, n.k * 4>>>(c.q, c.k, c.v, wanted, c.seen, n, 1.f / std::sqrt(128.f));
  must(cudaDeviceSynchronize());
  double* sums = room<double>(3);
  double first = 0;
  bool good = true;
  std::printf("b%d h%d q%d k%d %s%d size %.0f: error, numbers that are not the first's\n", n.batch, n.heads, n.q, n.k,
              names[int(n.kind)], n.window, n.size);
  for (const Way& way : ways) {
    if (way.list != (n.kind == Kind::list)) continue;
    for (int again = 0; again < 2; ++again) {  // the second time the counter is that of the first
      must(cudaMemset(c.out, 0xFF, c.of_q * 2));
      c.run(way.kernel);
    }
    if (first == 0) must(cudaMemcpy(before, c.out, c.of_q * 2, cudaMemcpyDeviceToDevice));
    double got[3];
    must(cudaMemset(sums, 0, 24));
    compare<<<64, 256>>>(c.out, wanted, before, int64_t(c.of_q), sums);
    must(cudaMemcpy(got, sums, 24, cudaMemcpyDeviceToHost));
    const double error = std::sqrt(got[1] / got[0]);
    if (first == 0) first = error;
    const bool fine = error < 1.1 * first + 1e-6 && error < 0.01;
    std::printf("  %-12s %.5f, %.0f: %s\n", way.name, error, got[2], fine ? "good" : "BAD");
    good &= fine;
  }
  for (void* t : {(void*)wanted, (void*)before, (void*)sums}) cudaFree(t);
  return good;
}

// Medians, and what the first's is of each. Cold: other lines are written through the second-level cache before.
void time(Sizes n) {
  constexpr size_t kFlush = 256 << 20;
  static char* const flush = room<char>(kFlush);
  const Case c(n);
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin)), must(cudaEventCreate(&end));
  std::vector<const Way*> all;
  for (const Way& way : ways)
    if (way.list == (n.kind == Kind::list)) all.push_back(&way);
  std::vector<std::vector<float>> us(all.size());
  std::vector<size_t> order(all.size());
  for (size_t w = 0; w < all.size(); ++w) order[w] = w;
  std::mt19937 random(7);
  for (int round = 0; round < 43; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t w : order) {
      must(cudaDeviceSynchronize());
      usleep(4000);
      must(cudaMemsetAsync(flush, round, kFlush));
      must(cudaEventRecord(begin));
      c.run(all[w]->kernel);
      must(cudaEventRecord(end)), must(cudaEventSynchronize(end));
      float x;
      must(cudaEventElapsedTime(&x, begin, end));
      if (round > 2) us[w].push_back(1000.f * x);
    }
  }
  std::printf("b%d h%d %d %s%d:", n.batch, n.heads, n.q,
              names[int(n.kind)], n.window);
  double first = 0;
  for (size_t w = 0; w < all.size(); ++w) {
    std::sort(us[w].begin(), us[w].end());
    const double median = us[w][us[w].size() / 2];
    if (w == 0) first = median;
    std::printf(" | %s %.1f us %.3f", all[w]->name, median, first / median);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace attune

int main(int count, char** words) {
  using namespace attune;
  must(cudaFree(nullptr));
  bool good = true;
  for (const float size : {1.7f, 60.f}) {  // of the second, later scores outgrow the first maximum
    good &= agrees({1, 2, 300, 300, Kind::causal, 0, size});
    good &= agrees({2, 70, 400, 700, Kind::full, 0, size});
    good &= agrees({2, 3, 700, 1060, Kind::causal, 0, size});
    good &= agrees({2, 2, 500, 333, Kind::causal, 0, size});
    good &= agrees({2, 72, 1024, 1024, Kind::causal, 0, size});
    good &= agrees({1, 40, 2048, 2048, Kind::window, 512, size});
    good &= agrees({1, 3, 1500, 2111, Kind::window, 300, size});
    good &= agrees({1, 2, 1300, 1300, Kind::window, 64, size});
    good &= agrees({1, 16, 4096, 4096, Kind::list, 0, size});
    good &= agrees({2, 3, 700, 1060, Kind::list, 0, size, 0.4});
    std::fflush(stdout);
  }
  if (good && !(count > 1 && !std::strcmp(words[1], "check"))) {
    for (const Kind kind : {Kind::causal, Kind::full})
      for (const int len : {512, 1024, 2048, 4096}) attune::time({16384 / len, 16, len, len, kind, 0});
    attune::time({1, 16, 16384, 16384, Kind::list, 0});
  }
  return good ? 0 : 1;
}
