// SPDX-License-Identifier: Apache-2.0
#include "machine/known_gpus.h"

#include <gtest/gtest.h>

namespace attune {
namespace {

TEST(KnownGpus, a_gpu_is_known_by_the_name_its_driver_says) {
  for (const std::string_view said : {"NVIDIA H100 80GB HBM3", "h100 80gb hbm3", "H100", "nvidia-h100"}) {
    const KnownGpu* const gpu = known_gpu(said);
    ASSERT_TRUE(gpu) << said;
    EXPECT_EQ(gpu->word, "h100") << said;
  }
  EXPECT_EQ(known_gpu("GeForce RTX 4090")->word, "rtx4090");
  EXPECT_EQ(known_gpu("T4")->name, "Tesla T4");
  EXPECT_FALSE(known_gpu("") || known_gpu("NVIDIA") || known_gpu("H1000"));
  for (const std::string_view word : {"t4", "a100", "h200"}) {
    const KnownGpu& gpu = *known_gpu(word);
    EXPECT_TRUE(gpu.mib > 10000 && gpu.gbs >= 300 && known_gpu(gpu.name) == &gpu) << word;
  }
}

}  // namespace
}  // namespace attune
