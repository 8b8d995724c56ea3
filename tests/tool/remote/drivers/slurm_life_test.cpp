// SPDX-License-Identifier: Apache-2.0
// What a job's state means, by a `squeue` whose answer is given.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/tool/spawn.h"
#include "tool/files.h"
#include "tool/remote/drivers/drivers.h"

namespace attune {
namespace {

std::string life_by(const std::string& squeue) {
  const std::string folder = temporary("programs");
  std::filesystem::create_directories(folder);
  EXPECT_TRUE(write_file(folder + "/squeue", "#!/bin/sh\necho '" + squeue + "'\n").ok());
  std::filesystem::permissions(folder + "/squeue", std::filesystem::perms::owner_all);
  static const std::string path = std::getenv("PATH");
  setenv("PATH", (folder + ":" + path).c_str(), 1);
  setenv("XDG_CACHE_HOME", temporary("cache").c_str(), 1);
  const Target target{.name = "slurm:debug", .kind = "slurm", .place = "debug"};
  Life life = Life::pending;
  std::string why;
  const Status s = driver_of(target, "")->life({.name = "attune-20261119-130501-3fa2c1-0"}, life, why);
  EXPECT_EQ(s.message, "");
  const char* const names[] = {"pending", "ready", "gone", "failed"};
  return join(names[size_t(life)], ": ", why);
}

TEST(SlurmLife, is_read_from_the_state_of_the_job) {
  EXPECT_EQ(life_by("PENDING 0:00 Resources"), "pending: PENDING 0:00 Resources");
  EXPECT_EQ(life_by("PENDING 0:00 PartitionTimeLimit"),
            "failed: the job can never start: PENDING 0:00 PartitionTimeLimit");
  EXPECT_EQ(life_by("RUNNING 5:00 None"),
            "failed: the home folder of the login node is not that of the compute node");
  // It is listed so from its cancellation until its last process has ended.
  EXPECT_EQ(life_by("COMPLETING 0:10 None"), "failed: the job has ended");
}

}  // namespace
}  // namespace attune
