// SPDX-License-Identifier: Apache-2.0
// The MLP of cuda_compress: phi(X) = w2 silu(w1 (X + position) + b1) + b2 over overlapping windows of l tokens. Raw
// tokens are laid out in chunks of d, one row each. Window n is then the chunks n ... n + l / d - 1, and no window is
// copied: rows of the first product overlap. Everything is f32, like the weights.
//   forward   chunks -> hidden = windows w1' -> silu -> tokens = hidden w2' -> out   (gpu/nsa/compress_product.h)
//   backward  the same up to silu; d_w2, d_hidden, d_w1, d_chunks -> dq by cuBLASLt; sums over rows in two stages
#include <algorithm>

#include "attention/gpu/nsa/compress.h"
#include "attention/gpu/nsa/compress_product.h"
#include "machine/cuda/blas.h"

namespace attune::compress {
namespace {

constexpr int kMostRowSplits = 64;
constexpr int64_t kMinBlocks = 64;  // up to this many, each slice of a sum gets its own CTA

int64_t chunks_of_window(const Params& x) { return x.nsa.l / x.nsa.d; }
int64_t chunks_of(const Params& x) { return std::max(1, x.problem.len_q / x.nsa.d); }  // per sequence
int64_t rows_of(const Params& x) { return int64_t(x.problem.heads_kv) * x.problem.batch * chunks_of(x); }
int64_t width_of(const Params& x) { return x.nsa.width(x.problem.dim_qk); }
bool splits_k(const Params& x) {
  return ceil_div(rows_of(x), kTileM) * ceil_div(width_of(x), kTileN) <= kMinBlocks && x.problem.pass == Pass::forward;
}

// Decodes a row of (head, sequence, chunk or token); x.rows is chunks_of.
struct Line { int h, b, i; };
__device__ Line line_of(const Params& x, uint32_t row) {
  const uint32_t sequence_head = x.rows.divide(row), batch = uint32_t(x.problem.batch);
  return {int(sequence_head / batch), int(sequence_head % batch), int(x.rows.rest(row))};
}

// Calls f(row, column) for all elements of rows of `width`.
template <class F>
__device__ void each(const Params& x, int width, F f) {
  for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < x.all; n += int64_t(gridDim.x) * kThreads)
    f(n / width, int(n % width));
}
__device__ float load(const Tensor& t, int b, int s, int h, int c) {
  float one[1];
  cuda::read(vector_at(t, b, s, h, c), t.dtype, one);
  return one[0];
}
__device__ void store(const Tensor& t, int b, int s, int h, int c, float y) {
  const float one[1] = {y};
  cuda::write(one, t.dtype, vector_at(t, b, s, h, c));
}

// Incomplete chunks and the rows after the last are 0: they take part in the product too.
__global__ void __launch_bounds__(kThreads) lay_kernel(const __grid_constant__ Params x) {
  const int dim = x.problem.dim_qk, width = x.nsa.d * dim;
  const int64_t rows = int64_t(x.problem.heads_kv) * x.problem.batch * x.rows.by;
  each(x, width, [&](int64_t row, int e) {
    float y = 0.f;
    if (row < rows) {
      const Line at = line_of(x, uint32_t(row));
      const CompressSequence seq = sequence_of(x, at.b);
      if (at.i < seq.tokens / x.nsa.d) y = load(x.raw, seq.batch, seq.first + at.i * x.nsa.d + e / dim, at.h, e % dim);
    }
    x.chunks[row * width + e] = y;
  });
}
__global__ void __launch_bounds__(kThreads) lay_gradient_kernel(const __grid_constant__ Params x) {
  each(x, x.problem.dim_qk, [&](int64_t row, int c) {
    const Line at = line_of(x, uint32_t(row));
    const CompressSequence seq = sequence_of(x, at.b);
    x.tokens[row * x.problem.dim_qk + c] =
        at.i < seq.count ? load(x.out, seq.batch, seq.out_first + at.i, at.h, c) : 0.f;
  });
}
__global__ void __launch_bounds__(kThreads) lay_weights_kernel(const __grid_constant__ Params x) {
  const int dim = x.problem.dim_qk, width = x.nsa.width(dim), window = x.nsa.l * dim;
  each(x, window, [&](int64_t j, int e) {
    if (j < width) x.w1[j * window + e] = view<const float>(x.weights[1]).row(0, j, e / dim)[e % dim];
  });
  each(x, width, [&](int64_t c, int j) {
    if (c < dim) x.w2[c * width + j] = view<const float>(x.weights[3]).row(0, c, 0)[j];
  });
}
// Contribution of the positions: one warp per hidden value.
__global__ void __launch_bounds__(kThreads) offset_kernel(const __grid_constant__ Params x) {
  const int dim = x.problem.dim_qk, width = x.nsa.width(dim), lane = threadIdx.x % 32;
  for (int j = int(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32; j < width; j += gridDim.x * (kThreads / 32)) {
    float sum = 0.f;
    for (int e = lane; e < x.nsa.l * dim; e += 32)
      sum += x.w1[int64_t(j) * x.nsa.l * dim + e] * view<const float>(x.weights[0]).row(0, e / dim, 0)[e % dim];
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) x.offset[j] = sum + view<const float>(x.weights[2]).row(0, 0, 0)[j];
  }
}

__global__ void __launch_bounds__(kProductThreads, 2) product_kernel(const __grid_constant__ ProductParams p) {
  __shared__ ProductTiles tiles;
  const int n = int(blockIdx.x), slices = p.split_k ? p.slices : 1, slice = n % slices, block = n / slices;
  product_block(p, tiles, block / p.blocks_n, block % p.blocks_n, slice, p.split_k ? slice + 1 : p.slices);
}
// Adds the slices of hidden into the first.
__global__ void __launch_bounds__(kThreads) add_kernel(const __grid_constant__ Params x) {
  each(x, 1, [&](int64_t n, int) { x.hidden[n] = add_slices(x.hidden + n, x.all, x.row_splits); });
}

// Replaces hidden by silu(hidden + offset).
__global__ void __launch_bounds__(kThreads) silu_kernel(const __grid_constant__ Params x) {
  const int width = x.nsa.width(x.problem.dim_qk);
  each(x, width, [&](int64_t row, int j) {
    const float y = x.hidden[row * width + j] + x.offset[j];
    x.hidden[row * width + j] = y / (1.f + expf(-y));
  });
}
// Multiplies d_hidden by the derivative of silu. Must run before silu_kernel, while hidden holds the argument.
__global__ void __launch_bounds__(kThreads) slope_kernel(const __grid_constant__ Params x) {
  const int width = x.nsa.width(x.problem.dim_qk);
  each(x, width, [&](int64_t row, int j) {
    const int64_t at = row * width + j;
    const float y = x.hidden[at] + x.offset[j], s = 1.f / (1.f + expf(-y));
    x.d_hidden[at] *= s * (1.f + y * (1.f - s));
  });
}

__global__ void __launch_bounds__(kThreads) store_kernel(const __grid_constant__ Params x) {
  const int dim = x.problem.dim_qk;
  each(x, dim, [&](int64_t row, int c) {
    const Line at = line_of(x, uint32_t(row));
    const CompressSequence seq = sequence_of(x, at.b);
    if (at.i < seq.count)
      store(x.out, seq.batch, seq.out_first + at.i, at.h, c,
            x.tokens[row * dim + c] + view<const float>(x.weights[4]).row(0, 0, 0)[c]);
  });
}
// Rows are (head, sequence, raw token) here.
__global__ void __launch_bounds__(kThreads) store_raw_kernel(const __grid_constant__ Params x) {
  const int dim = x.problem.dim_qk, d = x.nsa.d, chunks = x.problem.len_q / d > 1 ? x.problem.len_q / d : 1;
  each(x, dim, [&](int64_t row, int c) {
    const Line at = line_of(x, uint32_t(row));
    const CompressSequence seq = sequence_of(x, at.b);
    if (at.i >= seq.tokens) return;
    const int64_t chunk = (int64_t(at.h) * x.problem.batch + at.b) * chunks + at.i / d;
    const float y = at.i / d < seq.tokens / d ? x.d_chunks[(chunk * d + at.i % d) * dim + c] : 0.f;
    store(x.d_raw, seq.batch, seq.first + at.i, at.h, c, y);
  });
}

// Sums columns over blocks of x.split_rows rows.
__device__ void sum_columns(const Params& x, const float* from, int width, int64_t rows, float* to) {
  each(x, width, [&](int64_t split, int c) {
    const int64_t last = (split + 1) * x.split_rows;
    if (split >= x.row_splits) return;
    float sum = 0.f;
    for (int64_t row = split * x.split_rows; row < (last < rows ? last : rows); ++row) sum += from[row * width + c];
    to[split * width + c] = sum;
  });
}
__global__ void __launch_bounds__(kThreads) sums_kernel(const __grid_constant__ Params x) {
  const int dim = x.problem.dim_qk, width = x.nsa.width(dim);
  const int64_t rows = int64_t(x.problem.heads_kv) * x.problem.batch * x.rows.by;
  sum_columns(x, x.d_hidden, width, rows, x.sum_b1), sum_columns(x, x.tokens, dim, rows, x.sum_b2);
}
__global__ void __launch_bounds__(kThreads) combine_sums_kernel(const __grid_constant__ Params x) {
  const int dim = x.problem.dim_qk, width = x.nsa.width(dim);
  each(x, 1, [&](int64_t n, int) {
    if (n >= width + dim) return;
    const bool first = n < width;
    const int c = int(first ? n : n - width), of = first ? width : dim;
    float* partial = first ? x.sum_b1 : x.sum_b2;
    float sum = 0.f;
    for (int split = 0; split < x.row_splits; ++split) sum += partial[int64_t(split) * of + c];
    if (first) x.sum_b1[c] = sum;  // the next kernel reads it there; no other thread uses this column
    const Tensor& to = x.gradients[first ? 2 : 4];
    if (to.data) view<float>(to).row(0, 0, 0)[c] = sum;
  });
}
__global__ void __launch_bounds__(kThreads) store_weights_kernel(const __grid_constant__ Params x) {
  const int dim = x.problem.dim_qk, width = x.nsa.width(dim), window = x.nsa.l * dim;
  if (x.gradients[1].data)
    each(x, window, [&](int64_t j, int e) {
      if (j >= width) return;
      const float position = view<const float>(x.weights[0]).row(0, e / dim, 0)[e % dim];
      view<float>(x.gradients[1]).row(0, j, e / dim)[e % dim] = x.d_w1[j * window + e] + x.sum_b1[j] * position;
    });
  if (x.gradients[3].data)
    each(x, width, [&](int64_t c, int j) {
      if (c < dim) view<float>(x.gradients[3]).row(0, c, 0)[j] = x.d_w2[c * width + j];
    });
  if (x.gradients[0].data)
    each(x, window, [&](int64_t first, int e) {
      if (first > 0) return;
      float sum = 0.f;
      for (int j = 0; j < width; ++j) sum += x.sum_b1[j] * x.w1[int64_t(j) * window + e];
      view<float>(x.gradients[0]).row(0, e / dim, 0)[e % dim] = sum;
    });
}

// One run: sizes, and the products between the kernels.
struct Run {
  const cuda::Launcher& launcher;
  Params& x;
  std::byte* scratch;
  const int64_t dim, width, chunk, window, rows, steps;

  Run(const cuda::Launcher& launches, Params& params, std::byte* of_products)
      : launcher(launches), x(params), scratch(of_products), dim(x.problem.dim_qk), width(width_of(x)),
        chunk(x.nsa.d * dim), window(x.nsa.l * dim), rows(rows_of(x)), steps(chunks_of_window(x)) {}

  Status step(Function f, int64_t all, int64_t rows_of_sequence) {
    x.all = all, x.rows = Divisor(uint32_t(std::max<int64_t>(1, rows_of_sequence)));
    return launch(launcher, f, x, ceil_div(all, kThreads));
  }
  struct Matrix { float* data; int64_t pitch; bool transposed = false; };
  Status multiply(int64_t m, int64_t n, int64_t k, Matrix left, Matrix right, Matrix to, float beta = 0.f) {
    const cuda::Product product{.m = int32_t(m), .n = int32_t(n), .k = int32_t(k), .x_transposed = left.transposed,
                                .y_transposed = right.transposed, .device = x.raw.device_index, .pitch_x = left.pitch,
                                .pitch_y = right.pitch, .pitch_to = to.pitch};
    const cuda::Factors factors{.x = left.data, .y = right.data, .to = to.data, .beta = beta};
    const Status s = cuda::multiply(product, factors, scratch, launcher.stream());
    return s.ok() ? s : launcher.failed(s);
  }

  // The product of gpu/nsa/compress_product.h. A slice of its sum has a CTA of its own, or one CTA adds all.
  enum class Slices { serial, split_k };
  Status product(int64_t k, const float* left, int64_t pitch, const float* right, int64_t n, float* to, Slices slices) {
    const bool split_k = slices == Slices::split_k;
    static constinit cuda::SharedMemoryOptIn ready{};
    ProductParams p{.x = left, .y = right, .to = to, .pitch_x = pitch, .m = int32_t(rows), .n = int32_t(n),
                    .k = int32_t(k), .blocks_n = int32_t(ceil_div(n, kTileN)), .slices = slices_of(k),
                    .split_k = split_k};
    return launcher({.kernel = cuda::address(product_kernel), .ready = &ready,
                     .blocks = ceil_div(rows, kTileM) * p.blocks_n * (split_k ? p.slices : 1),
                     .threads = kProductThreads},
                    p);
  }

  // Computes hidden, before silu.
  Status begin() {
    const int64_t chunks = chunks_of(x);
    if (Status s = step(lay_kernel, (rows + steps - 1) * chunk, chunks); !s.ok()) return s;
    if (Status s = step(lay_weights_kernel, width * window, chunks); !s.ok()) return s;
    if (Status s = step(offset_kernel, width * 32, chunks); !s.ok()) return s;
    const Slices slices = splits_k(x) ? Slices::split_k : Slices::serial;
    const Status made = product(window, x.chunks, chunk, x.w1, width, x.hidden, slices);
    if (!made.ok() || slices == Slices::serial) return made;
    x.row_splits = slices_of(window);
    return step(add_kernel, rows * width, chunks);
  }
  Status forward() {
    if (Status s = begin(); !s.ok()) return s;
    if (Status s = step(silu_kernel, rows * width, chunks_of(x)); !s.ok()) return s;
    if (Status s = product(width, x.hidden, width, x.w2, dim, x.tokens, Slices::serial); !s.ok()) return s;
    return step(store_kernel, rows * dim, chunks_of(x));
  }
  Status backward() {
    const int64_t chunks = chunks_of(x);
    if (Status s = begin(); !s.ok()) return s;
    if (Status s = step(lay_gradient_kernel, rows * dim, chunks); !s.ok()) return s;
    if (Status s = multiply(rows, width, dim, {x.tokens, dim}, {x.w2, width}, {x.d_hidden, width}); !s.ok()) return s;
    if (Status s = step(slope_kernel, rows * width, chunks); !s.ok()) return s;
    if (Status s = step(silu_kernel, rows * width, chunks); !s.ok()) return s;
    if (Status s = multiply(dim, width, rows, {.data = x.tokens, .pitch = dim, .transposed = true}, {x.hidden, width},
                            {x.d_w2, width});
        !s.ok())
      return s;
    if (Status s = step(sums_kernel, x.row_splits * std::max(width, dim), chunks); !s.ok()) return s;
    if (Status s = step(combine_sums_kernel, width + dim, chunks); !s.ok()) return s;
    for (int64_t b = 0; b < steps; ++b)
      if (Status s = multiply(width, chunk, rows, {.data = x.d_hidden, .pitch = width, .transposed = true},
                              {x.chunks + b * chunk, chunk}, {x.d_w1 + b * chunk, window});
          !s.ok())
        return s;
    if (Status s = step(store_weights_kernel, std::max(width * window, dim * width), chunks); !s.ok()) return s;
    if (!x.d_raw.data) return Status::good();
    if (steps > 1) {  // rows that the first product does not write
      const size_t bytes = size_t((steps - 1) * chunk) * sizeof(float);
      if (Status s = launcher.zero(x.d_chunks + rows * chunk, bytes); !s.ok()) return s;
    }
    for (int64_t b = 0; b < steps; ++b)
      if (Status s = multiply(rows, chunk, width, {x.d_hidden, width}, {x.w1 + b * chunk, window},
                              {x.d_chunks + b * chunk, chunk}, b ? 1.f : 0.f);
          !s.ok())
        return s;
    return step(store_raw_kernel, int64_t(x.problem.heads_kv) * x.problem.batch * x.problem.len_q * dim,
                 x.problem.len_q);
  }
};

}  // namespace

Status mlp_supports(const Problem& p) {
  const int width = nsa_of(p).width(p.dim_qk);
  if (p.dim_qk % 4 || width % 4)
    return Status::unsupported(kWho, ": dim ", p.dim_qk, " and hidden ", width, " are not both multiples of 4");
  return Status::good();
}

void mlp_carve(Workspace& ws, const Problem& p, Params& x, std::byte*& scratch) {
  const bool back = p.pass == Pass::backward;
  const auto floats = [&](int64_t n) { return ws.take<float>(size_t(n)); };
  const int64_t dim = p.dim_qk, width = width_of(x), window = x.nsa.l * dim, chunk = x.nsa.d * dim;
  const int64_t rows = rows_of(x), padded = rows + chunks_of_window(x) - 1;
  x.split_rows = int32_t(std::max<int64_t>(1, ceil_div(rows, kMostRowSplits)));
  x.row_splits = int32_t(ceil_div(rows, x.split_rows));
  x.chunks = floats(padded * chunk), x.tokens = floats(rows * dim);
  x.hidden = floats(rows * width * (splits_k(x) ? slices_of(window) : 1));
  x.w1 = floats(width * window), x.w2 = floats(dim * width), x.offset = floats(width);
  if (!back) return;
  scratch = ws.take<std::byte>(cuda::kBlasBytes);
  x.d_chunks = floats(padded * chunk), x.d_hidden = floats(rows * width);
  x.d_w1 = floats(width * window), x.d_w2 = floats(dim * width);
  x.sum_b1 = floats(x.row_splits * width), x.sum_b2 = floats(x.row_splits * dim);
}

Status mlp_run(const cuda::Launcher& launcher, Params& x, std::byte* scratch) {
  Run run(launcher, x, scratch);
  return x.problem.pass == Pass::backward ? run.backward() : run.forward();
}

}  // namespace attune::compress
