// SPDX-License-Identifier: Apache-2.0
#include "machine/host.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdint>
#include <cstring>
#include <thread>

#include "machine/library.h"

namespace attune {
namespace {

TEST(Host, cpu_name_is_the_model_or_the_core) {
  EXPECT_EQ(cpu_name("processor : 0\nmodel name\t: Xeon(R) 8481C \nmodel name : other\n"), "Xeon(R) 8481C");
  EXPECT_EQ(cpu_name("CPU implementer\t: 0x41\nCPU variant\t: 0x1\nCPU part\t: 0xd40\n"), "Neoverse-V1");
  EXPECT_EQ(cpu_name("CPU implementer\t: 0x61\nCPU part\t: 0x022\n"), "Apple M1");
  EXPECT_EQ(cpu_name("CPU implementer\t: 0x99\nCPU part\t: 0xd40\n"), "Arm implementer 0x99 part 0xd40");
  EXPECT_EQ(cpu_name(""), "unknown CPU");
}

TEST(Host, quota_rounds_up_and_max_is_no_limit) {
  EXPECT_EQ(quota_threads("max 100000\n"), 0);
  EXPECT_EQ(quota_threads("200000 100000\n"), 2);
  EXPECT_EQ(quota_threads("150000 100000\n"), 2);
  EXPECT_EQ(quota_threads("100000 100000"), 1);
  EXPECT_EQ(quota_threads("1000 100000"), 1);
  EXPECT_EQ(quota_threads("-1\n 100000"), 0);
  EXPECT_EQ(quota_threads("100000 0"), 0);
  EXPECT_EQ(quota_threads(" "), 0);
  EXPECT_EQ(quota_threads(""), 0);
}

TEST(Host, threads_follow_the_affinity_unless_set) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  const int allowed = default_threads();
  EXPECT_GE(allowed, 1);
  EXPECT_LE(allowed, CPU_COUNT(&mask));
  set_threads(7);
  EXPECT_EQ(default_threads(), 7);
  EXPECT_EQ(this_cpu().units, 7);
  set_threads(-3);
  EXPECT_EQ(default_threads(), allowed);
  set_threads(0);
  EXPECT_EQ(this_cpu().units, allowed);
}

TEST(Host, this_cpu_has_what_every_such_processor_has) {
  const Device cpu = this_cpu();
  EXPECT_EQ(cpu.kind, DeviceKind::cpu);
  EXPECT_FALSE(cpu.name.empty());
  EXPECT_TRUE(cpu.has(Feature::blas));  // it may be opened
#if defined(__aarch64__)
  EXPECT_TRUE(cpu.has(Feature::neon));
  EXPECT_FALSE(cpu.has(Feature::avx2));
#else
  EXPECT_FALSE(cpu.has(Feature::neon));
  EXPECT_LE(cpu.has(Feature::avx512), cpu.has(Feature::avx2));
  EXPECT_LE(cpu.has(Feature::avx512_bf16), cpu.has(Feature::avx512));
  EXPECT_LE(cpu.has(Feature::amx_bf16), cpu.has(Feature::avx512));
#endif
}

TEST(Host, a_level_keeps_what_is_below_it_and_blas) {
  const Device all = this_cpu();
  Device cpu;
  ASSERT_TRUE(device_named("cpu", cpu).ok());
  EXPECT_EQ(cpu.features, all.features);
  EXPECT_EQ(cpu.name, all.name);
  ASSERT_TRUE(device_named("cpu:scalar", cpu).ok());
  EXPECT_EQ(cpu.features, all.features & bit(Feature::blas));
  EXPECT_EQ(cpu.name, all.name + " (scalar)");
  for (int n = 0; n < int(Feature::blas); ++n) {
    const std::string word = "cpu:" + name(Feature(n));
    const Status s = device_named(word, cpu);
    const uint32_t up_to = bit(Feature(n)) * 2 - 1;
    ASSERT_TRUE(s.ok() || !all.has(Feature(n))) << word;
    if (s.ok()) {
      EXPECT_TRUE(cpu.has(Feature(n))) << word;
      EXPECT_EQ(cpu.features & ~(up_to | bit(Feature::blas)), 0u) << word;
      EXPECT_EQ(all.features & (up_to | bit(Feature::blas)) & ~cpu.features, 0u) << word;
    } else {
      EXPECT_EQ(s.message.find("device '" + word + "': this CPU (" + all.name + ") has only scalar"), 0u) << s.message;
      EXPECT_EQ(s.code, Code::unsupported) << word;
    }
  }
}

TEST(Host, unknown_words_are_refused_with_what_is_accepted) {
  Device device;
  EXPECT_EQ(device_named("cpu:mmx", device).message,
            "device 'cpu:mmx': mmx is not one of scalar, neon, neon_bf16, avx2, avx512, avx512_bf16, amx_bf16");
  EXPECT_FALSE(device_named("cpu:blas", device).ok());
  EXPECT_FALSE(device_named("cpu:", device).ok());
  const std::string message = device_named("tpu", device).message;
  EXPECT_EQ(message.find("device 'tpu' is unknown; accepted: cpu, cpu: with one of scalar"), 0u) << message;
  EXPECT_NE(message.find("h200"), message.npos) << message;
  ASSERT_TRUE(device_named("h200", device).ok());
  EXPECT_EQ(device.arch, 90);
}

TEST(Scratch, begins_with_a_line_and_a_large_one_with_a_large_page) {
  for (const size_t bytes : {size_t(1), size_t(100), size_t(2) << 20, (size_t(5) << 20) + 1}) {
    void* const data = take_scratch(bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (bytes < (size_t(2) << 20) ? 64 : size_t(2) << 20), 0u) << bytes;
    std::memset(data, 1, bytes);
    free_scratch(data);
  }
}

TEST(Scratch, that_no_machine_has_is_null) {
  EXPECT_EQ(take_scratch(SIZE_MAX), nullptr);
  EXPECT_EQ(take_scratch(SIZE_MAX / 2), nullptr);
}

}  // namespace
}  // namespace attune
