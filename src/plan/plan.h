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

// Plans of one device, by the bytes of their problem. A plan never moves and lives as long as the cache.
class PlanCache {
 public:
  explicit PlanCache(Planner planner) : planner_(std::move(planner)) {}
  Status find(const Problem&, const Plan*& out);

 private:
  Planner planner_;
  std::shared_mutex mutex_;
  std::unordered_map<Problem, std::unique_ptr<const Plan>, HashBytes> plans_;
};

}  // namespace attune
