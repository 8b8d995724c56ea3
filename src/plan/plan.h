// From a problem to a plan: keeps the backends that support it, ranks them by measurements and caches the result.
#pragma once
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

// The plans of one device, keyed by the bytes of their problem. A plan never moves and lives as long as the cache.
class PlanCache {
 public:
  explicit PlanCache(Planner planner) : planner_(std::move(planner)) {}
  Status find(const Problem&, const Plan*& out);
  // Sets `plan` to the plan of the first link that fits the arguments, starting with `plan` itself. For a backend
  // selected by name, a refusal is an error. Free if the first link fits; otherwise costs two lookups.
  Status fit(const Args&, const Plan*& plan);

 private:
  Status next(const Plan&, const Status& refusal, std::span<const Backend* const> unfit, const Plan*& out);
  Planner planner_;
  std::shared_mutex mutex_;
  std::unordered_map<Problem, std::unique_ptr<const Plan>, HashBytes> plans_;
  std::unordered_map<const Plan*, std::unique_ptr<const Plan>> next_;  // keyed by the plan whose backend did not fit
};

}  // namespace attune
