// SPDX-License-Identifier: Apache-2.0
// The command without /proc: it cannot find its own file, and must not use the current folder instead, which may be
// untrusted.
#include <gtest/gtest.h>

#include "core/status.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

namespace fs = std::filesystem;

// Runs a shell line in a separate folder, where /proc is empty and `attune` is found through PATH.
Ran without_proc(const std::string& line) {
  fs::create_directories(temporary("work/peers"));
  const std::string hidden = "mount -t tmpfs none /proc && cd " + temporary("work") + " && ";
  return spawn({"unshare", "-m", "sh", "-c", hidden + line},
               {"PATH=" ATTUNE_BUILD_DIR ":/usr/sbin:/usr/bin:/sbin:/bin"});
}

class WithoutProc : public testing::Test {
 protected:
  void SetUp() override {
    if (without_proc("true").code != 0) GTEST_SKIP() << "/proc cannot be hidden here";
  }
};

TEST_F(WithoutProc, no_peer_is_hosted_by_a_script_of_the_current_folder) {
  std::ofstream(temporary("work/libattune_tool.so")) << "not ours";
  std::ofstream(temporary("work/peers/torch_peer.py")) << "print('opened')\n";
  for (const char* const attune : {"attune", ATTUNE_BUILD_DIR "/attune"}) {
    const Ran ran = without_proc(std::string(attune) + " bench 'forward f32 b1 h1 q16 k16 d8 full' --peer torch:sdpa");
    EXPECT_EQ(ran.code, 3) << ran.out << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_EQ(ran.err, "attune bench: --peer: cannot find this program and its command line: /proc is missing\n");
  }
}

TEST_F(WithoutProc, bench_records_nothing_about_the_load_that_it_cannot_know) {
  const Ran ran = without_proc("attune bench 'forward f32 b1 h1 q16 k16 d8 full' --json --max-seconds 0.05");
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_TRUE(has(ran.out, "\"load\":{\"seconds\":")) << ran.out;
  for (const char* const field : {"waited", "used", "others", "steal", "average", "runnable", "cpus"})
    EXPECT_FALSE(has(ran.out, join("\"", field, "\":"))) << field << ran.out;
  EXPECT_FALSE(has(ran.err, "busy")) << ran.err;
}

TEST_F(WithoutProc, profile_does_not_know_its_own_kernels) {
  for (const char* const more : {"", " --run 'forward f32 b1 h1 q16 k16 d8 full'"}) {
    const Ran ran = without_proc(std::string("attune profile") + more);
    EXPECT_EQ(ran.code, 3) << ran.out << ran.err;
    EXPECT_EQ(ran.err, "attune profile: cannot find the file of this program: /proc is missing\n");
  }
}

}  // namespace
}  // namespace attune
