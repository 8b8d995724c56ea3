// SPDX-License-Identifier: Apache-2.0
#include "tool/profile/once.h"

#include "machine/library.h"
#include "plan/plan.h"
#include "plan/tuned.h"
#include "tool/subjects/gpu_workload.h"

namespace attune {
namespace {

// Calls cuProfilerStart or cuProfilerStop, which do nothing without a profiler.
void tell_profiler(const char* function) {
  static const Library driver({"libcuda.so.1"}, {"cuProfilerStart", "cuProfilerStop"});
  if (driver.ok()) (void)driver.function<int()>(function)();
}

// Plans with this machine's tuned file.
Status plan_once(const BenchRow& row, const Device& device, std::string_view backend, Planner& planner, Plan& out) {
  Tuned tuned;
  if (Status s = load_tuned(device, tuned); !s.ok()) return s;
  planner = {.device = device, .rules = std::move(tuned.rules), .forced = backend};
  return planner.plan(row.problem, out);
}

}  // namespace

Status can_run_once(const BenchRow& row, const Device& device, std::string_view backend) {
  Planner planner;
  Plan plan;
  return plan_once(row, device, backend, planner, plan);
}

Status run_once(const BenchRow& row, const Device& device, std::string_view backend) {
  Planner planner;
  Plan plan;
  if (Status s = plan_once(row, device, backend, planner, plan); !s.ok()) return s;
  const cuda::DeviceGuard use(device.index);
  if (!use.status.ok()) return use.status;
  Workload host(row.problem, Layout::bshd, 1, Distribution::normal, {}, row.pattern, false);
  cuda::OwnStream stream;
  GpuWorkload gpu;
  cuda::Memory workspace;
  if (Status s = stream.open(device.index); !s.ok()) return s;
  if (Status s = gpu.open(device.index, stream.get(), host); !s.ok()) return s;
  if (row.problem.pass == Pass::backward)
    if (Status s = gpu.run_forward(planner); !s.ok()) return s;
  if (Status s = workspace.allocate(device.index, plan.workspace_bytes); !s.ok()) return s;
  for (const bool watched : {false, true}) {
    if (watched) tell_profiler("cuProfilerStart");
    if (Status s = plan.backend->run(plan, gpu.args(), Workspace{workspace.data()}, stream.get()); !s.ok()) return s;
    if (Status s = cuda::wait(stream.get()); !s.ok()) return s;
    if (watched) tell_profiler("cuProfilerStop");
  }
  return Status::good();
}

}  // namespace attune
