// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "machine/cuda/nvtx.h"
#include "machine/cuda/runtime.h"
#include "plan/backend.h"
#include "tool/subjects/workload.h"
#include "tool/timing/engine.h"

namespace attune {

// A backend, its plan and its workspace, as a subject. Successive calls rotate through the sets of arguments.
struct BackendRun {
  Plan plan;
  std::vector<Args> sets;
  std::optional<Memory> workspace{};  // on a CPU
  cuda::Memory gpu_workspace{};
  void* stream = nullptr;
  size_t next = 0;
  Status status{};
  std::unique_ptr<BackendRun> forward{};  // of a training row: runs before

  BackendRun(Plan p, std::vector<Args> s, void* on) : plan(std::move(p)), sets(std::move(s)), stream(on) {
    if (plan.device.kind == DeviceKind::cpu) workspace.emplace(plan.workspace_bytes);
    else status = gpu_workspace.allocate(plan.device.index, plan.workspace_bytes);
  }
  bool run() {
    if (forward && !forward->run()) return status = forward->status, false;
    std::byte* const place = workspace ? workspace->data() : gpu_workspace.data();
    const cuda::Range range(workspace ? nullptr : &plan.problem);
    status = plan.backend->run(plan, sets[next++ % sets.size()], Workspace{place}, stream);
    return status.ok();
  }
  Subject subject() {
    return {.name = std::string(plan.backend->name),
            .context = this,
            .run = [](void* c) { return static_cast<BackendRun*>(c)->run(); },
            .why = [](void* c) { return static_cast<BackendRun*>(c)->status.message; }};
  }
};

}  // namespace attune
