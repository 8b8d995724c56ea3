// SPDX-License-Identifier: Apache-2.0
// Runs in a CUDA graph. Capture uses the strictest mode, where any allocation, synchronization or copy to the host in
// the process is an error. Replay follows changes of lengths, tables, positions and seeds on the GPU.
#include "machine/cuda/events.h"
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

class Graph : public OnGpu {
 protected:
  struct Exec {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ~Exec() {
      if (exec) (void)cudaGraphExecDestroy(exec);
      if (graph) (void)cudaGraphDestroy(graph);
    }
  };
  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_.get()); }

  // Returns "", or why the run could not be captured.
  std::string capture(const Placed& on, Exec& out) {
    if (cudaStreamBeginCapture(stream(), cudaStreamCaptureModeGlobal) != cudaSuccess) return "cudaStreamBeginCapture";
    const Status s = on.run(stream_.get());
    const cudaError_t ended = cudaStreamEndCapture(stream(), &out.graph);
    if (!s.ok()) return s.message;
    if (ended != cudaSuccess) return join("cudaStreamEndCapture: ", cudaGetErrorString(ended));
    const cudaError_t made = cudaGraphInstantiate(&out.exec, out.graph, 0);
    return made == cudaSuccess ? "" : join("cudaGraphInstantiate: ", cudaGetErrorString(made));
  }
  Written replay(Placed& on, const Exec& exec) {
    on.reset(stream_.get());
    EXPECT_EQ(cudaGraphLaunch(exec.exec, stream()), cudaSuccess);
    return on.results(stream_.get());
  }

  // Changes everything that may differ between steps, within the bounds of the problem.
  int change_everything(Placed& on) {
    const auto fewer = [](int64_t x, int) { return x - x / 4; };
    void* s = stream_.get();
    int changed = 0;
    changed += on.change(Role::used_k, fewer, s);
    changed += on.change(Role::used_q, fewer, s);
    changed += on.change(Role::left_pad, [](int64_t x, int) { return x + 1; }, s);
    // Sequences get shorter; the tokens at the end then belong to no sequence.
    changed += on.change(Role::cu_q, fewer, s);
    changed += on.change(Role::cu_k, fewer, s);
    changed += on.change(Role::positions, [](int64_t x, int n) { return n % 2 ? x + 3 : x; }, s);
    changed += on.change(Role::seed, [](int64_t x, int) { return x + 1; }, s);
    const int pages = on.args()[Role::page_table].extent.dim;
    // Swaps two pages of every sequence, as if they had been reallocated.
    std::vector<int64_t> before;
    on.change(Role::page_table, [&](int64_t x, int) { return before.push_back(x), x; }, s);
    changed += on.change(Role::page_table, [&](int64_t x, int n) {
      return pages < 2 || n % pages > 1 ? x : before[size_t(n ^ 1)];
    }, s) && pages > 1 && pages % 2 == 0;
    return changed;
  }

  void check(std::string_view line, bool changes) {
    int captured = 0;
    for (const Backend* b : takers(case_of(line).problem, gpu_)) {
      SCOPED_TRACE(join(b->name, ": ", line));
      Placed on(line, 0);
      ASSERT_EQ(on.plan_for(*b, gpu_).message, "");
      if (!on.fits()) continue;
      ASSERT_EQ(on.run(stream_.get()).message, "");
      const Written eager = on.fresh(stream_.get());
      Exec exec;
      ASSERT_EQ(capture(on, exec), "");
      EXPECT_EQ(replay(on, exec), eager) << "the graph computes something else than the run";
      EXPECT_EQ(replay(on, exec), eager) << "the second replay differs from the first";
      if (changes) {
        ASSERT_GT(change_everything(on), 0) << "nothing to change";
        const Written again = replay(on, exec), wanted = on.fresh(stream_.get());
        EXPECT_NE(wanted, eager) << "the change does not matter, so it proves nothing";
        EXPECT_EQ(again, wanted) << "the graph kept something of the call that it was captured from";
      }
      ++captured;
    }
    EXPECT_GT(captured, 0) << "no backend ran " << line;
  }
};

TEST_F(Graph, a_plain_run_replays) {
  check("forward bf16 b2 h4/2 q130 k257 d64 causal", false);
  check("forward f16 b1 h2 q33 k65 d128 window9,4", false);
  check("forward f32 b1 h2 q33 k65 d64 causal", false);
  check("backward bf16 b2 h4/2 q130 k257 d64 causal repro=run", false);
}
TEST_F(Graph, keys_that_are_split_replay) { check("forward bf16 b1 h4/1 q1 k4096 d128 full", false); }
TEST_F(Graph, heads_that_are_divided_replay) { check("backward bf16 b1 h8/1 q130 k200 d128 causal repro=run", false); }
// One or two key tiles, so that dQ has the same bits in any order.
TEST_F(Graph, blocks_that_stay_replay) {
  check("backward bf16 b70 h4/2 q20 k128 d64 full", false);
  check("backward f16 b40 h4 q20 k128 d128 causal", false);
}
TEST_F(Graph, heads_that_idle_warps_prepare_replay) {
  check("backward bf16 b10 h30 q770 k16 d8 full", false);
  check("backward f16 b10 h30 q770 k16 d8/104 full", false);
}
TEST_F(Graph, pieces_of_tiles_replay) {
  check("backward bf16 b1 h2 q1500 k100 d8 full", false);
  check("backward f16 b1 h2 q1300 k128 d104/8 full", false);
}
TEST_F(Graph, a_fixed_order_of_few_keys_replays) {
  check("backward bf16 b9 h8 q70 k200 d8/104 causal repro=run", false);
  check("backward f16 b2 h4 q150 k500 d72/8 full repro=run", false);
  check("backward bf16 b2 h12 q300 k900 d8 causal repro=run", false);
  check("backward bf16 b8 h16 q130 k300 d8 full repro=run", false);
}
TEST_F(Graph, lengths_of_a_cache_may_change) { check("forward bf16 b3 h4/2 q5 k300 d64 causal | seed=2 cache", true); }
TEST_F(Graph, lengths_of_a_split_cache_may_change) { check("forward f16 b2 h4/1 q1 k2048 d128 full | cache", true); }
TEST_F(Graph, where_new_keys_go_may_change) {
  check("forward bf16 b3 h4/2 q2 k300 d64 causal append rotary | seed=2 cache", true);
  check("forward f16 b2 h4/2 q1 k256 d64 causal append rotary_half paged16", true);
  check("forward f32 b2 h2 q3 k64 d64 causal append", false);
}
TEST_F(Graph, queries_present_may_change) { check("forward bf16 b3 h2 q90 k90 d64 causal | seed=3 used_q", true); }
TEST_F(Graph, ragged_lengths_may_change) {
  check("forward bf16 b4 h4/2 q127 k127 d64 causal ragged | seed=2", true);
  check("backward bf16 b4 h4/2 q64 k96 d64 causal ragged repro=run | seed=2", true);
}
TEST_F(Graph, pages_and_lengths_may_change) {
  check("forward bf16 b3 h4/2 q1 k256 d128 full paged16 | seed=2", true);
  check("forward f16 b2 h4/2 q3 k2048 d64 causal paged64", true);
  check("backward bf16 b2 h2 q64 k64 d64 causal paged16 repro=run", true);
}
TEST_F(Graph, a_row_by_batch_may_change_its_length) {
  check("forward bf16 b3 h8/2 q1 k512 d128 full paged16 repro=batch | seed=2", true);
}
TEST_F(Graph, seed_and_offset_of_dropout_may_change) {
  check("forward bf16 b2 h2 q64 k128 d64 causal dropout", true);
  check("backward bf16 b2 h2 q64 k128 d64 causal dropout repro=run", true);
}
TEST_F(Graph, positions_may_change) { check("forward bf16 b2 h2 q40 k80 d64 causal@absolute", true); }
TEST_F(Graph, lengths_of_a_backward_may_change) {
  check("backward f16 b3 h4/2 q65 k129 d64 causal repro=run | seed=2 cache used_q", true);
}
TEST_F(Graph, a_composition_replays) {
  check("forward bf16 b2 h4/2 q130 k130 d64 causal : dilated rates=1,2,3 segments=32,64,130", false);
  check("backward bf16 b2 h4/2 q130 k130 d64 causal repro=run : dilated rates=1,2,3 segments=32,64,130", false);
  check("backward f16 b1 h4 q99 k99 d64 full repro=run : dilated norm=divide rates=1,3 segments=20,99", false);
  check("forward bf16 b2 h8/2 q130 k130 d64 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=8 w=20", false);
  check("backward bf16 b2 h8/2 q130 k130 d64 causal repro=run : nsa d=4 gate=softmax l=8 n=4 phi=conv s=8 w=20", false);
  check("forward bf16 b3 h8/2 q90 k90 d64 causal ragged : nsa d=4 gate=none l=8 n=4 phi=mean s=8 w=20 | seed=2", true);
  check("forward bf16 b2 h8/2 q1 k300 d64 causal : nsa d=4 gate=sigmoid l=8 n=4 phi=none s=8 w=20", true);
  check("forward bf16 b2 h4/2 q130 k130 d64 causal : adaptive block=16 density=0.3 hidden=24", false);
  check("forward bf16 b3 h4/2 q90 k120 d64 causal ragged : adaptive block=16 density=0.3 hidden=24 | seed=2", true);
}

TEST_F(Graph, recorded_for_a_timer_names_its_kernels) {
  cuda::Graph graph;
  ASSERT_EQ(cuda::Graph::begin(stream_.get()).message, "");
  ASSERT_EQ(cuda::launch_nothing(stream_.get()).message, "");
  ASSERT_EQ(graph.end(stream_.get()).message, "");
  int driver = 0;
  ASSERT_EQ(cudaDriverGetVersion(&driver), cudaSuccess);
  if (driver < 12030) GTEST_SKIP() << "requires a driver for CUDA 12030 or later, but this one is for " << driver;
  ASSERT_EQ(graph.kernels().size(), 1u);
  EXPECT_NE(graph.kernels()[0].find("nothing"), std::string::npos) << graph.kernels()[0];
}

// The capture mode does forbid allocations; otherwise the tests above would prove nothing.
TEST_F(Graph, a_capture_forbids_allocations) {
  ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeGlobal), cudaSuccess);
  void* place = nullptr;
  EXPECT_NE(cudaMalloc(&place, 256), cudaSuccess);
  EXPECT_NE(cudaStreamSynchronize(stream()), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
  (void)cudaGetLastError();
}

// A run outside a graph does not allocate either, once its kernels are loaded.
TEST_F(Graph, many_runs_take_no_memory) {
  for (const char* line : {"forward bf16 b1 h4/1 q1 k4096 d128 full", "backward bf16 b2 h4/2 q130 k257 d64 causal"})
    for (const Backend* b : takers(case_of(line).problem, gpu_)) {
      Placed on(line, 0);
      ASSERT_EQ(on.plan_for(*b, gpu_).message, "");
      if (!on.fits()) continue;
      // The driver reserves space for the parameters of pending launches: queue as many as below.
      for (int n = 0; n < 200; ++n) ASSERT_EQ(on.run(stream_.get()).message, "");
      ASSERT_EQ(cuda::wait_all(0).message, "");
      size_t before = 0, after = 0, all = 0;
      ASSERT_EQ(cudaMemGetInfo(&before, &all), cudaSuccess);
      for (int n = 0; n < 200; ++n) ASSERT_EQ(on.run(stream_.get()).message, "");
      ASSERT_EQ(cuda::wait_all(0).message, "");
      ASSERT_EQ(cudaMemGetInfo(&after, &all), cudaSuccess);
      EXPECT_EQ(before, after) << b->name << ": " << line;
    }
}

}  // namespace
}  // namespace attune
