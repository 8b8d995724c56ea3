// SPDX-License-Identifier: Apache-2.0
// A file that is not there: one sentence and one exit code, in every command that reads it.
#include <gtest/gtest.h>

#include "tests/tool/records.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

std::string a_run() {
  const std::string path = temporary("run.jsonl");
  std::ofstream(path) << to_json(record("cpu_forward", 64, 1e6)) << "\n";
  return path;
}

void is_missed(const std::vector<std::string>& words) {
  const Ran r = attune_says(words);
  const std::string path = temporary("nowhere");
  std::string line = "attune";
  for (const std::string& w : words) line += " " + w;
  EXPECT_EQ(r.code, 3) << line << "\n" << r.err;
  EXPECT_TRUE(r.err.starts_with("attune " + words[0] + ": ")) << line << "\n" << r.err;
  EXPECT_TRUE(has(r.err, path + "' cannot be read: No such file or directory")) << line << "\n" << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << line << "\n" << r.err;
  EXPECT_EQ(r.out, "") << line;
}

TEST(MissingFile, of_records_is_code_3_in_every_command) {
  const std::string nowhere = temporary("nowhere"), here = a_run(), bars = temporary("bars.toml");
  std::ofstream(bars) << "[[bar]]\nname = \"a\"\nsubject = \"cpu_forward\"\ntflops = 1\n";
  is_missed({"verify", nowhere});
  is_missed({"compare", nowhere, here});
  is_missed({"compare", here, nowhere});
  is_missed({"compare", nowhere, "--baseline", "release"});
  is_missed({"bars", bars, nowhere});
  is_missed({"report", nowhere});
  is_missed({"report", here, "--baseline", nowhere});
  is_missed({"scaling", nowhere});
  is_missed({"cost", nowhere, "--prices", bars});
  is_missed({"store", nowhere, "--db", temporary("store.db")});
  is_missed({"tune", nowhere, "--out", temporary("out.tsv")});
  is_missed({"tune", here, "--check", nowhere, "--out", temporary("out.tsv")});
  is_missed({"tune", nowhere, "--between", "a,b"});
}

TEST(MissingFile, of_anything_else_that_is_read_is_code_3_too) {
  const std::string nowhere = temporary("nowhere"), here = a_run();
  is_missed({"bars", nowhere, here});
  is_missed({"bench", "--lines", nowhere});
  is_missed({"cost", here, "--prices", nowhere});
  is_missed({"verify", here, "--signers", nowhere});
  is_missed({"bench", "forward f32 b1 h1 q8 k8 d8 full", "--out", temporary("new.jsonl"), "--sign", nowhere});
  EXPECT_FALSE(std::filesystem::exists(temporary("new.jsonl")));
  const Ran r = attune_says({"compare", here, "--baseline", "nobody"}, {"ATTUNE_STORE=" + temporary("none.db")});
  EXPECT_EQ(r.code, 3);
  EXPECT_TRUE(has(r.err, "attune compare: baseline 'nobody' not found: ")) << r.err;
}

TEST(MissingFile, a_folder_or_a_device_cannot_be_read_either) {
  const std::string folder = temporary("");
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"verify", folder}, {"compare", folder, a_run()}, {"report", folder}, {"report", "/dev/zero"},
           {"scaling", folder}, {"cost", folder, "--prices", folder}, {"store", folder, "--db", temporary("store.db")},
           {"tune", folder, "--out", temporary("out.tsv")}, {"profile", folder}, {"profile", "/dev/null"},
           {"profile", temporary("nowhere")}}) {
    const Ran r = attune_says(words);
    EXPECT_EQ(r.code, 3) << words[0] << " " << words[1] << "\n" << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  }
}

TEST(MissingFile, of_signers_says_what_is_accepted) {
  const std::string empty = temporary("empty");
  std::ofstream{empty};
  const Ran none = attune_says({"verify", a_run(), "--signers", temporary("nowhere")});
  EXPECT_EQ(none.err, "attune verify: --signers: '" + temporary("nowhere") + "' cannot be read: No such file or "
                      "directory; accepted is a file of allowed signers, see ssh-keygen(1)\n");
  const Ran nobody = attune_says({"verify", a_run(), "--signers", empty});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_EQ(nobody.err, "attune verify: --signers: '" + empty + "' is empty; accepted is a file of allowed signers, "
                        "see ssh-keygen(1)\n");
  EXPECT_EQ(nobody.out, "");
}

TEST(MissingFile, a_file_with_wrong_content_is_code_1) {
  const std::string wrong = temporary("wrong.jsonl");
  std::ofstream(wrong) << "{}\n";
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"verify", wrong}, {"compare", wrong, wrong}, {"report", wrong}, {"scaling", wrong},
           {"cost", wrong, "--prices", wrong},
           {"store", wrong, "--db", temporary("store.db")}, {"tune", wrong, "--out", temporary("out.tsv")}})
    EXPECT_EQ(attune_says(words).code, 1) << words[0];
}

}  // namespace
}  // namespace attune
