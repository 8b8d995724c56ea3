// SPDX-License-Identifier: Apache-2.0
// The core of the C interface, the only place that sees user input. All code behind it may trust its arguments. A warm
// attune_call allocates nothing and builds no text: each thread keeps what it needs.
#include "attune/attune.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <tuple>

#include "capi/convert.h"
#include "capi/gpu_values.h"
#include "capi/local.h"
#include "core/check.h"
#include "core/overlap.h"
#include "machine/cuda/nvtx.h"
#include "machine/cuda/pool.h"
#include "machine/cuda/runtime.h"
#include "machine/host.h"
#include "plan/plan.h"
#include "plan/tuned.h"

using namespace attune;

struct attune_plan {
  Plan plan;
  std::string backend, why;
};

namespace {


Status args_of(const attune_args* given, const Args*& out) {
  Local& mine = local();
  out = &mine.args;
  while (mine.count) mine.args.tensor[mine.given[--mine.count]] = {};
  if (!given) return Status::no("args is null");
  const size_t first = offsetof(attune_args, role);
  if (given->size < first || given->size > kMostBytes)
    return Status::no("args.size = ", given->size, " is not sizeof(attune_args)");
  const size_t roles = (given->size - first) / sizeof given->role[0];
  // A newer caller has more roles than this version's array.
  const auto* role = reinterpret_cast<const attune_tensor* const*>(reinterpret_cast<const char*>(given) + first);
  for (size_t r = 0; r < roles; ++r) {
    if (!role[r]) continue;
    if (r >= ATTUNE_ROLES) return Status::no("args: role ", r, " is unknown to this version");
    mine.given[mine.count++] = int(r);
    if (Status s = tensor_of(*role[r], Role(r), mine.args.tensor[r]); !s.ok()) return s;
  }
  if (!mine.args.given(Role::q)) return Status::no("q: not given, but the problem requires it");
  mine.args.scale = given->scale, mine.args.softcap = given->softcap, mine.args.dropout = given->dropout;
  mine.args.communicator = given->communicator;
  return Status::good();
}

// Explains why a plan needs more workspace than attune_workspace returned: ", cuda_standard: next in the list ..."
std::string stands_in(const Plan& plan) {
  return plan.instead_of ? join(", ", plan.backend->name, ": ", plan.why, plan.refused) : "";
}

Status workspace_of(const Plan& plan, const attune_args& given, Workspace& out) {
  Local& mine = local();
  const size_t needed = plan.workspace_bytes;
  if (!given.workspace && !given.workspace_bytes && plan.device.kind == DeviceKind::cpu) {
    out = {.data = mine.lent.at_least(std::max<size_t>(needed, 1))};
    if (out.data) return Status::good();
    return Status::failure(Code::out_of_memory, "workspace: ", needed, " bytes could not be allocated");
  }
  const uintptr_t first = reinterpret_cast<uintptr_t>(given.workspace), last = first + given.workspace_bytes;
  if (!given.workspace && (needed || given.workspace_bytes))
    return Status::no("workspace: null given, the plan needs ", needed, " bytes", stands_in(plan));
  if (given.workspace_bytes < needed)
    return Status::no("workspace: ", given.workspace_bytes, " bytes given, the plan needs ", needed, stands_in(plan));
  if (first % kWorkspaceAlign) return Status::no("workspace: is not aligned to ", kWorkspaceAlign, " bytes");
  if (last < first) return Status::no("workspace: ", given.workspace_bytes, " bytes reach past the end of memory");
  for (int n = 0; n < mine.count; ++n) {
    Bytes used;
    if (bytes_of(mine.args.tensor[mine.given[n]], used) && used.meets({first, last}))
      return Status::no("workspace: shares memory with ", name(Role(mine.given[n])));
  }
  out = {.data = static_cast<std::byte*>(given.workspace)};
  return Status::good();
}

// Does not check values on a GPU: that would stall the stream. Kernels clamp the values they read.
Status check_all(const Problem& p, const Args& args) {
  if (Status s = check(p, args); !s.ok()) return s;
  return args[Role::q].device == DeviceKind::cpu ? check_values(p, args) : Status::good();
}

Status ready(const Plan& plan, const Args& args) {
  if (Status s = check_all(plan.problem, args); !s.ok()) return s;
  const Tensor& q = args[Role::q];
  if (plan.device.kind != q.device || (q.device == DeviceKind::cuda && plan.device.index != q.device_index))
    return Status::no("q: is not on the device of the plan, ", plan.device.name);
  return Status::good();
}

Status run(const Plan& plan, const Args& args, const attune_args& given, void* stream) {
  Workspace scratch;
  cuda::Borrowed borrowed;
  if (plan.device.kind == DeviceKind::cuda && plan.workspace_bytes && !given.workspace && !given.workspace_bytes) {
    if (Status s = borrowed.take(plan.device.index, plan.workspace_bytes, stream); !s.ok())
      return Status::failure(s.code, "workspace: ", s.message, ", in: ", name(plan.problem));
    scratch = {.data = borrowed.data()};
  } else if (Status s = workspace_of(plan, given, scratch); !s.ok()) {
    return s;
  }
  const cuda::Range range(plan.device.kind == DeviceKind::cuda ? &plan.problem : nullptr);
  Status ran = plan.backend->run(plan, args, scratch, stream);
  const Status returned = borrowed.give_back();  // in stream order: after the launches
  if (!ran.ok() || returned.ok()) return ran;
  return Status::failure(returned.code, "workspace: ", returned.message, ", in: ", name(plan.problem));
}

// The planning inputs from the environment, read once.
struct Setting {
  Device device;
  Tuned tuned;
  std::string forced;
  Status broken;

  explicit Setting(const Device& d) : device(d) {
    if (const char* name = std::getenv("ATTUNE_BACKEND")) forced = name;
    broken = load_tuned(device, tuned);
  }
  Planner planner() const { return {.device = device, .rules = tuned.rules, .forced = forced}; }
};

void log(const Plan& plan) {
  const std::string line = join("attune: ", name(plan.problem), " -> ", plan.backend->name, " on ", plan.device.name,
                                ": ", plan.why, plan.instead_of ? plan.refused : "", "\n");
  std::fputs(line.c_str(), stderr);
}

// The plans of one device and thread count. Never destroyed: another thread may still use them at exit.
class Plans {
 public:
  explicit Plans(const Device& d) : setting_(d), cache_(setting_.planner()) {
    const char* word = std::getenv("ATTUNE_LOG");
    logs_ = word && *word && std::string_view(word) != "0";
  }
  int units() const { return setting_.device.units; }
  Status find(const Problem& p, PlanCache::Kept& out) {
    if (!setting_.broken.ok()) return setting_.broken;
    if (Status s = cache_.find(p, out); !s.ok() || !logs_) return s;
    log_once(*out);
    return Status::good();
  }
  // Finds the plan that fits these arguments: `plan` or that of a later link of the chain.
  Status fit(const Args& args, PlanCache::Kept& plan) {
    if (Status s = cache_.fit(args, plan); !s.ok()) return s;
    if (logs_) log_once(*plan);
    return Status::good();
  }

 private:
  static void log_once(const CachedPlan& plan) {
    if (!plan.logged.exchange(true)) log(plan);
  }

  const Setting setting_;
  PlanCache cache_;
  bool logs_ = false;
};

Plans& plans_of(const Device& d) {
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::map<std::tuple<DeviceKind, int, int>, Plans*>;
  const std::lock_guard lock(mutex);
  Plans*& one = all[{d.kind, d.index, d.units}];
  if (!one) one = new Plans(d);
  return *one;
}

Status plans_for(const Tensor& q, Plans*& out) {
  if (q.device == DeviceKind::cpu) {
    static std::atomic<Plans*> last{nullptr};  // avoids a global lock on warm calls
    Plans* cpu = last.load(std::memory_order_acquire);
    if (!cpu || cpu->units() != default_threads()) last.store(cpu = &plans_of(this_cpu()), std::memory_order_release);
    return out = cpu, Status::good();
  }
  constexpr int kMostGpus = 64;
  static std::atomic<Plans*> known[kMostGpus] = {};  // avoids device queries on warm calls
  std::atomic<Plans*>* slot = q.device_index >= 0 && q.device_index < kMostGpus ? &known[q.device_index] : nullptr;
  Plans* gpu = slot ? slot->load(std::memory_order_acquire) : nullptr;
  if (!gpu) {
    Device found;
    if (Status s = cuda::device(q.device_index, found); !s.ok())
      return s.after("q: is on cuda:", q.device_index, ", where this build cannot run: ");
    gpu = &plans_of(found);
    if (slot) slot->store(gpu, std::memory_order_release);
  }
  return out = gpu, Status::good();
}

Status planned(const attune_problem* problem, const char* device, const char* backend, Plan& out,
               std::string* links = nullptr) {
  Problem p;
  Device d;
  if (Status s = problem_of(problem, p); !s.ok()) return s;
  if (Status s = device_named(device ? device : "cpu", d); !s.ok()) return s;
  Setting setting(d);
  if (!setting.broken.ok()) return setting.broken;
  if (backend) setting.forced = backend;
  Planner planner = setting.planner();
  if (Status s = planner.plan(p, out); !s.ok() || !links) return s;
  planner.device.index = -1;  // only described: opens no library that the plan does not need
  *links = links_after(out, planner);
  return Status::good();
}

}  // namespace

int attune_problem_parse(const char* line, attune_problem* out) {
  return answer([&] {
    if (!line || !out) return Status::no(line ? "out is null" : "line is null");
    Problem p;
    if (Status s = parse(line, p); !s.ok()) return s;
    return problem_to(p, *out);
  });
}

int attune_problem_format(const attune_problem* problem, char* out, size_t capacity) {
  return answer([&] {
    Problem p;
    if (Status s = problem_of(problem, p); !s.ok()) return s;
    if (Status s = valid(p); !s.ok()) return s;
    const std::string line = name(p);
    if (!out) return Status::no("out is null");
    if (line.size() >= capacity)
      return Status::no("capacity = ", capacity, ", but the line needs ", line.size() + 1, " bytes");
    std::memcpy(out, line.c_str(), line.size() + 1);
    return Status::good();
  });
}

int attune_call(const attune_problem* problem, const attune_args* given, void* stream) {
  return answer([&] {
    Problem p;
    const Args* args = nullptr;
    PlanCache::Kept plan;
    Plans* plans = nullptr;
    if (Status s = problem_of(problem, p); !s.ok()) return s;
    if (Status s = args_of(given, args); !s.ok()) return s;
    if (Status s = plans_for((*args)[Role::q], plans); !s.ok()) return s;
    if (Status s = plans->find(p, plan); !s.ok()) return s;
    if (Status s = ready(*plan, *args); !s.ok()) return s;
    if (Status s = plans->fit(*args, plan); !s.ok()) return s;
    return run(*plan, *args, *given, stream);
  });
}

int attune_check(const attune_problem* problem, const attune_args* given) {
  return answer([&] {
    Problem p;
    const Args* args = nullptr;
    if (Status s = problem_of(problem, p); !s.ok()) return s;
    if (Status s = valid(p); !s.ok()) return s;
    if (Status s = args_of(given, args); !s.ok()) return s;
    if (Status s = check_all(p, *args); !s.ok()) return s;
    return (*args)[Role::q].device == DeviceKind::cuda ? check_values_on_gpu(p, *args) : Status::good();
  });
}

int attune_workspace(const attune_problem* problem, const char* device, size_t* bytes) {
  return answer([&] {
    if (!bytes) return Status::no("bytes is null");
    Plan plan;
    if (Status s = planned(problem, device, nullptr, plan); !s.ok()) return s;
    *bytes = plan.workspace_bytes;
    return Status::good();
  });
}

int attune_plan_create(const attune_problem* problem, const char* device, const char* backend, attune_plan** out) {
  return answer([&] {
    if (!out) return Status::no("out is null");
    auto made = std::make_unique<attune_plan>();
    std::string links;
    if (Status s = planned(problem, device, backend, made->plan, &links); !s.ok()) return s;
    made->backend = made->plan.backend->name;
    made->why = join(made->backend, ": ", made->plan.why, made->plan.refused);
    if (!links.empty()) made->why += join("\n  attune_call with arguments that do not fit tries ", links);
    *out = made.release();
    return Status::good();
  });
}

int attune_plan_run(const attune_plan* plan, const attune_args* given, void* stream) {
  return answer([&] {
    if (!plan) return Status::no("plan is null");
    const Args* args = nullptr;
    if (Status s = args_of(given, args); !s.ok()) return s;
    if (Status s = ready(plan->plan, *args); !s.ok()) return s;
    return run(plan->plan, *args, *given, stream);
  });
}

int attune_set_threads(int threads) {
  return answer([&] {
    if (threads < 0 || threads > kMostThreads)
      return Status::no("threads = ", threads, " is not in 0 ... ", kMostThreads);
    set_threads(threads);
    return Status::good();
  });
}

int attune_threads(void) { return default_threads(); }
size_t attune_plan_workspace(const attune_plan* plan) { return plan ? plan->plan.workspace_bytes : 0; }
const char* attune_plan_backend(const attune_plan* plan) { return plan ? plan->backend.c_str() : ""; }
const char* attune_plan_why(const attune_plan* plan) { return plan ? plan->why.c_str() : ""; }
void attune_plan_destroy(attune_plan* plan) { delete plan; }
const char* attune_last_error(void) { return local().last; }
int attune_last_code(void) { return int(local().code); }
const char* attune_version(void) { return ATTUNE_VERSION; }
