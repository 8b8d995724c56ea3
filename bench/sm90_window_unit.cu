// One version of the kernel of forward.sm90.band.h for bench/sm90_window.cu, which has two of them in one process: this
// file is compiled once for each, with that version's headers and its own name for the namespace.
#include "bench/sm90_window.h"

#include "attention/forward.sm90.h"
#ifndef BEFORE
#include "attention/forward.sm90.cost.h"
#endif

namespace attune::sm90 {
namespace {

#ifdef BEFORE
template <class T>
using Shape = ForwardShape<T, 128, 128, 64, 3, 2, 4, false, false, false, Lists::none, false, true>;
constexpr int kBoxQ = 192;
#else
template <class T>
using Shape = ForwardShape<T, 128, 128, 64, 3, 4, 5, false, false, false, Lists::none, false, true>;
constexpr int kBoxQ = kTailRows;
#endif

template <class T>
cudaError_t start(const WindowRun& w, const ForwardParams& x, cudaStream_t stream) {
  using C = Shape<T>;
  static const cudaError_t ready = cudaFuncSetAttribute(
      forward_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
  if (ready != cudaSuccess) return ready;
  forward_kernel<C><<<w.units, C::kThreads, C::kSharedBytes, stream>>>(x);
  return cudaGetLastError();
}

}  // namespace
}  // namespace attune::sm90

namespace {

CUtensorMap map_of(const WindowRun& w, void* data, int seq, int heads, int box) {
  static decltype(&cuTensorMapEncodeTiled) encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult how;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &how);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  const cuuint64_t row = w.bhsd ? 128 : 128 * heads, head = w.bhsd ? cuuint64_t(128) * seq : 128;
  const cuuint64_t extent[] = {128, cuuint64_t(seq), cuuint64_t(heads), 1};
  const cuuint64_t stride[] = {row * 2, head * 2, cuuint64_t(128) * seq * heads * 2};
  const cuuint32_t size[] = {64, cuuint32_t(box), 1, 1}, each[] = {1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult r = encode(&map, w.bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, data,
                            extent, stride, size, each, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS) std::printf("a map is refused: error %d\n", int(r)), std::exit(1);
  return map;
}

}  // namespace

cudaError_t NAME(const WindowRun& w, cudaStream_t stream) {
  using namespace attune;
  using namespace attune::sm90;
  static unsigned long long launches = 0;
  ForwardParams x{};
  const int groups = w.heads_q / w.heads_kv, tail = w.tail > 0 ? w.tail : 0;
  x.q = map_of(w, w.q, w.rows, w.heads_q, kBoxQ), x.out = map_of(w, w.out, w.rows, w.heads_q, 16);
  x.k = map_of(w, w.k, w.keys, w.heads_kv, 64), x.v = map_of(w, w.v, w.keys, w.heads_kv, 64);
  x.scale = 1.4426950408889634f / std::sqrt(128.f);
  x.rows = w.rows, x.keys = w.keys, x.heads = x.units = w.heads_q, x.heads_per_key = groups;
  x.packed = 1, x.row_mask = (1 << 28) - 1, x.row_shift = 31;
  x.left = w.left, x.right = w.right, x.offset = w.keys - w.rows;
  x.section_heads = w.section, x.longest_first = true;
  x.epoch = ++launches, x.counters = w.counters;
  x.k_rows = w.keys, x.k_heads = w.heads_kv, x.k_batches = 1;
  x.lse = w.lse, x.lse_stride = {}, x.lse_stride.seq = 1, x.lse_stride.head = w.rows;
  x.dim_v = 128, x.score.kept = 1.f;
#ifndef BEFORE
  x.rows_out = w.out, x.rows_stride = {};
  x.rows_stride.seq = w.bhsd ? 128 : 128 * w.heads_q, x.rows_stride.head = w.bhsd ? int64_t(128) * w.rows : 128;
  if (tail) x.tail_row = w.rows - tail, x.tails = tails_of(tail, w.heads_q);
#endif
  x.tiles_of_unit = (w.rows - tail + 191) / 192;
  return w.bf16 ? start<Bf16>(w, x, stream) : start<F16>(w, x, stream);
}

#ifdef TAIL
int window_tail(const WindowRun& w) {
  using namespace attune;
  Problem p{};
  p.batch = 1, p.heads_q = w.heads_q, p.heads_kv = w.heads_kv, p.len_q = w.rows, p.len_k = w.keys;
  p.dim_qk = p.dim_v = 128;
  p.mask = {.kind = MaskKind::window, .left = w.left, .right = w.right};
  return sm90::tail_rows(p, w.units);
}
#endif
