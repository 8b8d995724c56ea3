// SPDX-License-Identifier: Apache-2.0
// From a problem to a plan: keeps the backends that support it, ranks them by measurements and caches the result.
#pragma once
#include <atomic>
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "plan/backend.h"

namespace attune {

std::span<const Backend* const> backends();
const Backend* find_backend(std::string_view name);
std::string backend_names();  // "cpu_forward, cpu_backward, ..."

// The links that a call may fall back to, in order, if its arguments do not fit the plan's backend: "vendor_cudnn,
// cuda_standard". Empty if every call fits, or if the backend was selected by name. For a device with index -1, which
// is only described, it opens no library.
std::string links_after(const Plan&, const Planner&);

// A plan in a cache. Whoever holds it keeps it alive after the cache has dropped it.
struct CachedPlan : Plan {
  CachedPlan() = default;
  explicit CachedPlan(Plan plan) : Plan(std::move(plan)) {}
  mutable std::shared_ptr<const CachedPlan> next{};  // if the backend does not fit the arguments; guarded by the cache
  mutable std::atomic<bool> used{true};              // since the cache last dropped plans
  mutable std::atomic<bool> logged{false};
};

// The plans of one device, keyed by the bytes of their problem. At most `most` problems have one; then half of them are
// dropped, first those that were not used since the last time.
class PlanCache {
 public:
  using Kept = std::shared_ptr<const CachedPlan>;
  static constexpr size_t kMost = 4096;  // about a KiB each
  explicit PlanCache(Planner planner, size_t most = kMost) : planner_(std::move(planner)), most_(most) {}
  Status find(const Problem&, Kept& out);
  // Sets `plan` to the plan of the first link that fits the arguments, starting with `plan` itself. For a backend
  // selected by name, a refusal is an error. Free if the first link fits; otherwise costs two lookups.
  Status fit(const Args&, Kept& plan);
  size_t size() const;

 private:
  Status next(const CachedPlan& from, const Status& refusal, std::span<const Backend* const> unfit, Kept& out);
  void drop_half();
  Planner planner_;
  size_t most_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<Problem, Kept, HashBytes> plans_;
};

}  // namespace attune
