// SPDX-License-Identifier: Apache-2.0
// Attention as ggml's FLASH_ATTN_EXT defines it, on the loops of machine/cpu/kernels.h. Nothing here needs ggml.
//
//   out[i] = sum over j of softmax_j(cap(q[i] k[j] scale) + slope(head) mask[i][j]) v[j]
//
// A mask is a matrix of numbers, so what it hides is found by reading it (mask.h): tiles that no row sees are skipped,
// tiles that all rows see are not masked, and hidden keys before and behind a range cost one comparison. Keys and
// values are rows of any stored type (rows.h); the arithmetic is f32.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/device.h"
#include "machine/cpu/kernels.h"
#include "plugins/ggml/rows.h"

namespace attune::ggml {

struct Mask {
  const char* data = nullptr;  // null: every row sees every key
  bool f16 = true;             // else f32
  int64_t row = 0, batch = 0;  // bytes from one query, one sequence to the next
  int batches = 1;             // sequence b uses mask b % batches
};

struct Attention {
  Rows q, k, v, out;  // q and out: f32. out[b][i][h] is compact
  Mask mask{};
  const float* sinks = nullptr;  // one per query head
  int batch = 1, heads_q = 1, heads_kv = 1, len_q = 0, len_k = 0;
  float scale = 1.f, max_bias = 0.f, softcap = 0.f;

  int group() const { return heads_q / heads_kv; }
  float slope(int head) const;  // of ALiBi, by ggml's rule; 1 without max_bias
};

// Scratch memory that grows and is kept from call to call. One call at a time uses it.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();
  std::byte* take(size_t bytes);  // null on failure; what was taken before is lost

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};
struct Memories {
  Memory map, scratch;
};

inline constexpr int kMaxDim = 256;

// True if `attend` computes these head dims with these stored types.
bool takes(int dim_qk, Stored k, int dim_v, Stored v);

// Returns false if there is no memory for scratch.
bool attend(const Attention& a, const Device& cpu, int threads, Memories& memory);

}  // namespace attune::ggml
