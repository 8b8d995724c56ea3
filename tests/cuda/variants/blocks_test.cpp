// SPDX-License-Identifier: Apache-2.0
// Block lists built on a GPU equal those of the CPU bit for bit, and a captured graph rebuilds them.
#include "tests/asked.h"
#include "tests/cuda/gpu.h"
#include "tests/variants/lists.h"

namespace attune {
namespace {

class BlocksOnGpu : public OnGpu {
 protected:
  // The lists of `cpu`, built on the GPU.
  struct Twin {
    Lists lists;
    cuda::Memory memory{};
    size_t used = 0;

    std::byte* take(size_t bytes) {
      std::byte* at = memory.data() + used;
      return used += (bytes + 255) / 256 * 256, at;
    }
    template <class T>
    T* send(const std::vector<T>& v, void* stream) {
      auto* at = reinterpret_cast<T*>(take(v.size() * sizeof(T)));
      EXPECT_EQ(cuda::copy_to(at, v.data(), v.size() * sizeof(T), stream).message, "");
      return at;
    }
    template <class T>
    void fetch(std::vector<T>& v, const void* at, void* stream) {
      EXPECT_EQ(cuda::copy_from(v.data(), at, v.size() * sizeof(T), stream).message, "");
    }
  };

  void place(Twin& t, const std::vector<uint8_t>& mask = {}) {
    Lists& l = t.lists;
    void* stream = stream_.get();
    const size_t bytes = (l.begin.size() + l.begin_k.size() + 2 * l.column.size() + 16) * sizeof(int32_t) + mask.size();
    const cuda::DeviceGuard use(0);
    ASSERT_EQ(t.memory.allocate(0, bytes + 4096).message, "");
    l.place();
    l.args[Role::block_begin].data = t.send(l.begin, stream);
    l.args[Role::block_column].data = t.send(l.column, stream);
    l.args[Role::block_begin_k].data = t.send(l.begin_k, stream);
    l.args[Role::block_row_k].data = t.send(l.row_of_key, stream);
    l.source.counts = t.send(l.numbers, stream);
    if (!mask.empty()) l.source.mask.data = t.send(mask, stream);
    for (const Role r : {Role::block_begin, Role::block_column, Role::block_begin_k, Role::block_row_k})
      l.args[r].device = DeviceKind::cuda;
  }
  void fetch(Twin& t) {
    Lists& l = t.lists;
    const cuda::DeviceGuard use(0);
    void* stream = stream_.get();
    t.fetch(l.begin, l.args[Role::block_begin].data, stream);
    t.fetch(l.column, l.args[Role::block_column].data, stream);
    t.fetch(l.begin_k, l.args[Role::block_begin_k].data, stream);
    t.fetch(l.row_of_key, l.args[Role::block_row_k].data, stream);
    t.fetch(l.numbers, l.source.counts, stream);
  }
  static void expect_same(const Lists& gpu, const Lists& cpu) {
    EXPECT_EQ(gpu.begin, cpu.begin);
    EXPECT_EQ(gpu.column, cpu.column);
    EXPECT_EQ(gpu.begin_k, cpu.begin_k);
    EXPECT_EQ(gpu.row_of_key, cpu.row_of_key);
  }
};

constexpr const char* kTexts[] = {"dense",
                                  "local_window window=320",
                                  "dilated_rates rates=2,5,7",
                                  "dilated_offsets ratio=0.3 rates=1,2,4,8",
                                  "dilated_multiples strides=4,6",
                                  "global_local global=100 window=256 rows=1",
                                  "strided stride=3",
                                  "random density=0.17 seed=9",
                                  "hierarchical preset=ultra_sparse",
                                  "streaming sink=70 local=200",
                                  "random density=0.3 seed=4 kinds=sparse,dense,streaming sink=64 local=64"};

TEST_F(BlocksOnGpu, every_pattern_is_the_cpus_bit_for_bit) {
  for (const char* line : {"forward f32 b2 h3 q4096 k4096 d64 causal blocks64x64x1",
                           "forward f32 b1 h6 q1000 k3010 d64 causal blocks64x64x1",
                           "forward f32 b1 h3 q3000 k2000 d64 full blocks128x64x1",
                           "forward f32 b1 h1 q49000 k49000 d64 window1000,70 blocks16x16x1",
                           "forward f32 b1 h1 q1 k1 d64 full blocks64x64x1"})
    for (const char* text : kTexts) {
      SCOPED_TRACE(join(text, " in ", line));
      Lists cpu(problem(line), text);
      Twin gpu{Lists(problem(line), text)};
      ASSERT_EQ(cpu.build().message, "");
      ASSERT_NO_FATAL_FAILURE(place(gpu));
      ASSERT_EQ(build_blocks(gpu.lists.problem, gpu.lists.args, gpu.lists.source, stream_.get()).message, "");
      fetch(gpu);
      expect_same(gpu.lists, cpu);
      EXPECT_EQ(gpu.lists.numbers, cpu.numbers);
    }
}

TEST_F(BlocksOnGpu, a_mask_and_a_bound_that_is_too_small_are_the_cpus) {
  const Problem p = problem("forward f32 b2 h3 q700 k900 d64 causal blocks64x64x1");
  for (const int bound : {0, 100}) {
    Lists cpu(p, "dense");
    Twin gpu{Lists(p, "dense")};
    const int rows = cpu.rows(), columns = cpu.columns();
    std::vector<uint8_t> mask(size_t(2 * 3 * rows * columns));
    for (size_t n = 0; n < mask.size(); ++n) mask[n] = uint8_t(n * n % 3 == 1 ? 200 : 0);
    for (Lists* l : {&cpu, &gpu.lists}) {
      if (bound) l->problem.mask.blocks.bound = bound;
      l->source.origin = BlockOrigin::mask;
      l->source.mask = {mask.data(), int64_t(3) * rows * columns, int64_t(rows) * columns, columns};
    }
    ASSERT_EQ(cpu.build().message, "");
    ASSERT_NO_FATAL_FAILURE(place(gpu, mask));
    ASSERT_EQ(build_blocks(gpu.lists.problem, gpu.lists.args, gpu.lists.source, stream_.get()).message, "");
    fetch(gpu);
    expect_same(gpu.lists, cpu);
    EXPECT_EQ(gpu.lists.numbers, cpu.numbers);
  }
}

TEST_F(BlocksOnGpu, lists_of_the_caller_are_turned_round_and_wrong_ones_stay_inside) {
  const Problem p = problem("forward f32 b1 h1 q256 k256 d64 full blocks64x64x1");
  const std::vector<std::vector<int32_t>> begins = {{0, 3, 3, 5, 6}, {-5, 3, 100000, 2, 6}};
  for (const auto& begin : begins) {
    Lists cpu(p, "dense");
    Twin gpu{Lists(p, "dense")};
    for (Lists* l : {&cpu, &gpu.lists}) {
      l->begin = begin, l->column = {2, 0, 3, 3, 0, 1};
      l->problem.mask.blocks.bound = 6;
      l->source.origin = BlockOrigin::lists;
      l->row_of_key.assign(6, -7);
      if (begin[0] < 0) l->column[2] = 1 << 30;
    }
    ASSERT_NO_FATAL_FAILURE(place(gpu));
    ASSERT_EQ(build_blocks(gpu.lists.problem, gpu.lists.args, gpu.lists.source, stream_.get()).message, "");
    fetch(gpu);
    if (begin[0] < 0) continue;  // writes outside are left to the sanitizer
    ASSERT_EQ(cpu.build().message, "");
    expect_same(gpu.lists, cpu);
    EXPECT_EQ(gpu.lists.numbers, cpu.numbers);
  }
}

TEST_F(BlocksOnGpu, a_graph_builds_them_anew_at_every_replay) {
  const Problem p = problem("forward f32 b1 h2 q2048 k2048 d64 causal blocks64x64x1");
  Lists cpu(p, "random density=0.2 seed=2");
  Twin gpu{Lists(p, "random density=0.2 seed=2")};
  ASSERT_EQ(cpu.build().message, "");
  ASSERT_NO_FATAL_FAILURE(place(gpu));
  const auto stream = static_cast<cudaStream_t>(stream_.get());
  cudaGraph_t graph{};
  cudaGraphExec_t ready{};
  ASSERT_EQ(build_blocks(gpu.lists.problem, gpu.lists.args, gpu.lists.source, stream).message, "");
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(build_blocks(gpu.lists.problem, gpu.lists.args, gpu.lists.source, stream).message, "");
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(gpu.lists.args[Role::block_column].data, 0xFF, cpu.column.size() * 4, stream), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
  fetch(gpu);
  expect_same(gpu.lists, cpu);
  EXPECT_EQ(gpu.lists.numbers, cpu.numbers);
  (void)cudaGraphExecDestroy(ready), (void)cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace attune
