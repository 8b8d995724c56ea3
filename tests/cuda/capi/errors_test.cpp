// SPDX-License-Identifier: Apache-2.0
// GPU errors return a sentence with the backend, the call and the problem, and leave everything usable.
#include "attune/attune.h"
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

constexpr const char *kForward = "forward bf16 b2 h4/2 q130 k257 d64 causal",
                     *kSplit = "forward bf16 b1 h4/1 q1 k4096 d128 full",
                     *kBackward = "backward bf16 b2 h4/2 q130 k257 d64 causal repro=run";

// The arguments of a case as a user of the C interface passes them.
struct Given {
  attune_problem problem{};
  attune_args args{};
  attune_tensor tensor[ATTUNE_ROLES]{};
  int64_t shape[ATTUNE_ROLES][4]{}, strides[ATTUNE_ROLES][4]{};

  Given(const char* line, Placed& on) {
    problem.size = sizeof problem, args.size = sizeof args;
    EXPECT_EQ(attune_problem_parse(line, &problem), 0) << attune_last_error();
    for (int r = 0; r < ATTUNE_ROLES; ++r) {
      const Tensor& t = on.args()[Role(r)];
      if (!t.data) continue;
      const int64_t extent[] = {t.extent.batch, t.extent.seq, t.extent.head, t.extent.dim};
      const int64_t stride[] = {t.stride.batch, t.stride.seq, t.stride.head, 1};
      for (int n = 0; n < 4; ++n) shape[r][n] = extent[n], strides[r][n] = stride[n];
      attune_tensor& to = tensor[r];
      to.data = t.data, to.device = {2, t.device_index}, to.ndim = Role(r) == Role::lse ? 3 : 4;
      to.dtype = {uint8_t(t.dtype == DType::bf16 ? 4 : 2), uint8_t(8 * size_of(t.dtype)), 1};
      to.shape = shape[r], to.strides = strides[r], to.axes = Role(r) == Role::lse ? "bsh" : "bshd";
      args.role[r] = &to;
    }
  }
};

class Errors : public OnGpu {};

TEST_F(Errors, memory_of_the_host_is_seen_by_the_check) {
  Placed on(kForward, 0);
  Given given(kForward, on);
  EXPECT_EQ(attune_check(&given.problem, &given.args), 0) << attune_last_error();
  std::vector<char> host(1 << 20);
  given.tensor[ATTUNE_K].data = host.data();
  EXPECT_EQ(attune_check(&given.problem, &given.args), 1);
  EXPECT_STREQ(attune_last_error(), "k: is given as on cuda:0, but its address is not GPU memory");
}

TEST_F(Errors, a_gpu_that_is_not_there_is_named) {
  Placed on(kForward, 0);
  Given given(kForward, on);
  for (attune_tensor& t : given.tensor) t.device.id = 61;
  EXPECT_EQ(attune_call(&given.problem, &given.args, stream_.get()), 1);
  const std::string said = attune_last_error();
  EXPECT_TRUE(said.starts_with("q: is on cuda:61, where this build cannot run: there ")) << said;
}

TEST_F(Errors, a_workspace_that_is_too_small_is_refused_before_anything_runs) {
  Placed on(kSplit, 0);
  Given given(kSplit, on);
  size_t needed = 0;
  ASSERT_EQ(attune_workspace(&given.problem, "cuda:0", &needed), 0) << attune_last_error();
  ASSERT_GT(needed, 64u) << "the keys are not split";
  cuda::Memory scratch;
  ASSERT_EQ(scratch.allocate(0, needed).message, "");
  given.args.workspace = scratch.data(), given.args.workspace_bytes = 64;
  EXPECT_EQ(attune_call(&given.problem, &given.args, stream_.get()), 1);
  EXPECT_EQ(attune_last_error(), join("workspace: 64 bytes given, the plan needs ", needed));
  given.args.workspace_bytes = needed;
  EXPECT_EQ(attune_call(&given.problem, &given.args, stream_.get()), 0) << attune_last_error();
  EXPECT_EQ(cuda::wait(stream_.get()).message, "");
}

TEST_F(Errors, rows_that_are_not_aligned_are_refused_by_name) {
  for (const auto& [who, line] : {std::pair{"sm80_forward", kForward}, {"sm80_backward", kBackward}}) {
    Placed on(line, 0);
    ASSERT_EQ(on.plan_for(*find_backend(who), gpu_).message, "");
    const Tensor k = on.args()[Role::k];
    on.args()[Role::k].data = static_cast<char*>(k.data) + 2;
    EXPECT_EQ(on.run(stream_.get()).message, join(who, ": k is not aligned to 16 bytes"));
    on.args()[Role::k] = k;
    on.args()[Role::v].stride.seq += 1;
    const std::string said = on.run(stream_.get()).message;
    EXPECT_TRUE(said.starts_with(join(who, ": v has a seq stride of "))) << said;
  }
}

// A call by problem falls through to a backend that accepts such rows, and explains why it needs a different workspace.
TEST_F(Errors, a_call_with_rows_that_are_not_aligned_goes_to_the_next_link) {
  Placed on(kForward, 0);
  Given given(kForward, on);
  given.tensor[ATTUNE_K].data = static_cast<char*>(given.tensor[ATTUNE_K].data) + 2;
  attune_plan* plan = nullptr;
  ASSERT_EQ(attune_plan_create(&given.problem, "cuda:0", "cuda_standard", &plan), 0) << attune_last_error();
  const size_t needed = attune_plan_workspace(plan);
  attune_plan_destroy(plan);
  cuda::Memory scratch;
  ASSERT_EQ(scratch.allocate(0, needed).message, "");
  given.args.workspace = scratch.data(), given.args.workspace_bytes = 64;
  EXPECT_EQ(attune_call(&given.problem, &given.args, stream_.get()), 1);
  const std::string said = attune_last_error();
  const std::string begin = join("workspace: 64 bytes given, the plan needs ", needed, ", cuda_standard: ");
  EXPECT_TRUE(said.starts_with(begin)) << said;
  EXPECT_NE(said.find("\n  sm80_forward: k is not aligned to 16 bytes"), std::string::npos) << said;
  given.args.workspace_bytes = needed;
  EXPECT_EQ(attune_call(&given.problem, &given.args, stream_.get()), 0) << attune_last_error();
  EXPECT_EQ(cuda::wait(stream_.get()).message, "");
}

// A launch that CUDA refuses: the stream is being captured, and the capture is already invalid.
TEST_F(Errors, a_refused_launch_is_a_sentence_with_the_call_and_the_problem) {
  const auto stream = static_cast<cudaStream_t>(stream_.get());
  for (const char* line : {kForward, kSplit, kBackward, "forward f32 b1 h2 q33 k65 d64 causal",
                           "forward bf16 b2 h4/2 q130 k130 d64 causal : dilated rates=1,2,3 segments=32,64,130",
                           "forward bf16 b2 h8/2 q130 k130 d64 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=8 w=20",
                           "forward bf16 b2 h4/2 q130 k130 d64 causal : adaptive block=16 density=0.3 hidden=24"})
    for (const Backend* b : takers(case_of(line).problem, gpu_)) {
      SCOPED_TRACE(join(b->name, ": ", line));
      Placed on(line, 0);
      ASSERT_EQ(on.plan_for(*b, gpu_).message, "");
      if (!on.fits() || b->name == "vendor_cudnn") continue;  // cuDNN's behaviour in an invalid capture is not ours
      const Written before = on.fresh(stream_.get());
      ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      EXPECT_NE(cudaStreamSynchronize(stream), cudaSuccess);  // invalidates the capture
      (void)cudaGetLastError();
      const std::string said = on.run(stream_.get()).message;
      cudaGraph_t graph = nullptr;
      EXPECT_NE(cudaStreamEndCapture(stream, &graph), cudaSuccess);
      (void)cudaGetLastError();
      EXPECT_TRUE(said.starts_with(join(b->name, ": "))) << said;
      EXPECT_TRUE(said.ends_with(join(", in: ", name(on.problem())))) << said;
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "an error is left behind for the next call to find";
      EXPECT_EQ(on.fresh(stream_.get()), before);
    }
}

// An invalid address stops the GPU for the whole process, so the test runs in another process.
TEST_F(Errors, a_fault_in_a_kernel_is_a_sentence_of_the_next_call) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto fault = [&] {
    Placed on(kForward, 0);
    if (!on.plan_for(*find_backend("sm80_forward"), gpu_).ok()) std::exit(1);
    on.args()[Role::k].data = reinterpret_cast<void*>(uintptr_t(4096));
    if (!on.run(stream_.get()).ok()) std::exit(2);
    if (cuda::wait(stream_.get()).ok()) std::exit(3);
    std::fprintf(stderr, "%s\n", on.run(stream_.get()).message.c_str());
    std::_Exit(0);
  };
  EXPECT_EXIT(fault(), testing::ExitedWithCode(0),
              "sm80_forward: cuda[A-Za-z]+: .*cudaError[A-Za-z]+.*, in: forward bf16 b2");
}

TEST_F(Errors, out_of_memory_is_a_sentence_and_leaves_everything_usable) {
  Placed on(kSplit, 0);
  ASSERT_EQ(on.plan_for(*find_backend("sm80_forward"), gpu_).message, "");
  const Written before = on.fresh(stream_.get());
  size_t free = 0, all = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &all), cudaSuccess);
  cuda::Memory too_much;
  const std::string said = too_much.allocate(0, all * 2).message;
  EXPECT_EQ(said, join("cudaMalloc: out of memory (cudaErrorMemoryAllocation) for ", all * 2, " bytes on cuda:0"));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  {
    std::vector<cuda::Memory> full;  // takes the remaining memory, down to less than a megabyte
    for (size_t bytes = free; bytes >= size_t(1) << 20;) {
      cuda::Memory more;
      if (more.allocate(0, bytes).ok()) full.push_back(std::move(more));
      else bytes /= 2;
    }
    EXPECT_FALSE(full.empty());
    EXPECT_EQ(on.fresh(stream_.get()), before) << "a run that needs no memory of its own, on a full GPU";
    for (const Backend* b : takers(on.problem(), gpu_)) {
      Plan plan;
      EXPECT_EQ(plan_on(*b, on.problem(), gpu_, plan).message, "") << "planning takes no memory";
    }
  }
  for (const Backend* b : takers(on.problem(), gpu_)) {
    Placed again(kSplit, 0);
    ASSERT_EQ(again.plan_for(*b, gpu_).message, "") << b->name;
    if (again.fits()) again.fresh(stream_.get());
  }
  EXPECT_EQ(on.fresh(stream_.get()), before);
}

}  // namespace
}  // namespace attune
