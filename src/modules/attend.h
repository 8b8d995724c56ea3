// SPDX-License-Identifier: Apache-2.0
// Attention as a step: any problem, with or without a variant. The tensors that the problem needs (dense roles, and
// those that its variant declares) are looked up by name among the builder's sources. What a forward saves for its
// backward goes on the tape. Plans are made here, once. A backward without a backend is refused when it is requested,
// not before.
#pragma once
#include "core/variant/variants.h"
#include "modules/graph.h"
#include "plan/rules.h"

namespace attune {

// A tensor that can be bound to a role, by the role's name or the variant's name for it. Exactly one field is set.
struct Source {
  std::string name{};
  int value = -1, weight = -1, constant = -1;
  bool seed = false;  // the seed of the call; null without one, which means no noise
};

// What is not part of the problem: numbers of its calls, and a backend by name (Planner::forced).
struct AttendSettings {
  float softcap = 0.f, dropout = 0.f;
  float scale = 0.f;      // 0: 1 / sqrt(dim_qk)
  std::string backend{};  // "": the planner's choice
};

class Attend : public Step {
 public:
  // Adds the step to the graph.
  static Status make(Graph&, const Problem&, std::span<const Rule>, const std::vector<Source>&, const AttendSettings&,
                     int out, Attend*& made);
  Attend() = default;
  Status forward(const Run&) const override;
  Status backward(const Run&) const override;
  size_t scratch(Pass) const override;
  Status check(const Run&) const override;
  std::string why() const;  // the backends of both passes

 private:
  struct Bound {
    Role role;
    Source from;
    Role gradient = Role::count;
    int input = -1;  // index among the inputs
  };
  // A gradient that is computed separately, because the step cannot add to the existing one.
  struct Apart { Tensor made, to; };

  Args args(const Run&) const;  // arguments of both passes
  Args forward_args(const Run&) const;
  Args gradient_args(const Run&, std::vector<Apart>&) const;
  Status plan(const Graph&, std::span<const Rule>);
  bool is_apart(const Bound&) const;

  Problem problem_{};
  AttendSettings settings_{};
  std::vector<Bound> bound_{};
  int out_ = -1, lse_ = -1;
  int no_seed_ = -1;                    // a constant of zeros, with dropout only
  Roles backward_roles_ = ~Roles(0);    // dense roles that a backward takes
  Plan forward_{}, backward_{};
  Status no_backward_{};
  std::vector<size_t> weight_bytes_{};  // size of the f32 gradient of each bound weight
  std::vector<size_t> value_bytes_{};   // size of the gradient of each input
};

}  // namespace attune
