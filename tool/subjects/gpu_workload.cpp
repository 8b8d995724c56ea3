// SPDX-License-Identifier: Apache-2.0
#include "tool/subjects/gpu_workload.h"

#include <algorithm>
#include <cstring>

#include "core/forward_of.h"
#include "machine/cuda/events.h"

namespace attune {

Status GpuWorkload::place(Tensor& t) {
  if (Status s = memory_.emplace_back().allocate(index_, span_bytes(t)); !s.ok()) return s;
  t.data = memory_.back().data();
  t.device = DeviceKind::cuda, t.device_index = index_;
  return Status::good();
}

Status GpuWorkload::open(int index, void* stream, Workload& host) {
  host_ = &host, stream_ = stream, index_ = index;
  Args& args = sets_.emplace_back(host.args);
  for (int n = 0; n < int(Role::count); ++n) {
    Tensor& t = args[Role(n)];
    if (!t.data) continue;
    const void* from = t.data;
    set_bytes_ += double(span_bytes(t));
    if (Status s = place(t); !s.ok()) return s;
    const bool poisoned = std::find(host.outputs().begin(), host.outputs().end(), Role(n)) != host.outputs().end();
    if (poisoned && !host.accumulates()) continue;  // poisoned before every run
    if (Status s = cuda::copy_to(t.data, from, span_bytes(t), stream); !s.ok()) return s;
  }
  return Status::good();
}

Status GpuWorkload::run_forward(const Planner& planner) {
  Plan plan;
  if (Status s = host_->plan_forward(planner, plan); !s.ok()) return s;
  cuda::Memory workspace;
  if (Status s = workspace.allocate(index_, plan.workspace_bytes); !s.ok()) return s;
  Args inputs = forward_of(args());
  cuda::Memory unused;
  if (Tensor out = host_->forward_out(); out.data) {
    if (Status s = unused.allocate(index_, span_bytes(out)); !s.ok()) return s;
    out.data = unused.data(), out.device = DeviceKind::cuda, out.device_index = index_;
    inputs[Role::out] = out;
  }
  const cuda::DeviceGuard use(index_);
  if (Status s = plan.backend->run(plan, inputs, Workspace{workspace.data()}, stream_); !s.ok()) return s;
  if (unused.data())
    if (Status s = cuda::wait(stream_); !s.ok()) return s;
  std::vector<Role> made = {Role::out, Role::lse};  // and what a variant saves; results are checked on the host's copy
  const Declared variant = declared(plan.problem, inputs);
  for (int n = 0; n < kVariantTensors; ++n)
    if (variant.tensor[n].use == Use::saved) made.push_back(variant_tensor(n));
  for (const Role r : made) {
    const Tensor& t = inputs[r];
    if (!host_->args.given(r) || !t.data) continue;
    if (Status s = cuda::copy_from(host_->args[r].data, t.data, span_bytes(t), stream_); !s.ok()) return s;
  }
  return Status::good();
}

Status GpuWorkload::replicate(int sets) {
  for (int n = int(sets_.size()); n < sets; ++n) {
    Args args = sets_[0];
    for (int r = 0; r < int(Role::count); ++r) {
      Tensor& t = args[Role(r)];
      if (!t.data) continue;
      const void* from = t.data;
      if (Status s = place(t); !s.ok()) return s;
      if (Status s = cuda::copy_inside(t.data, from, span_bytes(t), stream_); !s.ok()) return s;
    }
    sets_.push_back(args);
  }
  return cuda::wait(stream_);
}

Status GpuWorkload::other_outputs(Args& out) {
  out = sets_[0];
  for (const Role r : host_->outputs())
    if (Status s = place(out[r]); !s.ok()) return s;
  return poison(out);
}

Status GpuWorkload::poison(const Args& gpu) {
  if (host_->accumulates()) return Status::good();
  for (const Role r : host_->outputs())
    if (Status s = cuda::fill(gpu[r].data, 0xFF, span_bytes(gpu[r]), stream_); !s.ok()) return s;
  return Status::good();
}

Status GpuWorkload::read(void* to, const void* gpu, size_t bytes) const {
  if (Status s = cuda::copy_from(to, gpu, bytes, stream_); !s.ok()) return s;
  return cuda::wait(stream_);
}

Status GpuWorkload::send(Role r) {
  return cuda::copy_to(sets_[0][r].data, host_->args[r].data, span_bytes(host_->args[r]), stream_);
}

Status GpuWorkload::fetch(const Args& gpu) {
  for (const Role r : host_->outputs())
    if (Status s = cuda::copy_from(host_->args[r].data, gpu[r].data, span_bytes(gpu[r]), stream_); !s.ok()) return s;
  return Status::good();
}

Status GpuWorkload::fetch(const Args& gpu, const std::vector<ResultRow>& rows) {
  for (const ResultRow& row : rows) {
    const Tensor &from = gpu[row.role], &to = host_->args[row.role];
    const size_t bytes = size_t(from.extent.dim) * size_t(size_of(from.dtype));
    char* const place = row_address(to, row.batch, row.seq, row.head);
    std::memset(place, 0xFF, bytes);
    if (Status s = cuda::copy_from(place, row_address(from, row.batch, row.seq, row.head), bytes, stream_); !s.ok())
      return s;
  }
  return cuda::wait(stream_);
}

}  // namespace attune
