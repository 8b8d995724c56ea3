// SPDX-License-Identifier: Apache-2.0
// Fixture for a case on a GPU: its tensors lie in one allocation, plans run on any stream, and outputs come back as
// bytes. `attune parity` checks correctness. The tests here check that a result repeats: from a graph, from another
// thread, after an error.
#pragma once
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "core/check.h"
#include "core/forward_of.h"
#include "machine/cuda/runtime.h"
#include "tests/asked_case.h"
#include "verify/compare.h"

namespace attune {

using Written = std::vector<unsigned char>;

// Base of all tests in this folder: skips the test, with the reason, if there is no GPU.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status s = cuda::device(0, gpu_); !s.ok()) GTEST_SKIP() << s.message;
    ASSERT_EQ(stream_.open(0).message, "");
  }
  Device gpu_{};
  cuda::OwnStream stream_{};
};

// The backends that support the problem on this GPU.
inline std::vector<const Backend*> takers(const Problem& p, const Device& d) {
  std::vector<const Backend*> all;
  for (const Backend* b : backends()) {
    Plan plan;
    if (!b->only_by_name && plan_on(*b, p, d, plan).ok()) all.push_back(b);
  }
  return all;
}

class Placed {
 public:
  // Inputs come from the case; for a backward, out and lse come from the reference. Outputs hold poison, or the values
  // that are accumulated into.
  Placed(std::string_view line, int device) : case_(case_of(line)), device_(device), world_(made(case_)) {
    outputs_ = world_->outputs(false);
    args_ = outputs_.args;
    size_t total = 0;
    for (int n = 0; n < int(Role::count); ++n)
      if (args_.given(Role(n))) {
        pieces_.push_back({Role(n), owner(args_[Role(n)]), total});
        total += (pieces_.back().owner->memory.size() + 255) / 256 * 256;
      }
    const cuda::DeviceGuard use(device_);
    status_ = memory_.allocate(device_, total);
    if (!status_.ok()) return;
    for (const Piece& piece : pieces_) {
      Tensor& t = args_[piece.role];
      const auto offset = static_cast<const unsigned char*>(t.data) - piece.owner->memory.data();
      t.data = memory_.data() + piece.at + offset, t.device = DeviceKind::cuda, t.device_index = device_;
      send(piece);
    }
  }

  const Problem& problem() const { return case_.problem; }
  const Plan& plan() const { return plan_; }
  Args& args() { return args_; }
  std::byte* scratch() const { return scratch_.data(); }

  // Plans for one backend and allocates its workspace, filled with poison.
  Status plan_for(const Backend& b, const Device& d) {
    if (!status_.ok()) return status_;
    if (Status s = plan_on(b, case_.problem, d, plan_); !s.ok()) return s;
    const cuda::DeviceGuard use(device_);
    if (Status s = scratch_.allocate(device_, plan_.workspace_bytes); !s.ok()) return s;
    cudaError_t error = cudaMemset(scratch_.data(), 0xFF, plan_.workspace_bytes);
    // The tests' streams do not synchronize with the default stream: without this, the poison may arrive during a run.
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    return error == cudaSuccess ? Status::good() : Status::no("cudaMemset: ", cudaGetErrorString(error));
  }
  // Whether the backend accepts these arguments; some refusals depend on them.
  bool fits() const { return !plan_.backend->fits || plan_.backend->fits(plan_, args_).ok(); }
  Status run(void* stream) const { return plan_.backend->run(plan_, args_, {scratch_.data()}, stream); }

  // Restores the outputs to their state before any run.
  void reset(void* stream) {
    for (const Piece& piece : pieces_)
      if (is_output(piece.role)) send(piece, stream);
  }
  // All memory of the outputs, or of `only`, after the stream has finished.
  Written results(void* stream, const std::vector<Role>& only = {}) const {
    return read(stream, [&](Role r) {
      return is_output(r) && (only.empty() || std::find(only.begin(), only.end(), r) != only.end());
    });
  }
  // All memory of the inputs.
  Written inputs(void* stream) const {
    return read(stream, [&](Role r) { return !is_output(r); });
  }
  // Runs into fresh outputs and returns what was written.
  Written fresh(void* stream) {
    reset(stream);
    const Status s = run(stream);
    EXPECT_EQ(s.message, "");
    return results(stream);
  }

  // Changes the integers of an input, if present: f(value, index).
  bool change(Role r, const std::function<int64_t(int64_t, int)>& f, void* stream) {
    for (const Piece& piece : pieces_) {
      if (piece.role != r) continue;
      const Tensor& t = piece.owner->t;
      int n = 0;
      piece.owner->each([&](int b, int s, int h, int d) {
        store(t, b, s, h, d, double(f(int64_t(load(t, b, s, h, d)), n++)));
      });
      send(piece, stream);
      return true;
    }
    return false;
  }

 private:
  struct Piece {
    Role role;
    const Owned* owner;
    size_t at;
  };

  static std::unique_ptr<World> made(const Case& c) {
    auto world = std::make_unique<World>(c.problem, c.variation);
    if (c.problem.pass == Pass::forward) return world;
    const Backend* reference = find_backend("reference");
    Plan plan;
    EXPECT_EQ(plan_on(*reference, forward_of(c.problem), Device{}, plan).message, "");
    EXPECT_EQ(reference->run(plan, world->forward_result(), {}, nullptr).message, "");
    return world;
  }
  const Owned* owner(const Tensor& t) const {
    for (const Owned& o : outputs_.owned)
      if (o.t.data == t.data) return &o;
    for (const Owned& o : world_->inputs())
      if (o.t.data == t.data) return &o;
    ADD_FAILURE() << "a tensor of " << name(case_) << " is neither an input nor an output";
    return nullptr;
  }
  bool is_output(Role r) const {
    return std::find(outputs_.roles.begin(), outputs_.roles.end(), r) != outputs_.roles.end();
  }
  template <class F>
  Written read(void* stream, F wanted) const {
    const cuda::DeviceGuard use(device_);
    Written all;
    for (const Piece& piece : pieces_) {
      if (!wanted(piece.role)) continue;
      const size_t before = all.size(), bytes = piece.owner->memory.size();
      all.resize(before + bytes);
      const Status s = cuda::copy_from(all.data() + before, memory_.data() + piece.at, bytes, stream);
      EXPECT_EQ(s.message, "") << name(problem());
    }
    return all;
  }
  void send(const Piece& piece, void* stream = nullptr) const {
    const cuda::DeviceGuard use(device_);
    const Written& from = piece.owner->memory;
    const Status s = cuda::copy_to(memory_.data() + piece.at, from.data(), from.size(), stream);
    EXPECT_EQ(s.message, "");
  }

  Case case_;
  int device_;
  std::unique_ptr<World> world_;
  Outputs outputs_{};
  Args args_{};
  std::vector<Piece> pieces_{};
  Plan plan_{};
  Status status_{};
  cuda::Memory memory_{}, scratch_{};
};

}  // namespace attune
