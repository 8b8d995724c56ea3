// SPDX-License-Identifier: Apache-2.0
// Block lists in the C interface: patterns and masks in, lists out.
#include "variants/blocks/blocks.h"

#include <cstddef>
#include <cstring>

#include "capi/convert.h"
#include "capi/local.h"
#include "machine/cuda/runtime.h"
#include "machine/host.h"

using namespace attune;

namespace {

static_assert(int(BlockCount::active) == ATTUNE_BLOCKS_ACTIVE && int(BlockCount::shown) == ATTUNE_BLOCKS_SHOWN);
static_assert(int(BlockCount::longest) == ATTUNE_BLOCKS_LONGEST && int(BlockCount::dropped) == ATTUNE_BLOCKS_DROPPED);
static_assert(int(BlockCount::count) == ATTUNE_BLOCK_COUNTS);

Status blocks_problem(const attune_problem* given, bool bounded, Problem& p) {
  if (Status s = problem_of(given, p); !s.ok()) return s;
  if (p.mask.blocks.q < 1 || p.mask.blocks.k < 1)
    return Status::no("blocks: block_q = ", p.mask.blocks.q, " and block_k = ", p.mask.blocks.k,
                      " given; both must be at least 1");
  Problem checked = p;
  if (!bounded && checked.mask.blocks.bound < 1) checked.mask.blocks.bound = 1;
  return valid(checked);
}

// Reads the roles that a build uses.
Status roles_of(const attune_args* given, Args& out) {
  if (!given) return Status::no("args is null");
  const size_t size = given->size;
  if (size < offsetof(attune_args, role) || size > kMostBytes)
    return Status::no("args.size = ", size, " is not sizeof(attune_args)");
  const size_t known = (size - offsetof(attune_args, role)) / sizeof given->role[0];
  for (const Role r : {Role::q, Role::k, Role::cu_q, Role::cu_k, Role::used_q, Role::used_k, Role::left_pad,
                       Role::cache_index, Role::page_table, Role::positions, Role::k_new, Role::block_begin,
                       Role::block_column, Role::block_begin_k, Role::block_row_k})
    if (size_t(r) < known && given->role[int(r)])
      if (Status s = tensor_of(*given->role[int(r)], r, out[r]); !s.ok()) return s;
  return Status::good();
}

// A bhqk mask of bytes. A nonzero byte is active, whatever its dtype is called.
Status mask_of(const Problem& p, const attune_tensor& given, const Tensor& lists, BlockMask& out) {
  const auto no = [](const auto&... why) { return Status::no("mask: ", why...); };
  const auto [code, bits, lanes] = given.dtype;
  if (bits != 8 || lanes > 1 || (code != 0 && code != 1 && code != 6))
    return no("dtype of code ", code, ", ", bits, " bits and ", lanes, " lanes is not a bool or an integer of 8 bits");
  attune_tensor bytes = given;
  bytes.dtype.code = 10;  // stands for any 1-byte format
  Tensor t;
  if (Status s = tensor_of(bytes, "mask", t); !s.ok()) return s;
  const int64_t rows = ceil_div(p.len_q, p.mask.blocks.q), columns = ceil_div(p.len_k, p.mask.blocks.k);
  const auto [batch, seq, head, dim] = t.extent;
  if ((batch != 1 && batch != lists.extent.batch) || (head != 1 && head != lists.extent.head) || seq != rows ||
      dim != columns)
    return no("is [", batch, ", ", head, ", ", seq, ", ", dim, "] of bhqk, not [", lists.extent.batch, " or 1, ",
              lists.extent.head, " or 1, ", rows, ", ", columns, "]");
  if (t.device != lists.device || t.device_index != lists.device_index) return no("is not on the device of the lists");
  out = {static_cast<const uint8_t*>(t.data), t.stride.batch, t.stride.head, t.stride.seq};
  return Status::good();
}

}  // namespace

int attune_blocks_bound(const attune_problem* problem, const char* pattern, int32_t batch, int32_t heads, int full,
                        int64_t* out) {
  return answer([&] {
    if (!pattern || !out) return Status::no(out ? "pattern is null" : "bound is null");
    Problem p;
    Pattern parsed;
    if (Status s = blocks_problem(problem, false, p); !s.ok()) return s;
    if (Status s = parse(pattern, p, parsed); !s.ok()) return s;
    if ((batch != 1 && batch != p.batch) || (heads != 1 && heads != p.heads_q))
      return Status::no("blocks: batch = ", batch, " and heads = ", heads, " given; batch must be 1 or ", p.batch,
                        ", heads 1 or ", p.heads_q);
    *out = bound(parsed, p, batch, heads, full != 0);
    return Status::good();
  });
}

int attune_blocks_build(const attune_problem* problem, const attune_args* given, const attune_blocks* blocks,
                        void* stream) {
  return answer([&] {
    Problem p;
    Args args;
    BlockSource from;
    if (!blocks) return Status::no("blocks is null");
    if (blocks->size < sizeof *blocks || blocks->size > kMostBytes)
      return Status::no("blocks.size = ", blocks->size, " is not sizeof(attune_blocks)");
    if (Status s = blocks_problem(problem, true, p); !s.ok()) return s;
    if (Status s = roles_of(given, args); !s.ok()) return s;
    if (blocks->pattern && blocks->mask) return Status::no("blocks: a pattern and a mask given; give one");
    from.counts = blocks->counts, from.checked = true;
    from.origin = blocks->pattern ? BlockOrigin::pattern : blocks->mask ? BlockOrigin::mask : BlockOrigin::lists;
    if (blocks->pattern)
      if (Status s = parse(blocks->pattern, p, from.pattern); !s.ok()) return s;
    if (blocks->mask)
      if (Status s = mask_of(p, *blocks->mask, args[Role::block_begin], from.mask); !s.ok()) return s;
    return build_blocks(p, args, from, stream);
  });
}

int attune_blocks_counts(const char* device, const int64_t* counts, int64_t* out, void* stream) {
  return answer([&] {
    if (!counts || !out) return Status::no(out ? "counts is null" : "out is null");
    Device d;
    if (Status s = device_named(device ? device : "cpu", d); !s.ok()) return s;
    constexpr size_t kBytes = ATTUNE_BLOCK_COUNTS * sizeof(int64_t);
    if (d.kind == DeviceKind::cpu) return std::memcpy(out, counts, kBytes), Status::good();
    const cuda::DeviceGuard use(d.index);
    return use.status.ok() ? cuda::copy_from(out, counts, kBytes, stream) : use.status;
  });
}
