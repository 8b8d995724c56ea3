// SPDX-License-Identifier: Apache-2.0
// A thousand runs of sm90_forward, and two hundred of reproducible sm90_backward, give the same bits. The assignment of
// tiles to CTAs differs between runs, more so next to another kernel, and must not affect the result. Results are
// compared on the GPU: a run takes microseconds, fetching its output milliseconds.
#include "machine/cuda/events.h"
#include "tests/cuda/attention/differences.h"
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

class Repeats : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_EQ(count_.allocate(0, sizeof(unsigned long long)).message, "");
    ASSERT_EQ(cuda::fill(count_.data(), 0, count_.bytes(), stream_.get()).message, "");
    ASSERT_EQ(beside_.open(0).message, "");
  }
  unsigned long long* count() const { return reinterpret_cast<unsigned long long*>(count_.data()); }
  unsigned long long counted() const {
    unsigned long long n = ~0ull;
    EXPECT_EQ(cuda::copy_from(&n, count_.data(), sizeof n, stream_.get()).message, "");
    return n;
  }
  // Checks that all runs of a line give the same bits next to another kernel.
  void same_bits(const Backend& b, const char* line, std::initializer_list<Role> roles, int runs, bool* few = nullptr);

  cuda::Memory count_{};
  cuda::OwnStream beside_{};
};

// The memory of an output, its contents before any run, and the result of the first run.
struct Kept {
  std::byte* data = nullptr;
  size_t bytes = 0;
  cuda::Memory before{}, first{};

  Kept(const Tensor& t, void* stream) : data(static_cast<std::byte*>(t.data)) {
    const Extents& e = t.extent;
    bytes = size_t((e.batch - 1) * t.stride.batch + (e.seq - 1) * t.stride.seq + (e.head - 1) * t.stride.head + e.dim) *
            size_t(size_of(t.dtype));
    EXPECT_EQ(before.allocate(0, bytes).message, "");
    EXPECT_EQ(first.allocate(0, bytes).message, "");
    keep(before, stream);
  }
  void keep(const cuda::Memory& to, void* stream) const {
    EXPECT_EQ(cuda::copy_inside(to.data(), data, bytes, stream).message, "");
  }
  bool restore(void* stream) const { return cuda::copy_inside(data, before.data(), bytes, stream).ok(); }
};

void Repeats::same_bits(const Backend& b, const char* line, std::initializer_list<Role> roles, int runs, bool* few) {
  SCOPED_TRACE(line);
  void* const stream = stream_.get();
  Placed other("forward bf16 b1 h4 q400 k400 d64 full", 0), on(line, 0);
  ASSERT_EQ(other.plan_for(*find_backend("sm80_forward"), gpu_).message, "");
  ASSERT_EQ(on.plan_for(b, gpu_).message, "");
  ASSERT_TRUE(on.fits());
  if (few) *few |= on.plan().splits > 1;
  std::vector<Kept> kept;
  for (const Role r : roles)
    if (on.args().given(r)) kept.emplace_back(on.args()[r], stream);
  ASSERT_EQ(on.run(stream).message, "");
  for (const Kept& k : kept) k.keep(k.first, stream);
  ASSERT_EQ(cuda::fill(count_.data(), 0, count_.bytes(), stream).message, "");
  for (const Kept& k : kept)  // guards against runs that write nothing
    ASSERT_EQ(count_differences(k.first.data(), k.before.data(), k.bytes, count(), stream).message, "");
  ASSERT_GT(counted(), 0u);
  ASSERT_EQ(cuda::fill(count_.data(), 0, count_.bytes(), stream).message, "");
  for (int n = 1; n < runs; ++n) {
    bool enqueued = n % 4 || other.run(beside_.get()).ok();
    for (const Kept& k : kept) enqueued = enqueued && k.restore(stream);
    enqueued = enqueued && on.run(stream).ok();
    for (const Kept& k : kept)
      enqueued = enqueued && count_differences(k.data, k.first.data(), k.bytes, count(), stream).ok();
    ASSERT_TRUE(enqueued) << "run " << n + 1;
  }
  EXPECT_EQ(counted(), 0u) << "bytes, of " << runs << " runs";
  ASSERT_EQ(cuda::wait_all(0).message, "");
}

TEST_F(Repeats, one_byte_that_differs_is_found) {
  constexpr size_t kBytes = 1000003;
  cuda::Memory a, b;
  for (cuda::Memory* m : {&a, &b}) {
    ASSERT_EQ(m->allocate(0, kBytes).message, "");
    ASSERT_EQ(cuda::fill(m->data(), 7, kBytes, stream_.get()).message, "");
  }
  const auto found = [&] {
    EXPECT_EQ(cuda::fill(count_.data(), 0, count_.bytes(), stream_.get()).message, "");
    EXPECT_EQ(count_differences(a.data(), b.data(), kBytes, count(), stream_.get()).message, "");
    return counted();
  };
  EXPECT_EQ(found(), 0u);
  for (const size_t at : {size_t(0), size_t(1), kBytes / 2, kBytes - 1}) {
    ASSERT_EQ(cuda::fill(b.data() + at, 8, 1, stream_.get()).message, "");
    EXPECT_EQ(found(), 1u) << at;
    ASSERT_EQ(cuda::fill(b.data() + at, 7, 1, stream_.get()).message, "");
  }
  ASSERT_EQ(cuda::fill(b.data(), 8, kBytes, stream_.get()).message, "");
  EXPECT_EQ(found(), kBytes);
}

// Tile counters lie in the workspace, and a launch recognizes its own by a tag. When the tag was a plain launch count,
// stale numbers and indices in that memory were mistaken for a counter, and query tiles were skipped.
TEST_F(Repeats, no_content_of_the_workspace_is_taken_for_a_counter) {
  const Backend* b = find_backend("sm90_forward");
  if (!b || gpu_.arch != 90)
    GTEST_SKIP() << "sm90_forward needs a GPU of arch 90, " << gpu_.name << " is " << gpu_.arch;
  void* const stream = stream_.get();
  Placed on("forward bf16 b8 h56/8 q65 k129 d256/128 causal", 0);
  ASSERT_EQ(on.plan_for(*b, gpu_).message, "");
  const Kept out(on.args()[Role::out], stream);
  ASSERT_EQ(on.run(stream).message, "");
  out.keep(out.first, stream);
  ASSERT_EQ(cuda::fill(count_.data(), 0, count_.bytes(), stream).message, "");
  std::vector<uint64_t> words(on.plan().workspace_bytes / 8);
  for (uint64_t launch = 0; launch < 600; ++launch) {
    // The counter values of launches 2, 4, 6, ...: one of them would match this launch if launches were counted from 1.
    // Floats such as 0.5 and 2 next to a 0 are such words.
    std::fill(words.begin(), words.end(), 2 * launch << 24 | 7);
    ASSERT_EQ(cuda::copy_to(on.scratch(), words.data(), words.size() * 8, stream).message, "");
    ASSERT_TRUE(out.restore(stream));
    ASSERT_EQ(on.run(stream).message, "");
    ASSERT_EQ(count_differences(out.data, out.first.data(), out.bytes, count(), stream).message, "");
  }
  EXPECT_EQ(counted(), 0u) << "bytes";
}

TEST_F(Repeats, a_thousand_runs_of_sm90_forward_give_the_same_bits) {
  // Two to five query tiles per SM on 132 SMs, fewer tiles, or varying lengths.
  constexpr const char* kLines[] = {
      "forward bf16 b1 h48/4 q1600 k1600 d64 causal",
      "forward bf16 b1 h48/4 q1600 k1600 d64 full",
      "forward bf16 b1 h48/4 q1600 k2100 d64 causal",
      "forward f16 b1 h32/4 q1100 k1100 d96 causal",
      "forward bf16 b1 h32/4 q1100 k1100 d128 causal",
      "forward bf16 b1 h32/4 q1100 k1100 d128 full",
      "forward bf16 b1 h32/4 q1100 k4000 d128 full",
      "forward f16 b1 h32/4 q1100 k1100 d128 window200,0",
      "forward f16 b1 h48/4 q2100 k2100 d128 window300,0",
      "forward bf16 b9 h64/8 q16 k700 d128 causal",
      "forward bf16 b1 h24/4 q1100 k1100 d192/128 causal",
      "forward bf16 b1 h24/4 q1100 k1100 d192 full",
      "forward bf16 b1 h24/4 q1500 k1500 d256 causal",
      "forward bf16 b1 h24/4 q1500 k1500 d256 full",
      "forward bf16 b1 h8 q1024 k1024 d64 causal",
      "forward bf16 b1 h1 q128 k128 d64 full",
      "forward bf16 b1 h8 q512 k512 d128 causal",
      "forward bf16 b24 h16/4 q500 k500 d128 causal ragged | seed=2 drawn",
      "forward bf16 b24 h16/4 q500 k500 d64 full ragged | seed=3 drawn",
      "forward bf16 b1 h16/4 q1100 k1100 d128 causal blocks128x128x400",
      "forward bf16 b1 h16/4 q1100 k1100 d128 causal blocks64x64x800",
      "forward f16 b1 h16/4 q1100 k1100 d64 full blocks64x64x800",
      "forward bf16 b1 h16/4 q1100 k1100 d64 full blocks128x64x600 alibi",
      "forward bf16 b1 h16/4 q1100 k1100 d128 causal blocks128x128x400 softcap dropout",
      "forward bf16 b1 h16/4 q1100 k1100 d128 causal softcap dropout",
      "forward bf16/bf16/f32 b1 h16/4 q1100 k1100 d128 causal accumulate",
  };
  const Backend* b = find_backend("sm90_forward");
  if (!b || gpu_.arch != 90)
    GTEST_SKIP() << "sm90_forward needs a GPU of arch 90, " << gpu_.name << " is " << gpu_.arch;
  bool few = false;
  for (const char* line : kLines) same_bits(*b, line, {Role::out, Role::lse}, 1000, &few);
  // The problems that once deadlocked: more query tiles than SMs, with one to three key tiles each.
  for (const std::string_view line : large_lines())
    if (line.starts_with("forward ")) same_bits(*b, line.data(), {Role::out, Role::lse}, 1000, &few);
  EXPECT_TRUE(few) << "no line has few tiles of queries";
}

TEST_F(Repeats, two_hundred_reproducible_runs_of_sm90_backward_give_the_same_bits) {
  // Several key tiles add to each query tile of dQ.
  constexpr const char* kLines[] = {
      "backward bf16 b1 h4/2 q700 k900 d64 causal repro=run",
      "backward bf16 b2 h2 q600 k900 d64 full repro=run",
      "backward f16 b1 h4/2 q700 k900 d128 causal repro=run",
      "backward bf16 b2 h2 q600 k800 d128 window300,100 repro=run",
      "backward bf16 b9 h16 q300 k500 d128 causal repro=run",  // persistent CTAs
      "backward f16 b18 h8/4 q200 k300 d128 full repro=run",
      "backward bf16 b2 h20 q900 k900 d64 full repro=run",
      "backward f16 b4 h10/5 q700 k1000 d64 causal repro=run",
      "backward bf16 b8 h16 q300 k500 d64 full repro=run",
      "backward bf16 b1 h16/2 q500 k700 d64 causal repro=run",  // a GQA group split over CTAs
      "backward f16 b1 h16/2 q500 k700 d128 causal repro=run",
      "backward f16 b1 h48/3 q1300 k2050 d8 causal repro=run",  // more head splits than SMs
      "backward bf16 b2 h2 q600 k800 d96 causal repro=run",
      "backward f16 b1 h2 q400 k500 d192/128 causal repro=run",
      "backward bf16 b1 h2 q400 k500 d192 causal repro=run",
      "backward bf16 b1 h2 q300 k500 d256 full repro=run",
      "backward bf16 b4 h2 q500 k500 d64 causal ragged repro=run | seed=2 drawn",
      "backward bf16 b4 h2 q500 k500 d128 full ragged repro=batch | seed=3 drawn",
      "backward bf16 b1 h4/2 q500 k500 d64 causal softcap dropout repro=run",
      "backward bf16 b1 h4/2 q500 k500 d128 full alibi repro=run",
      "backward bf16 b2 h4/2 q500 k500 d128 causal sink repro=run",  // plus the gradients of sinks and of a bias
      "backward f16 b2 h2 q300 k500 d256 causal sink repro=run",
      "backward bf16 b1 h4/2 q300 k500 d64 full bias repro=run",
  };
  const Backend* b = find_backend("sm90_backward");
  if (!b || gpu_.arch != 90)
    GTEST_SKIP() << "sm90_backward needs a GPU of arch 90, " << gpu_.name << " is " << gpu_.arch;
  for (const char* line : kLines) same_bits(*b, line, {Role::dq, Role::dk, Role::dv, Role::d_sinks, Role::d_bias}, 200);
}

}  // namespace
}  // namespace attune
