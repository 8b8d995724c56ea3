// SPDX-License-Identifier: Apache-2.0
// Unreadable folders give a message with the folder, never the text of an exception. A symlink loop stands in for them,
// because missing permissions do not stop root.
#include <gtest/gtest.h>

#include "tests/tool/records.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

namespace fs = std::filesystem;
constexpr const char* kWhy = "cannot be read: Too many levels of symbolic links\n";

std::string circle() {
  std::error_code there;
  fs::create_symlink("circle", temporary("circle"), there);
  return temporary("circle");
}
std::string good() {
  std::ofstream(temporary("good.jsonl")) << to_json(record("cpu_forward", 512, 1000)) << "\n"
                                         << to_json(record("cpu_standard", 512, 3000)) << "\n"
                                         << to_json(record("cpu_forward", 1024, 1000)) << "\n"
                                         << to_json(record("cpu_standard", 1024, 3000)) << "\n";
  return temporary("good.jsonl");
}

TEST(Folders, of_the_user_that_cannot_be_looked_into) {
  const std::vector<std::string> home = {"XDG_CONFIG_HOME=" + circle()};
  const std::string in = circle() + "/attune/";
  const Ran tune = attune_says({"tune", good()}, home);
  EXPECT_EQ(tune.code, 1);
  EXPECT_EQ(tune.err, join("attune tune: '", in, "test-cpu.tsv' ", kWhy));
  const Ran compare = attune_says({"compare", good(), "--baseline", "main"}, home);
  EXPECT_EQ(compare.code, 3);
  EXPECT_EQ(compare.err, join("attune compare: records: '", in, "baselines/main.jsonl' ", kWhy));
}

TEST(Folders, that_are_named_and_cannot_be_looked_into) {
  const Ran out = attune_says({"tune", good(), "--out", circle()});
  EXPECT_EQ(out.code, 1);
  EXPECT_EQ(out.err, join("attune tune: '", circle(), "/test-cpu.tsv' ", kWhy));
  const Ran watch = attune_says({"tune", good(), "--watch", circle() + "/log", "--once"});
  EXPECT_EQ(watch.code, 3);
  EXPECT_EQ(watch.err, join("attune tune: --watch: ", circle(), "/log ", kWhy));
  const Ran serve = attune_says({"serve", circle() + "/r.jsonl", "--port", "0"});
  EXPECT_EQ(serve.code, 3);
  EXPECT_EQ(serve.err, join("attune serve: '", circle(), "/r.jsonl' is not a file in an existing folder\n"));
  const Ran profile = attune_says({"profile", circle() + "/a.out"});
  EXPECT_EQ(profile.code, 3);
  EXPECT_EQ(profile.err, join("attune profile: '", circle(), "/a.out' is not a file\n"));
  const Ran baseline = spawn({"env", "-C", temporary(""), "sh", "-c", "ln -sfn .attune .attune; exec \"$@\"", "sh",
                              ATTUNE_BUILD_DIR "/attune", "compare", good(), "--save", "main"},
                             {"XDG_CONFIG_HOME=" + temporary("mine")});
  EXPECT_EQ(baseline.code, 0) << baseline.err;  // not a folder: the user's default is used
  EXPECT_TRUE(fs::exists(temporary("mine/attune/baselines/main.jsonl")));
}

TEST(Folders, for_temporary_files_that_are_not_there) {
  for (const std::string& folder : {temporary("no/such"), good()}) {
    const Ran ran = attune_says({"profile"}, {"TMPDIR=" + folder});
    EXPECT_EQ(ran.code, 3);
    EXPECT_EQ(ran.err, "attune profile: cannot create a temporary folder\n");
  }
}

TEST(Folders, that_were_removed_while_one_was_in_them) {
  for (const char* const command : {"serve r.jsonl --port 0", "profile a.out"}) {
    const std::string gone = temporary("gone"), attune = ATTUNE_BUILD_DIR "/attune ";
    const Ran ran = spawn({"sh", "-c", join("mkdir ", gone, " && cd ", gone, " && rmdir ", gone, " && ", attune,
                                            command)});
    EXPECT_EQ(ran.code, 3) << ran.err;
    EXPECT_TRUE(has(ran.err, "' is not a file")) << ran.err;
  }
}

}  // namespace
}  // namespace attune
