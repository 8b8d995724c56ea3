// SPDX-License-Identifier: Apache-2.0
// Host-side decisions of a GPU measurement: how many sets of inputs to rotate, flushes, modes, the meaning of NVML's
// bits. Without a GPU, all of it refuses with a message.
#include "tool/timing/device_timer.h"

#include <gtest/gtest.h>

#include "machine/host.h"
#include "tool/timing/ceilings.h"
#include "tool/subjects/gpu_workload.h"

namespace attune {
namespace {

constexpr double kL2 = 50e6, kRoom = 100e9;

TEST(Rotation, leaves_five_caches_between_a_set_and_its_return) {
  EXPECT_EQ(rotation(300e6, kL2, kRoom), 1);  // one set alone exceeds everything that could stay cached
  EXPECT_EQ(rotation(250e6, kL2, kRoom), 1);
  EXPECT_EQ(rotation(100e6, kL2, kRoom), 4);
  EXPECT_EQ(rotation(50e6, kL2, kRoom), 6);
  for (const double bytes : {5e6, 20e6, 60e6, 120e6}) EXPECT_GE((rotation(bytes, kL2, kRoom) - 1) * bytes, 5 * kL2);
}

TEST(Rotation, stays_within_memory_and_within_a_graph) {
  EXPECT_EQ(rotation(100e6, kL2, 250e6), 2);
  EXPECT_EQ(rotation(100e6, kL2, 1), 1);
  EXPECT_EQ(rotation(1, kL2, kRoom), 64);
}

TEST(Gate, opens_early_only_where_the_host_gets_further_ahead) {
  EXPECT_FALSE(is_ahead(2, 100e3, 500e3));   // two samples are not a lead
  EXPECT_TRUE(is_ahead(3, 150e3, 500e3));    // 50 us each on the host, 500 on the GPU
  EXPECT_FALSE(is_ahead(3, 150e3, 90e3));    // the GPU would catch up after a hiccup
  EXPECT_FALSE(is_ahead(16, 800e3, 20e3));
  EXPECT_FALSE(is_ahead(16, 800e3, 0));      // nothing measured yet
}

TEST(Flush, is_at_least_twice_the_cache) {
  EXPECT_EQ(flush_bytes(size_t(40) << 20), size_t(256) << 20);
  EXPECT_EQ(flush_bytes(size_t(128) << 20), size_t(256) << 20);
  EXPECT_EQ(flush_bytes(size_t(200) << 20), size_t(400) << 20);
}

TEST(Modes, are_words) {
  for (const Mode m : {Mode::warm, Mode::cold, Mode::graph}) {
    Mode again{};
    EXPECT_TRUE(parse(name(m), again).ok());
    EXPECT_EQ(again, m);
  }
  Mode m{};
  EXPECT_EQ(parse("hot", m).message, "--timing: 'hot' is not one of cold, warm, graph");
}

TEST(Nvml, names_what_slows_a_gpu_down_and_nothing_else) {
  EXPECT_EQ(cuda::slowed_by(0), "");
  EXPECT_EQ(cuda::slowed_by(0x1 | 0x2 | 0x10 | 0x100), "");  // idle, application clocks, boost, display
  EXPECT_EQ(cuda::slowed_by(0x4), "power cap");
  EXPECT_EQ(cuda::slowed_by(0x4 | 0x20), "power cap, thermal slowdown");
  EXPECT_EQ(cuda::slowed_by(0x40 | 0x80 | 0x8), "hardware slowdown, hardware thermal slowdown, power brake");
}

TEST(Nvml, refuses_a_gpu_that_is_not_here) {
  cuda::Nvml nvml;
  const Status s = nvml.open("ffff:ff:1f.7");
  EXPECT_EQ(s.message.rfind("NVML: ", 0), 0u) << s.message;
  EXPECT_FALSE(nvml.is_open());
  EXPECT_EQ(nvml.read().watts, 0);
  EXPECT_LT(nvml.joules(), 0);
}

TEST(Readings, keep_the_worst) {
  Readings r;
  r.add({.watts = 300, .celsius = 50, .reasons = 4});
  r.add({.watts = 200, .celsius = 60, .reasons = 1});
  EXPECT_EQ(r.watts, 300);
  EXPECT_EQ(r.celsius, 60);
  EXPECT_EQ(r.reasons, 5u);
}

TEST(Sustained, energy_is_shared_by_the_calls_and_watts_are_of_the_whole_time) {
  const Sustained s = sustained_of(2e9, 400, 1000, 2200);
  EXPECT_DOUBLE_EQ(s.ns, 5e6);
  EXPECT_DOUBLE_EQ(s.joules, 3);
  EXPECT_DOUBLE_EQ(s.watts, 600);
  for (const auto& [before, after] : {std::pair(-1., 2200.), {-1., -1.}, {1000., 1000.}, {1000., -1.}}) {
    const Sustained none = sustained_of(2e9, 400, before, after);  // no counter, or one that did not move
    EXPECT_DOUBLE_EQ(none.ns, 5e6);
    EXPECT_EQ(none.joules, 0);
    EXPECT_EQ(none.watts, 0);
  }
}

TEST(DeviceTimer, without_a_gpu_refuses_with_a_sentence) {
  int count = 0;
  if (cuda::count(count).ok()) GTEST_SKIP() << "there is a GPU here";
  DeviceTimer timer;
  EXPECT_NE(timer.open(0).message, "");
}

// In processor time, threads that share a CPU would count as separate CPUs: 16 times the threads would be 16 machines.
TEST(Ceilings, more_threads_than_cpus_are_not_more_machines) {
  const Device cpu = this_cpu();
  const Ceilings own = measure_ceilings(cpu, cpu.units, 0.05), many = measure_ceilings(cpu, 16 * cpu.units, 0.05);
  ASSERT_GT(own.f32.gflops, 0);
  EXPECT_LT(many.f32.gflops, 4 * own.f32.gflops);
  EXPECT_LT(many.bf16.gflops, 4 * own.bf16.gflops + 1);
}

TEST(Ceilings, of_a_type_are_at_least_those_of_f32) {
  const Ceilings gpu{.f32 = {"tf32", 400}, .f16 = {"f16", 800}, .bf16 = {"bf16", 790}};
  EXPECT_EQ(gpu.of(DType::bf16).gflops, 790);
  EXPECT_EQ(gpu.of(DType::f16).gflops, 800);
  EXPECT_EQ(gpu.of(DType::f32).gflops, 400);
  const Ceilings cpu{.f32 = {"fmla", 100}, .bf16 = {"bfmmla", 50}};
  EXPECT_EQ(cpu.of(DType::f16).gflops, 100);  // widened to f32
  EXPECT_EQ(cpu.of(DType::bf16).gflops, 100);
}

}  // namespace
}  // namespace attune
