// SPDX-License-Identifier: Apache-2.0
// Reads the mask, divides the call into tasks, runs them and merges splits.
#include "plugins/ggml/attention.h"

#include <utility>

#include "machine/host.h"
#include "plugins/ggml/call.h"
#include "plugins/ggml/workers.h"

namespace attune::ggml {
namespace {

// Relative costs of a key, from measurements at d128: a row of a panel, packing, and one of four rows read in place.
constexpr double kPanelRow = 1.0, kPacking = 5.0, kDecodeRow = 1.5;
constexpr int64_t kAlone = 1 << 16;  // numbers of a mask that one worker reads faster than several

const CpuKernels& reads(const CpuKernels& m, Stored stored) {
  const DType dtype = stored == Stored::f16 ? DType::f16 : stored == Stored::bf16 ? DType::bf16 : DType::f32;
  return *best_kernels(dtype, m.needs);  // of the same instruction set, with f32 operands
}

struct Shape {
  bool decode;
  int rows = 0;                // of a task
  int64_t blocks, splits = 1;  // tasks of a sequence and key head; splits of their keys
};

Scratch carve(Workspace& ws, const Attention& a, const CpuKernels& m, const Shape& shape) {
  const size_t rows = size_t(shape.decode ? a.group() : shape.rows), tile = size_t(m.tile);
  const size_t dim_qk = size_t(a.q.dim), dim_v = size_t(a.v.dim);
  return {.q = ws.take<std::byte>(rows * dim_qk * sizeof(float)),
          .k = ws.take<std::byte>(tile * dim_qk * sizeof(float)),
          .v = ws.take<std::byte>(tile * dim_v * sizeof(float)),
          .p = ws.take<std::byte>(tile * size_t(m.rows) * sizeof(float)),
          .o = ws.take<float>(rows * dim_v),
          .s = ws.take<float>(std::max(tile * size_t(m.rows), tile * rows)),
          .plain = ws.take<float>(tile * size_t(m.rows)),
          .ref = ws.take<float>(rows),
          .sum = ws.take<float>(rows),
          .row = ws.take<float>(size_t(m.rows) * dim_v),
          .numbers = ws.take<float>(tile),
          .widened = ws.take<float>(tile * std::max(dim_qk, dim_v)),
          .rows = ws.take<const void*>(tile)};
}

// Few rows, or rows that see few of the keys that others see, read keys in place.
bool is_decode(const Attention& a, const CpuKernels& m, const MaskMap& map) {
  if (!m.row_scores) return false;
  const double rows = double(a.len_q) * a.group(), padded = double(round_up(a.len_q * int64_t(a.group()), m.rows));
  double seen = double(a.len_q) * a.len_k, any = a.len_k;
  if (a.mask.data && kDecodeRow * rows > kPacking + kPanelRow * padded) {
    if (a.len_q > 8 * m.rows) return false;  // such a mask would have to hide nearly everything
    seen = any = 0;
    for (int t = 0; t < map.tiles(); ++t) {
      bool some = false;
      for (int i = 0; i < a.len_q; ++i) seen += map.part(0, i, t).seen, some |= map.part(0, i, t).seen > 0;
      any += some ? map.keys(t) : 0;
    }
  }
  return kDecodeRow * seen * a.group() <= any * (kPacking + kPanelRow * padded);
}

Shape shape_of(const Attention& a, const CpuKernels& m, const MaskMap& map, int threads) {
  Shape to{.decode = is_decode(a, m, map), .blocks = a.len_q};
  const int64_t sets = int64_t(a.batch) * a.heads_kv, rows = int64_t(a.len_q) * a.group(), tiles = map.tiles();
  if (!to.decode) {
    to.blocks = (rows + kTaskRows - 1) / kTaskRows;
    while (sets * to.blocks < 4 * threads && rows / (to.blocks + 1) >= 8 * m.rows) ++to.blocks;
    to.rows = int(round_up((rows + to.blocks - 1) / to.blocks, m.rows));
    to.blocks = (rows + to.rows - 1) / to.rows;
  }
  const int64_t tasks = sets * to.blocks, wanted = to.decode ? 4 * threads : 2 * threads;
  if (threads > 1 && tasks < (to.decode ? 4 : 1) * int64_t(threads) && tasks % threads)
    to.splits = std::clamp<int64_t>((wanted + tasks - 1) / tasks, 1, std::max<int64_t>(1, tiles / 2));
  return to;
}

}  // namespace

Memory::~Memory() { free_scratch(data_); }
std::byte* Memory::take(size_t bytes) {
  if (bytes <= bytes_) return data_;
  free_scratch(data_);
  data_ = static_cast<std::byte*>(take_scratch(bytes));
  bytes_ = data_ ? bytes : 0;
  return data_;
}

float Attention::slope(int head) const {
  if (max_bias <= 0.f) return 1.f;
  const int power = 1 << int(std::floor(std::log2(float(heads_q))));
  if (head < power) return std::pow(std::exp2(-max_bias / float(power)), float(head + 1));
  return std::pow(std::exp2(-max_bias / 2.f / float(power)), float(2 * (head - power) + 1));
}

bool takes(int dim_qk, Stored k, int dim_v, Stored v) {
  const auto fits = [](int dim, Stored t) {
    return dim > 0 && dim <= kMaxDim && dim % (is_quantized(t) ? kBlock : 8) == 0;
  };
  return fits(dim_qk, k) && fits(dim_v, v);
}

void Call::cap(float* x, int n) const {
  if (!m.row_weights) {
    for (int j = 0; j < n; ++j) x[j] = a.softcap * kLog2e * std::tanh(x[j]);
    return;
  }
  for (int j = 0; j < n; ++j) x[j] *= 2.f * kLog2e;
  m.row_weights(x, n, 0.f);
  const float most = a.softcap * kLog2e;
  for (int j = 0; j < n; ++j) x[j] = most - 2.f * most / (x[j] + 1.f);
}

void Call::merge(int64_t row) const {
  float top = -INFINITY, sum = 0.f;
  for (int s = 0; s < splits; ++s) top = std::max(top, partial.ref[s * rows() + row]);
  float* to = reinterpret_cast<float*>(a.out.data) + row * a.v.dim;
  std::fill_n(to, a.v.dim, 0.f);
  for (int s = 0; s < splits; ++s) {
    const int64_t at = s * rows() + row;
    if (partial.ref[at] == -INFINITY && partial.sum[at] == 0.f) continue;
    const float share = std::exp2(partial.ref[at] - top);
    sum += partial.sum[at] * share;
    for (int d = 0; d < a.v.dim; ++d) to[d] += partial.o[at * a.v.dim + d] * share;
  }
  const float by = factor(int(row % a.heads_q), top, sum);
  for (int d = 0; d < a.v.dim; ++d) to[d] *= by;
}

bool attend(const Attention& a, const Device& cpu, int threads, Memories& memory) {
  const CpuKernels& m = *best_kernels(DType::f32, cpu.features);
  Workspace map_room;
  MaskMap(a, m.tile, map_room);
  map_room = {memory.map.take(map_room.used + 1)};
  if (!map_room.data) return false;
  MaskMap map(a, m.tile, map_room);
  const bool alone = int64_t(map.queries()) * a.len_k <= kAlone;
  each_task(alone ? 1 : threads, map.queries(), [&](int, int64_t n) { map.read(int(n)); });

  const Shape shape = shape_of(a, m, map, threads);
  const int64_t tasks = int64_t(a.batch) * a.heads_kv * shape.blocks, rows = int64_t(a.batch) * a.len_q * a.heads_q;
  const auto place = [&](Workspace& ws) {
    const size_t parts = shape.splits > 1 ? size_t(shape.splits * rows) : 0;
    return std::pair(Partial{ws.take<float>(parts * size_t(a.v.dim)), ws.take<float>(parts), ws.take<float>(parts)},
                     ws.take<float>(size_t(a.heads_q)));
  };
  Workspace ws, own;
  place(ws);
  carve(own, a, m, shape);
  const size_t shared = (ws.used + 4095) / 4096 * 4096, each = (own.used + 4095) / 4096 * 4096;
  std::byte* const room = memory.scratch.take(shared + each * size_t(threads));
  if (!room) return false;
  ws = {room};
  const auto [partial, slopes] = place(ws);
  for (int h = 0; h < a.heads_q; ++h) slopes[h] = a.slope(h) * kLog2e;
  const CpuKernels &k = reads(m, a.k.stored), &v = reads(m, a.v.stored), &half = reads(m, Stored::f16);
  const Call call{a, m, k, v, half, map, partial, slopes, int(shape.splits)};
  each_task(threads, tasks * shape.splits, [&](int worker, int64_t n) {
    Workspace scratch_room{room + shared + each * size_t(worker)};
    const Scratch x = carve(scratch_room, a, m, shape);
    const int split = int(n % shape.splits), sets = a.batch * a.heads_kv;
    const int set = int(n / shape.splits % sets), block = int(shape.blocks - 1 - n / shape.splits / sets);
    const int b = set / a.heads_kv, head = set % a.heads_kv;
    if (shape.decode) return run_decode(call, x, b, head, block, split);
    const int first = block * shape.rows, count = std::min(shape.rows, a.len_q * a.group() - first);
    run_panels(call, x, b, head, first, count, split);
  });
  if (shape.splits > 1) each_task(threads, rows, [&](int, int64_t n) { call.merge(n); });
  return true;
}

}  // namespace attune::ggml
