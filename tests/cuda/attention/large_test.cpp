// SPDX-License-Identifier: Apache-2.0
// Tensors with more than 2^31 elements, to expose 32-bit offsets. Computing 2^31 rows in double is too slow. Instead,
// one head of a few sequences is fetched with the keys it sees and judged as a separate problem: at the beginning,
// where offsets pass 2^31, and at the end. Values repeat with a prime period, so elements 2^31 or 2^32 elements or
// bytes away differ.
#include "machine/cuda/events.h"
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

constexpr int kHeads = 128, kDim = 128;
constexpr size_t kPeriod = 4194319;

class Large : public OnGpu {
 protected:
  Problem problem_{};
  Args args_{};
  std::vector<cuda::Memory> memory_{};
  Plan plan_{};

  bool room(double bytes) const {
    cuda::Facts facts;
    EXPECT_EQ(cuda::facts_of(0, facts).message, "");
    return double(facts.free_bytes) > bytes + 1e9;
  }
  // Allocates a contiguous tensor on the GPU.
  void place(Role r, DType type, Extents e) {
    Tensor& t = args_[r];
    t = {.dtype = type, .device = DeviceKind::cuda, .extent = e};
    t.stride = {.batch = e.batch > 1 ? int64_t(e.seq) * e.head * e.dim : 0, .seq = int64_t(e.head) * e.dim,
                .head = e.head > 1 ? e.dim : 0};
    const size_t bytes = size_t(e.batch) * size_t(e.seq) * size_t(e.head) * size_t(e.dim) * size_t(size_of(type));
    ASSERT_EQ(memory_.emplace_back().allocate(0, bytes).message, "");
    t.data = memory_.back().data();
    ASSERT_EQ(cuda::fill(t.data, 0xFF, bytes, stream_.get()).message, "");
  }
  // Fills the tensor with values from about N(0, 1): one piece from the host, then copies on the GPU.
  void draw(Role r, uint64_t seed) {
    std::vector<uint16_t> piece(kPeriod);
    Random random{seed};
    const Tensor number{.data = nullptr, .dtype = DType::bf16};
    for (uint16_t& x : piece) {
      Tensor one = number;
      one.data = &x;
      store(one, 0, 0, 0, 0, 3.4 * random.uniform() - 1.7);
    }
    const cuda::Memory& to = memory_.back();
    const size_t first = kPeriod * sizeof(uint16_t);
    ASSERT_EQ(args_[r].data, to.data());
    ASSERT_EQ(cuda::copy_to(to.data(), piece.data(), std::min(first, to.bytes()), stream_.get()).message, "");
    for (size_t there = first; there < to.bytes(); there *= 2)
      ASSERT_EQ(
          cuda::copy_inside(to.data() + there, to.data(), std::min(there, to.bytes() - there), stream_.get()).message,
          "");
  }
  // Allocates the tensors of `line`; ragged ones are packed.
  void place_all(std::string_view line) {
    problem_ = case_of(line).problem;
    const Problem& p = problem_;
    const bool ragged = p.keys == KeySource::ragged;
    const Extents rows = ragged ? Extents{1, p.batch * p.len_q, p.heads_q, p.dim_qk}
                                : Extents{p.batch, p.len_q, p.heads_q, p.dim_qk};
    ASSERT_GT(int64_t(rows.batch) * rows.seq * rows.head * rows.dim, int64_t(1) << 31);
    uint64_t seed = 0;
    for (const Role r : {Role::q, Role::k, Role::v}) place(r, DType::bf16, rows), draw(r, ++seed);
    place(Role::out, DType::bf16, rows);
    place(Role::lse, DType::f32, {rows.batch, rows.seq, rows.head, 1});
    if (p.pass == Pass::backward) {
      place(Role::d_out, DType::bf16, rows), draw(Role::d_out, ++seed);
      for (const Role r : {Role::dq, Role::dk, Role::dv}) place(r, DType::bf16, rows);
    }
    if (!ragged) return;
    std::vector<int32_t> first;
    for (int b = 0; b <= p.batch; ++b) first.push_back(b * p.len_q);
    for (const Role r : {Role::cu_q, Role::cu_k}) {
      place(r, DType::i32, {1, 1, 1, p.batch + 1});
      ASSERT_EQ(cuda::copy_to(args_[r].data, first.data(), first.size() * 4, stream_.get()).message, "");
    }
  }
  void run(const Problem& p, const char* backend) {
    const Backend* b = find_backend(backend);
    ASSERT_NE(b, nullptr);
    ASSERT_EQ(plan_on(*b, p, gpu_, plan_).message, "");
    const Args args = p.pass == Pass::forward ? forward_of(args_) : args_;
    ASSERT_EQ(check(p, args).message, "");
    ASSERT_TRUE(!b->fits || b->fits(plan_, args).ok());
    cuda::Memory scratch;
    ASSERT_EQ(scratch.allocate(0, plan_.workspace_bytes).message, "");
    ASSERT_EQ(b->run(plan_, args, {scratch.data()}, stream_.get()).message, "");
    ASSERT_EQ(cuda::wait(stream_.get()).message, "");
  }
  // Runs the forward of `shape`, then its backward if one is named; callers check whether the test was skipped.
  void run_both(const std::string& shape, const char* forward, const char* backward) {
    const Problem p = case_of(join("forward", shape)).problem;
    const double elements = double(p.batch) * p.len_q * p.heads_q * p.dim_qk;
    if (const double bytes = elements * (backward ? 8 * 2 + 4 : 4 * 2); !room(bytes))
      GTEST_SKIP() << "needs " << bytes / 1e9 << " GB of GPU memory, more than are free";
    place_all(join(backward ? "backward" : "forward", shape));
    if (!HasFatalFailure()) run(p, forward);
    if (backward && !HasFatalFailure()) run(problem_, backward);
  }

  // Copies `count` rows of a head from the GPU to a one-head tensor on the host.
  void fetch(Role r, int b, int64_t first, int count, int head, const Tensor& to, int at = 0) const {
    const Tensor& from = args_[r];
    const size_t size = size_t(size_of(from.dtype)), width = size_t(from.extent.dim) * size;
    ASSERT_EQ(cudaMemcpy2D(row_address(to, 0, at, 0), size_t(to.stride.seq) * size, row_address(from, b, first, head),
                           size_t(from.stride.seq) * size, width, size_t(count), cudaMemcpyDeviceToHost),
              cudaSuccess);
  }
  // Compares queries [first, first + rows) of a head with the reference, over the `rows + before` keys that end at the
  // same row. The first `before` rows of dk and dv are excluded, because other queries see those keys too.
  void judge(int b, int64_t first, int rows, int before, int head, std::string_view mask) {
    SCOPED_TRACE(join("batch ", b, ", head ", head, ", row ", first));
    const bool backward = problem_.pass == Pass::backward;
    Trial trial(case_of(join(backward ? "backward" : "forward", " bf16 b1 h1 q", rows, " k", rows + before, " d", kDim,
                             " ", mask, " | pad=0")));
    const Args& inputs = trial.world.args;
    fetch(Role::q, b, first, rows, head, inputs[Role::q]);
    for (const Role r : {Role::k, Role::v}) fetch(r, b, first - before, rows + before, head, inputs[r]);
    if (backward) fetch(Role::d_out, b, first, rows, head, inputs[Role::d_out]);
    ASSERT_EQ(trial.prepare().message, "");
    const Outputs got = trial.world.outputs(false);
    const Backend* reference = find_backend("reference");
    Plan plan;
    ASSERT_EQ(plan_on(*reference, trial.world.problem, Device{}, plan).message, "");
    ASSERT_EQ(reference->run(plan, got.args, {}, nullptr).message, "");  // fills the rows that are not fetched
    for (const Role r : got.roles) {
      const bool of_keys = r == Role::dk || r == Role::dv;
      fetch(r, b, first, rows, head, got.args[r], of_keys ? before : 0);
    }
    const Outcome outcome = trial.judge(got);
    EXPECT_NE(outcome.verdict, Verdict::fail) << outcome.why;
  }
};

// As many one-head sequences as fit; then their gradients.
struct Batches : Large {
  static constexpr int kLength = 256, kBatch = 544;
  void check_on(const char* forward, const char* backward, const char* keys = "") {
    const std::string shape = join(" bf16 b", kBatch, " h", kHeads, " q", kLength, " k", kLength, " d", kDim, " causal",
                                   keys);
    run_both(shape, forward, backward);
    if (IsSkipped()) return;
    for (const int b : {0, kBatch / 4 + 1, kBatch / 2 + 1, kBatch - 1}) {
      const bool packed = problem_.keys == KeySource::ragged;
      if (!HasFatalFailure())
        judge(packed ? 0 : b, packed ? int64_t(b) * kLength : 0, kLength, 0, (b * 37 + kHeads - 1) % kHeads, "causal");
    }
  }
};

// One sequence so long that its rows lie beyond 2^31, each with a window of keys.
struct Rows : Large {
  static constexpr int kHeads = 16, kLength = 1052000, kLeft = 255, kRows = 300;
  void check_on(const char* forward, const char* backward) {
    const std::string mask = join("window", kLeft, ",0");
    const std::string shape = join(" bf16 b1 h", kHeads, " q", kLength, " k", kLength, " d", kDim, " ", mask);
    run_both(shape, forward, backward);
    if (IsSkipped()) return;
    // dk and dv are complete only at the last rows; elsewhere later queries see these keys too.
    for (const int64_t end : {kLength / 2 + 100, kLength})
      if (!HasFatalFailure() && (!backward || end == kLength))
        judge(0, end - kRows, kRows, kLeft, end == kLength ? kHeads - 1 : 0, mask);
  }
};

// Returns a sentence if this GPU has no kernels of that name.
std::string missing(const char* backend, const Device& d) {
  if (d.arch == 90 && find_backend(backend)) return "";
  return join(backend, " needs a GPU of arch 90, ", d.name, " is ", d.arch);
}

TEST_F(Batches, sm90_forward_is_right_beyond_2_31_elements) {
  if (const std::string why = missing("sm90_forward", gpu_); !why.empty()) GTEST_SKIP() << why;
  check_on("sm90_forward", nullptr);
}
TEST_F(Batches, sm90_forward_is_right_beyond_2_31_elements_of_packed_sequences) {
  if (const std::string why = missing("sm90_forward", gpu_); !why.empty()) GTEST_SKIP() << why;
  check_on("sm90_forward", nullptr, " ragged");
}
TEST_F(Rows, sm90_forward_is_right_beyond_2_31_elements_of_one_sequence) {
  if (const std::string why = missing("sm90_forward", gpu_); !why.empty()) GTEST_SKIP() << why;
  check_on("sm90_forward", nullptr);
}
TEST_F(Batches, sm90_backward_is_right_beyond_2_31_elements) {
  if (const std::string why = missing("sm90_backward", gpu_); !why.empty()) GTEST_SKIP() << why;
  check_on("sm90_forward", "sm90_backward");
}
TEST_F(Batches, sm90_backward_is_right_beyond_2_31_elements_of_packed_sequences) {
  if (const std::string why = missing("sm90_backward", gpu_); !why.empty()) GTEST_SKIP() << why;
  check_on("sm90_forward", "sm90_backward", " ragged");
}
TEST_F(Rows, sm90_backward_is_right_beyond_2_31_elements_of_one_sequence) {
  if (const std::string why = missing("sm90_backward", gpu_); !why.empty()) GTEST_SKIP() << why;
  check_on("sm90_forward", "sm90_backward");
}
TEST_F(Batches, sm80_forward_and_sm80_backward_are_right_beyond_2_31_elements) {
  check_on("sm80_forward", "sm80_backward");
}
TEST_F(Rows, sm80_forward_and_sm80_backward_are_right_beyond_2_31_elements_of_one_sequence) {
  check_on("sm80_forward", "sm80_backward");
}

}  // namespace
}  // namespace attune
