// From a problem to a plan: keep what supports it, rank by what was measured, remember.
#pragma once
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "plan/backend.h"

namespace attune {

std::span<const Backend* const> backends();
const Backend* find_backend(std::string_view name);
std::string backend_names();  // "cpu_forward, cpu_backward, ..."

// The links that a call may go on to, in order, where its arguments do not fit the plan's backend: "vendor_cudnn,
// cuda_standard". Empty where every call fits, or the backend was asked for by name. Opens no library.
std::string links_after(const Plan&, const Planner&);

// Plans of one device, by the bytes of their problem. A plan never moves and lives as long as the cache.
class PlanCache {
 public:
  explicit PlanCache(Planner planner) : planner_(std::move(planner)) {}
  Status find(const Problem&, const Plan*& out);
  // `plan`, or where its backend does not fit the arguments the plan of the next link that does. Of a backend asked for
  // by name the refusal is an error. Costs nothing where the first link fits, and two lookups where it does not.
  Status fit(const Args&, const Plan*& plan);

 private:
  Status next(const Plan&, const Status& refusal, std::span<const Backend* const> unfit, const Plan*& out);
  Planner planner_;
  std::shared_mutex mutex_;
  std::unordered_map<Problem, std::unique_ptr<const Plan>, HashBytes> plans_;
  std::unordered_map<const Plan*, std::unique_ptr<const Plan>> next_;  // by the plan whose backend did not fit
};

}  // namespace attune
