// SPDX-License-Identifier: Apache-2.0
// The buffers of one benchmark row: inputs from a seed, aligned as a tensor allocator aligns them. The values come from
// verify/world.h, so a benchmark runs on the same kind of data as the conformance suite.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "core/variant/blocks.h"
#include "plan/backend.h"
#include "verify/world.h"

namespace attune {

// Memory aligned to a page of 4 KiB.
class Memory {
 public:
  explicit Memory(size_t bytes);
  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }
  void poison() const;  // NaN in every floating-point type

 private:
  struct Free { void operator()(std::byte*) const; };
  size_t bytes_ = 0;
  std::unique_ptr<std::byte[], Free> data_{};
};

enum class Distribution { normal, uniform, zeros };
Status parse(std::string_view word, Distribution& out);
std::string name(Distribution);

size_t span_bytes(const Tensor&);     // from the first to the end of the last element

class Workload {
 public:
  // `lengths` replaces the problem's bound by one length per sequence of ragged keys. `pattern` fills the block lists,
  // which are drawn at random otherwise; it must have been parsed before. Without `aligned` the tensors stay where they
  // were made, because only a copy on a GPU is used.
  Workload(const Problem&, Layout, uint32_t seed, Distribution, const std::vector<int32_t>& lengths = {},
           std::string_view pattern = {}, bool aligned = true);

  Args args{};  // inputs, and outputs in place
  // Computes a backward's out and lse with a forward of this planner.
  Status run_forward(const Planner&);
  Status plan_forward(const Planner&, Plan& out) const;
  // The out that the forward writes and the backward does not read; without data if the backward reads it.
  const Tensor& forward_out() const { return forward_out_; }
  const std::vector<Role>& outputs() const { return outputs_; }
  // Counts of the block lists of a pattern, see core/variant/blocks.h; all 0 without a pattern.
  const std::array<int64_t, size_t(BlockCount::count)>& blocks() const { return blocks_; }
  bool accumulates() const { return problem_.has(Option::accumulate); }
  void poison_outputs();
  void poison(const Args& other) const;  // poisons the result of other_outputs()
  // The same inputs with separate outputs, for the results of a peer.
  Args other_outputs();

 private:
  Problem problem_;
  std::vector<Memory> memory_{};
  std::unique_ptr<World> world_{};  // owns the tensors that were not moved into memory_
  Outputs made_{};
  std::vector<Role> outputs_{};
  Tensor forward_out_{};
  std::array<int64_t, size_t(BlockCount::count)> blocks_{};

  void rehome(Role, bool copy);
};

// Sizes that follow from a problem line.
double estimated_bytes(const Problem&);  // inputs and outputs of all ranks
// The score matrix in the dtype of the keys, which only unfused attention stores. For a rank: its queries times the
// keys of all ranks.
double scores_bytes(const Problem&);
// Keys and values at their bounds, of every branch of a variant, compressed tokens included; 0 if there are none.
double cache_bytes(const Problem&);
double token_bytes(const Problem&);  // cache_bytes() per token, over all heads

}  // namespace attune
