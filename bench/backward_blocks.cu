// What blocks of sm90_backward do behind their tile of keys, all ways taking turns in one process: as the library has
// it (now), staying with each n-th tile, and with tiles from a counter. Whether each agrees with attention in f32, then
// the time of whole runs, prepare, keys and finish, at d64 and d128, full and causal, of 16384 tokens and 2048 columns.
// A program of its own, which needs no library:
//   nvcc -O3 -std=c++20 --expt-relaxed-constexpr -DATTUNE_CUDA -Isrc -Iinclude --split-compile 0 \
//     -gencode arch=compute_90a,code=sm_90a bench/backward_blocks.cu -o backward_blocks && ./backward_blocks
// `backward_blocks check` times nothing: for compute-sanitizer. Exit code 0 only if all agree.
#include <cuda_bf16.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "attention/backward.sm90.cu"

static void must(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "backward_blocks: %s\n", cudaGetErrorString(code));
  std::exit(1);
}

// What the library has elsewhere: names, maps, launches, prepare and finish. Other kernels are not here.
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
Status map(CUtensorMapDataType type, void* data, const cuuint64_t* extent, const cuuint64_t* stride,
           const cuuint32_t* box, CUtensorMapSwizzle swizzle, CUtensorMap& out) {
  const cuuint32_t each[] = {1, 1, 1, 1};
  void* found = nullptr;
  cudaDriverEntryPointQueryResult how;
  must(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &how));
  const auto encode = reinterpret_cast<decltype(cuTensorMapEncodeTiled)*>(found);
  const CUresult r = encode(&out, type, 4, data, extent, stride, box, each, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return r == CUDA_SUCCESS ? Status::good() : Status::no("cuTensorMapEncodeTiled: ", int(r));
}
Status tensor_map(const Tensor& t, int rows, CUtensorMap& out, int) {
  const auto bytes = [](int64_t stride) { return cuuint64_t(stride ? stride * 2 : 16); };
  const cuuint64_t extent[] = {cuuint64_t(t.extent.dim), cuuint64_t(t.extent.seq), cuuint64_t(t.extent.head),
                               cuuint64_t(t.extent.batch)};
  const cuuint64_t stride[] = {bytes(t.stride.seq), bytes(t.stride.head), bytes(t.stride.batch)};
  const cuuint32_t box[] = {64, cuuint32_t(rows), 1, 1};
  return map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, t.data, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B, out);
}
Status line_map(const float* data, int64_t columns, int rows, int batch, int count, CUtensorMap& out) {
  const cuuint64_t extent[] = {cuuint64_t(columns), cuuint64_t(rows), cuuint64_t(batch), 1};
  const cuuint64_t stride[] = {extent[0] * 4, extent[0] * extent[1] * 4, extent[0] * extent[1] * extent[2] * 4};
  const cuuint32_t box[] = {cuuint32_t(count), 1, 1, 1};
  return map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, const_cast<float*>(data), extent, stride, box,
             CU_TENSOR_MAP_SWIZZLE_NONE, out);
}
Status launch(const Launch& l, const Problem&, const void* params) {
  must(cudaFuncSetAttribute(l.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared_bytes));
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

namespace sm80 {
Kept kept(float, int) { return {}; }
uint64_t next_launch() {
  static uint64_t number = 1;
  return ++number;
}
Status start(const void* kernel, const BackwardParams& x) {
  const int64_t heads = int64_t(x.problem.batch) * x.problem.heads_q;
  const int64_t blocks = heads * (x.padded / kRowsOfPrepare);
  return cuda::launch({.kernel = kernel, .blocks = blocks, .threads = 256, .early = true}, x.problem, &x);
}
Status backward_prepare(std::string_view, const BackwardParams& x, Place, Stream) {
  return start(reinterpret_cast<const void*>(prepare_kernel<Bf16, false>), x);
}
Status backward_finish(std::string_view, const BackwardParams& x, Place, Stream) {
  const auto kernel = x.turned ? finish_kernel<Bf16, true> : finish_kernel<Bf16, false>;
  return start(reinterpret_cast<const void*>(kernel), x);
}
Status backward_clear(std::string_view, const Problem&, const Tensor&, Place, Stream) { return Status::good(); }
}  // namespace sm80

// A way: what blocks do behind their tile, and queries of a step.
struct Way {
  const char* name;
  Going going;
  int dim, tile;  // 0: the library's
};
static const Way ways[] = {
    {"now", Going::as_timed, 64, 0},    {"each", Going::each, 64, 128},     {"counted", Going::counted, 64, 128},
    {"now", Going::as_timed, 128, 0},   {"64", Going::as_timed, 128, 64},   {"64 each", Going::each, 128, 64},
    {"64 counted", Going::counted, 128, 64}, {"80", Going::as_timed, 128, 80}, {"80 each", Going::each, 128, 80},
    {"80 counted", Going::counted, 128, 80}};
namespace sm90 {
template <int Dim, int TileQ, Stay How>
BackwardKernel one() {
  using B = BackwardShape<Bf16, Dim, TileQ, Dim == 64, false, false, false, false, How>;
  return {Dim, B::kWide, TileQ, B::kTileK, B::kThreads, B::kSharedBytes, {backward_function<B>, backward_function<B>}};
}
template <int Dim, int TileQ>
BackwardKernels& kernels() {
  static BackwardKernels all{};
  all.plain[0] = one<Dim, TileQ, Stay::no>(), all.staying[0] = one<Dim, TileQ, Stay::each>();
  all.counted = one<Dim, TileQ, Stay::counted>();
  return all;
}
BackwardKernels& backward_kernels_64() { return kernels<64, 128>(); }
BackwardKernels& backward_kernels_128() { return kernels<128, 64>(); }
BackwardKernel& backward_kernel_96() { std::abort(); }
BackwardKernel& backward_kernel_128_turned() {
  static BackwardKernel kernel = one<128, 80, Stay::no>();
  return kernel;
}
BackwardKernel& backward_kernel_128_turned_counted() {
  static BackwardKernel kernel = one<128, 80, Stay::counted>();
  return kernel;
}
Status join_key_parts(std::string_view, const Problem&, const KeyPartsParams&, int, void*) { return Status::good(); }
Status make_key_table(std::string_view, const KeyTableParams&, int, Stream) { return Status::good(); }
Status any_run(std::string_view, const Plan&, const Args&, Workspace, Stream) { return Status::good(); }
Status any_fits(std::string_view, const Plan&, const Args&) { return Status::good(); }
Status wide_run(std::string_view, const Plan&, const Args&, Workspace, Stream) { return Status::good(); }
Status any_shape(std::string_view, Plan&) { return Status::good(); }
}  // namespace sm90

namespace {

using B = __nv_bfloat16;
struct Sizes { int batch, heads, heads_kv, q, k, dim; bool causal, by_head; };

// Attention in f32, a block for a row: [batch, row, head, column], keys' gradients by a block for a key.
struct Plain {
  const B *q, *k, *v, *d_out;
  B* out;
  float *lse, *delta, *dq, *dk, *dv;
  Sizes n;
  float scale;
  __device__ int64_t row(int b, int s, int h, int rows, int heads) const {
    return (n.by_head ? (int64_t(b) * heads + h) * rows + s : (int64_t(b) * rows + s) * heads + h) * n.dim;
  }
};
__device__ float dot(const B* a, const B* b, int dim) {
  float sum = 0.f;
  for (int d = 0; d < dim; ++d) sum += __bfloat162float(a[d]) * __bfloat162float(b[d]);
  return sum;
}
__device__ float sum_of_block(float x) {
  __shared__ float all[128];
  __syncthreads();
  all[threadIdx.x] = x;
  for (int n = 64; n; n /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < n) all[threadIdx.x] += all[threadIdx.x + n];
  }
  __syncthreads();
  return all[0];
}
// Scores of these sizes are small: no maximum.
__global__ void plain_rows(const Plain x) {
  extern __shared__ float weights[];
  const int i = blockIdx.x % x.n.q, h = blockIdx.x / x.n.q % x.n.heads, b = blockIdx.x / x.n.q / x.n.heads;
  const int hk = h / (x.n.heads / x.n.heads_kv), d = threadIdx.x;
  const int keys = x.n.causal ? max(min(i + 1 + x.n.k - x.n.q, x.n.k), 0) : x.n.k;
  const int64_t at = x.row(b, i, h, x.n.q, x.n.heads);
  float sum = 0.f;
  for (int j = d; j < keys; j += 128)
    sum += weights[j] = expf(x.scale * dot(x.q + at, x.k + x.row(b, j, hk, x.n.k, x.n.heads_kv), x.n.dim));
  sum = sum_of_block(sum);
  float out = 0.f;
  for (int j = 0; j < keys && d < x.n.dim; ++j)
    out += weights[j] / sum * __bfloat162float(x.v[x.row(b, j, hk, x.n.k, x.n.heads_kv) + d]);
  if (d < x.n.dim) x.out[at + d] = __float2bfloat16(out);
  const float delta =
      sum_of_block(d < x.n.dim ? __bfloat162float(x.out[at + d]) * __bfloat162float(x.d_out[at + d]) : 0.f);
  const int64_t r = (int64_t(b) * x.n.heads + h) * x.n.q + i;
  if (d == 0) x.lse[r] = logf(sum), x.delta[r] = delta;
  for (int j = d; j < keys; j += 128)
    weights[j] *= (dot(x.d_out + at, x.v + x.row(b, j, hk, x.n.k, x.n.heads_kv), x.n.dim) - delta) / sum;
  __syncthreads();
  float dq = 0.f;
  if (d >= x.n.dim) return;
  for (int j = 0; j < keys; ++j) dq += weights[j] * __bfloat162float(x.k[x.row(b, j, hk, x.n.k, x.n.heads_kv) + d]);
  x.dq[at + d] = dq * x.scale;
}
__global__ void plain_keys(const Plain x) {
  extern __shared__ float weights[];  // [q], then dS
  const int j = blockIdx.x % x.n.k, hk = blockIdx.x / x.n.k % x.n.heads_kv, b = blockIdx.x / x.n.k / x.n.heads_kv;
  const int group = x.n.heads / x.n.heads_kv, d = threadIdx.x;
  const int64_t at = x.row(b, j, hk, x.n.k, x.n.heads_kv);
  float dk = 0.f, dv = 0.f;
  for (int h = hk * group; h < (hk + 1) * group; ++h) {
    __syncthreads();
    for (int i = d; i < x.n.q; i += 128) {
      const int64_t to = x.row(b, i, h, x.n.q, x.n.heads), r = (int64_t(b) * x.n.heads + h) * x.n.q + i;
      const bool seen = !x.n.causal || j <= i + x.n.k - x.n.q;
      const float p = seen ? expf(x.scale * dot(x.q + to, x.k + at, x.n.dim) - x.lse[r]) : 0.f;
      weights[i] = p, weights[x.n.q + i] = seen ? p * (dot(x.d_out + to, x.v + at, x.n.dim) - x.delta[r]) : 0.f;
    }
    __syncthreads();
    for (int i = 0; i < x.n.q && d < x.n.dim; ++i) {
      const int64_t to = x.row(b, i, h, x.n.q, x.n.heads) + d;
      dv += weights[i] * __bfloat162float(x.d_out[to]), dk += weights[x.n.q + i] * __bfloat162float(x.q[to]);
    }
  }
  if (d < x.n.dim) x.dk[at + d] = dk * x.scale, x.dv[at + d] = dv;
}
__global__ void fill(B* to, int64_t count, uint32_t seed, float size) {
  for (int64_t n = blockIdx.x * 256ll + threadIdx.x; n < count; n += gridDim.x * 256ll) {
    uint32_t x = uint32_t(n) * 2654435761u ^ seed * 0x9E3779B9u;
    x ^= x >> 15, x *= 0x2C1B3C6Du, x ^= x >> 12, x *= 0x297A2D39u, x ^= x >> 15;
    to[n] = __float2bfloat16((float(x) / 2147483648.f - 1.f) * size);
  }
}
__global__ void compare(const B* got, const float* wanted, int64_t count, double* sums) {
  double square = 0, error = 0;
  for (int64_t n = blockIdx.x * 256ll + threadIdx.x; n < count; n += gridDim.x * 256ll) {
    const double w = wanted[n], e = double(__bfloat162float(got[n])) - w;
    square += w * w, error += e == e ? e * e : INFINITY;
  }
  atomicAdd(sums, square), atomicAdd(sums + 1, error);
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
  B *q, *k, *v, *d_out, *out, *dq, *dk, *dv;
  float* lse;
  Problem p{};
  Args a{};
  std::byte* memory = nullptr;
  size_t bytes = 0;

  explicit Case(Sizes sizes) : n(sizes) {
    of_q = size_t(n.batch) * size_t(n.heads) * size_t(n.q) * size_t(n.dim);
    of_k = size_t(n.batch) * size_t(n.heads_kv) * size_t(n.k) * size_t(n.dim);
    for (B** t : {&q, &d_out, &out, &dq}) *t = room<B>(of_q);
    for (B** t : {&k, &v, &dk, &dv}) *t = room<B>(of_k);
    lse = room<float>(of_q / size_t(n.dim));
    fill<<<1024, 256>>>(q, int64_t(of_q), 1, 1.7f), fill<<<1024, 256>>>(d_out, int64_t(of_q), 2, 1.f);
    fill<<<1024, 256>>>(k, int64_t(of_k), 3, 1.7f), fill<<<1024, 256>>>(v, int64_t(of_k), 4, 1.f);
    p.pass = Pass::backward, p.dtype = {DType::bf16, DType::bf16, DType::bf16, DType::bf16, DType::none};
    p.batch = n.batch, p.heads_q = n.heads, p.heads_kv = n.heads_kv, p.len_q = n.q, p.len_k = n.k;
    p.dim_qk = p.dim_v = n.dim;
    if (n.causal) p.mask.kind = MaskKind::causal;
    const auto tensor = [&](Role r, B* data, int rows, int heads) {
      const int64_t line = n.dim;
      a[r] = {data, DType::bf16, DeviceKind::cuda, 0, {n.batch, rows, heads, n.dim},
              {line * rows * heads, n.by_head ? line : line * heads, n.by_head ? line * rows : line}};
    };
    tensor(Role::q, q, n.q, n.heads), tensor(Role::d_out, d_out, n.q, n.heads), tensor(Role::out, out, n.q, n.heads);
    tensor(Role::dq, dq, n.q, n.heads), tensor(Role::k, k, n.k, n.heads_kv), tensor(Role::v, v, n.k, n.heads_kv);
    tensor(Role::dk, dk, n.k, n.heads_kv), tensor(Role::dv, dv, n.k, n.heads_kv);
    a[Role::lse] = {lse, DType::f32, DeviceKind::cuda, 0, {n.batch, n.q, n.heads, 1},
                    {int64_t(n.heads) * n.q, 1, n.q}};
    bytes = size_t(n.batch) * size_t(n.heads) * (size_t(n.q) + 256) * size_t(4 * n.dim + 8) + (1 << 20);
    memory = room<std::byte>(bytes);
  }
  ~Case() {
    for (void* t : {(void*)q, (void*)k, (void*)v, (void*)d_out, (void*)out, (void*)dq, (void*)dk, (void*)dv,
                    (void*)lse, (void*)memory})
      cudaFree(t);
  }
  // The plan is made as the library makes it, but for its tile and what blocks do.
  void run(const Way& way) const {
    Plan plan;
    plan.problem = p, plan.device = {.kind = DeviceKind::cuda, .arch = 90, .units = 132};
    const bool turned = way.tile ? way.tile == kTurned : turns(p);
    plan.tile_q = turned ? kTurned : n.dim == 64 ? 128 : 64, plan.tile_k = 128, plan.splits = 1;
    plan.kernel = kGoing * int(way.going);
    Workspace count;
    carve(count, p, kernel_of(p, {.lengths = false, .in_order = false, .turned = turned}), 1);
    if (count.used > bytes) std::fprintf(stderr, "the workspace is too small\n"), exit(1);
    if (const Status s = Run(plan, a, Workspace{memory}, nullptr).run(); !s.ok())
      std::fprintf(stderr, "%s\n", s.message.c_str()), exit(1);
  }
};

bool agrees(Sizes n) {
  const Case c(n);
  float *dq = room<float>(c.of_q), *dk = room<float>(c.of_k), *dv = room<float>(c.of_k),
        *delta = room<float>(c.of_q / size_t(n.dim));
  const Plain plain{c.q, c.k, c.v, c.d_out, c.out, c.lse, delta, dq, dk, dv, n, 1.f / std::sqrt(float(n.dim))};
  plain_rows<<<n.batch * n.heads * n.q, 128, n.k * 4>>>(plain);
  plain_keys<<<n.batch * n.heads_kv * n.k, 128, n.q * 8>>>(plain);
  must(cudaDeviceSynchronize());
  double* sums = room<double>(6);
  double first[3] = {};
  bool good = true;
  std::printf("b%d h%d/%d q%d k%d d%d%s%s: error of dq, dk, dv\n", n.batch, n.heads, n.heads_kv, n.q, n.k, n.dim,
              n.causal ? " causal" : "", n.by_head ? " bhsd" : "");
  for (const Way& way : ways) {
    if (way.dim != n.dim) continue;
    double error[3], got[6];
    for (int again = 0; again < 2; ++again) {  // the second time counts and sums are those of the first
      for (const auto& [t, count] : {std::pair{c.dq, c.of_q}, {c.dk, c.of_k}, {c.dv, c.of_k}})
        must(cudaMemset(t, 0xFF, count * 2));
      c.run(way);
    }
    must(cudaMemset(sums, 0, 48));
    compare<<<64, 256>>>(c.dq, dq, int64_t(c.of_q), sums);
    compare<<<64, 256>>>(c.dk, dk, int64_t(c.of_k), sums + 2);
    compare<<<64, 256>>>(c.dv, dv, int64_t(c.of_k), sums + 4);
    must(cudaMemcpy(got, sums, 48, cudaMemcpyDeviceToHost));
    bool fine = true;
    for (int t = 0; t < 3; ++t) {
      error[t] = std::sqrt(got[2 * t + 1] / got[2 * t]);
      if (first[t] == 0) first[t] = error[t];
      fine &= error[t] < 1.1 * first[t] + 1e-6 && error[t] < 0.01;
    }
    std::printf("  %-28s %.5f %.5f %.5f: %s\n", way.name, error[0], error[1], error[2], fine ? "good" : "BAD");
    good &= fine;
  }
  for (void* t : {(void*)dq, (void*)dk, (void*)dv, (void*)delta, (void*)sums}) cudaFree(t);
  return good;
}

// Medians of whole runs, and what each is of the first.
void time(int dim, int len, bool causal) {
  const int heads = 2048 / dim;
  const Case c({16384 / len, heads, heads, len, len, dim, causal, false});
  fill<<<1024, 256>>>(c.out, int64_t(c.of_q), 5, 0.1f);
  const std::vector<float> sums(c.of_q / size_t(dim), std::log(float(len)) + 0.5f);
  must(cudaMemcpy(c.lse, sums.data(), sums.size() * 4, cudaMemcpyHostToDevice));
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin)), must(cudaEventCreate(&end));
  std::vector<const Way*> all;
  for (const Way& way : ways)
    if (way.dim == dim) all.push_back(&way);
  std::vector<std::vector<float>> ms(all.size());
  const int rounds = len < 8192 ? 15 : 9;
  for (int n = 0; n < rounds; ++n)
    for (size_t w = 0; w < all.size(); ++w) {
      must(cudaDeviceSynchronize());
      usleep(2000);
      must(cudaEventRecord(begin));
      c.run(*all[w]);
      must(cudaEventRecord(end)), must(cudaEventSynchronize(end));
      float x;
      must(cudaEventElapsedTime(&x, begin, end));
      if (n > 0) ms[w].push_back(x);
    }
  const double flop = 10. * 16384 * len * 2048 * (causal ? 0.5 : 1.);
  std::printf("d%d %d %s:", dim, len, causal ? "causal" : "full");
  double first = 0;
  for (size_t w = 0; w < all.size(); ++w) {
    std::sort(ms[w].begin(), ms[w].end());
    const double us = 1000. * ms[w][ms[w].size() / 2];
    if (w == 0) first = us;
    std::printf(" | %s %.0f us %.0f T %.3f", all[w]->name, us, flop / us * 1e-6, first / us);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace attune

int main(int count, char** words) {
  using attune::agrees;
  must(cudaFree(nullptr));
  bool good = true;
  for (const int dim : {128, 64})
    for (const bool causal : {true, false}) {
      good &= agrees({1, 2, 2, 300, 300, dim, causal, false});
      good &= agrees({2, 4, 2, 700, 1060, dim, causal, true});    // heads that share keys, ends within tiles
      good &= agrees({3, 40, 40, 512, 512, dim, causal, false});  // blocks that stay
      good &= agrees({1, 24, 24, 1040, 1500, dim, causal, false});
      std::fflush(stdout);
    }
  if (good && !(count > 1 && !std::strcmp(words[1], "check")))
    for (const bool causal : {true, false})
      for (const int dim : {128, 64})
        for (const int len : {512, 1024, 2048, 4096, 8192, 16384}) attune::time(dim, len, causal);
  return good ? 0 : 1;
}
