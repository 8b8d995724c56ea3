// The buffers of one benchmark row: inputs from a seed, in memory aligned as an allocator of tensors aligns it. What
// they hold is made by verify/world.h, so a benchmark runs on the same kind of data as the conformance suite.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "core/variant/blocks.h"
#include "plan/backend.h"
#include "verify/world.h"

namespace attune {

// Memory that begins at a cache line and at a page of 4 KiB.
class Memory {
 public:
  explicit Memory(size_t bytes);
  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }
  void poison() const;  // NaN in every floating type

 private:
  struct Free { void operator()(std::byte*) const; };
  size_t bytes_ = 0;
  std::unique_ptr<std::byte[], Free> data_{};
};

enum class Distribution { normal, uniform, zeros };
Status parse(std::string_view word, Distribution& out);
std::string name(Distribution);

size_t span_bytes(const Tensor&);     // from the first to behind the last element

class Workload {
 public:
  // `lengths`: of the sequences of ragged keys, one for each, in place of the problem's bound. `pattern`: of the lists
  // of blocks, instead of ones that are drawn; it was read before and is right. Not `aligned`: nothing runs on this
  // memory, a GPU has a copy of it, and so it stays where it was made.
  Workload(const Problem&, Layout, uint32_t seed, Distribution, const std::vector<int32_t>& lengths = {},
           std::string_view pattern = {}, bool aligned = true);

  Args args{};  // inputs, and outputs in place
  // A backward's out and lse, by a forward of this planner.
  Status run_forward(const Planner&);
  Status plan_forward(const Planner&, Plan& out) const;
  // What the forward before a backward writes and the backward has no use for: its extents, or nothing.
  const Tensor& forward_out() const { return forward_out_; }
  const std::vector<Role>& outputs() const { return outputs_; }
  // Of lists of a pattern: what core/variant/blocks.h counts; all 0 without.
  const std::array<int64_t, size_t(BlockCount::count)>& blocks() const { return blocks_; }
  bool accumulates() const { return problem_.has(Option::accumulate); }
  void poison_outputs();
  void poison(const Args& other) const;  // what other_outputs() made
  // The same inputs with outputs of their own: what a peer's results are copied to.
  Args other_outputs();

 private:
  Problem problem_;
  std::vector<Memory> memory_{};
  std::unique_ptr<World> world_{};  // and what else was not moved
  Outputs made_{};
  std::vector<Role> outputs_{};
  Tensor forward_out_{};
  std::array<int64_t, size_t(BlockCount::count)> blocks_{};

  void rehome(Role, bool copy);
};

// What follows from a line.
double estimated_bytes(const Problem&);  // of inputs and outputs, of all ranks
// The matrix of scores in the type of the keys, which only unfused attention stores; of a rank: its queries and the
// keys of all.
double scores_bytes(const Problem&);
// Keys and values at their bounds, of every branch of a variant and what it compresses them to; 0: there are none.
double cache_bytes(const Problem&);
double token_bytes(const Problem&);  // of it: of a token, in all heads

}  // namespace attune
