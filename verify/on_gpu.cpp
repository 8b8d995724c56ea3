// SPDX-License-Identifier: Apache-2.0
#include "verify/on_gpu.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "machine/cuda/nvtx.h"
#include "machine/cuda/runtime.h"

namespace attune {
namespace {

constexpr size_t kAlign = 256, kGuard = 4096;  // bytes
constexpr unsigned char kPoison = 0xFF;

// One tensor and its location on the GPU.
struct Placed {
  Role role;
  Owned* output = nullptr;        // null: an input
  const Owned* original = nullptr;
  std::list<Owned> anew{};        // one element if the original's rows are not aligned
  size_t at = 0;                  // offset of its memory in the arena

  const Owned& sent() const { return anew.empty() ? *original : anew.front(); }
};

bool rows_aligned(const Tensor& t) {
  const int64_t size = size_of(t.dtype);
  return t.stride.batch * size % 16 == 0 && t.stride.seq * size % 16 == 0 && t.stride.head * size % 16 == 0;
}

// Roles that kernels access in 16-byte vectors.
bool is_f32(Role r) {
  const Role all[] = {Role::q,     Role::k,     Role::v,  Role::out, Role::k_new,
                      Role::v_new, Role::d_out, Role::dq, Role::dk,  Role::dv};
  return std::find(std::begin(all), std::end(all), r) != std::end(all);
}

void copy_rows(const Tensor& from, const Tensor& to) {
  const size_t bytes = size_t(from.extent.dim) * size_t(size_of(from.dtype));
  for (int b = 0; b < from.extent.batch; ++b)
    for (int s = 0; s < from.extent.seq; ++s)
      for (int h = 0; h < from.extent.head; ++h)
        std::memcpy(row_address(to, b, s, h), row_address(from, b, s, h), bytes);
}

Owned aligned_copy(const Owned& o, Layout layout) {
  const int eight = int(round_up(o.t.extent.dim + 1, 8)) - o.t.extent.dim;
  Owned made(o.t.dtype, o.t.extent, layout, eight, o.filler);
  copy_rows(o.t, made.t);
  return made;
}

const Owned* owner(const std::list<Owned>& all, const Tensor& t) {
  for (const Owned& o : all)
    if (o.t.data == t.data) return &o;
  return nullptr;
}

}  // namespace

Status run_on_gpu(const Plan& plan, const World& world, Outputs& got, std::string& unfit) {
  const auto run = [&](const Args& args, Workspace workspace, void* stream) {
    if (plan.backend->fits)
      if (Status s = plan.backend->fits(plan, args); !s.ok()) return unfit = s.message, s;
    return plan.backend->run(plan, args, workspace, stream);
  };
  const Status s = run_on_gpu({.who = std::string(plan.backend->name), .problem = &plan.problem,
                               .index = plan.device.index, .workspace_bytes = plan.workspace_bytes, .run = run},
                              world, got);
  return unfit.empty() ? s : Status::good();
}

Status run_on_gpu(const GpuCall& call, const World& world, Outputs& got) {
  const int index = call.index;
  std::list<Placed> all;
  size_t total = kGuard;
  const auto take = [&](size_t bytes) {
    const size_t at = total;
    total = size_t(round_up(int64_t(total + bytes), kAlign));
    return at;
  };
  for (int n = 0; n < int(Role::count); ++n) {
    const Role r = Role(n);
    if (!got.args.given(r)) continue;
    Placed& p = all.emplace_back(Placed{.role = r});
    for (Owned& o : got.owned)
      if (o.t.data == got.args[r].data) p.output = &o, p.original = &o;
    if (!p.original) p.original = owner(world.inputs(), got.args[r]);
    if (!p.original) return Status::failure(Code::internal, "parity: ", name(r), " is neither an input nor an output");
    if (is_f32(r) && !rows_aligned(p.original->t)) p.anew.push_back(aligned_copy(*p.original, world.variation.layout));
    p.at = take(p.sent().memory.size());
  }
  total += kGuard;
  const size_t workspace = take(call.workspace_bytes);
  std::vector<unsigned char> arena(total + kGuard, kPoison);
  for (const Placed& p : all) std::copy(p.sent().memory.begin(), p.sent().memory.end(), arena.begin() + int64_t(p.at));

  const cuda::DeviceGuard use(index);
  if (!use.status.ok()) return use.status;
  // Reused between runs: an allocation takes longer than most of them. All of it is written before it is read.
  thread_local struct { cuda::Memory memory; int device = -1; } kept;
  if (kept.device != index || kept.memory.bytes() < arena.size()) {
    kept.device = -1;
    if (Status s = kept.memory.allocate(index, arena.size() + arena.size() / 2); !s.ok()) return s;
    kept.device = index;
  }
  cuda::Memory& gpu = kept.memory;
  cuda::OwnStream stream;
  if (Status s = stream.open(index); !s.ok()) return s;
  if (Status s = cuda::copy_to(gpu.data(), arena.data(), arena.size(), stream.get()); !s.ok()) return s;
  Args args = got.args;
  for (const Placed& p : all) {
    const Owned& o = p.sent();
    Tensor t = o.t;
    t.data = gpu.data() + p.at + (static_cast<const unsigned char*>(o.t.data) - o.memory.data());
    t.device = DeviceKind::cuda, t.device_index = index;
    args[p.role] = t;
  }
  const cuda::Range range(call.problem);
  if (Status s = call.run(args, {gpu.data() + workspace}, stream.get()); !s.ok()) return s;
  const std::vector<unsigned char> before = arena;
  if (Status s = cuda::copy_from(arena.data(), gpu.data(), arena.size(), stream.get()); !s.ok())
    return Status::failure(s.code, call.who, ": ", s.message, ", in: ", name(*call.problem));

  // Checks that everything but the outputs and the workspace is unchanged.
  size_t next = 0;
  const auto same_until = [&](size_t until) {
    const bool same = !std::memcmp(arena.data() + next, before.data() + next, until - next);
    return next = until, same;
  };
  for (const Placed& p : all) {
    if (!same_until(p.at)) return Status::no("writes outside its tensors, before ", name(p.role));
    const size_t end = p.at + p.sent().memory.size();
    if (!p.output && !same_until(end)) return Status::no("writes into its input ", name(p.role));
    next = end;
  }
  if (!same_until(workspace)) return Status::no("writes outside its workspace");
  next = workspace + call.workspace_bytes;
  if (!same_until(arena.size())) return Status::no("writes outside its workspace");

  for (Placed& p : all) {
    if (!p.output) continue;
    std::vector<unsigned char>& memory = p.anew.empty() ? p.output->memory : p.anew.front().memory;
    std::copy_n(arena.begin() + int64_t(p.at), memory.size(), memory.begin());
    if (p.anew.empty()) continue;
    if (!p.anew.front().surroundings_intact()) return Status::no("writes outside ", name(p.role));
    copy_rows(p.anew.front().t, p.output->t);
  }
  return Status::good();
}

}  // namespace attune
