// SPDX-License-Identifier: Apache-2.0
// Words of --on, and remote.toml.
#include "tool/remote/target.h"

#include <gtest/gtest.h>

#include "tests/tool/spawn.h"
#include "tool/files.h"

namespace attune {
namespace {

Target good(const std::string& word) {
  Target t;
  const Status s = parse_target(word, {}, t);
  EXPECT_TRUE(s.ok()) << s.message;
  return t;
}
std::string refusal(const std::string& word) {
  Target t;
  return parse_target(word, {}, t).message;
}

TEST(Target, a_word_has_a_kind_a_place_and_a_port) {
  EXPECT_EQ(good("local").kind, "local");
  EXPECT_EQ(good("ssh:me@box").place, "me@box");
  EXPECT_EQ(good("ssh:me@box:2222").port, 2222);
  EXPECT_EQ(good("ssh:box").place, "box");
  EXPECT_EQ(good("ssh:me@[::1]:22").place, "me@::1");
  EXPECT_EQ(good("ssh:me@[::1]").place, "me@::1");
  EXPECT_EQ(good("slurm:gpu").place, "gpu");
  const Target through = good("slurm:gpu@ssh:me@login:2022");
  EXPECT_EQ(through.place, "gpu");
  EXPECT_EQ(through.through, "me@login");
  EXPECT_EQ(through.port, 2022);
  EXPECT_EQ(good("prime:H200").gpu, "H200");
}

TEST(Target, a_word_that_could_be_an_option_or_code_is_refused) {
  for (const char* word :
       {"ssh:-oProxyCommand=x", "ssh:me@-box", "ssh:a b", "ssh:$(x)", "ssh:", "slurm:a;b", "slurm:-x", "prime:", "box",
        "", "local:x", "ssh:me@box:0", "ssh:me@box:65536", "ssh:me@box:22x"})
    EXPECT_TRUE(has(refusal(word), "--on: ")) << word << ": " << refusal(word);
}

TEST(Target, settings_name_targets_and_a_mistake_has_its_line) {
  const std::string path = temporary("remote.toml");
  const auto read = [&](const std::string& text, RemoteSettings& out) {
    EXPECT_TRUE(write_file(path, text).ok());
    return read_remote_settings(path, out).message;
  };
  RemoteSettings all;
  EXPECT_EQ(read("max_usd = 5\n[targets.box]\non = \"ssh:me@10.0.0.7\"\ngpu = \"H100\"\nusd_an_hour = 2.5\n", all), "");
  Target t;
  EXPECT_TRUE(parse_target("box", all, t).ok());
  EXPECT_EQ(t.place + t.gpu + t.name, "me@10.0.0.7H100box");
  EXPECT_EQ(t.usd_an_hour, 2.5);
  EXPECT_EQ(all.max_usd, 5);
  EXPECT_TRUE(has(parse_target("bax", all, t).message, "did you mean box?"));
  EXPECT_EQ(read("max_usd = \"x\"\n", all), path + ":1: max_usd: accepted is a number of at least 0");
  EXPECT_TRUE(has(read("[targets.box]\nonn = \"local\"\n", all), "did you mean on?"));
  EXPECT_TRUE(has(read("[targets.box]\ngpu = \"H100\"\n", all), "'on' is missing"));
  EXPECT_TRUE(has(read("[targets.box]\non = \"ssh:-x\"\n", all), "is not a host"));
  EXPECT_TRUE(has(read("targets = 3\n", all), "accepted are tables"));
  for (const char* gpus : {"1e300", "1.5", "-1", "nan", "2000"})
    EXPECT_TRUE(has(read(join("[targets.box]\non = \"local\"\ngpus = ", gpus, "\n"), all), "gpus: accepted is a"))
        << gpus;
  // A limit of nothing is a mistake, and a machine that is rented is not free.
  EXPECT_EQ(read("max_minutes = 0\n", all), path + ":1: max_minutes: 0 given; accepted is a number above 0");
  EXPECT_EQ(read("max_usd = 0.0\n", all), path + ":1: max_usd: 0 given; accepted is a number above 0");
  for (const char* on : {"prime:H100", "modal:L4", "sky:aws"})
    EXPECT_TRUE(has(read(join("[targets.box]\non = \"", on, "\"\nusd_an_hour = 0\n"), all),
                    "usd_an_hour: 0 given; a machine of ")) << on;
  EXPECT_EQ(read("[targets.box]\non = \"ssh:box\"\nusd_an_hour = 0\n", all), "");
}

TEST(Target, a_name_for_files_has_no_other_characters) {
  EXPECT_EQ(file_word("ssh:me@box:22"), "ssh-me-box-22");
  EXPECT_EQ(file_word("../.."), "target");
}

}  // namespace
}  // namespace attune
